package executor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// sessionPool is a pool of one session, which has at most one worker for its plain functions and
// one for its coroutines at a time.
type sessionPool struct {
	pool *pool.Pool
	key  poolKey

	// Guarded by sessionPools.mu.
	calls int // in progress: the worker stays while there are any
	used  time.Time
}

// sessionPools are the pools of an index's sessions.
type sessionPools struct {
	mu sync.Mutex
	by map[poolKey]*sessionPool
	// taken has the sessions whose worker was given to others, until they return or until the time
	// at which it would have ended: they get an error that their state was lost.
	taken map[poolKey]*sessionPool
}

// sessionPool finds or makes the pool of a call's session. release must be called when the call
// has ended. It fails at the maximum of pools, or if the session's worker was given to another
// session.
func (ix *Index) sessionPool(t *served, call Call) (p *pool.Pool, release func(), _ *toolmesh.Error) {
	key := poolKey{
		groupKey: t.group.key, async: t.Kind.Async(), isolation: toolmesh.IsolationSession, limits: t.policy.Limits,
		session: call.Session, epoch: call.Epoch, home: call.Home,
	}
	sessions := &ix.sessions
	sessions.mu.Lock()
	defer sessions.mu.Unlock()
	own := sessions.by[key]
	if own == nil {
		if _, ok := sessions.taken[key]; ok {
			delete(sessions.taken, key)
			return nil, nil, failure.StateGone("its worker was needed for another session")
		}
		if len(sessions.by) >= ix.x.opts.MaxSessions && !ix.evict() {
			return nil, nil, failure.NotStarted(toolmesh.CodeBusy, "all %d workers that %s leases to sessions are in use", len(sessions.by), ix.spec.Name).
				WithRetryable(true).WithDetail("reason", "session_workers")
		}
		p, err := ix.poolOf(t.group, key)
		if err != nil {
			return nil, nil, err
		}
		own = &sessionPool{pool: p, key: key}
		sessions.by[key] = own
	}
	own.calls++
	return own.pool, func() {
		sessions.mu.Lock()
		own.calls--
		own.used = time.Now()
		sessions.mu.Unlock()
	}, nil
}

// evict ends the session's pool that has been idle for longest, if there is one.
// sessionPools.mu is held.
func (ix *Index) evict() bool {
	var oldest *sessionPool
	for _, own := range ix.sessions.by {
		if own.calls == 0 && time.Since(own.used) >= ix.x.opts.SessionHold && (oldest == nil || own.used.Before(oldest.used)) {
			oldest = own
		}
	}
	if oldest == nil {
		return false
	}
	ix.sessions.taken[oldest.key] = oldest
	ix.endSessionPool(oldest)
	ix.log.Info("worker of an idle session was given to another session", slog.String("session", oldest.key.session))
	return true
}

// endSessionPool takes a session's pool out of service. Its workers end after their
// calls. sessionPools.mu is held.
func (ix *Index) endSessionPool(own *sessionPool) {
	delete(ix.sessions.by, own.key)
	ix.poolsMu.Lock()
	delete(ix.pools, own.key)
	if !ix.ended {
		ix.wg.Go(own.pool.Wait)
	}
	ix.poolsMu.Unlock()
	own.pool.End()
}

// expireSessions ends the pools of sessions that were idle for too long.
func (ix *Index) expireSessions() {
	ix.sessions.mu.Lock()
	defer ix.sessions.mu.Unlock()
	for _, own := range ix.sessions.by {
		if own.calls == 0 && time.Since(own.used) >= ix.x.opts.SessionIdle {
			ix.endSessionPool(own)
		}
	}
	maps.DeleteFunc(ix.sessions.taken, func(_ poolKey, lost *sessionPool) bool { return time.Since(lost.used) >= ix.x.opts.SessionIdle })
}

// BoundSession is one with workers of its own. Epoch is empty if it was not created.
type BoundSession struct{ Name, Epoch string }

// Sessions are those that have workers of their own now.
func (ix *Index) Sessions() []BoundSession {
	ix.sessions.mu.Lock()
	defer ix.sessions.mu.Unlock()
	all := map[BoundSession]struct{}{}
	for key := range ix.sessions.by {
		all[BoundSession{key.session, key.epoch}] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b BoundSession) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Epoch, b.Epoch))
	})
}

// EndSession ends the workers leased to that epoch of a session, and their calls. It returns
// after their end, or with ctx's error before. A later call of the session gets a new
// worker.
func (ix *Index) EndSession(ctx context.Context, name, epoch string) error {
	var ended []*pool.Pool
	ix.sessions.mu.Lock()
	for key, own := range ix.sessions.by {
		if key.session == name && key.epoch == epoch {
			ix.endSessionPool(own)
			ended = append(ended, own.pool)
		}
	}
	maps.DeleteFunc(ix.sessions.taken, func(key poolKey, _ *sessionPool) bool { return key.session == name && key.epoch == epoch })
	ix.sessions.mu.Unlock()
	for _, p := range ended {
		select {
		case <-p.Gone():
		case <-ctx.Done():
			return fmt.Errorf("end the workers of session %s: %w", name, ctx.Err())
		}
	}
	return nil
}
