package host

import (
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

const (
	// intakeQueue is how many requests may wait to be looked at. Looking at one
	// takes microseconds, also to refuse it, so they wait only while the process
	// does not run.
	intakeQueue = 1 << 16
	// maxListeners is the max of goroutines that wait for requests, minListeners the number on an
	// idle node. Few goroutines keep warm stacks.
	maxListeners = 256
	minListeners = 2
)

// listeners hand requests to goroutines that admit and run them. All
// subscriptions feed one channel; the goroutine that takes a request off it
// first makes sure that another one listens. A call therefore needs no hand-over between
// goroutines, which would cost more than all else that the host does for it,
// and its goroutine's stack has grown already.
type listeners struct {
	requests chan *nats.Msg
	handle   func(*nats.Msg)
	quit     chan struct{}
	idle     atomic.Int64
	least    atomic.Int64 // of idle, since the last adapt
	most     atomic.Int64 // of idle: more end
	wg       sync.WaitGroup

	mu     sync.Mutex // no other lock is taken under it
	alive  int64
	closed bool
}

func newListeners(handle func(*nats.Msg)) *listeners {
	in := &listeners{requests: make(chan *nats.Msg, intakeQueue), handle: handle, quit: make(chan struct{})}
	in.most.Store(maxListeners)
	return in
}

// listen adds a goroutine; it ends with close, or when enough others wait.
func (in *listeners) listen() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.alive++
	in.idle.Add(1)
	in.wg.Go(in.serve)
}

func (in *listeners) serve() {
	for {
		select {
		case m := <-in.requests:
			in.take(m)
		case <-in.quit:
			for { // requests that have already arrived are answered
				select {
				case m := <-in.requests:
					in.handle(m)
				default:
					return
				}
			}
		}
		if in.idle.Add(1) > in.most.Load() {
			if in.idle.Add(-1) > 0 {
				in.mu.Lock()
				in.alive--
				in.mu.Unlock()
				return
			}
			in.idle.Add(1)
		}
	}
}

func (in *listeners) take(m *nats.Msg) {
	idle := in.idle.Add(-1)
	if idle == 0 {
		in.listen()
	}
	if idle < in.least.Load() {
		in.least.Store(idle) // two at once may leave the larger: adapt only estimates
	}
	in.handle(m)
}

// adapt lets go of goroutines that were not needed since it was last called.
// The host calls it each second.
func (in *listeners) adapt() {
	in.mu.Lock()
	needed := in.alive - in.least.Load()
	in.mu.Unlock()
	in.most.Store(min(max(needed, minListeners), maxListeners))
	in.least.Store(in.idle.Load())
}

// close ends the goroutines once they have handled all requests that have arrived.
func (in *listeners) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		in.closed = true
		close(in.quit)
	}
}
