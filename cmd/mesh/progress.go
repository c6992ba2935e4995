package main

import (
	"fmt"
	"sync"
	"time"
)

// quietFor is how long a call may take before a person is told what it waits for.
const quietFor = time.Second

// waiting tells a person at a terminal, after a while, which call it is that
// runs and for how long. The returned function ends that; it may be called more
// than once, from one goroutine.
func (a *app) waiting(what string) (done func()) {
	if !a.term.err || a.json {
		return func() {}
	}
	begun := time.Now()
	stop := a.redraw(quietFor, func() string {
		return fmt.Sprintf("%s runs, %d s; Ctrl-C cancels it", what, int(time.Since(begun).Seconds()))
	})
	return stop
}

// starting tells a person at a terminal what a start that takes its time is at:
// indexes whose environments have to be built again.
func (a *app) starting() (done func()) {
	if !a.term.err {
		return func() {}
	}
	begun := time.Now()
	return a.redraw(quietFor, func() string {
		return fmt.Sprintf("starting: building what is installed, %d s", int(time.Since(begun).Seconds()))
	})
}

// redraw keeps one line of the terminal up to date, from after the first pause
// on, until the returned function is called, which wipes it. That may be called
// more than once, from one goroutine.
func (a *app) redraw(every time.Duration, text func() string) (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		shown := false
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(a.err, "\r\x1b[K%s", a.term.dim(cut(text(), a.term.width)))
				shown = true
			case <-quit:
				if shown {
					fmt.Fprint(a.err, "\r\x1b[K")
				}
				return
			}
		}
	})
	ended := false
	return func() {
		if !ended {
			ended = true
			close(quit)
			wg.Wait()
		}
	}
}

// steps shows how a job goes: on a terminal one line that is kept up to date and
// stays when its step is done, else a plain line per step. With --json nothing.
// Its methods are for one goroutine.
type steps struct {
	a       *app
	current string
	percent int
	since   time.Time
	mu      sync.Mutex // guards percent, which the redrawing reads
	wipe    func()
}

func (a *app) steps() *steps { return &steps{a: a} }

// step takes the news of one step.
func (s *steps) step(name, state string, percent int) {
	if s.a.json {
		return
	}
	if name != s.current {
		if state == "done" {
			return // an outer step, whose inner ones were shown
		}
		s.finish()
		s.current, s.since = name, time.Now()
		if s.a.term.err {
			begun := s.since
			s.wipe = s.a.redraw(100*time.Millisecond, func() string {
				s.mu.Lock()
				defer s.mu.Unlock()
				return fmt.Sprintf("  %-11s %3d %%  %.1f s", name, s.percent, time.Since(begun).Seconds())
			})
		} else {
			fmt.Fprintln(s.a.err, name)
		}
	}
	s.mu.Lock()
	s.percent = percent
	s.mu.Unlock()
	if state == "done" {
		s.finish()
	}
}

// finish leaves a line behind for the step that has ended, if it was long enough to
// be seen.
func (s *steps) finish() {
	if s.wipe != nil {
		s.wipe()
		s.wipe = nil
		if took := time.Since(s.since); took >= 100*time.Millisecond {
			fmt.Fprintln(s.a.err, s.a.term.dim(fmt.Sprintf("  %-11s %.1f s", s.current, took.Seconds())))
		}
	}
}

// warn shows a text between the steps.
func (s *steps) warn(text string) {
	if s.a.json {
		return
	}
	if s.wipe != nil {
		s.wipe()
		s.wipe = nil
	}
	fmt.Fprintf(s.a.err, "mesh: warning: %s\n", text)
}

// close wipes what is still shown.
func (s *steps) close() {
	if s.wipe != nil {
		s.wipe()
		s.wipe = nil
	}
}
