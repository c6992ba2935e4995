package pool

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// Workers that live long gather what tools leave behind: they are replaced from
// time to time. The new one is ready before the old one gets no more calls, and
// a bit of chance, a tenth more or less, prevents that all of them are replaced
// at once. A worker that serves one call ends anyway, and one that a session knows
// must not: they are never replaced.

// Recycle says when a worker is replaced. Fields that are not positive say: never
// for that.
type Recycle struct {
	Calls  int           // that it was given
	Age    time.Duration // since it became ready
	Memory int64         // bytes that it, with all below it, grew by
}

// recycling is when one worker is to be replaced.
type recycling struct {
	begun   bool      // another is being started in its place
	calls   uint64    // that it may be given; 0: any number
	expires time.Time // zero: never
	growth  int64     // bytes that it may grow by; 0: any number
	why     string    // it is replaced
}

// about is n give or take a tenth.
func about[T ~int | ~int64](n T) T {
	if n <= 0 {
		return 0
	}
	return n - n/10 + T(rand.Int64N(int64(n/5)+1)) //nolint:gosec // no secret
}

// scheduleRecycling sets when a worker is to be replaced.
func (s *state) scheduleRecycling(w *worker) {
	if s.cfg.Once || s.cfg.Affinity != "" {
		return
	}
	r := s.cfg.Recycle
	w.recycling.calls = uint64(about(r.Calls)) //nolint:gosec // not negative
	if r.Age > 0 {
		w.recycling.expires = time.Now().Add(about(r.Age))
	}
	w.recycling.growth = about(r.Memory)
}

// memory is what the process and all below it have, 0 when that is not known.
func (w *worker) memory() int64 {
	usage, _ := w.proc.Usage(0)
	return usage.Memory
}

// countCalls replaces a worker that has been given its number of calls.
func (s *state) countCalls(w *worker) {
	if r := &w.recycling; r.calls > 0 && w.places >= r.calls {
		s.recycle(w, "calls")
	}
}

// recycle replaces the workers that have grown too old or too large.
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
			// It goes on, and is tried again: a worker of some age beats none.
			r.begun, r.calls, r.expires = false, w.places+1000, time.Now().Add(time.Minute)
			p.log.Warn("a worker could not be replaced", slog.String("why", r.why), slog.String("error", err.Error()))
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
		p.log.Debug("a worker was replaced", slog.String("why", r.why), slog.Int("pid", w.proc.Pid()))
	})
}
