package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) sessionCommand() *cobra.Command {
	return group("session", "Create, list, show and end sessions",
		a.sessionCreate(), a.sessionLs(),
		a.completes(a.sessionShow(), viewNames(sessionNames)), a.completes(a.sessionEnd(), viewNames(sessionNames)))
}

// session is a line of `mesh session ls --json`.
type session struct {
	ID      subjects.SessionID            `json:"id"`
	Epoch   string                        `json:"epoch"`
	Created time.Time                     `json:"created"`
	TTL     string                        `json:"ttl,omitempty"`
	Pins    map[subjects.IndexName]string `json:"pins"`
	State   string                        `json:"state"`
}

func sessionOf(r registry.SessionRecord) session {
	s := session{ID: r.ID, Epoch: r.Epoch, Created: r.Created, Pins: r.Pins, State: "open"}
	if r.TTL > 0 {
		s.TTL = r.TTL.String()
	}
	if s.Pins == nil {
		s.Pins = map[subjects.IndexName]string{}
	}
	return s
}

func (a *app) sessionCreate() *cobra.Command {
	var ttl time.Duration
	var pins []string
	cmd := &cobra.Command{
		Use: "create [NAME]", Short: "Create a session and print its id", Args: takes(0, 1, "at most a name"),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("ttl") && ttl < time.Second {
				return usage(cmd, "--ttl is %v: it is at least 1s", ttl)
			}
			return nil
		},
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
			return a.withSessions(ctx, func(l *link, view *registry.View) error {
				if err := l.resolvePins(view, pinned); err != nil {
					return err
				}
				r, err := l.router(a)
				if err != nil {
					return err
				}
				defer func() { _ = r.Close() }()
				if _, err := r.CreateSession(ctx, &router.SessionOptions{ID: id, TTL: ttl, Pins: pinned}); err != nil {
					return err
				}
				record, err := registry.NewStore(l.bus).Session(ctx, id)
				if err != nil {
					return err
				}
				if a.json {
					a.printJSON(sessionOf(record))
				} else {
					fmt.Fprintln(a.out, id)
				}
				return nil
			})
		}),
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "end it by itself after this time (default never)")
	cmd.Flags().StringArrayVar(&pins, "pin", nil, "note in the session that it is meant for `INDEX[@REV]`, by default the revision of now; nothing holds it to that yet; may be repeated")
	cmd.Flags().SortFlags = false
	return cmd
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

// resolvePins fills in the revision of now, whole, also where it was given in
// part. Of no other revision the registry has anything to hold a session to.
func (l *link) resolvePins(view *registry.View, pins map[subjects.IndexName]string) error {
	all := l.indexesOf(view)
	for name, rev := range pins {
		at := slices.IndexFunc(all, func(x installed) bool { return x.Name == name })
		if at < 0 {
			return noIndex(string(name), all)
		}
		if !strings.HasPrefix(all[at].Revision, rev) {
			return toolmesh.Errorf(toolmesh.CodeToolNotFound, "%s has no revision %s; it is at %s", name, rev, short(all[at].Revision)).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		}
		pins[name] = all[at].Revision
	}
	return nil
}

func (a *app) sessionLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the sessions that were created", Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			return a.withSessions(ctx, func(_ *link, view *registry.View) error {
				records := view.Sessions()
				all := make([]session, len(records))
				rows := make([][]string, len(records))
				for i, r := range records {
					all[i] = sessionOf(r)
					ttl := "-"
					if r.TTL > 0 {
						ttl = r.TTL.String()
					}
					rows[i] = []string{string(r.ID), all[i].State, ttl, r.Created.Local().Format(time.DateTime)}
				}
				if a.json {
					a.printJSON(map[string]any{"sessions": all})
					return nil
				}
				if len(all) == 0 {
					fmt.Fprintln(a.err, "nobody created a session; calls are in session default")
					return nil
				}
				a.table([]string{"SESSION", "STATE", "TTL", "CREATED"}, rows)
				return nil
			})
		}),
	}
}

// router joins the mesh for what the command line leaves to it. The buckets are
// there when it is called: it makes none.
func (l *link) router(a *app) (*router.Router, error) {
	return router.New(l.nc, &router.Options{Session: l.session, Logger: a.log})
}

// withSessions does what a command does with a view of the sessions, which need
// no heartbeat to be believed.
func (a *app) withSessions(ctx context.Context, do func(*link, *registry.View) error) error {
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		if none := l.noMesh(ctx); none != nil {
			return none
		}
		view, err := registry.OpenView(ctx, l.bus, &registry.ViewOptions{Logger: a.log})
		if err != nil {
			return err
		}
		defer view.Close()
		return do(l, view)
	})
}

func noSession(id string) error {
	return toolmesh.Errorf(toolmesh.CodeSessionNotFound, "nobody created a session %q; mesh session ls lists those that are there", id).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

func (a *app) sessionShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show one session", Args: takes(1, 1, "a session"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withSessions(ctx, func(_ *link, view *registry.View) error {
				records := view.Sessions()
				at := slices.IndexFunc(records, func(r registry.SessionRecord) bool { return string(r.ID) == args[0] })
				if at < 0 {
					return noSession(args[0])
				}
				s := sessionOf(records[at])
				if a.json {
					a.printJSON(s)
					return nil
				}
				pins := make(map[string]string, len(s.Pins))
				for name, rev := range s.Pins {
					pins[string(name)] = short(rev)
				}
				for _, f := range [][2]string{
					{"session", string(s.ID)}, {"state", s.State}, {"epoch", s.Epoch},
					{"created", s.Created.Local().Format(time.DateTime)}, {"ttl", orDash(s.TTL)}, {"pins", labelText(pins)},
				} {
					fmt.Fprintf(a.out, "%-8s %s\n", f[0], f[1])
				}
				return nil
			})
		}),
	}
}

func (a *app) sessionEnd() *cobra.Command {
	return &cobra.Command{
		Use: "end NAME", Short: "End a session: its tools, calls and streams go", Args: takes(1, 1, "a session"),
		RunE: runE(func(ctx context.Context, args []string) error {
			id := subjects.SessionID(args[0])
			return a.withSessions(ctx, func(l *link, _ *registry.View) error {
				r, err := l.router(a)
				if err != nil {
					return err
				}
				defer func() { _ = r.Close() }()
				if err := r.EndSession(ctx, id); err != nil {
					return err
				}
				if a.json {
					a.printJSON(map[string]any{"id": id})
				} else {
					fmt.Fprintf(a.err, "ended %s\n", id)
				}
				return nil
			})
		}),
	}
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
