package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

// Result is the result of a unary call.
type Result struct {
	RPCID    subjects.RPCID
	Value    json.RawMessage // as the tool wrote it
	Node     subjects.NodeID
	Boot     subjects.BootID // the node's start
	Revision string          // of the tool's index
	// Cache is the origin of the value of a tool that declares a cache_ttl: "hit" if another call
	// made it, "miss" or, with [NoCache], "bypass" if the tool ran.
	Cache string
	// Warning is a text for people: the value does not fit the tool's output schema. Empty for
	// most.
	Warning string
	// LaneWait is the time until the call acquired its lane, for tools with a lane_scope above
	// the batch; it is part of Took.
	LaneWait time.Duration
	// NodeWait is the time that it waited at a router because no node served the tool; it is
	// part of Took, too.
	NodeWait time.Duration
	Took     time.Duration
	// Ref names a large value in the object store, with [ByReference]; nil otherwise.
	Ref *codec.Ref
}

// Decode reads the value into v, as json.Unmarshal does.
func (r *Result) Decode(v any) error { return json.Unmarshal(r.Value, v) }

// Call runs a tool and returns its result. args is the arguments object: a map,
// a struct, raw JSON, or nil for none; a nil slice or map in it is null, which
// tools that take a list or an object refuse. The error is a [toolmesh.Error]: with
// [toolmesh.CodeToolError] the tool failed, not the mesh. When ctx ends, the
// call is cancelled where it runs.
func (c *Client) Call(ctx context.Context, id subjects.ToolID, args any, opts ...CallOption) (*Result, error) {
	s, body, err := c.prepare(ctx, id, args, opts, "rpc_")
	if err != nil {
		return nil, err
	}
	ctx, stop := s.bound(ctx)
	defer stop()
	var result *Result
	err = c.attempts(ctx, id, s, func(t target) (err error) {
		result, err = c.unary(ctx, t, s, body)
		return err
	})
	if err == nil && result.Ref != nil && !s.keepRef {
		err = c.resolveResult(ctx, s, result)
	}
	if err != nil {
		c.release(s)
		return nil, err
	}
	return result, nil
}

// Cancel stops a call of the client's session wherever it runs, and reports
// whether a node had it. A second without an answer means that none runs it.
func (c *Client) Cancel(ctx context.Context, rpc subjects.RPCID) (bool, error) {
	subject, err := subjects.Ctl(c.session, rpc)
	if err != nil {
		return false, callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	reply, err := c.ask(ctx, subject, codec.Encode(codec.Control{Type: codec.ControlCancel}))
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errNoResponders):
		return false, nil
	case err != nil:
		return false, err
	}
	var answer codec.Cancelled
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return false, toolmesh.Errorf(toolmesh.CodeProtocolError, "the answer to a cancel cannot be read: %w", err)
	}
	return answer.Cancelled, nil
}

// Running says which node runs a call of the client's session, and of which tool. The error is
// not_found where no node runs it.
func (c *Client) Running(ctx context.Context, rpc subjects.RPCID) (codec.Where, error) {
	at, err := c.where(ctx, "", c.session, rpc)
	switch code := toolmesh.CodeOf(err); {
	case err == nil && at.Tool != "", code == toolmesh.CodePermissionDenied, code == toolmesh.CodeInvalidRequest:
		return at, err
	case errors.Is(ctx.Err(), context.Canceled):
		return at, ended(ctx, toolmesh.StartedUnknown)
	}
	return at, callerError(toolmesh.CodeNotFound, "no node runs call %q in session %q: it has ended, or it has another id or session", rpc, c.session)
}

// where is [bus.Bus.Where]; errNoResponders if there is no node.
func (c *Client) where(ctx context.Context, node subjects.NodeID, session subjects.SessionID, rpc subjects.RPCID) (codec.Where, error) {
	at, err := c.bus.Where(ctx, node, session, rpc)
	return at, noResponders(err)
}
