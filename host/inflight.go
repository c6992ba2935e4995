package host

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/grants"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
)

type inflight struct {
	// Set before the call is admitted, and then read by anyone.
	stream.Reader // the first caller, of which the call has its request
	run           *runner
	tool          *served
	directed      bool      // to this node's own subject
	deadline      time.Time // zero for a stream without a total
	epoch         string    // of the session; see Epoch
	ctx           callContext
	stop          context.CancelCauseFunc
	alarm         *time.Timer  // fires at the deadline; nil for none
	call          Call         // the handler's view
	sink          unarySink    // of a unary call
	home          *grants.Home // of a call in its session's worker, once that is known to be here

	// Set by bind, for the goroutine that runs the call; nil for arguments by reference.
	args, varArgs json.RawMessage

	held      int64                         // of the node's room for arguments; the goroutine that runs it
	unsettled atomic.Bool                   // epoch is still to be looked up
	lane      atomic.Pointer[codec.LaneUse] // set once it holds its lane, or got none

	cause   atomic.Pointer[toolmesh.Error] // why the call was told to end
	ending  atomic.Int64                   // when it was, as [bus.Mono]; 0 = not yet
	looked  time.Time                      // when the session was last looked for; the ticker only
	follows string                         // the epoch with which it ends, once that is known; the ticker only
	readers stream.Readers
}

// End implements [stream.Execution]: it tells the call's handler to stop.
func (c *inflight) End(cause *toolmesh.Error) {
	if c.cause.CompareAndSwap(nil, cause) {
		c.ending.Store(bus.Mono(time.Now()))
	}
	c.stop(cause)
}

// Epoch implements [stream.Execution]: it looks the call's session up where the view did not
// say enough, once the call holds its slot.
func (c *inflight) Epoch(ctx context.Context) (string, error) {
	if c.unsettled.Load() {
		epoch, err := c.run.sessions.Epoch(ctx, c.Request.Session)
		if err != nil {
			return "", err
		}
		c.epoch = epoch
		c.unsettled.Store(false)
	}
	return c.epoch, nil
}

// report notes how far the call says that it is.
func (c *inflight) report(p codec.Progress) { c.readers.Report(&p) }

// why is the error of a call whose handler does not return. It says that the call has begun: a
// handler that waits for a lane returns at once when its call is over, and its later "not
// started" would have made no caller send it again.
func (c *inflight) why() *toolmesh.Error {
	if cause := c.cause.Load(); cause != nil {
		return cause
	}
	return errDeadline
}

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

// reportKey is the context key of the function that [Progress] calls.
type reportKey struct{}

// Value implements [context.Context]: nested calls find their call by it.
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
