package bus

import (
	"reflect"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
)

// chain is a connection's error handler once there is a Bus on it: it tells each
// Bus, and then the handler that was there before. One is enough for all of them,
// also for those to come: a Bus for each request leaves nothing behind.
type chain struct {
	before nats.ErrHandler

	mu    sync.Mutex
	buses []*Bus // copied when it changes
}

// chaining makes one chain of what several goroutines begin on a connection.
var chaining sync.Mutex

// chainOf returns a connection's chain, which it makes when there is none.
func chainOf(nc *nats.Conn) *chain {
	chaining.Lock()
	defer chaining.Unlock()
	before := nc.ErrorHandler()
	if before != nil && reflect.ValueOf(before).Pointer() == chainCode {
		var q question
		before(nc, nil, &q)
		return q.chain
	}
	c := &chain{before: before}
	nc.SetErrorHandler(c.handler())
	return c
}

// chainCode tells our handlers from others: functions do not compare.
var chainCode = reflect.ValueOf((&chain{}).handler()).Pointer()

// question has a handler of ours say which chain it is of.
type question struct{ chain *chain }

func (*question) Error() string { return "which chain of error handlers is this?" }

// handler must not be inlined: its function's code would not be the same everywhere.
//
//go:noinline
func (c *chain) handler() nats.ErrHandler {
	return func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if q, ok := err.(*question); ok { //nolint:errorlint // it comes as it is
			q.chain = c
			return
		}
		c.mu.Lock()
		all := c.buses
		c.mu.Unlock()
		for _, b := range all {
			if !b.closed.Load() {
				b.asyncError(sub, err)
			}
		}
		if c.before != nil {
			c.before(nc, sub, err)
		}
	}
}

func (c *chain) add(b *Bus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buses = append(slices.Clip(c.buses), b)
}

func (c *chain) remove(b *Bus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buses = slices.DeleteFunc(slices.Clone(c.buses), func(other *Bus) bool { return other == b })
}
