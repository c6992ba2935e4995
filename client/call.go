package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// Result is what a unary call returned.
type Result struct {
	RPCID    subjects.RPCID
	Value    json.RawMessage // as the tool wrote it
	Node     subjects.NodeID
	Boot     subjects.BootID // the node's start
	Revision string          // of the tool's index
	// Cache is where the value is from, of a tool that declares a cache_ttl: "hit" if it
	// was made for another call, "miss" or, with [NoCache], "bypass" if the tool ran.
	Cache string
	// Warning is what is wrong with the value, for people: that it does not fit the tool's
	// output schema. Of most it is empty.
	Warning string
	// LaneWait is for how long the call waited for its turn, of a tool whose lane_scope is
	// more than the batch; it is part of Took.
	LaneWait time.Duration
	// NodeWait is for how long it waited at a router because no node served the tool; it is
	// part of Took, too.
	NodeWait time.Duration
	Took     time.Duration
	// Ref is where a large value is instead, with [ByReference]; else nil.
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
	s, err := c.settings(ctx, opts, "rpc_")
	if err != nil {
		return nil, err
	}
	body, err := encodeArgs(args)
	if err != nil {
		return nil, err
	}
	if body, err = c.refer(ctx, id, &s, body); err != nil {
		return nil, err
	}
	var result *Result
	err = c.attempts(ctx, id, &s, func(t target) error {
		var err error
		result, err = c.unary(ctx, t, &s, body)
		return err
	})
	if err == nil && result.Ref != nil && !s.keepRef {
		err = c.resolveResult(ctx, &s, result)
	}
	if err != nil {
		c.release(&s)
		return nil, err
	}
	return result, nil
}

// target is where one attempt goes.
type target struct {
	id     subjects.ToolID
	node   *bus.Peer // nil: the queue group
	seat   *seat     // of node, where the client has chosen it; else nil
	choice bool      // there are others
	batch  bool      // of no tool
}

// How often a call that did not start is sent again, but for want of room.
const (
	maxAttempts = 6
	maxLosses   = subjects.MaxAgain    // of them after its node was lost
	firstPause  = 5 * time.Millisecond // doubles, with jitter
	// roomWait is for how long a call waits for room that has no time of its own.
	roomWait = 30 * time.Second
)

// final is an error after which the call must not be sent again, whatever the
// error says of itself: the caller has seen some of its answer.
type final struct{ err error }

func (f final) Error() string { return f.err.Error() }
func (f final) Unwrap() error { return f.err }

// attempts sends a call until it has an answer that is more than "not here, not
// now". Only what provably did not start is sent again, or what is idempotent. Once an
// attempt may have run, no error says that the call has not started: the last attempt
// speaks of itself alone.
func (c *Client) attempts(ctx context.Context, name subjects.ToolID, s *settings, send func(target) error) error {
	ran := toolmesh.StartedNo
	err := c.tries(ctx, name, s, func(t target) error {
		err := send(t)
		if e := toolmesh.AsError(err); err != nil && e.Started != toolmesh.StartedNo && ran != toolmesh.StartedYes {
			ran = e.Started
		}
		return err
	})
	if e := toolmesh.AsError(err); err != nil && e.Started == toolmesh.StartedNo {
		return e.WithStarted(ran)
	}
	return err
}

func (c *Client) tries(ctx context.Context, name subjects.ToolID, s *settings, send func(target) error) error {
	id := c.shared.routes.alias(s.session, name)
	resolved, queueOnly, lost, first := false, s.queue, 0, s.rpc
	reason := "" // why nobody serves the tool
	room := newRoom(s)
	for n := 1; ; n++ {
		t := target{id: id}
		if !queueOnly {
			if t.seat, t.choice = c.pick(s.session, id); t.seat != nil {
				t.node = t.seat.Peer
			}
			if at := s.first; n == 1 && at != nil && at.Usable() {
				t.node, t.seat = at, nil
			}
		}
		if t.node != nil {
			t.node.Outstanding.Add(1)
		}
		err := send(t)
		if t.node != nil {
			t.node.Outstanding.Add(-1)
		}
		if err == nil {
			return nil
		}
		var f final
		if errors.As(err, &f) {
			return f.err
		}
		e := toolmesh.AsError(err)
		if t.seat != nil && busy(e) && !codec.NodeBusy(e) && c.refused(routeKey{s.session, id}, t.seat, e) && ctx.Err() == nil && n < maxAttempts {
			continue // another one has room, perhaps
		}
		if room.wait(ctx, s, e) {
			n--
			continue
		}
		if ctx.Err() != nil || n >= maxAttempts {
			if errors.Is(err, errNobody) {
				return unserved(id, reason)
			}
			return err
		}
		switch {
		case e.Details["waited_ms"] != nil:
			return err // it has waited for as long as routers have it wait
		case codec.StateGone(e):
			return err // the caller is to know: the next call would find a new worker
		case errors.Is(err, errNobody) && t.node != nil:
			c.shared.routes.forget(s.session, id, t.node.ID)
			queueOnly = true
		case errors.Is(err, errNobody):
			if resolved {
				return unserved(id, reason)
			}
			resolved = true
			other, why, err := c.resolve(ctx, s.session, name)
			if err != nil {
				return err
			}
			reason = why
			if other == id {
				return unserved(id, reason)
			}
			c.shared.routes.setAlias(s.session, name, other)
			id, queueOnly = other, s.queue
		case e.Started == toolmesh.StartedNo && e.Code == toolmesh.CodeToolNotFound && t.node != nil,
			e.Started == toolmesh.StartedNo && e.Code == toolmesh.CodeUnavailable && e.Origin != toolmesh.OriginCaller:
			if t.node != nil {
				c.shared.routes.forget(s.session, id, t.node.ID)
				queueOnly = true
			} else if !pause(ctx, n) {
				return err
			}
		case busy(e):
			if s.noWait || passes(e) || !pause(ctx, n) {
				return err
			}
		case lost < maxLosses && (e.Code == toolmesh.CodeNodeLost || e.Details["reason"] == bus.ReasonCut), lost == 0 && e.Code == toolmesh.CodeWorkerCrashed:
			lost++
			if t.node != nil {
				c.shared.routes.forget(s.session, id, t.node.ID)
			}
			// The broker may still choose a node that has frozen: the registry knows better.
			asking, cancel := ctx, context.CancelFunc(func() {})
			if e.Code == toolmesh.CodeNodeLost {
				asking, cancel = context.WithTimeout(ctx, lostAsk)
			}
			declared, others := c.declaredIdempotent(asking, routeKey{s.session, id})
			cancel()
			if !declared && !s.idempotent && s.key == "" {
				return err
			}
			queueOnly = !others && queueOnly
			s.rpc = first.Again(lost)
		default:
			return err
		}
	}
}

// pause waits before the next attempt, and reports false if ctx ends first.
func pause(ctx context.Context, n int) bool {
	d := firstPause << min(n-1, 5)
	d = d/2 + rand.N(d)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return false
	}
	return sleep(ctx, d)
}

// sleep reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// busy reports whether a call was refused for want of room: it may be sent again.
func busy(e *toolmesh.Error) bool {
	return e.Started == toolmesh.StartedNo && e.Code == toolmesh.CodeBusy
}

// passes reports whether what a call was refused for passes by itself, so that there is a
// time to wait for.
func passes(e *toolmesh.Error) bool {
	return busy(e) && (e.RetryAfter() > 0 || e.Details["limit"] == toolmesh.LimitSlots)
}

// room waits until nodes that were full have room, within the time of one call.
type room struct {
	until time.Time
	n     int // how often it has waited
}

func newRoom(s *settings) *room {
	return &room{until: time.Now().Add(cmp.Or(s.timeout, roomWait))}
}

// wait returns when a call that was refused for want of room may be sent again, with what
// it has left as its timeout: after what the node says, and up to half of that again, so
// that those who were refused together do not come back together. It reports false at once
// where there is nothing to wait for, and where the call has not that much time.
func (r *room) wait(ctx context.Context, s *settings, e *toolmesh.Error) bool {
	left := time.Until(r.until)
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	// A node that does not pass calls on does not say how long: another one may have room.
	d := cmp.Or(e.RetryAfter(), firstPause<<min(r.n, 7))
	r.n++
	if s.noWait || !passes(e) || left <= d || !sleep(ctx, d+rand.N(min(d, left-d)/2+1)) {
		return false
	}
	if s.timeout > 0 {
		s.timeout = max(time.Until(r.until), time.Millisecond)
	}
	return true
}

// errNobody is NATS's 503: the request met no subscription.
var errNobody = callerError(toolmesh.CodeUnavailable, "nobody serves the tool")

func unserved(id subjects.ToolID, reason string) error {
	if reason == "" {
		reason = "it is known, but no node serves it now"
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "tool %q cannot be called: %s", id, reason).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

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
func (a *attempt) Keepalive(_ *nats.Msg, r *codec.Reply) {
	if r.High > 0 {
		a.high.Store(r.High)
	}
	if r.Progress != nil && a.s.progress != nil {
		a.s.progress(*r.Progress)
	}
}

// Silent implements [bus.ExchangeUser].
func (a *attempt) Silent(n *bus.Peer, lost bool) {
	if lost && n != nil {
		a.c.shared.routes.forgetNode(n.ID)
	} else if !lost && !a.batch {
		a.c.missed(routeKey{a.s.session, a.id})
	}
}

// Subject implements [bus.ExchangeUser]: it is where the call is sent to a node, or, of nil,
// to the queue group. A batch may go to any: the node that has its id gets it.
func (a *attempt) Subject(n *bus.Peer) (subject string, err error) {
	switch {
	case a.batch && n != nil:
		subject, err = subjects.NodeBatch(n.ID, a.s.session)
	case a.batch:
		subject, err = subjects.Batch(a.s.session)
	case n != nil:
		subject, err = subjects.NodeTool(n.ID, a.s.session, a.id)
	default:
		subject, err = subjects.Tool(a.s.session, a.id)
	}
	if err != nil {
		return "", callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return subject, nil
}

// request renders the call; its budget is what is left of ctx and the options.
func (a *attempt) request(ctx context.Context, t target, delivery codec.Delivery, credit int64, body []byte) (*nats.Msg, error) {
	s := a.s
	call := codec.Call{
		RPCID: s.rpc, Session: s.session, Tool: t.id, Delivery: delivery, Timeout: s.timeout, Credit: credit,
		Depth: s.above.Depth, Parent: s.above.Parent, Lanes: s.above.Lanes, Revision: s.revision, Isolation: s.isolation, Keepalive: true, Answers: true, Outlive: s.outlive, WantLoad: t.choice, NoCache: s.noCache,
		IdempotencyKey: s.key, Hops: s.hops, Traceparent: s.trace, Ref: s.ref, AcceptRef: !s.noRef, Read: delivery == codec.DeliverNone && !a.batch,
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := min(time.Until(deadline), toolmesh.MaxTime)
		if left <= 0 {
			return nil, context.DeadlineExceeded
		}
		if call.Timeout == 0 || left < call.Timeout {
			call.Timeout = left
		}
	}
	// Without the broker's time a deadline would be one of this machine's clock, and a node
	// would refuse what is in time. A foreign connection may have a buffer that holds
	// requests back.
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

// begin prepares one attempt.
func (c *Client) begin(t target, s *settings) (*attempt, error) {
	a := &attempt{c: c, s: s, id: t.id, batch: t.batch}
	a.User, a.Session, a.RPC, a.Findable, a.What = a, s.session, s.rpc, !t.batch, "the tool ran"
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
		if ctx.Err() != nil {
			err = a.abandon(ctx)
		}
		return nil, err
	}
	r := codec.ParseReply(codec.Header(reply.Header), reply.Data)
	if r.Read {
		a.Tell(r.Node, codec.Control{Type: codec.ControlRead}.Encode())
	}
	took := time.Since(a.Sent())
	if n := t.node; n != nil && r.HasLoad && r.Boot == n.Boot {
		n.SetLoad(r.Load)
	}
	switch r.Kind {
	case codec.ReplyResult:
		if !s.queue && t.node == nil && !t.batch {
			c.learn(s.session, t.id)
		}
		return &Result{RPCID: s.rpc, Value: r.Body, Node: r.Node, Boot: r.Boot, Revision: r.Revision, Cache: r.Cache, Warning: r.Warning, LaneWait: r.LaneWait, NodeWait: r.NodeWait, Ref: r.Ref, Took: took}, nil
	case codec.ReplyNoResponders:
		return nil, errNobody
	case codec.ReplyError:
		return nil, r.Err
	}
	return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the node's answer is neither a result nor an error").WithOrigin(toolmesh.OriginMesh)
}

// ErrLeft, as the cause of a context's end, has the caller go without cancelling the call:
// somebody else waits for it, under its idempotency key.
var ErrLeft = toolmesh.Errorf(toolmesh.CodeUnavailable, "the caller has left the call to another one")

// abandon cancels a call whose context ended, unless it is to go on.
func (a *attempt) abandon(ctx context.Context) error {
	if !errors.Is(context.Cause(ctx), ErrLeft) {
		a.Cancel()
	}
	return ended(ctx, toolmesh.StartedUnknown)
}

// ended is the error of a call whose context has ended.
func ended(ctx context.Context, started toolmesh.Started) error {
	err := context.Cause(ctx)
	if err == nil {
		err = context.DeadlineExceeded // in this instant
	}
	var e *toolmesh.Error
	if errors.As(err, &e) {
		if e.Started == toolmesh.StartedNo { // whatever ended it has not seen that it was sent
			e = e.WithStarted(started)
		}
		return e
	}
	switch {
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
	var e *toolmesh.Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return ended(ctx, toolmesh.StartedNo)
	}
	return err
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
	reply, err := c.ask(ctx, subject, codec.Control{Type: codec.ControlCancel}.Encode())
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errNobody):
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

// askAny is ask for what any node answers, and may be asked twice: while no answer comes
// others are asked as well, for the broker may choose one that has frozen.
func (c *Client) askAny(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	var x bus.Exchange
	if err := x.Open(c.bus, 1); err != nil {
		return nil, err
	}
	defer x.Close()
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for n := 1; ; n = 2 { // the broker chooses at random
		for range n {
			if err := x.Send(&nats.Msg{Subject: subject, Data: body}, nil); err != nil {
				return nil, err
			}
		}
		select {
		case a := <-x.Arrived():
			if a.Err == nil && bus.NoResponders(a.Msg) {
				return nil, errNobody
			}
			return a.Msg, a.Err
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask sends one request and waits for one answer; errNobody if none can come.
func (c *Client) ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	m, err := c.bus.Request(ctx, &nats.Msg{Subject: subject, Data: body})
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, errNobody
	}
	return m, err
}
