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
			return toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q was not created; mesh session ls lists the existing ones", id).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		},
		none:    "no sessions were created; calls are in session default",
		columns: []string{"SESSION", "STATE", "TTL", "CREATED"},
		row: func(s inventory.Session) []string {
			return []string{string(s.ID), s.State, cmp.Or(s.TTL, "-"), s.Created.Local().Format(time.DateTime)}
		},
		show: func(s inventory.Session) {
			pins := make(map[string]string, len(s.Pins))
			for name, rev := range s.Pins {
				pins[string(name)] = short(rev)
			}
			a.facts(
				"session", string(s.ID), "state", s.State, "epoch", s.Epoch, "created", s.Created.Local().Format(time.DateTime),
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
			if _, err := subjects.SessionKey(id); err != nil {
				return usage(nil, "%q is no session: %s", id, err.Error())
			}
			pinned, err := parsePins(pins)
			if err != nil {
				return err
			}
			return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
				if err := a.resolvePins(inventory.Indexes(view, l.session), pinned); err != nil {
					return err
				}
				r, err := l.router(a)
				if err != nil {
					return err
				}
				defer func() { _ = r.Close() }()
				o := router.SessionOptions{ID: id, TTL: ttl, Pins: pinned}
				var file string
				if key {
					token, err := subjects.SessionKey(id)
					if err != nil {
						return err
					}
					file = token + ".nk"
					if o.Key, err = access.CreateSessionKey(file); err != nil {
						return err
					}
				}
				_, err = r.CreateSession(ctx, &o)
				if err == nil && key {
					if err = a.tryKey(ctx, l.nc.ConnectedUrl(), id, file); err != nil {
						err = errors.Join(err, r.EndSession(ctx, id))
					}
				}
				if err != nil {
					if key {
						_ = os.Remove(file)
					}
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
				if a.json {
					made := inventory.SessionOf(record)
					if key {
						seed, err := os.ReadFile(file)
						if err != nil {
							return err
						}
						made.Token = string(seed)
					}
					a.printJSON(made)
				} else {
					fmt.Fprintln(a.out, id)
				}
				if key {
					fmt.Fprintf(a.err, "its key is in %s: --nkey %s --session %s\n", file, file, id)
				}
				return nil
			})
		}),
	}
	durationFlag(cmd, &ttl, "ttl", time.Second, "end it by itself after this `TIME` (default never)")
	cmd.Flags().StringArrayVar(&pins, "pin", nil, "note in the session that it is meant for `INDEX[@REV]`, by default the revision of now; nothing holds it to that yet; may be repeated")
	cmd.Flags().BoolVar(&key, "key", false, "make a key that is good for this session alone and ends with it, in NAME.nk of this folder")
	cmd.Flags().SortFlags = false
	return cmd
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
		select {
		case <-ctx.Done():
			return toolmesh.Errorf(toolmesh.CodePermissionDenied,
				"the NATS server does not take the session's key: one of your own must ask for it (mesh auth template --nats-conf), and agents or routers with --auth-issuer answer; or give the session a user there (docs/operations/nats.md): %w", err)
		case <-time.After(50 * time.Millisecond):
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
			return toolmesh.Errorf(toolmesh.CodeToolNotFound, "%s has no revision %s; it is at %s", name, rev, short(x.Revision)).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		}
		pins[name] = x.Revision
	}
	return nil
}

// router joins the mesh for sessions and tokens, which need a router. It creates no bucket.
func (l *link) router(a *app) (*router.Router, error) {
	return router.New(l.nc, &router.Options{Session: l.session, Logger: a.log})
}

func (a *app) sessionEnd() *cobra.Command {
	return &cobra.Command{
		Use: "end NAME", Short: "End a session: its tools, calls and streams go", Args: takes(1, 1, "a session"),
		RunE: runE(func(ctx context.Context, args []string) error {
			id := subjects.SessionID(args[0])
			return a.withView(ctx, func(ctx context.Context, l *link, _ *registry.View) error {
				r, err := l.router(a)
				if err != nil {
					return err
				}
				defer func() { _ = r.Close() }()
				if err := r.EndSession(ctx, id); err != nil {
					return err
				}
				a.tell(map[string]any{"id": id}, "ended %s", id)
				return nil
			})
		}),
	}
}
