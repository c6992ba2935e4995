package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/tool"
)

// Lease says how isolation session keeps a worker for a session. The zero value
// of each field means its default.
type Lease struct {
	// Affinity defaults to strict-queue. Tools that differ in it share no worker.
	Affinity tool.Affinity
	// Idle is how long a session may make no call before its worker is ended.
	// Defaults to 10 minutes.
	Idle time.Duration
	// Hold is how long a session that makes no call keeps its worker although
	// another session needs one and there are no more. Defaults to 10 seconds.
	Hold time.Duration
}

func (l Lease) withDefaults() Lease {
	if l.Affinity == "" {
		l.Affinity = tool.AffinityQueue
	}
	if l.Idle == 0 {
		l.Idle = 10 * time.Minute
	}
	if l.Hold == 0 {
		l.Hold = 10 * time.Second
	}
	return l
}

func (l Lease) check() error {
	switch {
	case l.Affinity != tool.AffinityQueue && l.Affinity != tool.AffinityFail && l.Affinity != tool.AffinityHint:
		return fmt.Errorf("affinity is %q, but must be one of %s, %s, %s", l.Affinity, tool.AffinityQueue, tool.AffinityFail, tool.AffinityHint)
	case l.Idle < 0 || l.Hold < 0:
		return errors.New("the times of a lease must not be negative")
	}
	return nil
}

// lease is a crew that belongs to one session.
type lease struct {
	crew  *crew
	terms Lease

	// Guarded by leases.mu.
	calls int // under way: none of them must lose the worker
	made  time.Time
	used  time.Time
	// epoch is the session's; empty until it is known to have been created, which
	// it was at created.
	epoch   string
	created time.Time
}

// leases are the sessions that have workers of an index.
type leases struct {
	mu sync.Mutex
	by map[workerKey]*lease
	// taken remembers whose worker was given to others, until they come back or
	// their lease would have ended anyway: they are told that their state is gone.
	taken map[workerKey]*lease
}

// LateCreation is by how much a lease may seem older than the session that it
// was made for: clocks are compared.
const LateCreation = 2 * time.Second

// serves reports whether the lease is that of a call's session, and not that of
// another of its name. A call that does not know its session's epoch came before
// the news of it, or after the session's end, which ends the lease anyway.
func (l *lease) serves(call Call) bool {
	switch {
	case call.Epoch == "" || call.Epoch == l.epoch:
		return true
	case l.epoch == "" && call.Created.Before(l.made.Add(LateCreation)):
		l.epoch, l.created = call.Epoch, call.Created
		return true
	}
	return false
}

// lease finds the crew of a call's session, or makes it. release must be called
// when the call is over. An error says that all workers are leased, or that the
// session's was.
func (ix *Index) lease(t *served, call Call) (c *crew, release func(), _ *toolmesh.Error) {
	key := workerKey{
		zygoteKey: t.family.key, async: t.Kind.async(), isolation: tool.IsolationSession, limits: t.policy.Limits,
		session: call.Session, affinity: t.policy.Lease.Affinity,
	}
	ls := &ix.leases
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.by[key]
	if l != nil && !l.serves(call) {
		if l.epoch != "" && call.Created.Before(l.created) {
			return nil, nil, failure.Unavailable("the session has ended")
		}
		ix.endLease(l)
		l = nil
	}
	if l == nil {
		if lost, ok := ls.taken[key]; ok {
			delete(ls.taken, key)
			if lost.serves(call) {
				return nil, nil, stateGone("its worker was needed for another session")
			}
		}
		if len(ls.by) >= ix.x.opts.MaxSessions && !ix.evict() {
			return nil, nil, toolmesh.Errorf(toolmesh.CodeBusy, "all %d workers that %s leases to sessions are in use", len(ls.by), ix.spec.Name).
				WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo).WithRetryable(true).WithDetail("reason", "session_workers")
		}
		c, err := ix.crewOf(t.family, key)
		if err != nil {
			return nil, nil, err
		}
		l = &lease{crew: c, terms: t.policy.Lease, made: time.Now(), epoch: call.Epoch, created: call.Created}
		c.affinity = l.terms.Affinity
		ls.by[key] = l
	}
	l.calls++
	return l.crew, func() {
		ls.mu.Lock()
		l.calls--
		l.used = time.Now()
		ls.mu.Unlock()
	}, nil
}

// stateGone is the error of a call that counts on what its session's worker
// knew. It is given once: the next call finds a new worker.
func stateGone(why string) *toolmesh.Error {
	return failure.Unavailable("the session's worker is gone, and what it knew with it: %s; the next call gets a new one", why).
		WithRetryable(true).WithDetail("reason", "session_worker_unavailable")
}

// evict ends the lease that has been idle for longest, if one may be ended. The
// leases' lock is held.
func (ix *Index) evict() bool {
	var oldest *lease
	for _, l := range ix.leases.by {
		if l.calls == 0 && time.Since(l.used) >= l.terms.Hold && (oldest == nil || l.used.Before(oldest.used)) {
			oldest = l
		}
	}
	if oldest == nil {
		return false
	}
	key := oldest.crew.key
	if oldest.terms.Affinity != tool.AffinityHint {
		ix.leases.taken[key] = oldest
	}
	ix.endLease(oldest)
	ix.log.Info("a session's worker is given to another session", slog.String("session", key.session))
	return true
}

// endLease takes a lease back. Its workers end on their own time. The leases'
// lock is held.
func (ix *Index) endLease(l *lease) []*worker {
	delete(ix.leases.by, l.crew.key)
	ix.crewsMu.Lock()
	delete(ix.crews, l.crew.key)
	ix.crewsMu.Unlock()
	return l.crew.disband()
}

// expire ends the leases that were idle for too long.
func (ix *Index) expire() {
	ix.leases.mu.Lock()
	defer ix.leases.mu.Unlock()
	for _, l := range ix.leases.by {
		if l.calls == 0 && time.Since(l.used) >= l.terms.Idle {
			ix.endLease(l)
		}
	}
	for key, lost := range ix.leases.taken {
		if time.Since(lost.used) >= lost.terms.Idle {
			delete(ix.leases.taken, key)
		}
	}
}

// Session is one that has workers of its own.
type Session struct {
	Name string
	// Epoch is empty if no call of it knew that the session was created.
	Epoch string
	// Since is when its first worker was leased to it.
	Since time.Time
}

// Sessions are those that have workers of their own at the moment.
func (ix *Index) Sessions() []Session {
	type id struct{ name, epoch string }
	ix.leases.mu.Lock()
	defer ix.leases.mu.Unlock()
	since := map[id]time.Time{}
	for key, l := range ix.leases.by {
		of := id{key.session, l.epoch}
		if first, ok := since[of]; !ok || l.made.Before(first) {
			since[of] = l.made
		}
	}
	sessions := make([]Session, 0, len(since))
	for of, first := range since {
		sessions = append(sessions, Session{Name: of.name, Epoch: of.epoch, Since: first})
	}
	slices.SortFunc(sessions, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Epoch, b.Epoch))
	})
	return sessions
}

// EndSession ends the workers that are leased to that epoch of a session, and
// the calls that they run. It returns when they are gone, or with ctx's error
// before. A call that the session makes later gets a new worker.
func (ix *Index) EndSession(ctx context.Context, name, epoch string) error {
	var ended []*worker
	ix.leases.mu.Lock()
	for key, l := range ix.leases.by {
		if key.session == name && l.epoch == epoch {
			ended = append(ended, ix.endLease(l)...)
		}
	}
	for key, lost := range ix.leases.taken {
		if key.session == name && lost.epoch == epoch {
			delete(ix.leases.taken, key)
		}
	}
	ix.leases.mu.Unlock()
	for _, w := range ended {
		select {
		case <-w.gone:
		case <-ctx.Done():
			return fmt.Errorf("end the workers of session %s: %w", name, ctx.Err())
		}
	}
	return nil
}

// keeps reports whether another worker would not do: its calls are about what
// this one knows.
func (c *crew) keeps() bool {
	return c.affinity == tool.AffinityQueue || c.affinity == tool.AffinityFail
}

// refuses is the error of a call that must not wait for its session's worker,
// or that comes after that worker was lost. The lock is held, and the crew has
// no worker free.
func (c *crew) refuses(j *job) *toolmesh.Error {
	switch {
	case c.forgot != "":
		why := c.forgot
		c.forgot = ""
		return stateGone(why)
	case c.affinity == tool.AffinityFail && (len(c.workers) > 0 || c.queue.len() > 0):
		return toolmesh.Errorf(toolmesh.CodeBusy, "the session's worker is busy with another call").
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo).WithRetryable(true).WithDetail("reason", "worker_busy")
	case c.keeps() && !c.async && c.below(j.depth):
		return workerWaits()
	}
	return nil
}

// disband refuses further calls, cancels those that run and ends the workers.
func (c *crew) disband() []*worker {
	c.mu.Lock()
	c.closed = true
	var workers []*worker
	var running, queued []*job
	c.idle = nil
	for w := range c.workers {
		workers = append(workers, w)
		for _, j := range w.jobs {
			running = append(running, j)
		}
		if j := w.current.Load(); j != nil && j.worker == w {
			running = append(running, j)
		}
		if w.retired {
			continue
		}
		w.retired, w.stopping = true, true
		if w.current.Load() == nil && len(w.jobs) == 0 {
			c.dismiss(w)
		}
	}
	for j := c.queue.pop(); j != nil; j = c.queue.pop() {
		queued = append(queued, j)
	}
	c.mu.Unlock()
	for _, j := range running {
		c.interrupt(j)
	}
	for _, j := range queued {
		granted(j, failure.Unavailable("the session has ended"))
	}
	return workers
}
