package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) sessionCommand() *cobra.Command {
	sessions := a.sessions()
	return group("session", "Create, list, show and end sessions",
		a.sessionCreate(), sessions.ls("ls", "List the sessions that were created"), sessions.shows(), sessions.completes(a.sessionEnd()))
}

func (a *app) sessions() noun[inventory.Session] {
	return noun[inventory.Session]{
		a: a, name: "session", one: "a session", plural: "sessions",
		id: func(s inventory.Session) string { return string(s.ID) },
		of: func(_ *link, view *registry.View) []inventory.Session { return inventory.Sessions(view) },
		missing: func(id string, _ []string) error {
			return refused(toolmesh.OriginMesh, toolmesh.CodeSessionNotFound, "session %q was not created; mesh session ls lists the existing ones", id)
		},
		none:    "no sessions were created; calls are in session default",
		columns: []string{"SESSION", "STATE", "TTL", "CREATED"},
		row: func(s inventory.Session) []string {
			return []string{string(s.ID), s.State, cmp.Or(s.TTL, "-"), localTime(s.Created)}
		},
		show: func(s inventory.Session) {
			pins := make(map[string]string, len(s.Pins))
			for name, rev := range s.Pins {
				pins[string(name)] = short(rev)
			}
			a.facts(
				"session", string(s.ID), "state", s.State, "epoch", s.Epoch, "created", localTime(s.Created),
				"ttl", cmp.Or(s.TTL, "-"), "pins", labelText(pins))
		},
	}
}

func (a *app) sessionCreate() *cobra.Command {
	var ttl time.Duration
	var pins []string
	var key bool
	cmd := &cobra.Command{
		Use: "create [NAME]", Short: "Create a session and print its id", Args: takes(0, 1, "at most a name"),
		RunE: runE(func(ctx context.Context, args []string) error {
			id := subjects.SessionID("session_" + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", ""))
			if len(args) > 0 {
				id = subjects.SessionID(args[0])
			}
			name, err := subjects.SessionKey(id)
			if err != nil {
				return usage(nil, "%q cannot be a session's name: %s", id, err.Error())
			}
			pinned, err := parsePins(pins)
			if err != nil {
				return err
			}
			return a.withRouter(ctx, func(ctx context.Context, l *link, view *registry.View, r *router.Router) error {
				if err := a.resolvePins(inventory.Indexes(view, l.session), pinned); err != nil {
					return err
				}
				create := func(public string) error {
					_, err := r.CreateSession(ctx, &router.SessionOptions{ID: id, TTL: ttl, Pins: pinned, Key: public})
					return err
				}
				file, seed := "", ""
				if key {
					file = name + ".nk"
					seed, err = a.newKey(ctx, l, id, file, create, func(ctx context.Context) error { return r.EndSession(ctx, id) })
				} else {
					err = create("")
				}
				if err != nil {
					return err
				}
				records, err := registry.NewStore(l.bus)
				if err != nil {
					return err
				}
				record, err := records.Session(ctx, id)
				if err != nil {
					return err
				}
				made := inventory.SessionOf(record)
				made.Token = seed
				a.say(made, id)
				if key {
					fmt.Fprintf(a.err, "its key is in %s: --nkey %s --session %s\n", file, shellQuote(file), shellQuote(string(id)))
				}
				return nil
			})
		}),
	}
	durationFlag(cmd, &ttl, "ttl", time.Second, "end it by itself after this `TIME` (default never)")
	cmd.Flags().StringArrayVar(&pins, "pin", nil, "note in the session that it is meant for `INDEX[@REV]`, by default the current revision; calls do not depend on it yet; may be repeated")
	cmd.Flags().BoolVar(&key, "key", false, "make a key for this session alone, which ends with it, in NAME.nk of this folder")
	return cmd
}

// newKey makes a session's key in a file, has tell make it known to the mesh, and tries it. What fails leaves no file;
// forget takes a key back that the NATS server refuses.
func (a *app) newKey(ctx context.Context, l *link, id subjects.SessionID, file string, tell func(public string) error, forget func(context.Context) error) (seed string, err error) {
	public, err := access.CreateSessionKey(file)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file)
		}
	}()
	text, err := os.ReadFile(file)
	if err == nil {
		err = tell(public)
	}
	if err != nil {
		return "", err
	}
	if err := a.tryKey(ctx, l.nc.ConnectedUrl(), id, file); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // also of an interrupted command
		defer cancel()
		return "", errors.Join(err, forget(ctx))
	}
	return string(text), nil
}

// tryKey connects with the key of a new session. The broker learns the key from the mesh, after a
// moment, or never if it does not ask.
func (a *app) tryKey(ctx context.Context, url string, id subjects.SessionID, file string) error {
	inbox, err := subjects.InboxPrefix(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		nc, _, err := connect.Connect(ctx, connect.Options{Settings: connect.Settings{URL: url, Nkey: file}, Name: "mesh", Inboxes: []string{inbox}})
		if err == nil {
			nc.Close()
			return nil
		}
		if !wake.After(ctx, 50*time.Millisecond) {
			return toolmesh.Errorf(toolmesh.CodePermissionDenied,
				"the NATS server does not take the session's key: one of your own must ask for it (mesh auth template --nats-conf), and agents or routers with --auth-issuer answer; or give the session a user there (docs/operations/nats.md): %w", err)
		}
	}
}

// parsePins reads INDEX[@REV]…; no revision means the installed one.
func parsePins(texts []string) (map[subjects.IndexName]string, error) {
	pins := make(map[subjects.IndexName]string)
	for _, text := range texts {
		name, rev, at := strings.Cut(text, "@")
		if name == "" || at && rev == "" {
			return nil, usage(nil, "--pin %s: write INDEX or INDEX@REV", text)
		}
		if _, twice := pins[subjects.IndexName(name)]; twice {
			return nil, usage(nil, "--pin names %s twice", name)
		}
		pins[subjects.IndexName(name)] = rev
	}
	return pins, nil
}

// resolvePins replaces pins by the full current revision. The registry can hold a session to no
// other revision.
func (a *app) resolvePins(all []inventory.Index, pins map[subjects.IndexName]string) error {
	for name, rev := range pins {
		x, err := a.indexes().find(all, string(name))
		if err != nil {
			return err
		}
		if !strings.HasPrefix(x.Revision, rev) {
			return refused(toolmesh.OriginMesh, toolmesh.CodeToolNotFound, "%s has no revision %s; it is at %s", name, rev, short(x.Revision))
		}
		pins[name] = x.Revision
	}
	return nil
}

// withRouter is withView with a router of the mesh, which sessions need. It creates no bucket.
func (a *app) withRouter(ctx context.Context, do func(context.Context, *link, *registry.View, *router.Router) error) error {
	return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
		r, err := router.New(l.nc, &router.Options{Session: l.session, Logger: a.log})
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		return do(ctx, l, view, r)
	})
}

func (a *app) sessionEnd() *cobra.Command {
	return &cobra.Command{
		Use: "end NAME", Short: "End a session: its tools, calls and streams go", Args: takes(1, 1, "a session"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withRouter(ctx, func(ctx context.Context, _ *link, _ *registry.View, r *router.Router) error {
				if err := r.EndSession(ctx, subjects.SessionID(args[0])); err != nil {
					return err
				}
				a.tell(map[string]any{"id": args[0]}, "ended %s", args[0])
				return nil
			})
		}),
	}
}
