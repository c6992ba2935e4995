package pool

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// Long-lived workers accumulate leftovers of tools, so they are replaced from time to time. The new
// worker is ready before the old one stops taking calls, and a random tenth more or less keeps them
// from being replaced all at once. Workers that serve one call, or hold a session's state, are
// never replaced.

// Recycle configures when a worker is replaced. A field that is not positive never causes
// it.
type Recycle struct {
	Calls  int           // calls that it has taken
	Age    time.Duration // since it became ready
	Memory int64         // growth in bytes, with processes below it
}

// wear is when one worker is to be replaced.
type wear struct {
	calls   uint64    // limit; 0: none
	expires time.Time // zero: never
	growth  int64     // limit in bytes; 0: none
	out     string    // the limit that it has reached; empty: none
}

// about is n plus or minus a random tenth.
func about[T ~int | ~int64](n T) T {
	if n <= 0 {
		return 0
	}
	return n - n/10 + T(rand.Int64N(int64(n/5)+1)) //nolint:gosec // no secret
}

// limitWear sets when a worker is to be replaced.
func (s *state) limitWear(w *worker) {
	if s.cfg.Once || s.cfg.Session {
		return
	}
	r := s.cfg.Recycle
	w.wear.calls, w.wear.growth = uint64(about(r.Calls)), about(r.Memory) //nolint:gosec // not negative
	if r.Age > 0 {
		w.wear.expires = time.Now().Add(about(r.Age))
	}
}

// memory is the memory of the process and all below it, 0 if it is unknown.
func (w *worker) memory() int64 {
	usage, _ := w.proc.Usage(0)
	return usage.Memory
}

// countCalls replaces a worker that has reached its number of calls.
func (s *state) countCalls(w *worker) {
	if w.wear.calls > 0 && w.places >= w.wear.calls && w.wear.out == "" {
		s.recycle(w, "calls")
	}
}

// inspect replaces workers that are too old or too large. An earlier start that failed is repeated: an
// old worker is better than none.
func (s *state) inspect() {
	for _, w := range s.workers {
		switch {
		case w.wear.out != "":
			if s.starting == 0 && s.pause(time.Now()) == 0 {
				s.recycle(w, w.wear.out)
			}
		case !w.wear.expires.IsZero() && time.Now().After(w.wear.expires):
			s.recycle(w, "age")
		case w.wear.growth > 0 && w.memory()-w.metering.base > w.wear.growth:
			s.recycle(w, "memory")
		}
	}
}

// recycle starts the worker that will replace w.
func (s *state) recycle(w *worker, why string) {
	if !w.retired && !s.closed {
		w.wear.out = why
		s.start()
	}
}

// replaceWorn lets a worn worker go, since another is ready: at once if it runs nothing, else with its
// last call.
func (s *state) replaceWorn() {
	for _, w := range s.workers {
		if w.wear.out == "" || w.retired {
			continue
		}
		s.recycled++
		if w.free() {
			s.dismiss(w)
		} else {
			s.retire(w)
		}
		w.pool.log.Debug("worker was replaced", slog.String("why", w.wear.out), slog.Int("pid", w.proc.Pid()))
		return
	}
}
