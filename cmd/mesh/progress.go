package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh/internal/wake"
)

// quietFor is how long a call takes before the person sees what it waits for.
const quietFor = time.Second

// running shows a person at a terminal, after quietFor, the current work, its time so far and a
// hint. It ends with the returned function, which may be called repeatedly from one goroutine.
func (a *app) running(what, hint string) (done func()) {
	return a.redraw(quietFor, func(since time.Duration) string {
		return fmt.Sprintf("%s, %d s%s", what, int(since.Seconds()), hint)
	})
}

// redraw updates one line of the terminal, after a first pause, until the returned function wipes
// it. That function may be called repeatedly from one goroutine. Without a terminal redraw does
// nothing.
func (a *app) redraw(every time.Duration, text func(since time.Duration) string) (stop func()) {
	if a.term.redraws == 0 || a.json {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		begun := time.Now()
		for wake.After(ctx, every) {
			fmt.Fprint(a.err, wipe+a.term.dim(cut(text(time.Since(begun)), a.term.redraws)))
		}
		if time.Since(begun) >= every {
			fmt.Fprint(a.err, wipe)
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
}

// steps shows the progress of a job. On a terminal it updates one line per step, elsewhere it
// prints one plain line per step, with --json nothing. Its methods are for one goroutine.
type steps struct {
	a       *app
	current string
	percent atomic.Int64
	since   time.Time
	wipe    func()
	warned  []string // with --json: warnings for the last line
}

func (a *app) steps() *steps { return &steps{a: a, wipe: func() {}} }

// step shows the state of one step.
func (s *steps) step(name, state string, percent int) {
	if s.a.json {
		return
	}
	s.percent.Store(int64(percent))
	if name != s.current {
		if state == "done" {
			return // an outer step; its inner ones were shown
		}
		s.finish()
		s.current, s.since = name, time.Now()
		if s.a.term.redraws == 0 {
			fmt.Fprintln(s.a.err, name)
		}
		s.wipe = s.a.redraw(100*time.Millisecond, func(since time.Duration) string {
			return fmt.Sprintf("  %-11s %3d %%  %.1f s", name, s.percent.Load(), since.Seconds())
		})
	}
	if state == "done" {
		s.finish()
	}
}

// finish leaves a line behind for a step that has ended, if it was visible for long enough.
func (s *steps) finish() {
	s.wipe()
	if took := time.Since(s.since); s.a.term.redraws > 0 && s.current != "" && took >= 100*time.Millisecond {
		fmt.Fprintln(s.a.err, s.a.term.dim(fmt.Sprintf("  %-11s %.1f s", s.current, took.Seconds())))
	}
	s.current = ""
}

// warn shows a text between the steps.
func (s *steps) warn(text string) {
	s.wipe()
	if s.a.json {
		s.warned = append(s.warned, text)
	} else {
		fmt.Fprintf(s.a.err, "mesh: warning: %s\n", text)
	}
}
