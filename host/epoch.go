package host

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// epochWait is how long the registry may take to say what a session's epoch is.
	epochWait = 5 * time.Second
	// maxLookups is how many sessions are looked up at once.
	maxLookups = 16
	// sessionEvery is how often a call that goes on, and what is served in a session,
	// looks whether its session goes on.
	sessionEvery = time.Second
)

// known is what the view says of a session's epoch, and whether that will do. Of a
// session that it does not know a caller may be faster than the news of the
// session's creation. A call of which nothing is stored looks it up only before it is
// refused.
func (h *Host) known(session subjects.SessionID, stored bool) (epoch string, sure bool) {
	epoch, err := h.opts.Sessions.Admit(session)
	return epoch, err == nil && (epoch != "" || !stored || session == subjects.DefaultSession)
}

// epoch returns the epoch of a session of which the view does not say enough, empty
// for one that nobody created. The error is session_not_found, why ctx ended, or
// unavailable where the registry does not answer: what depends on the epoch must not
// begin under another one. Where no registry was ever found nobody has created a session.
func (h *Host) epoch(ctx context.Context, session subjects.SessionID) (string, error) {
	if h.presence.Joined() {
		if epoch, err := h.lookups.find(ctx, session); epoch != "" || err != nil {
			return epoch, err
		}
	}
	return h.opts.Sessions.Admit(session)
}

// lookUp looks the call's session up where the view did not say enough: once the
// call holds its slot.
func (c *inflight) lookUp(ctx context.Context) error {
	if !c.unsettled.Load() {
		return nil
	}
	epoch, err := c.h.epoch(ctx, c.Request.Session)
	if err != nil {
		return err
	}
	c.epoch = epoch
	c.unsettled.Store(false)
	return nil
}

// Epoch implements [stream.Call].
func (c *inflight) Epoch(ctx context.Context) (string, error) {
	err := c.lookUp(ctx)
	return c.epoch, err
}

// lookups are the questions about sessions to the registry's leader: one at a time
// for each session, which all share that began to wait before it was sent.
type lookups struct {
	ask    func(subjects.SessionID) (epoch string, err error)
	run    func(func())
	places chan struct{}

	mu   sync.Mutex
	next map[subjects.SessionID]*lookup // not sent yet
	busy map[subjects.SessionID]bool    // a goroutine asks for it
}

type lookup struct {
	done  chan struct{}
	epoch string
	err   error
}

func newLookups(ask func(subjects.SessionID) (string, error), run func(func())) *lookups {
	return &lookups{
		ask: ask, run: run, places: make(chan struct{}, maxLookups),
		next: make(map[subjects.SessionID]*lookup), busy: make(map[subjects.SessionID]bool),
	}
}

// find returns the epoch of a session as it is now, empty for one that nobody
// created. The errors are session_not_found and unavailable, and why ctx ended.
func (ls *lookups) find(ctx context.Context, session subjects.SessionID) (string, error) {
	ls.mu.Lock()
	l := ls.next[session]
	if l == nil {
		l = &lookup{done: make(chan struct{})}
		ls.next[session] = l
		if !ls.busy[session] {
			ls.busy[session] = true
			ls.run(func() { ls.answer(session) })
		}
	}
	ls.mu.Unlock()
	select {
	case <-l.done:
		return l.epoch, l.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// answer answers what waits for a session until nothing does.
func (ls *lookups) answer(session subjects.SessionID) {
	for {
		ls.mu.Lock()
		if ls.next[session] == nil {
			delete(ls.busy, session)
			ls.mu.Unlock()
			return
		}
		ls.mu.Unlock()
		ls.places <- struct{}{}
		ls.mu.Lock()
		l := ls.next[session] // with all that came while there was no place
		delete(ls.next, session)
		ls.mu.Unlock()
		l.epoch, l.err = ls.ask(session)
		<-ls.places
		close(l.done)
	}
}

// registered is what the registry's leader says of a session's epoch.
func (h *Host) registered(session subjects.SessionID) (string, error) {
	ctx, cancel := context.WithTimeout(h.base, epochWait)
	defer cancel()
	record, err := h.store.SessionNow(ctx, session)
	switch {
	case errors.Is(err, store.ErrNoKey):
		return "", nil
	case err != nil:
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the session cannot be looked up: %w", err).WithOrigin(toolmesh.OriginAgent)
	}
	return record.Epoch, nil
}

// over reports whether a session has another epoch by now than one that somebody
// created it with. What the view says is asked of the registry before it counts, as
// a view may be behind. It blocks.
func (h *Host) over(session subjects.SessionID, epoch string) bool {
	now, err := h.lookups.find(h.base, session)
	return err == nil && now != epoch || toolmesh.CodeOf(err) == toolmesh.CodeSessionNotFound
}

// seen reports whether the view says that a session goes on, or nothing of it.
func (h *Host) seen(session subjects.SessionID, epoch string) bool {
	now, err := h.opts.Sessions.Admit(session)
	return err == nil && now == epoch || err != nil && toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound
}

// followSession ends a call whose session has ended: that is promised of what the
// session runs. A call that came before the news of its session's creation belongs to the
// session that is seen while it runs. The ticker calls it.
func (h *Host) followSession(c *inflight, now time.Time) {
	session := c.Request.Session
	if c.unsettled.Load() {
		return
	}
	if c.follows == "" {
		if c.follows = c.epoch; c.follows == "" && session != subjects.DefaultSession {
			c.follows, _ = h.opts.Sessions.Admit(session)
		}
	}
	if c.follows == "" || c.ending.Load() != 0 || now.Sub(c.looked) < sessionEvery || now.Sub(c.Start) < sessionEvery {
		return
	}
	c.looked = now
	if h.seen(session, c.follows) {
		return
	}
	epoch := c.follows
	h.running.run(func() {
		if h.over(session, epoch) {
			c.End(errSessionOver)
		}
	})
}

// tenure says for which session of its name a session's own tools are served.
type tenure struct {
	asking sync.Mutex             // of who binds it: the first answer counts
	epoch  atomic.Pointer[string] // nil: the registry has not answered yet
}

// ended reports whether a call's session is another one than a tool is served for,
// so far as the call knows its session's epoch.
func (t *tenure) ended(epoch string) bool {
	if t == nil || epoch == "" {
		return false
	}
	mine := t.epoch.Load()
	return mine != nil && *mine != "" && *mine != epoch
}

// bind asks for which session of its name a service is, before it is served: a
// session's own tools are never those of the next session of its name.
func (h *Host) bind(ctx context.Context, session subjects.SessionID, t *tenure) (epoch string, err error) {
	if t == nil {
		return "", nil
	}
	t.asking.Lock()
	defer t.asking.Unlock()
	if known := t.epoch.Load(); known != nil {
		return *known, nil
	}
	if epoch, err = h.lookups.find(ctx, session); err == nil {
		t.epoch.Store(&epoch)
	}
	return epoch, err
}

// outlived reports whether a service is of a session that is over. It blocks.
func (h *Host) outlived(s *service, serving bool) bool {
	if s == nil || s.tenure == nil {
		return false
	}
	if serving {
		_, _ = h.bind(h.base, s.key.session, s.tenure) // a look-up may be on its way that says an earlier one
	}
	epoch := s.tenure.epoch.Load()
	return epoch != nil && *epoch != "" && h.over(s.key.session, *epoch)
}

// followSessions withdraws what is served in sessions that have ended, until the
// host stops.
func (h *Host) followSessions() {
	ticker := time.NewTicker(sessionEvery)
	defer ticker.Stop()
	for {
		select {
		case <-h.quit:
			return
		case <-ticker.C:
		}
		h.mu.Lock()
		var own []*service
		for key, s := range h.services {
			if key.index == "" && s.tenure != nil {
				own = append(own, s)
			}
		}
		h.mu.Unlock()
		for _, s := range own {
			h.followService(s)
		}
	}
}

func (h *Host) followService(s *service) {
	epoch := s.tenure.epoch.Load()
	if epoch == nil || h.seen(s.key.session, *epoch) {
		return
	}
	if *epoch == "" {
		// Somebody has created the session in which the tools were served before.
		if now, err := h.lookups.find(h.base, s.key.session); err == nil && now != "" {
			s.tenure.epoch.Store(&now)
			h.records.again(s.key)
		}
		return
	}
	if !h.over(s.key.session, *epoch) {
		return
	}
	h.log.Info("a session has ended: its tools are served no more", slog.String("session", string(s.key.session)))
	same := func(now *service) bool { return now.tenure == s.tenure }
	if err := h.withdraw(h.base, s.key, same); err != nil {
		h.log.Warn("the broker has not confirmed it", slog.String("session", string(s.key.session)), slog.String("error", err.Error()))
	}
}
