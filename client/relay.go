package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// relayTries is to how many nodes a call is passed on, one after the other.
const relayTries = 2

// ErrNoRoom says that no node has taken a call.
var ErrNoRoom = toolmesh.Errorf(toolmesh.CodeBusy, "no other node has room for the call").
	WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginMesh)

// Relay makes a unary call for a node, from, that has no slot for the request. The call goes to
// another node with room: the better of two random ones, and then once more. progress receives
// its progress. The call has its own rpc id and the time that ctx has left, and is not passed on
// again. The error is busy, with started false, when no node takes it.
//
// With to it goes to that node, at any load, and the error is that node's, or [ErrNoRoom] if the
// node does not exist or is leaving.
//
// deserted reports whether the callers of the request are gone. The node that runs the call then
// ends it, unless another caller has joined it there; a cancel would end it for that one too.
func (c *Client) Relay(ctx context.Context, req *codec.Request, args json.RawMessage, from subjects.NodeID, to codec.Where, progress func(codec.Progress), deserted func() bool) (result *Result, err error) {
	s := relayed(req, progress)
	s.deserted = deserted
	err = c.relay(ctx, req, from, to, func(t target) error {
		result, err = c.unary(ctx, t, s, args)
		return err
	})
	return result, err
}

// RelayStream is [Client.Relay] for a request that asks for a stream. Each item goes to send,
// whose error ends the stream and is returned. Only from stores chunks under the request's rpc
// id: the call travels under another one, derived from it.
func (c *Client) RelayStream(ctx context.Context, req *codec.Request, args json.RawMessage, from subjects.NodeID, to codec.Where, send func(json.RawMessage) error, progress func(codec.Progress)) error {
	s := relayed(req, progress)
	s.RPCID += ".passed"
	return c.relay(ctx, req, from, to, func(t target) error {
		var refused error
		r := newReader(func(chunk Chunk, _ error) bool {
			refused = send(chunk.Data)
			return refused == nil
		})
		err := r.run(ctx, c, t, s, args)
		return cmp.Or(refused, err)
	})
}

// relayed is how a request is passed on.
func relayed(req *codec.Request, progress func(codec.Progress)) *settings {
	s := &settings{Call: req.Call, progress: progress}
	s.Timeout, s.Deadline = 0, time.Time{} // its context has the time that is left
	s.Hops++
	s.Keepalive, s.Answers = true, true
	return s
}

// relay chooses where a request is passed on to.
func (c *Client) relay(ctx context.Context, req *codec.Request, from subjects.NodeID, to codec.Where, send func(target) error) error {
	var nodes []*seat
	var err error
	if to.Node != "" {
		nodes = []*seat{{Peer: c.bus.Listed(to.Node, to.Boot)}}
	} else if nodes, err = c.others(ctx, routeKey{req.Session, req.Tool}, from); err != nil {
		return err
	}
	for range relayTries {
		n := better(nodes)
		if n == nil {
			break
		}
		n.Outstanding.Add(1)
		err := send(target{id: req.Tool, node: n.Peer, seat: n, choice: true})
		n.Outstanding.Add(-1)
		if f, ok := errors.AsType[final](err); ok {
			return f.err
		}
		if err == nil || !notThere(err) || to.Node != "" && !errors.Is(err, errNoResponders) {
			return err
		}
		if e := toolmesh.AsError(err); busy(e) {
			n.refused(e)
		}
		nodes = slices.DeleteFunc(nodes, func(other *seat) bool { return other == n })
	}
	return ErrNoRoom
}

// notThere reports whether a node did not take a call, so that another may.
func notThere(err error) bool {
	if errors.Is(err, errNoResponders) {
		return true
	}
	e := toolmesh.AsError(err)
	if e.Started != toolmesh.StartedNo || e.Origin == toolmesh.OriginCaller || codec.StateGone(e) || codec.NodeBusy(e) {
		return false
	}
	return e.Code == toolmesh.CodeBusy || e.Code == toolmesh.CodeUnavailable || e.Code == toolmesh.CodeToolNotFound
}

// others are the nodes other than without that serve a tool and report room for it.
func (c *Client) others(ctx context.Context, key routeKey, without subjects.NodeID) ([]*seat, error) {
	c.pick(key.session, key.id) // marks the route as used, so that it is refreshed
	nodes := c.shared.routes.seats(key)
	if nodes == nil {
		select { // a node without heartbeats counts too: it may just have joined
		case <-c.askNodes(key):
		case <-ctx.Done():
		}
		nodes = c.shared.routes.seats(key)
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, toolmesh.StartedNo)
	}
	return slices.DeleteFunc(nodes, func(n *seat) bool { return n.ID == without || !n.usable() || n.Load() >= 1 }), nil
}

// seats returns those of a tool, nil if they are not known.
func (r *routes) seats(key routeKey) []*seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[key]; known != nil {
		return slices.Clone(known.seats)
	}
	return nil
}

const (
	// whereAsks is how often the nodes are asked which of them has a call: a node that is silent for
	// so long is lost.
	whereAsks = 3
	// whereSettled is how long a connection lasts until nodes that lost theirs at the same
	// time are back.
	whereSettled = 8 * time.Second
)

// longAgo is before the memory of any node: a node does not begin a call that it does not know.
const longAgo = 365 * 24 * time.Hour

// Join waits for a unary call of the client's session that another caller has made, and returns
// its outcome, up to two minutes after its end; args are the call's. ok is false if no node
// within reach has the call. It never begins a call.
func (c *Client) Join(ctx context.Context, id subjects.ToolID, rpc subjects.RPCID, args json.RawMessage, opts ...CallOption) (result *Result, ok bool, err error) {
	var at codec.Where
	for n := 1; at.Node == ""; n++ {
		asked := time.Now()
		at, err = c.where(ctx, "", c.session, rpc)
		if errors.Is(err, errNoResponders) { // no node at all is there now
			wake.After(ctx, bus.WhereWait-time.Since(asked))
		}
		silent := ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNoResponders))
		switch {
		case silent && n >= whereAsks && time.Since(c.bus.State().Since) > whereSettled:
			return nil, false, nil
		case err != nil && !silent:
			return nil, false, asCall(ctx, err)
		}
	}
	s, err := c.settings(ctx, append(opts, WithRPCID(rpc)), "")
	if err != nil {
		return nil, false, err
	}
	n := c.bus.Answered(at.Node, at.Boot)
	s.again, s.boot = longAgo, at.Boot
	name := c.shared.routes.alias(c.session, id)
	if full, _, err := c.resolve(ctx, c.session, id); err == nil {
		name = full // as it was called
	}
	n.Outstanding.Add(1)
	defer n.Outstanding.Add(-1)
	body, err := c.refer(ctx, name, s, args) // of the same bytes, so of the same digest
	if err == nil {
		result, err = c.unary(ctx, target{id: name, node: n}, s, body)
	}
	if err == nil && result.Ref != nil {
		err = c.resolveResult(ctx, s, result)
	}
	c.release(s)
	return result, true, err
}
