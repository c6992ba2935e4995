package host

import (
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

const (
	// intakeQueue is how many requests may wait to be looked at. Looking at one
	// takes microseconds, also to refuse it, so they wait only while the process
	// does not run.
	intakeQueue = 1 << 16
	// maxListeners is the max of goroutines that wait for requests.
	maxListeners = 256
)

// listeners hand requests to goroutines that admit and run them. All
// subscriptions feed one channel; the goroutine that takes a request off it
// first makes sure that another one listens. A call therefore needs no hand-over between
// goroutines, which would cost more than all else that the host does for it,
// and its goroutine's stack has grown already.
type listeners struct {
	background
	requests chan *nats.Msg
	handle   func(*nats.Msg)
	quit     chan struct{}
	idle     atomic.Int64
}

func newListeners(handle func(*nats.Msg)) *listeners {
	return &listeners{requests: make(chan *nats.Msg, intakeQueue), handle: handle, quit: make(chan struct{})}
}

// listen adds a goroutine; it ends with close, or when enough others wait.
func (in *listeners) listen() {
	in.idle.Add(1)
	in.Go(in.serve)
}

func (in *listeners) serve() {
	for {
		select {
		case m := <-in.requests:
			if in.idle.Add(-1) == 0 {
				in.listen()
			}
			in.handle(m)
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
		if in.idle.Add(1) > maxListeners {
			if in.idle.Add(-1) > 0 {
				return
			}
			in.idle.Add(1) // all others have taken requests meanwhile
		}
	}
}

// close ends the goroutines, once, when they have handled all requests that have arrived.
func (in *listeners) close() {
	in.background.close()
	close(in.quit)
}
