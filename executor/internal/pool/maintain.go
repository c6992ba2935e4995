package pool

import (
	"log/slog"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
)

const (
	// An event loop is blocked after blockedAfter without a keepalive. The number of looks counts,
	// not the clock: time in which this process did not run either, as in a suspended machine,
	// proves nothing.
	blockedAfter = time.Second
	blockedLooks = 4
)

// maintain ends workers that are not needed, replaces old ones, and checks event loops.
func (p *Pool) maintain() {
	idle := time.Tick(max(p.cfg.IdleAfter/4, time.Millisecond))
	var probe <-chan time.Time
	if p.cfg.Async {
		probe = time.Tick(blockedAfter / blockedLooks)
	}
	for {
		select {
		case <-idle:
			p.update(func(s *state) {
				s.reap()
				s.inspect()
			})
		case <-probe:
			p.update(func(s *state) { s.probe(p.log) })
		case <-p.open.Done():
			return
		}
	}
}

// reap ends workers that were idle for long, down to the minimum.
func (s *state) reap() {
	list := s.idle // the longest idle first
	if s.cfg.Async {
		list = s.workers
	}
	serving, least := s.serving(), s.cfg.MinIdle
	if s.cfg.Once {
		least = 0
	}
	for _, w := range slices.Clone(list) {
		unused := w.free() && !w.retired && (!s.cfg.Once || w.places == 0)
		if unused && serving > least && time.Since(w.idleSince) >= s.cfg.IdleAfter {
			s.dismiss(w)
			serving--
		}
	}
}

// probe requests a keepalive from each event loop with calls. A loop without one for a second is
// blocked by a coroutine that computes, or waits without await: new calls go elsewhere until it
// answers.
func (s *state) probe(log *slog.Logger) {
	for _, w := range s.workers {
		switch {
		case (w.retired && w.abandoned == 0) || len(w.jobs) == 0:
		case w.silent == 0:
			w.silent = 1
			w.send(frame.Header{Type: frame.Ping, ID: w.proc.ID()}, nil)
		case w.silent < blockedLooks:
			w.silent++
		case w.retired:
			w.proc.Kill() // blocked by an abandoned call: its other calls would never end
		case !w.blocked:
			w.blocked = true
			log.Warn("a coroutine blocks its event loop: new calls go to another worker",
				slog.Int("pid", w.proc.Pid()), slog.Int("calls", len(w.jobs)))
		}
	}
}
