package client

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// attempt is one request for a call, on its way.
type attempt struct {
	bus.Exchange
	c     *Client
	s     *settings
	id    subjects.ToolID
	batch bool
	high  atomic.Int64 // Mesh-High of the last keepalive
}

// Keepalive implements [bus.ExchangeUser].
func (a *attempt) Keepalive(m *nats.Msg, r *codec.Reply) {
	if m.Reply != "" && a.s.deserted != nil && a.s.deserted() {
		a.c.bus.AnswerNoSubscriber(m.Reply)
	}
	if r.High > 0 {
		a.high.Store(r.High)
	}
	if r.Progress != nil && a.s.progress != nil {
		a.s.progress(*r.Progress)
	}
}

// Silent implements [bus.ExchangeUser].
func (a *attempt) Silent(n *bus.Peer, lost bool) {
	switch routes, key := &a.c.shared.routes, (routeKey{a.s.Session, a.id}); {
	case lost && n != nil:
		routes.forgetNode(n.ID)
	case !lost && !a.batch:
		if _, _, known := routes.declared(key, time.Now()); !known { // needed if the call is lost
			a.c.askNodes(key)
		}
	}
}

// Subject implements [bus.ExchangeUser]: it is where the call is sent to a node, or, of nil,
// to the queue group. A batch may go to any: the node that has its id gets it.
func (a *attempt) Subject(n *bus.Peer) (subject string, err error) {
	switch {
	case a.batch && n != nil:
		subject, err = subjects.NodeBatch(n.ID, a.s.Session)
	case a.batch:
		subject, err = subjects.Subject{Kind: subjects.KindBatch, Session: a.s.Session}.Build()
	case n != nil:
		subject, err = subjects.NodeTool(n.ID, a.s.Session, a.id)
	default:
		subject, err = subjects.Tool(a.s.Session, a.id)
	}
	if err != nil {
		return "", callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return subject, nil
}

// request renders the call; its budget is the time left of ctx and the options.
func (a *attempt) request(ctx context.Context, t target, delivery codec.Delivery, credit int64, body []byte) (*nats.Msg, error) {
	s, call := a.s, a.s.Call
	call.Tool, call.Delivery, call.Credit = t.id, delivery, credit
	call.WantLoad, call.Read = t.choice, delivery == codec.DeliverNone
	if deadline, ok := ctx.Deadline(); ok {
		left := min(time.Until(deadline), toolmesh.MaxTime)
		if left <= 0 {
			return nil, context.DeadlineExceeded
		}
		if call.Timeout == 0 || left < call.Timeout {
			call.Timeout = left
		}
	}
	// Without the broker's time the deadline would follow this machine's clock, and a node could
	// refuse a call in time. A foreign connection may have a buffer that delays requests.
	a.c.bus.WantTime()
	if now := a.c.bus.Time(); now.Measured && (call.Timeout > 0 || a.c.foreign) {
		budget := call.Timeout
		if budget == 0 {
			budget = 30 * time.Second
		}
		call.Deadline = now.Now.Add(budget + now.Bound)
	}
	subject, err := a.Subject(t.node)
	if err != nil {
		return nil, err
	}
	msg := &nats.Msg{Subject: subject, Header: nats.Header(call.Header()), Data: body}
	if s.again > 0 {
		bus.SentAgain(msg.Header, s.boot, s.again)
	}
	return msg, nil
}

func (c *Client) begin(t target, s *settings) (*attempt, error) {
	a := &attempt{c: c, s: s, id: t.id, batch: t.batch}
	a.User, a.Session, a.RPC, a.Findable, a.What = a, s.Session, s.RPCID, !t.batch, "the tool ran"
	return a, a.Open(c.bus, 2) // an answer, or an acknowledgement and an end
}

// unary makes one attempt at a unary call.
func (c *Client) unary(ctx context.Context, t target, s *settings, body []byte) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, ended(ctx, toolmesh.StartedNo)
	}
	a, err := c.begin(t, s)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	msg, err := a.request(ctx, t, codec.DeliverNone, 0, body)
	if err != nil {
		return nil, asCall(ctx, err)
	}
	if err := a.Send(msg, t.node); err != nil {
		return nil, err
	}
	reply, err := a.Next(ctx)
	codec.Recycle(codec.Header(msg.Header))
	if err != nil {
		if errors.Is(err, ctx.Err()) {
			err = a.abandon(ctx)
		}
		return nil, err
	}
	r := codec.ParseReply(codec.Header(reply.Header), reply.Data)
	if r.Read {
		a.Tell(r.Node, codec.Encode(codec.Control{Type: codec.ControlRead}))
	}
	took := time.Since(a.Sent())
	if n := t.node; n != nil && r.HasLoad && r.Boot == n.Boot {
		n.SetLoad(r.Load)
	}
	switch r.Kind {
	case codec.ReplyResult:
		if err := foreign(r); err != nil {
			return nil, err
		}
		if !s.queue && t.node == nil && !t.batch {
			c.learn(s.Session, t.id)
		}
		return &Result{RPCID: s.RPCID, Value: r.Body, Node: r.Node, Boot: r.Boot, Revision: r.Revision, Cache: r.Cache, Warning: r.Warning, LaneWait: r.LaneWait, NodeWait: r.NodeWait, Ref: r.Ref, Took: took}, nil
	case codec.ReplyNoResponders:
		return nil, errNoResponders
	case codec.ReplyError:
		return nil, r.Err
	}
	return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the node's answer is neither a result nor an error").WithOrigin(toolmesh.OriginMesh)
}

// foreign checks a result of a service that is no node of the mesh: nodes name themselves, and send JSON.
func foreign(r codec.Reply) error {
	if r.Node == "" && r.Ref == nil && !json.Valid(r.Body) {
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the service that answered is not a node of the mesh, and its answer is not JSON: %.100q", r.Body).
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
	}
	return nil
}

// ErrLeft, as the cause of a context's end, lets the caller leave without cancelling the call:
// another caller waits for it, under its idempotency key.
var ErrLeft = toolmesh.Errorf(toolmesh.CodeUnavailable, "the caller left the call, and another caller waits for it")

// abandon cancels a call whose context ended, unless it is to outlive the caller.
func (a *attempt) abandon(ctx context.Context) error {
	if !errors.Is(context.Cause(ctx), ErrLeft) {
		a.Cancel()
	}
	return ended(ctx, toolmesh.StartedUnknown)
}

// ended returns the error of a call whose context has ended.
func ended(ctx context.Context, started toolmesh.Started) error {
	err := context.Cause(ctx)
	if err == nil {
		err = context.DeadlineExceeded // in this instant
	}
	e, ok := errors.AsType[*toolmesh.Error](err)
	switch {
	case ok && e.Started == toolmesh.StartedNo: // its cause does not know that the call was sent
		return e.WithStarted(started)
	case ok:
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(ctx.Err(), context.DeadlineExceeded):
		e = toolmesh.AsError(context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		e = toolmesh.AsError(context.Canceled)
	default:
		e = toolmesh.Errorf(toolmesh.CodeCancelled, "the call was given up: %w", err)
	}
	return e.WithOrigin(toolmesh.OriginCaller).WithStarted(started)
}

func asCall(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*toolmesh.Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return ended(ctx, toolmesh.StartedNo)
	}
	return err
}
