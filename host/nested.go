package host

import (
	"context"
	"encoding/json"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/subjects"
)

// A nested call that finds every node full looks again after this long, doubling
// up to the second.
const (
	firstLook = 50 * time.Millisecond
	lastLook  = time.Second
)

// lookTimeout bounds the looks of a nested call that no deadline bounds.
const lookTimeout = 30 * time.Second

// NestedCalls makes the calls of one call's tool, for handlers that run it in
// another process: over the mesh like any other, in the session of the call, one
// deeper, and within the time that it has left, which ctx says. It is made by
// [NewNestedCalls], and its methods may be called concurrently.
//
// A tool may make more calls at once than the nodes have slots. It has no better
// place to wait than here, where the end of one of its calls is known at once;
// and it waits for calls of the same depth only, which end without it.
type NestedCalls struct {
	client *client.Client
	call   *Call
	ended  chan struct{} // capacity 1: one of the calls has ended
}

// NewNestedCalls makes what calls for the tool of a call.
func NewNestedCalls(c *client.Client, call *Call) *NestedCalls {
	return &NestedCalls{client: c, call: call, ended: make(chan struct{}, 1)}
}

func (n *NestedCalls) options() []client.CallOption {
	return []client.CallOption{
		client.WithSession(n.call.Session), client.WithParent(n.call.RPCID, n.call.Depth+1),
	}
}

// Call calls a tool; see [client.Client.Call].
func (n *NestedCalls) Call(ctx context.Context, id string, args json.RawMessage) (json.RawMessage, error) {
	look := n.look()
	for {
		result, err := n.client.Call(ctx, subjects.ToolID(id), args, n.options()...)
		switch {
		case err == nil:
			n.end()
			return result.Value, nil
		case !full(err) || !look(ctx):
			n.end()
			return nil, err
		}
	}
}

// Stream calls a tool and yields its items; see [client.Client.Stream].
func (n *NestedCalls) Stream(ctx context.Context, id string, args json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		look := n.look()
		defer n.end()
		for again := true; again; {
			again = false
			for chunk, err := range n.client.Stream(ctx, subjects.ToolID(id), args, n.options()...) {
				if err != nil && full(err) && look(ctx) {
					again = true // nothing of it has come: a call that is refused so did not start
					break
				}
				if !yield(chunk.Data, err) {
					return
				}
			}
		}
	}
}

// full reports whether a call was refused by a node without a slot.
func full(err error) bool {
	e := toolmesh.AsError(err)
	return e.Code == toolmesh.CodeBusy && e.Started == toolmesh.StartedNo && e.Details["limit"] == LimitSlots
}

// end tells one of the calls that wait that another has ended.
func (n *NestedCalls) end() {
	select {
	case n.ended <- struct{}{}:
	default:
	}
}

// look gives what one call waits with: it returns when it is time to look again,
// and false when there is no time for that.
func (n *NestedCalls) look() func(ctx context.Context) bool {
	var until time.Time
	next := firstLook
	return func(ctx context.Context) bool {
		now := time.Now()
		if until.IsZero() {
			var ok bool
			if until, ok = ctx.Deadline(); !ok {
				until = now.Add(lookTimeout)
			}
		}
		wait := next/2 + rand.N(next) //nolint:gosec // jitter
		next = min(2*next, lastLook)
		if until.Sub(now) < wait {
			return false
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-n.ended:
		case <-timer.C:
		case <-ctx.Done():
		}
		return ctx.Err() == nil
	}
}
