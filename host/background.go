package host

import "sync"

// background are goroutines that the host waits for when it stops: of work that must not delay a
// NATS callback, among others.
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
