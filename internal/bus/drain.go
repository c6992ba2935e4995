package bus

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// drainTimeout is how long a drain waits for a broker that does not answer: as
	// long as a caller waits for a node.
	drainTimeout = 2500 * time.Millisecond
	// drainLook is the interval of checks during a drain.
	drainLook = 10 * time.Millisecond
)

// Drain drains subscriptions and waits until their pending messages are delivered. A broker
// that does not answer sends nothing more: then it waits only for messages that have arrived
// (nats.go waits 10 s for each subscription). The error is that of ctx.
func (b *Bus) Drain(ctx context.Context, subs ...*nats.Subscription) error {
	open := slices.DeleteFunc(slices.Clone(subs), func(sub *nats.Subscription) bool {
		return sub.Drain() != nil // closed already, or no connection: nothing more comes
	})
	ping, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	silent := make(chan struct{})
	go func() { // ends with ping
		if b.Ping(ping) != nil {
			close(silent)
		}
	}()
	ticker := time.NewTicker(drainLook)
	defer ticker.Stop()
	for lost := false; ; {
		open = slices.DeleteFunc(open, func(sub *nats.Subscription) bool {
			left, _, err := sub.Pending() // 0 for a channel: it has its messages already
			if lost && (err != nil || left == 0) {
				_ = sub.Unsubscribe()
			}
			return !sub.IsValid()
		})
		if len(open) == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-silent:
			lost, silent = true, nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
