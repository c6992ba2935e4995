package pool

import (
	"math/rand/v2"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

const (
	// A cancelled call is signalled again after this time, doubling up to the last.
	firstSignalAgain = 2 * time.Millisecond
	lastSignalAgain  = 100 * time.Millisecond
)

// interrupt cancels a call that a worker has, and kills the worker after the grace. It returns
// at once; the call ends as usual.
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

// killAfterGrace ends a call that still runs after its grace.
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
		// Its other calls may finish; this one is abandoned.
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

// signalAgain repeats the signal of a cancelled call until its worker confirms. A signal between
// the last check and a system call is seen only when that returns, and one that hits the
// worker's own code, or another coroutine, has no effect. It is called in updates.
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
