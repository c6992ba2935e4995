package host

import "sync"

// maxIdleRunners is how many goroutines wait for further work.
const maxIdleRunners = 64

// runners runs what must not hold up a NATS callback, on goroutines that are
// used again: a new one would grow its stack anew each time. The last one that
// became idle is the next to run, while its caches are warm.
type runners struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	idle   []chan func()
	closed bool
}

// run has a goroutine run f; after close it does nothing.
func (r *runners) run(f func()) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	if n := len(r.idle); n > 0 {
		c := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		c <- f
		return
	}
	r.wg.Add(1)
	r.mu.Unlock()
	go r.serve(make(chan func(), 1), f) // ends with close, or when enough others are idle
}

func (r *runners) serve(c chan func(), f func()) {
	defer r.wg.Done()
	for {
		f()
		r.mu.Lock()
		if r.closed || len(r.idle) >= maxIdleRunners {
			r.mu.Unlock()
			return
		}
		r.idle = append(r.idle, c)
		r.mu.Unlock()
		var open bool
		if f, open = <-c; !open {
			return
		}
	}
}

// close ends the idle goroutines; those that run a call end after it. wait
// returns when all have.
func (r *runners) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, c := range r.idle {
		close(c)
	}
	r.idle = nil
}

func (r *runners) wait() { r.wg.Wait() }
