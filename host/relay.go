package host

import (
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
)

// maxHops is how often a call is passed on at most, by all nodes together.
const maxHops = 2

// mayPass reports whether a request that the queue group has brought may be passed on
// when there is no slot: a caller that addresses a node directly must pick another one itself.
func (k *core) mayPass(req *codec.Request) bool { return req.Hops < maxHops && k.relay.Load() != nil }

// passOn has another node run a call, and returns its outcome. The call keeps everything that a
// local one has: its name, by which a repetition joins it, its deadline, its keepalives, and its
// cancel, which reaches the node that runs it.
func (r *runner) passOn(call *admit.Running[*inflight], req *codec.Request) admit.Record {
	c, full := call.Value, call.Full
	if full == nil { // of a session's worker that this node is not to have
		full = admit.Refusal(r.takenOff(req.Tool))
	}
	if c.varArgs != nil { // only the envelope form carries these
		return admit.Record{Err: r.withoutSlot(c, full)}
	}
	record, err := r.relayCall(c, req, codec.Where{})
	if err == nil {
		return record
	}
	e := toolmesh.AsError(err)
	if e.Started == toolmesh.StartedNo && (e.Code == toolmesh.CodeBusy || e.Code == toolmesh.CodeUnavailable) && !codec.StateGone(e) && !codec.NodeBusy(e) {
		return admit.Record{Err: r.withoutSlot(c, full)}
	}
	return r.notPassed(c, e)
}

// relayCall has another node run a call: to, or any.
//
// The caller of a stream reads, acknowledges and repeats against this node's stream, whose
// handler reads the stream of the other node: a slow reader slows the other node down as well.
func (r *runner) relayCall(c *inflight, req *codec.Request, to codec.Where) (admit.Record, error) {
	if req.Delivery != codec.DeliverNone {
		s, err := c.stream()
		if err != nil {
			return admit.Record{Err: admit.Refusal(err).WithStarted(toolmesh.StartedNo)}, nil
		}
		send := func(item json.RawMessage) error { return s.Send(&c.ctx, item) }
		if err := r.relay.Load().RelayStream(&c.ctx, req, c.args, r.node, to, send, c.report); err != nil {
			return admit.Record{}, err
		}
		r.counts.relayed.Add(1)
		return admit.Record{Streamed: true}, nil
	}
	c.readers.Relayed.Store(true) // the node that runs it ends it without callers
	defer c.readers.Relayed.Store(false)
	result, err := r.relay.Load().Relay(&c.ctx, req, c.args, r.node, to, c.report, c.readers.Deserted)
	if err != nil {
		return admit.Record{}, err
	}
	r.counts.relayed.Add(1)
	record := admit.Record{Result: result.Value, Ref: result.Ref, Cache: codec.CacheUse(result.Cache), Warning: result.Warning, By: codec.NewIdentity(result.Node, result.Boot, result.Revision)}
	if result.LaneWait > 0 {
		record.Lane = &codec.LaneUse{Wait: result.LaneWait}
	}
	return record, nil
}

// stream begins the stream of a call, once.
func (c *inflight) stream() (*stream.Stream, error) {
	if s := c.readers.Stream(); s != nil {
		return s, nil
	}
	if left, size := c.run.room.Left(&c.ctx); size > 0 && left < 0 {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the chunk store has less than a tenth of its %d bytes left, which is kept for running streams: wait until older streams expire, or give it more room", size).
			WithOrigin(toolmesh.OriginMesh).WithDetail("limit", "chunks_max").WithDetail("max", size)
	}
	return stream.New(&c.ctx, &c.readers, c.epoch, !c.deadline.IsZero())
}

// notPassed returns the outcome of a call that was passed on and failed.
func (r *runner) notPassed(c *inflight, e *toolmesh.Error) admit.Record {
	if e.Code == toolmesh.CodeNodeLost || e.Code == toolmesh.CodeUnavailable {
		e = e.WithOrigin(toolmesh.OriginAgent) // it is known here not to be the caller's
	}
	r.counts.relayed.Add(1)
	if c.Request.Delivery == codec.DeliverNone {
		return admit.Record{Err: e}
	}
	return admit.Record{Err: outcome(&c.ctx, e), Streamed: true}
}

// unlessCrowded returns the outcome of a call whose handler returned record. A call that the
// handler refused for want of a worker in time is passed on.
func (r *runner) unlessCrowded(call *admit.Running[*inflight], record admit.Record) admit.Record {
	c := call.Value
	if record.Err == nil || !admit.Full(record.Err) {
		return record
	}
	if c.home != nil {
		record.Err = r.withoutSlot(c, record.Err).WithDetail("node", string(r.node)) // and no other one has room
		return record
	}
	if c.varArgs != nil || c.ctx.Err() != nil || !r.calls.Pass(call, record.Err) {
		record.Err = r.withoutSlot(c, record.Err)
		return record
	}
	return r.passOn(call, c.Request)
}

// withoutSlot returns the error of a refused request: for want of room it says when to send
// again, and the request counts as waiting for that time.
func (r *runner) withoutSlot(c *inflight, err *toolmesh.Error) *toolmesh.Error {
	if !admit.Full(err) {
		return err
	}
	after := err.RetryAfter()
	if after == 0 {
		after = r.retryAfter(c.tool)
	}
	if c.Request.Hops == 0 { // else the node that has passed it on answers the caller
		r.counts.busyFor.Add(int64(after))
		r.counts.busy.Add(1)
	}
	if !c.directed && r.relay.Load() == nil {
		return err // the queue group may bring it to a node that has room at once
	}
	return err.WithDetail("retry_after_ms", after.Milliseconds())
}
