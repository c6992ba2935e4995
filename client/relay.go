package client

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

// relayTries is to how many nodes a call is passed on, one after the other.
const relayTries = 2

// errNoRoom says that no node has room for a call.
var errNoRoom = toolmesh.Errorf(toolmesh.CodeBusy, "no other node has room for the call").
	WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginMesh)

// Relay makes the unary call of a request that a node, from, has no slot for on another
// one that has room, and nowhere else: the better of two random ones, and then once
// more. It travels under its own rpc id, within the time that ctx has left, and is not
// passed on again. The error is busy, with started false, when no node takes it.
func (c *Client) Relay(ctx context.Context, req *codec.Request, args json.RawMessage, from subjects.NodeID) (*Result, error) {
	s := settings{
		session: req.Session, rpc: req.RPCID, revision: req.Revision, isolation: req.Isolation, parent: req.Parent, depth: req.Depth,
		key: req.IdempotencyKey, noCache: req.NoCache, hops: req.Hops + 1, trace: req.Traceparent,
	}
	nodes, err := c.others(ctx, routeKey{req.Session, req.Tool}, from)
	if err != nil {
		return nil, err
	}
	for range relayTries {
		n := better(nodes)
		if n == nil {
			break
		}
		n.outstanding.Add(1)
		result, err := c.unary(ctx, target{id: req.Tool, node: n, choice: true}, &s, args)
		n.outstanding.Add(-1)
		if err == nil || !notThere(err) {
			return result, err
		}
		nodes = slices.DeleteFunc(nodes, func(other *node) bool { return other == n })
	}
	return nil, errNoRoom
}

// notThere reports whether a node did not take a call, so that another may.
func notThere(err error) bool {
	if errors.Is(err, errNobody) {
		return true
	}
	e := toolmesh.AsError(err)
	if e.Started != toolmesh.StartedNo || e.Origin == toolmesh.OriginCaller {
		return false
	}
	return e.Code == toolmesh.CodeBusy || e.Code == toolmesh.CodeUnavailable || e.Code == toolmesh.CodeToolNotFound
}

// others are the nodes that serve a tool and have room, by their word, without one.
func (c *Client) others(ctx context.Context, key routeKey, without subjects.NodeID) ([]*node, error) {
	c.pick(key.session, key.id) // it is in use: asked for again, beside the calls
	nodes, ok := c.shared.routes.nodes(key)
	if !ok {
		c.declaredIdempotent(ctx, key)
		nodes, _ = c.shared.routes.nodes(key)
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, toolmesh.StartedNo)
	}
	return slices.DeleteFunc(nodes, func(n *node) bool { return n.id == without || !n.usable() || n.load() >= 1 }), nil
}

// nodes returns those of a route, false if there is none.
func (r *routes) nodes(key routeKey) ([]*node, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[key]
	if known == nil {
		return nil, false
	}
	return slices.Clone(known.nodes), true
}
