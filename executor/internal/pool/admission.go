package pool

import (
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/tool"
)

// What follows decides which calls get a worker, so that no calls wait for each
// other in a circle. A call that waits for one that its tool made computes
// nothing and does not count against the limit of those that run. And each depth
// of calls has as many places as the limit says: a call waits for deeper ones
// only, and the deepest wait for none, so that all come to their end. The limit
// times the depth bounds what is there in all.

// admits reports whether a worker may be given j now.
func (s *state) admits(j *job) bool {
	limit := s.cfg.MaxCalls
	if limit <= 0 {
		return true // room bounds what each loop holds
	}
	return s.busy-s.waiting < limit && s.depths[j.Depth] < limit
}

// dispatch gives calls that may have a worker to those that have room: a call
// may wait beside idle workers until it is admitted. It returns the place of the
// first that finds none, or -1.
func (s *state) dispatch() int {
	for len(s.queue.Waiting) > 0 {
		i := s.admissible()
		if i < 0 {
			return -1
		}
		if j := s.queue.Waiting[i]; j.Deserted != nil && j.Deserted() {
			s.queue.Serve(i).turn <- failure.Deserted()
			continue
		}
		w := s.pick()
		if w == nil {
			return i
		}
		s.assign(w, s.queue.Serve(i))
	}
	return -1
}

// admissible is the place in the queue of the first call that may be given a
// worker, or -1.
func (s *state) admissible() int {
	refused := -1
	for i, j := range s.queue.Waiting {
		if j.Depth != refused {
			if s.admits(j) {
				return i
			}
			refused = j.Depth // as are most of those behind it
		}
	}
	return -1
}

// opened notes that a call's tool has n more calls open.
func (s *state) opened(j *job, n int) {
	before := j.open
	j.open += n
	switch {
	case j.worker == nil:
	case before == 0:
		s.waiting++
		j.worker.waiting++
		s.refuseBelow(j)
	case j.open == 0:
		s.waiting--
		j.worker.waiting--
	}
}

// mustNotWait is the error of a call that must not wait for its session's worker;
// no worker has room for it.
func (s *state) mustNotWait(j *job) *toolmesh.Error {
	switch {
	case s.cfg.Affinity == tool.AffinityFail && (len(s.workers) > 0 || len(s.queue.Waiting) > 0):
		return failure.NotStarted(toolmesh.CodeBusy, "the session's worker is busy with another call").
			WithRetryable(true).WithDetail("reason", "worker_busy")
	case s.cfg.holdsState() && !s.cfg.Async && s.below(j.Depth):
		return workerWaits()
	}
	return nil
}

// below reports whether a call of a depth must not wait for a session's one
// worker: that waits for a call which is above this one, or for a call that may
// need what this one holds.
func (s *state) below(depth int) bool {
	return slices.ContainsFunc(s.workers, func(w *worker) bool {
		return w.one != nil && w.one.open > 0 && w.one.Depth < depth
	})
}

// refuseBelow fails the queued calls that must not wait for a session's one worker
// any more, now that j, which has it, waits itself.
func (s *state) refuseBelow(j *job) {
	if !s.cfg.holdsState() || s.cfg.Async {
		return
	}
	s.queue.Waiting = slices.DeleteFunc(s.queue.Waiting, func(queued *job) bool {
		if queued.Depth > j.Depth {
			queued.turn <- workerWaits()
			return true
		}
		return false
	})
}

func workerWaits() *toolmesh.Error {
	return failure.NotStarted(toolmesh.CodeBusy, "the session's worker waits for a call that its own tool made, which may be this one: "+
		"tools that call each other in isolation session must be coroutines, or of another isolation").
		WithRetryable(true).WithDetail("reason", "worker_waits")
}
