package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// adminSilence is how long an agent may say nothing about a request before it is
// asked for.
const adminSilence = 5 * time.Second

// errSilent says that nothing arrived for a while.
var errSilent = errors.New("nothing arrived")

// arrivals keeps messages in order between the connection's goroutine, which
// must not block, and a command.
type arrivals struct {
	mu    sync.Mutex
	queue []*nats.Msg
	err   error
	more  chan struct{} // capacity 1
}

func newArrivals() *arrivals { return &arrivals{more: make(chan struct{}, 1)} }

func (r *arrivals) put(m *nats.Msg, err error) {
	r.mu.Lock()
	if err != nil {
		r.err = err
	} else {
		r.queue = append(r.queue, m)
	}
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// next waits for a message; errSilent if none comes for so long.
func (r *arrivals) next(ctx context.Context, silence time.Duration) (*nats.Msg, error) {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		r.mu.Lock()
		if len(r.queue) > 0 {
			m := r.queue[0]
			r.queue = r.queue[1:]
			r.mu.Unlock()
			return m, nil
		}
		err := r.err
		r.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-r.more:
		case <-timer.C:
			return nil, errSilent
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// waiting reports whether a message is there for next.
func (r *arrivals) waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) > 0
}
