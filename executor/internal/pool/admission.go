package pool

import (
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
)

// Admission decides which calls get a worker, so that calls never wait for each other in a
// circle. A call that waits for one that its tool made computes nothing and does not count
// against the limit of running calls. Each depth of calls has as many places as that limit: a
// call waits for deeper ones only, and the deepest wait for none, so all come to an end. The
// limit times the depth bounds the calls in all.

// admits reports whether j may get a worker now.
func (s *state) admits(j *job) bool {
	limit := s.cfg.MaxCalls
	if limit <= 0 {
		return true // room bounds the calls of each event loop
	}
	return s.busy-s.waiting < limit && s.depths[j.Depth] < limit
}

// dispatch gives admitted calls to workers with room: a call may wait although workers are
// idle. It returns the queue position of the first call that finds no worker, or -1.
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

// admissible is the queue position of the first call that is admitted, or -1.
func (s *state) admissible() int {
	refused := -1
	for i, j := range s.queue.Waiting {
		if j.Depth != refused {
			if s.admits(j) {
				return i
			}
			refused = j.Depth // most behind it have the same depth
		}
	}
	return -1
}

// opened records that a call's tool has n more calls open.
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

// below reports whether a call of a depth must not wait for a session's only worker: that
// worker waits for a call above this one, or for a call that may need this one's place.
func (s *state) below(depth int) bool {
	return slices.ContainsFunc(s.workers, func(w *worker) bool {
		return w.one != nil && w.one.open > 0 && w.one.Depth < depth
	})
}

// refuseBelow fails queued calls that must no longer wait for a session's only worker, since
// its call j waits itself.
func (s *state) refuseBelow(j *job) {
	if !s.cfg.Session || s.cfg.Async {
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
