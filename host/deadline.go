package host

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh/client"
)

// Calls whose time is up within alarmWithin get a timer; for the others the
// host's ticker looks when that is so. A timer for each call would be set and
// stopped for nothing nearly always.
const alarmWithin = 2 * tickEvery

// callContext is the context of a call. It is a cancellable context below
// nothing, so that a call's beginning and end touch no state that other calls
// share: the host ends its calls one by one ([Host.endCalls]).
type callContext struct {
	context.Context
	deadline time.Time // zero for none
	lineage  client.Lineage
	nested   atomic.Bool // a call was made under it: the tool's code has begun
}

// Value implements [context.Context]: calls that the handler makes know what
// call they belong to.
func (c *callContext) Value(key any) any {
	if _, ok := key.(client.LineageKey); ok {
		c.nested.Store(true)
		return &c.lineage
	}
	return c.Context.Value(key)
}

// Deadline implements [context.Context].
func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Err implements [context.Context].
func (c *callContext) Err() error {
	err := c.Context.Err()
	if err != nil && context.Cause(c.Context) == errDeadline { //nolint:errorlint // our own value, unwrapped
		return context.DeadlineExceeded
	}
	return err
}

// begin makes the call's context; end it with c.finish.
func (c *inflight) begin() {
	c.ctx.Context, c.stop = context.WithCancelCause(context.Background())
	c.ctx.deadline = c.deadline
	c.ctx.lineage = client.Lineage{Parent: c.req.RPCID, Depth: c.req.Depth + 1}
}

// watchDeadline sets the timer of a call whose time is up soon. The handler's
// goroutine calls it once, then the ticker.
func (c *inflight) watchDeadline(now time.Time) {
	if c.deadline.IsZero() || c.deadline.Sub(now) > alarmWithin || c.alarm.Load() != nil {
		return
	}
	// Should the call end meanwhile, the timer stops what has stopped.
	c.alarm.Store(time.AfterFunc(c.deadline.Sub(now), func() { c.stop(errDeadline) }))
}

// finish ends the call's context.
func (c *inflight) finish() {
	c.stop(nil)
	if alarm := c.alarm.Load(); alarm != nil {
		alarm.Stop()
	}
}

// endCalls ends the host's context and that of every call. A call that begins
// now finds the host's ended.
func (h *Host) endCalls(cause error) {
	h.end(cause)
	for _, call := range h.calls.Running() {
		call.Value.stop(cause)
	}
}
