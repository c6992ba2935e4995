package agent

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// leaseName is what the executor knows a session by. A session that is created
// again under its name is another one, and must not find the former's state.
func leaseName(session subjects.SessionID, epoch string) string {
	if epoch == "" {
		return string(session)
	}
	return string(session) + "\x00" + epoch
}

// leaseCheck is how often leases are compared with the sessions that there are,
// beside each change of those.
const leaseCheck = 5 * time.Second

// followSessions ends the workers that are leased to sessions when those end,
// until the agent does.
func (a *Agent) followSessions(view *registry.View) {
	changed := make(chan struct{}, 1)
	cancel := view.OnChange(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	a.watch.Go(func() {
		defer cancel()
		// A call that was admitted just before its session's end may get its worker
		// just after it.
		again := time.NewTicker(leaseCheck)
		defer again.Stop()
		for {
			select {
			case <-changed:
				a.endLeases(a.base, view)
			case <-again.C:
				a.endLeases(a.base, view)
			case <-a.base.Done():
				return
			}
		}
	})
}

func (a *Agent) endLeases(ctx context.Context, view *registry.View) {
	a.instances.Lock()
	open := make([]*instance, 0, len(a.instances.open))
	for i := range a.instances.open {
		if i.index != nil {
			open = append(open, i)
		}
	}
	a.instances.Unlock()
	for _, i := range open {
		if i.index == nil {
			continue // commands alone: they have no workers
		}
		for _, name := range i.index.Sessions() {
			session, epoch, created := strings.Cut(name, "\x00")
			if !created {
				continue // nobody created it, nobody ends it
			}
			if r, ok := view.Session(subjects.SessionID(session)); ok && !r.Ended && r.Epoch == epoch {
				continue
			}
			if err := i.index.EndSession(ctx, name); err != nil {
				a.log.Warn("the workers of an ended session are not gone yet", slog.String("session", session), slog.Any("error", err))
			}
		}
	}
}
