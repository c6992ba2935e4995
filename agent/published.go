package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// key is where an index is served: for all sessions, or for one.
type key struct {
	index   subjects.IndexName
	session subjects.SessionID
}

func (i *instance) key() key { return key{i.build.Name, i.build.Session} }

// published are the instances that the host serves now. A tool's notice may change while another
// revision takes its place: only a served instance may be published again.
type published struct {
	mu sync.Mutex
	by map[key]*instance
}

// publish serves i in place of the earlier instance.
func (p *published) publish(ctx context.Context, h *host.Host, i *instance) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := h.Publish(ctx, i.service()); err != nil {
		return err
	}
	p.by[i.key()] = i
	return nil
}

// instead calls do, which puts something else in a place.
func (p *published) instead(at key, do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.by, at)
	return do()
}

// again publishes the served instances with changed notices once more.
func (p *published) again(ctx context.Context, h *host.Host, log *slog.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.by {
		if !i.noticed.Swap(false) {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, noticeWait)
		if err := h.Publish(attempt, i.service()); err != nil && ctx.Err() == nil {
			log.Warn("quarantine of a tool could not be written to the registry", slog.String("index", string(i.build.Name)), slog.String("error", err.Error()))
		}
		cancel()
	}
}

// noticeWait bounds the publication of a notice.
const noticeWait = 10 * time.Second

// quarantined sets the notice of a function's tools, to be published. The executor waits for it to
// return.
func (i *instance) quarantined(function, reason string) {
	i.noticesMu.Lock()
	if reason == "" {
		delete(i.notices, function)
	} else {
		i.notices[function] = reason
	}
	i.noticesMu.Unlock()
	i.noticed.Store(true)
	wake.Up(i.a.noticed)
}

// publishNotices publishes instances with changed notices until the agent ends.
func (a *Agent) publishNotices() {
	for {
		select {
		case <-a.noticed:
			a.published.again(a.base, a.member.Host, a.log)
		case <-a.base.Done():
			return
		}
	}
}
