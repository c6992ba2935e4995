package sessions

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxLookups is how many look-ups are made at once, and maxWaiting how many sessions wait for one.
	maxLookups = 16
	maxWaiting = 1 << 16
)

// Options are the node's parts of [Sessions].
type Options struct {
	// Admit returns the epoch of a session in the node's view, empty for one that was never
	// created, or session_not_found. It must not block. With nil the node follows the registry
	// itself: see [Sessions.Open].
	Admit func(subjects.SessionID) (epoch string, err error)
	// Ended reports whether a session of a name has ended since a time, as far as the view knows.
	// Nil if Admit is.
	Ended  func(session subjects.SessionID, since time.Time) bool
	Bus    *bus.Bus
	Store  *registry.Store
	Joined func() bool     // whether the registry was ever found
	Base   context.Context //nolint:containedctx // ends with the node
	Go     func(f func())  // runs f in a goroutine that the node waits for
}

// Sessions is a node's knowledge of sessions. Its methods may be called concurrently.
type Sessions struct {
	Options
	Ask      func(subjects.SessionID) (epoch string, err error) // the registry's leader
	lookups  *fair.Queue[subjects.SessionID]
	followed *registry.Sessions // nil if Options.Admit was given
	view     *registry.View     // of followed; nil until the registry was reached

	mu   sync.Mutex                     // Options.Go is called under it
	next map[subjects.SessionID]*lookup // not sent yet
}

// lookup is a question about a session to the registry's leader, which all share that began to wait
// before it was sent.
type lookup struct {
	done  chan struct{}
	epoch string
	err   error
}

// New makes a node's knowledge of sessions.
func New(o Options) *Sessions {
	s := &Sessions{Options: o, lookups: fair.NewQueue[subjects.SessionID](maxLookups, maxWaiting, o.Go), next: make(map[subjects.SessionID]*lookup)}
	s.Ask = s.registered
	if s.Admit == nil {
		s.followed = &registry.Sessions{}
		s.Admit, s.Ended = s.followed.Admit, s.followed.Ended
	}
	return s
}

// Open fills the node's own view of sessions, if it has one. It is called by one goroutine.
func (s *Sessions) Open(ctx context.Context, log *slog.Logger) (err error) {
	if s.followed != nil && s.view == nil {
		if s.view, err = registry.OpenView(ctx, s.Bus, &registry.ViewOptions{SessionsOnly: true, Logger: log}); err == nil {
			s.followed.Use(s.view)
		}
	}
	return err
}

// Close closes the view that Open has opened. Open does not run.
func (s *Sessions) Close() {
	if s.view != nil {
		s.view.Close()
	}
}

// Known returns a session's epoch in the view, and whether that is enough. A caller may be faster
// than the news of its session's creation, so an unknown session is looked up: always if the call
// stores something, else before the call is refused.
func (s *Sessions) Known(session subjects.SessionID, stored bool) (epoch string, sure bool) {
	epoch, err := s.Admit(session)
	return epoch, err == nil && (epoch != "" || !stored || session == subjects.DefaultSession)
}

// Epoch looks up the epoch of a session that the view does not know well enough, empty for one
// that was never created. The error is session_not_found, the cause of ctx's end, or unavailable
// if the registry does not answer, as the call must not begin under a wrong epoch. Without any
// registry no session was created.
func (s *Sessions) Epoch(ctx context.Context, session subjects.SessionID) (string, error) {
	if s.Joined() {
		if epoch, err := s.find(ctx, session); epoch != "" || err != nil {
			return epoch, err
		}
	}
	return s.Admit(session)
}

// Now returns a session's present epoch from the registry's leader, empty for one that was never
// created.
func (s *Sessions) Now(session subjects.SessionID) (string, error) {
	return s.find(s.Base, session)
}

// Account returns the account that a session counts for, as far as the view knows.
func (s *Sessions) Account(session subjects.SessionID) subjects.SessionID {
	epoch, _ := s.Known(session, false)
	return subjects.Account(session, epoch)
}

// Settled is the epoch of a session of which something is stored: as the view says or, if
// that does not know enough, the registry.
func (s *Sessions) Settled(session subjects.SessionID) (string, error) {
	if epoch, sure := s.Known(session, true); sure {
		return epoch, nil
	}
	return s.Epoch(s.Base, session)
}

// find returns the epoch of a session as it is now, empty for one that was
// never created. The errors are session_not_found and unavailable, and why ctx ended.
func (s *Sessions) find(ctx context.Context, session subjects.SessionID) (string, error) {
	s.mu.Lock()
	l := s.next[session]
	if l == nil {
		l = &lookup{done: make(chan struct{})}
		if !s.lookups.Do(session, func() {
			s.mu.Lock()
			delete(s.next, session) // later questions get a later answer
			s.mu.Unlock()
			l.epoch, l.err = s.Ask(session)
			close(l.done)
		}) {
			s.mu.Unlock()
			return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "too many sessions wait to be looked up: try again").WithOrigin(toolmesh.OriginAgent)
		}
		s.next[session] = l
	}
	s.mu.Unlock()
	select {
	case <-l.done:
		return l.epoch, l.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// registered returns a session's epoch from the registry's leader.
func (s *Sessions) registered(session subjects.SessionID) (string, error) {
	epoch, err := s.Store.Epoch(s.Base, session)
	if err != nil {
		err = toolmesh.Errorf(toolmesh.CodeUnavailable, "the session cannot be looked up: %w", err).WithOrigin(toolmesh.OriginAgent)
	}
	return epoch, err
}

// Over reports whether a session has ended or has another epoch than the given one. As the view
// may be behind, it asks the registry before it reports true. It blocks.
func (s *Sessions) Over(session subjects.SessionID, epoch string) bool {
	now, err := s.Now(session)
	return err == nil && now != epoch || toolmesh.CodeOf(err) == toolmesh.CodeSessionNotFound
}

// Seen reports whether the session still exists in the view; an error of the view counts as
// existing.
func (s *Sessions) Seen(session subjects.SessionID, epoch string) bool {
	now, err := s.Admit(session)
	return err == nil && now == epoch || err != nil && toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound
}

// Tenure says for which session of its name a session's own tools are served.
type Tenure struct {
	asking sync.Mutex             // the first answer counts; taken before Sessions.mu
	epoch  atomic.Pointer[string] // nil: the registry has not answered yet
}

// Epoch is that of the session, empty until it is created. known is false
// until the registry has answered.
func (t *Tenure) Epoch() (epoch string, known bool) {
	if at := t.epoch.Load(); at != nil {
		return *at, true
	}
	return "", false
}

// Became notes that the session was created after its tools were served in it.
func (t *Tenure) Became(epoch string) { t.epoch.Store(&epoch) }

// Ended reports whether a call's session is another one than a tool is served for,
// so far as the call knows its session's epoch.
func (t *Tenure) Ended(epoch string) bool {
	if t == nil || epoch == "" {
		return false
	}
	mine := t.epoch.Load()
	return mine != nil && *mine != "" && *mine != epoch
}

// Bind asks for which session of its name a service is, before it is served: a
// session's own tools are never those of the next session of its name.
func (s *Sessions) Bind(ctx context.Context, session subjects.SessionID, t *Tenure) (epoch string, err error) {
	if t == nil {
		return "", nil
	}
	t.asking.Lock()
	defer t.asking.Unlock()
	if known := t.epoch.Load(); known != nil {
		return *known, nil
	}
	if epoch, err = s.find(ctx, session); err == nil {
		t.epoch.Store(&epoch)
	}
	return epoch, err
}
