package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/subjects"
)

// place is where an index is served: for all sessions, or for one.
type place struct {
	index   subjects.IndexName
	session subjects.SessionID
}

func (i *instance) place() place { return place{i.build.Name, i.build.Session} }

// published are the instances that the host serves at the moment. What is to be
// said of a tool may change while another revision takes its place: only the
// instance that is served may be published again.
type published struct {
	mu sync.Mutex
	by map[place]*instance
}

// publish makes i what is served in its place.
func (p *published) publish(ctx context.Context, h *host.Host, i *instance) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := h.Publish(ctx, i.service()); err != nil {
		return err
	}
	p.by[i.place()] = i
	return nil
}

// instead has do put something else in a place.
func (p *published) instead(at place, do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.by, at)
	return do()
}

// again publishes i once more, if it is what is served.
func (p *published) again(ctx context.Context, h *host.Host, i *instance) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[i.place()] != i {
		return nil
	}
	return h.Publish(ctx, i.service())
}

// noticeWait bounds how long a notice takes to be published.
const noticeWait = 10 * time.Second

// quarantined notes what callers have to expect of a function's tools, and has
// it published. It is called by the executor, which waits.
func (i *instance) quarantined(function, reason string) {
	i.noticesMu.Lock()
	if reason == "" {
		delete(i.notices, function)
	} else {
		i.notices[function] = reason
	}
	i.noticesMu.Unlock()
	i.a.noticed.add(i)
}

// noticed are the instances that are to be published again.
type noticed struct {
	mu    sync.Mutex
	which map[*instance]struct{}
	wake  chan struct{} // capacity 1
}

func (n *noticed) add(i *instance) {
	n.mu.Lock()
	n.which[i] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *noticed) take() map[*instance]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.which
	n.which = map[*instance]struct{}{}
	return all
}

// publishNotices publishes instances whose notices have changed, until the agent
// ends.
func (a *Agent) publishNotices() {
	for {
		select {
		case <-a.noticed.wake:
			for i := range a.noticed.take() {
				ctx, cancel := context.WithTimeout(a.base, noticeWait)
				if err := a.published.again(ctx, a.host, i); err != nil && a.base.Err() == nil {
					a.log.Warn("a tool's quarantine is not in the registry", slog.String("index", string(i.build.Name)), slog.Any("error", err))
				}
				cancel()
			}
		case <-a.base.Done():
			return
		}
	}
}
