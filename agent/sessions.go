package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// sessionCheck is how often the workers of sessions are compared with the existing sessions, in
// addition to each change of these.
const sessionCheck = 5 * time.Second

// followSessions ends the workers that are bound to sessions when those end, until
// the agent does.
func (a *Agent) followSessions() {
	view := a.member.View
	changed := make(chan struct{}, 1)
	cancel := view.Notify(changed, registry.ChangedSessions)
	a.watch.Go(func() {
		defer cancel()
		// A call that was admitted just before its session's end may get its worker
		// just after it.
		for {
			select {
			case <-changed:
			case <-time.After(sessionCheck):
			case <-a.base.Done():
				return
			}
			a.endSessions(a.base, view)
		}
	})
}

func (a *Agent) endSessions(ctx context.Context, view *registry.View) {
	for _, i := range a.open() {
		if i.index == nil {
			continue // commands have no workers
		}
		for _, bound := range i.index.Sessions() {
			if !a.sessionEnded(ctx, view, bound) {
				continue
			}
			if err := i.index.EndSession(ctx, bound.Name, bound.Epoch); err != nil {
				a.log.Warn("workers of an ended session still run", slog.String("session", bound.Name), slog.String("error", err.Error()))
			}
		}
	}
}

// sessionEnded reports whether a session with workers can get no more calls. A session that was
// not created ends when one of its name is created. For others the registry is asked, as the
// view may be behind the calls.
func (a *Agent) sessionEnded(ctx context.Context, view *registry.View, bound executor.BoundSession) bool {
	id := subjects.SessionID(bound.Name)
	r, ok := view.Session(id)
	if bound.Epoch == "" || ok && r.Epoch == bound.Epoch {
		return ok && bound.Epoch == ""
	}
	ctx, cancel := context.WithTimeout(ctx, sessionCheck)
	defer cancel()
	now, err := a.member.Store.Epoch(ctx, id)
	return err == nil && now != bound.Epoch
}
