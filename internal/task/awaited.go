package task

import (
	"maps"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
)

// awaited is a task that this runner has looked at and that no node can run yet.
type awaited struct {
	pool  string
	since time.Time // when it was queued
	until time.Time // when some runner looks at it again
}

// awaitedOver is how much later a task is looked at than it was said to be, at most.
const awaitedOver = time.Second

// await says why a task's call cannot be made yet: no node has its index. nil for most.
func (r *run) await(t *stored) *toolmesh.Error {
	if r.s.opts.Await == nil {
		return nil
	}
	pool, ok := r.s.opts.Await(r.session, t.Tool)
	if !ok {
		return nil
	}
	of := ""
	if r.pool = pool; pool != "" {
		of = " of pool " + pool
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "no node serves tool %q yet: the task waits for one%s", t.Tool, of).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

// awaits notes that a task waits for a node until it is looked at again.
func (r *run) awaits(t *stored, wait time.Duration) {
	if r.pool == "" {
		return
	}
	s, now := r.s, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited[t.key.Name] = awaited{r.pool, now.Add(t.Queued.Sub(s.now())), now.Add(wait + awaitedOver)}
}

// Awaited returns the tasks that this runner has looked at and that wait for a node, by
// pool. Where several runners look at a task in turns it may be counted twice for a second.
func (s *Service) Awaited() map[string]codec.Awaited {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.awaited, func(_ string, a awaited) bool { return now.After(a.until) })
	all := make(map[string]codec.Awaited)
	for _, a := range s.awaited {
		all[a.pool] = all[a.pool].Add(codec.Awaited{Tasks: 1, OldestMS: max(now.Sub(a.since).Milliseconds(), 0)})
	}
	return all
}
