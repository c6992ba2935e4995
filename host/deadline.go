package host

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
)

// callContext is the context of a call. It is a cancellable context below
// nothing, so that a call's beginning and end touch no state that other calls
// share: the host ends its calls one by one ([Host.endCalls]).
type callContext struct {
	context.Context
	deadline time.Time // zero for none
	lineage  client.Lineage
	nested   atomic.Bool // a call was made under it: the tool's code has begun
	report   func(codec.Progress)
}

// reportKey is the key of what a call's [Progress] is told.
type reportKey struct{}

// Value implements [context.Context]: calls that the handler makes know what
// call they belong to.
func (c *callContext) Value(key any) any {
	if _, ok := key.(client.LineageKey); ok {
		c.nested.Store(true)
		return &c.lineage
	}
	if _, ok := key.(reportKey); ok {
		return c.report
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

// begin makes the call's context; end it with c.finish. Its time is kept by a
// timer of its own, so that nothing that may wait comes before it.
func (c *inflight) begin() {
	c.ctx.Context, c.stop = context.WithCancelCause(context.Background())
	c.ctx.deadline = c.deadline
	c.ctx.lineage = client.Lineage{Parent: c.Request.RPCID, Depth: c.Request.Depth + 1, Lanes: c.Request.Lanes}
	c.ctx.report = c.report
	if !c.deadline.IsZero() {
		c.alarm = time.AfterFunc(time.Until(c.deadline), func() { c.stop(errDeadline) })
	}
}

// finish ends the call's context.
func (c *inflight) finish() {
	c.stop(nil)
	if c.alarm != nil {
		c.alarm.Stop()
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
