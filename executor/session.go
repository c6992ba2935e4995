package executor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// leased is a pool. One of a session has at most one worker at a time: a session has one pool for its
// plain functions and one for its coroutines.
type leased struct {
	*pool.Pool

	// Of a session's pool, guarded by Index.poolsMu.
	calls int // in progress: the worker stays while there are any
	used  time.Time
}

// lease finds or makes the pool of a session. release must follow when the call has ended. It fails
// at the maximum of pools, or if the session's worker was given to another session: Index.taken has
// such sessions, with the time of their last call, until they return or their worker would have ended.
func (ix *Index) lease(g *group, key poolKey) (*leased, *toolmesh.Error) {
	ix.poolsMu.Lock()
	defer ix.poolsMu.Unlock()
	if ix.pools[key] == nil {
		if _, ok := ix.taken[key]; ok {
			delete(ix.taken, key)
			return nil, failure.StateGone("its worker was needed for another session")
		}
		if all := ix.sessionPools(); len(all) >= ix.x.opts.MaxSessions && !ix.evict(all) {
			return nil, failure.NotStarted(toolmesh.CodeBusy, "all %d workers that %s leases to sessions are in use", len(all), ix.spec.Name).
				WithRetryable(true).WithDetail("reason", "session_workers")
		}
	}
	own, err := ix.find(g, key)
	if err == nil {
		own.calls++
	}
	return own, err
}

func (ix *Index) release(own *leased) {
	ix.poolsMu.Lock()
	own.calls--
	own.used = time.Now()
	ix.poolsMu.Unlock()
}

// sessionPools are the pools of sessions. poolsMu is held.
func (ix *Index) sessionPools() map[poolKey]*leased {
	all := maps.Clone(ix.pools)
	maps.DeleteFunc(all, func(key poolKey, _ *leased) bool { return key.isolation != toolmesh.IsolationSession })
	return all
}

// evict ends that of the sessions' pools that has been idle for longest, if there is one. poolsMu is
// held.
func (ix *Index) evict(all map[poolKey]*leased) bool {
	idle := slices.DeleteFunc(slices.Collect(maps.Keys(all)), func(key poolKey) bool {
		return all[key].calls > 0 || time.Since(all[key].used) < ix.x.opts.SessionHold
	})
	if len(idle) == 0 {
		return false
	}
	oldest := slices.MinFunc(idle, func(a, b poolKey) int { return all[a].used.Compare(all[b].used) })
	ix.taken[oldest] = all[oldest].used
	ix.endPool(oldest)
	ix.log.Info("worker of an idle session was given to another session", slog.String("session", oldest.session))
	return true
}

// endPool takes a pool out of service. Its workers end after their calls. poolsMu is held.
func (ix *Index) endPool(key poolKey) {
	own := ix.pools[key]
	delete(ix.pools, key)
	if !ix.ended {
		ix.wg.Go(own.Wait)
	}
	own.End()
}

// expireSessions ends the pools of sessions that were idle for too long.
func (ix *Index) expireSessions() {
	ix.poolsMu.Lock()
	defer ix.poolsMu.Unlock()
	for key, own := range ix.sessionPools() {
		if own.calls == 0 && time.Since(own.used) >= ix.x.opts.SessionIdle {
			ix.endPool(key)
		}
	}
	maps.DeleteFunc(ix.taken, func(_ poolKey, used time.Time) bool { return time.Since(used) >= ix.x.opts.SessionIdle })
}

// BoundSession is one with workers of its own. Epoch is empty if it was not created.
type BoundSession struct{ Name, Epoch string }

// Sessions are those that have workers of their own now.
func (ix *Index) Sessions() []BoundSession {
	ix.poolsMu.Lock()
	defer ix.poolsMu.Unlock()
	all := map[BoundSession]struct{}{}
	for key := range ix.sessionPools() {
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
	var ended []*leased
	ix.poolsMu.Lock()
	of := func(key poolKey) bool { return key.session == name && key.epoch == epoch }
	for key, own := range ix.sessionPools() {
		if of(key) {
			ix.endPool(key)
			ended = append(ended, own)
		}
	}
	maps.DeleteFunc(ix.taken, func(key poolKey, _ time.Time) bool { return of(key) })
	ix.poolsMu.Unlock()
	for _, p := range ended {
		select {
		case <-p.Gone():
		case <-ctx.Done():
			return fmt.Errorf("end the workers of session %s: %w", name, ctx.Err())
		}
	}
	return nil
}
