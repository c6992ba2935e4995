package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// created is when a session was created, by the local clock; zero if the view
// has no record of that epoch of it.
func (a *Agent) created(session subjects.SessionID, epoch string) time.Time {
	if epoch == "" {
		return time.Time{}
	}
	r, ok := a.view.Session(session)
	if !ok || r.Epoch != epoch {
		return time.Time{}
	}
	return a.local(r.Created)
}

// local is a moment of mesh time by the local clock.
func (a *Agent) local(at time.Time) time.Time {
	return time.Now().Add(at.Sub(a.bus.Time().Now))
}

// sessionCheck is how often the workers of sessions are compared with the sessions
// that there are, beside each change of those.
const sessionCheck = 5 * time.Second

// followSessions ends the workers that are bound to sessions when those end, until
// the agent does.
func (a *Agent) followSessions(view *registry.View) {
	changed := make(chan struct{}, 1)
	cancel := view.Notify(changed, registry.ChangedSessions)
	a.watch.Go(func() {
		defer cancel()
		// A call that was admitted just before its session's end may get its worker
		// just after it.
		again := time.NewTicker(sessionCheck)
		defer again.Stop()
		for {
			select {
			case <-changed:
				a.endSessions(a.base, view)
			case <-again.C:
				a.endSessions(a.base, view)
			case <-a.base.Done():
				return
			}
		}
	})
}

func (a *Agent) endSessions(ctx context.Context, view *registry.View) {
	for _, index := range a.indexes() {
		for _, bound := range index.Sessions() {
			if !a.sessionEnded(view, bound) {
				continue
			}
			if err := index.EndSession(ctx, bound.Name, bound.Epoch); err != nil {
				a.log.Warn("the workers of an ended session are not gone yet", slog.String("session", bound.Name), slog.Any("error", err))
			}
		}
	}
}

// sessionEnded reports whether no call of a session that has workers can come any more.
// A session whose creation no call knew of may be one that nobody created, and
// then nobody ends it; or all its calls came before the news.
func (a *Agent) sessionEnded(view *registry.View, bound executor.Session) bool {
	id := subjects.SessionID(bound.Name)
	r, ok := view.Session(id)
	switch {
	case bound.Epoch != "":
		return !ok || r.Epoch != bound.Epoch
	case ok:
		return a.local(r.Created).After(bound.Since.Add(executor.LateCreation))
	}
	at, ended := view.SessionOver(id)
	return ended && at.After(bound.Since)
}
