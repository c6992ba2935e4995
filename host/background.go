package host

import "sync"

// background runs work that must not delay a NATS callback, in goroutines that the host waits for
// when it stops.
type background struct {
	wg sync.WaitGroup

	mu     sync.Mutex // no other lock is taken under it
	closed bool
}

// Go has a goroutine run f; after close it does nothing.
func (b *background) Go(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.wg.Go(f)
	}
}

func (b *background) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}
