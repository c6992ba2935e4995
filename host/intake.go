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
	// maxListeners is how many goroutines may wait for requests at once.
	maxListeners = 32
)

// intake hands requests to goroutines that admit and run them. All
// subscriptions feed one channel; whoever takes a request off it first makes
// sure that somebody else listens. A call therefore needs no hand-over between
// goroutines, which would cost more than all else that the host does for it,
// and its goroutine's stack has grown already.
type intake struct {
	requests chan *nats.Msg
	handle   func(*nats.Msg)
	quit     chan struct{}
	idle     atomic.Int64
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

func newIntake(handle func(*nats.Msg)) *intake {
	return &intake{requests: make(chan *nats.Msg, intakeQueue), handle: handle, quit: make(chan struct{})}
}

// listen adds a goroutine; it ends with close, or when enough others wait.
func (in *intake) listen() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.idle.Add(1)
	in.wg.Go(in.serve)
}

func (in *intake) serve() {
	for {
		select {
		case m := <-in.requests:
			in.take(m)
		case <-in.quit:
			for { // what had arrived is still answered
				select {
				case m := <-in.requests:
					in.handle(m)
				default:
					return
				}
			}
		}
		if in.idle.Add(1) > maxListeners {
			if in.idle.Add(-1) > 0 {
				return
			}
			in.idle.Add(1)
		}
	}
}

func (in *intake) take(m *nats.Msg) {
	if in.idle.Add(-1) == 0 {
		in.listen()
	}
	in.handle(m)
}

// close ends the goroutines once what has arrived is handled.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		in.closed = true
		close(in.quit)
	}
}

func (in *intake) wait() { in.wg.Wait() }
