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
	"github.com/toolmesh/toolmesh/executor/pool"
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

// lease is a pool that belongs to one session.
type lease struct {
	pool  *pool.Pool
	key   poolKey
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
	by map[poolKey]*lease
	// taken remembers whose worker was given to others, until they come back or
	// their lease would have ended anyway: they are told that their state is gone.
	taken map[poolKey]*lease
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

// lease finds the pool of a call's session, or makes it. release must be called
// when the call is over. An error says that all workers are leased, or that the
// session's was.
func (ix *Index) lease(t *served, call Call) (p *pool.Pool, release func(), _ *toolmesh.Error) {
	key := poolKey{
		groupKey: t.group.key, async: t.Kind.Async(), isolation: toolmesh.IsolationSession, limits: t.policy.Limits,
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
				return nil, nil, failure.StateGone("its worker was needed for another session")
			}
		}
		if len(ls.by) >= ix.x.opts.MaxSessions && !ix.evict() {
			return nil, nil, toolmesh.Errorf(toolmesh.CodeBusy, "all %d workers that %s leases to sessions are in use", len(ls.by), ix.spec.Name).
				WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo).WithRetryable(true).WithDetail("reason", "session_workers")
		}
		p, err := ix.poolOf(t.group, key)
		if err != nil {
			return nil, nil, err
		}
		l = &lease{pool: p, key: key, terms: t.policy.Lease, made: time.Now(), epoch: call.Epoch, created: call.Created}
		ls.by[key] = l
	}
	l.calls++
	return l.pool, func() {
		ls.mu.Lock()
		l.calls--
		l.used = time.Now()
		ls.mu.Unlock()
	}, nil
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
	if oldest.terms.Affinity != tool.AffinityHint {
		ix.leases.taken[oldest.key] = oldest
	}
	ix.endLease(oldest)
	ix.log.Info("a session's worker is given to another session", slog.String("session", oldest.key.session))
	return true
}

// endLease takes a lease back. Its workers end on their own time. The leases'
// lock is held.
func (ix *Index) endLease(l *lease) {
	delete(ix.leases.by, l.key)
	ix.poolsMu.Lock()
	delete(ix.pools, l.key)
	if !ix.ended {
		ix.wg.Go(l.pool.Wait)
	}
	ix.poolsMu.Unlock()
	l.pool.End()
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
	var ended []*pool.Pool
	ix.leases.mu.Lock()
	for key, l := range ix.leases.by {
		if key.session == name && l.epoch == epoch {
			ix.endLease(l)
			ended = append(ended, l.pool)
		}
	}
	for key, lost := range ix.leases.taken {
		if key.session == name && lost.epoch == epoch {
			delete(ix.leases.taken, key)
		}
	}
	ix.leases.mu.Unlock()
	for _, p := range ended {
		select {
		case <-p.Gone():
		case <-ctx.Done():
			return fmt.Errorf("end the workers of session %s: %w", name, ctx.Err())
		}
	}
	return nil
}
