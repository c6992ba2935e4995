package host

import "sync"

// runners are the goroutines of what must not hold up a NATS callback.
type runners struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// run has a goroutine run f; after close it does nothing.
func (r *runners) run(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.wg.Go(f)
	}
}

func (r *runners) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}
