package pool

import (
	"math/rand/v2"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

const (
	// A cancelled call is signalled again after this long, doubling to the last.
	firstSignalAgain = 2 * time.Millisecond
	lastSignalAgain  = 100 * time.Millisecond
)

// interrupt stops a call that a worker has: by a cancellation, and after the
// grace with its worker. It returns at once; the call's end comes as ever.
func (p *Pool) interrupt(j *job) {
	p.update(func(s *state) { s.interrupt(p, j) })
}

func (s *state) interrupt(p *Pool, j *job) {
	w := j.worker
	if w == nil || j.grace != nil {
		return
	}
	w.cancel(j)
	p.signalAgain(j, firstSignalAgain)
	j.grace = time.AfterFunc(s.cfg.Grace, func() { p.killAfterGrace(j) })
}

// killAfterGrace ends a call that goes on though its grace has passed.
func (p *Pool) killAfterGrace(j *job) {
	p.update(func(s *state) {
		w := j.worker
		if w == nil {
			return
		}
		j.killed = true
		s.stop(w)
		if !s.cfg.Async {
			w.proc.Kill()
			return
		}
		// Its other calls are let go on. We no longer wait for this one.
		w.abandoned++
		begun := w.begun(j)
		s.release(j)
		if len(w.jobs) == 0 {
			w.proc.Kill()
		}
		j.err = failure.Crashed(j.Tool, sandbox.Exit{Lost: true}, begun, "")
		j.done <- struct{}{}
	})
}

// signalAgain signals a cancelled call again, until its worker has heard: a signal
// that arrives between the last look at it and a system call is only seen when
// that returns, and one that finds the worker's own code, or another coroutine,
// hits nothing. It is called in updates.
func (p *Pool) signalAgain(j *job, after time.Duration) {
	j.again = time.AfterFunc(after/2+rand.N(after), func() { //nolint:gosec // two calls of one worker must not be in step
		p.update(func(*state) {
			w := j.worker
			if w == nil || w.proc.Load(sandbox.WordHeard) == j.id {
				return
			}
			w.signal(j)
			p.signalAgain(j, min(2*after, lastSignalAgain))
		})
	})
}
