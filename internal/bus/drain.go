package bus

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// drainTimeout is how long a drain waits for a broker that does not answer: as
	// long as a caller waits for a node.
	drainTimeout = 2500 * time.Millisecond
	// drainLook is how often a drain without a broker looks what is left.
	drainLook = 10 * time.Millisecond
)

// Drain drains subscriptions and waits until what they held is handed out. From
// a broker that does not answer nothing more comes: then it waits for what has
// arrived, and no longer (nats.go waits 10 s for each subscription). The error
// is that of ctx.
func (b *Bus) Drain(ctx context.Context, subs ...*nats.Subscription) error {
	var open sync.WaitGroup
	for _, sub := range subs {
		open.Add(1)
		// nats.go tells it twice of a subscription that is closed while it drains.
		closed := sync.OnceFunc(open.Done)
		sub.SetClosedHandler(func(string) { closed() })
		if err := sub.Drain(); err != nil {
			closed() // closed already, or no connection: nothing more comes
		}
	}
	done := make(chan struct{})
	go func() { // ends with the subscriptions: nats.go bounds a drain
		open.Wait()
		close(done)
	}()
	ping, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	silent := make(chan struct{})
	go func() { // ends with ping
		if b.Ping(ping) != nil {
			close(silent)
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-silent:
	}
	ticker := time.NewTicker(drainLook)
	defer ticker.Stop()
	for _, sub := range subs {
		for {
			if left, _, err := sub.Pending(); err != nil || left == 0 {
				break // a channel's: it has what has arrived
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		_ = sub.Unsubscribe()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
