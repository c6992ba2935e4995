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
	p.update(func(s *state) { s.interrupt(j) })
}

// interrupt repeats the signal until the worker confirms. A signal between the last check and a
// system call is seen only when that returns, and one that hits the worker's own code, or another
// coroutine, has no effect.
func (s *state) interrupt(j *job) {
	w := j.worker
	if w == nil || j.again != nil {
		return
	}
	w.cancel(j)
	end, pause := time.Now().Add(s.cfg.Grace), firstSignalAgain
	next := func(left time.Duration) time.Duration {
		return min(left, pause/2+rand.N(pause)) //nolint:gosec // two calls of one worker must not be in step
	}
	j.again = time.AfterFunc(next(s.cfg.Grace), func() {
		w.pool.update(func(s *state) {
			left := time.Until(end)
			switch {
			case j.worker == nil:
				return
			case left <= 0:
				s.kill(j)
				return
			case w.proc.Load(sandbox.WordHeard) != j.id:
				w.signal(j)
			}
			pause = min(2*pause, lastSignalAgain)
			j.again.Reset(next(left))
		})
	})
}

// kill ends a call that still runs after its grace.
func (s *state) kill(j *job) {
	w := j.worker
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
}
