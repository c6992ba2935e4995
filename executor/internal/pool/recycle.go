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

// recycling is when one worker is to be replaced.
type recycling struct {
	begun   bool      // its replacement is being started
	calls   uint64    // limit; 0: none
	expires time.Time // zero: never
	growth  int64     // limit in bytes; 0: none
	why     string    // the reason of its replacement
}

// about is n plus or minus a random tenth.
func about[T ~int | ~int64](n T) T {
	if n <= 0 {
		return 0
	}
	return n - n/10 + T(rand.Int64N(int64(n/5)+1)) //nolint:gosec // no secret
}

// scheduleRecycling sets when a worker is to be replaced.
func (s *state) scheduleRecycling(w *worker) {
	if s.cfg.Once || s.cfg.Session {
		return
	}
	r := s.cfg.Recycle
	w.recycling.calls = uint64(about(r.Calls)) //nolint:gosec // not negative
	if r.Age > 0 {
		w.recycling.expires = time.Now().Add(about(r.Age))
	}
	w.recycling.growth = about(r.Memory)
}

// memory is the memory of the process and all below it, 0 if it is unknown.
func (w *worker) memory() int64 {
	usage, _ := w.proc.Usage(0)
	return usage.Memory
}

// countCalls replaces a worker that has reached its number of calls.
func (s *state) countCalls(w *worker) {
	if r := &w.recycling; r.calls > 0 && w.places >= r.calls {
		s.recycle(w, "calls")
	}
}

// recycle replaces workers that are too old or too large.
func (p *Pool) recycle() {
	p.update(func(s *state) {
		for _, w := range s.workers {
			r := &w.recycling
			switch {
			case !r.expires.IsZero() && time.Now().After(r.expires):
				s.recycle(w, "age")
			case r.growth > 0 && w.memory()-w.metering.base > r.growth:
				s.recycle(w, "memory")
			}
		}
	})
}

// recycle has a worker replaced.
func (s *state) recycle(w *worker, why string) {
	if w.recycling.begun || w.retired || s.closed {
		return
	}
	w.recycling.begun, w.recycling.why = true, why
	s.replaced = append(s.replaced, w)
}

// replace starts another worker and then lets w go: at once if it runs nothing,
// else with its last call.
func (p *Pool) replace(w *worker) {
	fresh, err := p.newWorker()
	p.update(func(s *state) {
		r := &w.recycling
		if err != nil {
			// It stays in service and is tried again: an old worker is better than none.
			r.begun, r.calls, r.expires = false, w.places+1000, time.Now().Add(time.Minute)
			p.log.Warn("worker could not be replaced: it stays in service", slog.String("why", r.why), slog.String("error", err.Error()))
			return
		}
		s.welcome(fresh)
		if s.closed || w.retired {
			return
		}
		s.recycled++
		if w.free() {
			s.dismiss(w)
		} else {
			s.retire(w)
		}
		p.log.Debug("worker was replaced", slog.String("why", r.why), slog.Int("pid", w.proc.Pid()))
	})
}
