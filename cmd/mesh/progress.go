package main

import (
	"fmt"
	"sync"
	"time"
)

// patience is how long a call may take before a person is told what it waits for.
const patience = time.Second

// waiting tells a person at a terminal, after a while, which call it is that
// runs and for how long. The returned function ends that; it may be called more
// than once, from one goroutine.
func (a *app) waiting(what string) (done func()) {
	if !a.term.err || a.json {
		return func() {}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	begun := time.Now()
	wg.Go(func() {
		ticker := time.NewTicker(patience)
		defer ticker.Stop()
		shown := false
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(a.err, "\r\x1b[K%s", a.term.dim(fmt.Sprintf("%s runs, %d s; Ctrl-C cancels it", what, int(time.Since(begun).Seconds()))))
				shown = true
			case <-stop:
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
			close(stop)
			wg.Wait()
		}
	}
}
