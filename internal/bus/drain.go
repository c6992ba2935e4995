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

// Retire drains a subscription in the background. Without a connection, and at the next one, it is ended with what it
// has left: nats.go subscribes one that drains once more at the next connection, and never ends that, so that the broker
// would go on sending it a part of a queue group's messages.
func (b *Bus) Retire(sub *nats.Subscription) {
	b.mu.Lock()
	b.retired = append(slices.DeleteFunc(b.retired, func(one *nats.Subscription) bool { return !one.IsValid() }), sub)
	b.mu.Unlock()
	if sub.Drain() != nil || !b.Connected() {
		_ = sub.Unsubscribe()
	}
}

// Drain drains subscriptions and waits until their pending messages are delivered. A broker
// that does not answer sends nothing more: then it waits only for messages that have arrived
// (nats.go waits 10 s for each subscription). The error is that of ctx.
func (b *Bus) Drain(ctx context.Context, subs ...*nats.Subscription) error {
	open := slices.DeleteFunc(slices.Clone(subs), func(sub *nats.Subscription) bool {
		return sub.Drain() != nil // closed already, or no connection: nothing more comes
	})
	ticker := time.NewTicker(drainLook)
	defer ticker.Stop()
	for began := time.Now(); ; {
		silent := !b.Connected() || time.Since(began) > drainTimeout
		open = slices.DeleteFunc(open, func(sub *nats.Subscription) bool {
			left, _, err := sub.Pending() // 0 for a channel: it has its messages already
			if silent && (err != nil || left == 0) {
				_ = sub.Unsubscribe()
			}
			return !sub.IsValid()
		})
		if len(open) == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
