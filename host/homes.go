package host

import (
	"context"
	"errors"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/grants"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// maxRefusals is how often a node may say that it does not have a session's worker which by
// the store it has: it may be about to give it up.
const maxRefusals = 4

// bound reports whether a call is to run in the worker that its session has on one node.
func (r *runner) bound(t *served, req *codec.Request) bool {
	return t != nil && t.sessions != "" && r.relay.Load() != nil && t.descriptor.Annotations.Isolation.Tighter(req.Isolation) == toolmesh.IsolationSession
}

// goHome has a call run where its session's worker is. With here set that is this node: the
// call has c.home until it ends. A node passes it on once, so that it comes back in
// no circle.
func (r *runner) goHome(running *admit.Running[*inflight]) (record admit.Record, here bool) {
	c := running.Value
	var err error
	c.heavily(func() { err = c.bind() })
	if err != nil {
		return admit.Record{Err: admit.Refusal(err)}, false
	}
	index, _ := c.tool.descriptor.ID.Index()
	req := *c.Request
	req.Hops = maxHops - 1
	for refusals := 0; ; {
		claim := running.Full == nil && !r.draining.Load() && !c.tool.withdrawn.Load()
		home, err := r.lanes.Home(&c.ctx, grants.Of{Session: subjects.WireName(req.Session), Epoch: c.epoch, Index: index}, c.tool.sessions, claim)
		switch {
		case err != nil:
			return admit.Record{Err: c.homeless(err)}, false
		case home.Here && running.Full != nil:
			home.Leave()
			return admit.Record{Err: r.withoutSlot(c, running.Full).WithDetail("node", string(r.node))}, false // and no other one has room
		case home.Here && home.Moved:
			home.Leave()
			return admit.Record{Err: errMoved}, false
		case home.Here:
			r.calls.Unpark(running)
			c.home = home
			return admit.Record{}, true
		case c.Request.Hops >= maxHops:
			return admit.Record{Err: c.homeless(toolmesh.Errorf(toolmesh.CodeUnavailable, "the session's worker is not on node %s", r.node))}, false
		case home.Node == "": // and this node cannot have it
			return r.passOn(running, &req), false
		case c.varArgs != nil:
			return admit.Record{Err: c.homeless(toolmesh.Errorf(toolmesh.CodeInvalidRequest,
				"the session's worker is on node %s, and more positional arguments than parameters cannot be passed on: send the call to that node", home.Node))}, false
		}
		r.calls.Park(running)
		record, err := r.relayCall(c, &req, codec.Where{Node: home.Node, Boot: home.Boot})
		if err == nil {
			return record, false
		}
		e, away := toolmesh.AsError(err), errors.Is(err, client.ErrNoRoom)
		refused := e.Started == toolmesh.StartedNo && e.Origin == toolmesh.OriginAgent && (e.Code == toolmesh.CodeUnavailable || e.Code == toolmesh.CodeToolNotFound)
		if refused {
			refusals++
		}
		if away || refused && refusals <= maxRefusals && !codec.StateGone(e) {
			home.Seek(&c.ctx)
			continue
		}
		return r.notPassed(c, e), false
	}
}

// homeless is the error of a call that has not reached its session's worker.
func (c *inflight) homeless(err error) *toolmesh.Error {
	e := admit.Refusal(err).WithStarted(toolmesh.StartedNo)
	if context.Cause(&c.ctx) != nil {
		e = e.WithDetail("reason", "waiting_for_session_worker")
	}
	return e
}

// errMoved tells one call of a session that its worker was lost, or left, with its node.
var errMoved = toolmesh.Errorf(toolmesh.CodeUnavailable, "the session's worker was lost with its state: the node that had it is lost, or does not serve the index any more; the next call gets a new one").
	WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).WithRetryable(true).WithDetail("reason", codec.ReasonStateGone)

// leaveHomes hands over the workers that sessions have here for an index, or for all. What
// they know is lost.
func (p *publisher) leaveHomes(ctx context.Context, of serviceKey) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainRest)
	defer cancel()
	p.lanes.LeaveHomes(ctx, subjects.WireName(of.session), of.index)
}

// bind reads the arguments as they are passed on, once, and takes room of the node for them:
// none of a request that refers to them.
func (c *inflight) bind() (err error) {
	if c.Request.Ref != nil || c.args != nil {
		return nil
	}
	if bad := c.Request.Decode(); bad != nil {
		return bad
	}
	if err := c.run.holdArgs(c, c.Request.Size()); err != nil {
		return err
	}
	c.args = c.Request.Args
	if len(c.Request.Positional) > 0 {
		c.args, c.varArgs, err = tool.Bind(c.tool.descriptor, c.Request.Positional, c.args)
	}
	return err
}

// heavily does what takes much memory for a moment if the arguments are large.
func (c *inflight) heavily(f func()) {
	if c.Request.Encoded() || len(c.Request.Args) > smallArgs || c.Request.Ref != nil {
		fair.Heavy(f)
	} else {
		f()
	}
}
