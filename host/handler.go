package host

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

// Handler executes calls of one tool: a Go function ([Func], [Stream]), a Python worker, a
// command. It is called concurrently, once per call.
//
// A returned [toolmesh.Error] reaches the caller unchanged, including its Started. StartedNo
// makes the caller send the call again, so a handler must not return it for a call of its own;
// for calls under ctx the host corrects that. Any other error is a tool_error with the Go type as
// its type. ctx ends when the call was cancelled, has run out of time or has lost its caller.
// ServeTool should then return soon, with the error of ctx, or with one that says whether the
// tool's code had begun; the host adds the cause.
type Handler interface {
	ServeTool(ctx context.Context, call *Call, sink Sink) error
}

// HandlerFunc is a function that is a [Handler].
type HandlerFunc func(ctx context.Context, call *Call, sink Sink) error

// ServeTool calls f; an item that is not JSON is an error.
func (f HandlerFunc) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	return f(ctx, call, checkedSink{sink})
}

// Sink takes the items of a call. A plain function sends its one result; a generator sends its
// items in order. The host decides what a unary call returns of several items: the last one, or
// all of them as a list.
type Sink interface {
	// Send takes one item, which must be JSON, and keeps it: the slice must not
	// be changed afterwards. It blocks while the caller's credit is used up,
	// and fails when the call is over. It must not be called concurrently.
	Send(ctx context.Context, item json.RawMessage) error
}

// ResultSink is a [Sink] of a unary call, for handlers that have made the one
// result themselves, also of several items.
type ResultSink interface {
	Sink
	// SendResult sets the call's result, in place of all earlier items.
	SendResult(ctx context.Context, result json.RawMessage) error
}

// Call is one call, checked and admitted.
type Call struct {
	Session subjects.SessionID
	// Epoch tells the session from an earlier one of its name. It is empty for a session that was
	// never created, and where [Options.Sessions] does not give it.
	Epoch string
	Tool  subjects.ToolID
	RPCID subjects.RPCID
	// Args is the arguments object; it fits the tool's input schema.
	Args json.RawMessage
	// VarArgs holds further positional arguments, a JSON array, or nothing.
	VarArgs json.RawMessage
	// Stream says that items are delivered as they are sent; Collect that a
	// unary call gets all items as a list.
	Stream  bool
	Collect bool
	// Deadline is when ctx ends; zero for a stream without a total.
	Deadline time.Time
	// Depth is how many calls are above this one, and Parent the next above. Calls
	// that the handler makes under its ctx are nested in this one by themselves.
	Depth  int
	Parent subjects.RPCID
	// Isolation is the isolation that the caller asks for, above the tool's own; empty asks for
	// none.
	Isolation toolmesh.Isolation
	// NoCache asks for an execution, even if a result is cached.
	NoCache bool
	codec.Trace
	// Home, of a call in its session's worker, tells that from an earlier one on this node:
	// meanwhile another node had it. See [Tool.Sessions].
	Home string

	// Lane is the lane of its session, node or mesh that the call holds; nil for a call that
	// needs none.
	Lane Lane

	lanes   string // lanes of the calls above it, and its own: Mesh-Lanes
	running *admit.Running[*inflight]
	shared  bool  // its run is of others, too: of equal calls
	host    *core // that runs it; nil for a call that a test has made
}

// Lane is a lane that a call holds.
type Lane interface {
	// Fence is greater than that of each call that held the lane before: see [Fence].
	Fence() uint64
	// Follow has f called with the time at which the call must have stopped unless the lane
	// is renewed: now, and with each renewal, until the call ends. It must not block.
	Follow(f func(end time.Time))
}

// Report tells how far the call is, as [Progress] does. It may be called concurrently.
func (c *Call) Report(p codec.Progress) {
	if c.running != nil {
		c.running.Value.report(p)
	}
}

// Deserted reports whether the callers of the call are gone, by the last keepalive to each: a
// call that has waited should not begin then. It may be called concurrently, and does not block.
func (c *Call) Deserted() bool {
	return c.running != nil && !c.shared && c.running.Value.readers.Deserted()
}

// Progress reports how far the call of ctx is, from 0 to 1, with a text; ctx is the handler's or
// derived from it. It is cheap and may be called concurrently and at any rate; outside of a call
// it does nothing. Callers get the report with the next keepalive, at most once a second, or at
// once if they asked for that; mesh task shows it.
func Progress(ctx context.Context, fraction float64, text string) {
	if report, ok := ctx.Value(reportKey{}).(func(codec.Progress)); ok {
		report(codec.NewProgress(&fraction, text))
	}
}

// below is the lineage of the calls that this call makes.
func (c *Call) below() client.Lineage {
	return client.Lineage{Parent: c.RPCID, Depth: c.Depth + 1, Lanes: c.lanes}
}
