package host

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/batch"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// intake makes calls of requests: it finds the tool, and refuses, joins or admits each. Its
// methods may be called concurrently.
type intake struct {
	*core
	run          *runner
	streams      *streams
	batches      atomic.Pointer[batch.Server] // nil for a node that runs none
	lastDirected atomic.Int64                 // when a request came on the node's own subject, as [bus.Mono]
}

// timeWait bounds the wait for the broker's time. Then the last known time decides whether a
// deadline has passed.
const timeWait = 2 * time.Second

// parse reads a request. If its headers cannot be read, the answer is in the plain form, as it is
// unknown whether the body is an envelope. err is the error of the subject.
func parse(s *subjects.Subject, m *nats.Msg, err error) (*codec.Request, *toolmesh.Error) {
	var req *codec.Request
	header, bad := bus.RequestHeader(m)
	if bad != nil {
		req, bad = &codec.Request{Call: codec.Call{Session: s.Session, Tool: s.Tool}}, admit.Refusal(bad)
	} else {
		req, bad = codec.ReadRequest(*s, header, m.Data)
	}
	if err != nil {
		bad = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err).WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
	}
	return req, bad
}

// catchUp reports whether this process still is the node. Usually that is known, and so is the
// time. After a freeze or a cut the request may be old: catchUp asks for the owner of the node's
// lease, for 9 s at most, and for the broker's time, by which deadlines are measured, for 2 s at
// most. All requests that wait share the answers.
func (in *intake) catchUp(req *codec.Request) (mine bool) {
	mine = in.presence.Certain() || in.presence.Confirm(in.base)
	if mine && !req.Deadline.IsZero() {
		in.freshenTime()
	}
	return mine
}

// ended is a context that has ended: work that would need to wait fails.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// freshenTime asks the broker for its time unless it is known. Without an answer the bounds of
// the last known time stay wide.
func (in *intake) freshenTime() {
	if in.bus.FreshTime(ended) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(in.base, timeWait)
	defer cancel()
	_ = in.bus.FreshTime(ctx)
}

// find makes a call of a request: its tool, if there is one, its session's epoch, as far as the
// view knows it, and its entry for admission. Both use the names of the subject, where a long
// name is a hash. For a request that cannot be read (bad) it only finds the tool.
func (in *intake) find(s *subjects.Subject, req *codec.Request, reply string, arrived time.Time, bad *toolmesh.Error) (*inflight, admit.Request) {
	c := &inflight{run: in.run, tool: in.routes.find(s.Session, s.Tool), Reader: stream.Reader{Request: req, Reply: reply, Identity: in.identity, Start: arrived}}
	c.readers.Init(&in.streams.Node, c, &c.Reader)
	if c.tool != nil {
		c.Identity = c.tool.identity
	}
	if bad != nil {
		return c, admit.Request{}
	}
	epoch, sure := in.sessions.Known(req.Session, req.Delivery != codec.DeliverNone || req.IdempotencyKey != "" || c.tool.keepsBySession() || in.run.bound(c.tool, req))
	if c.tool != nil && c.tool.tenure.Ended(epoch) {
		sure = false // the tool is about to be withdrawn, or the view is behind
	}
	c.epoch = epoch
	c.unsettled.Store(!sure)
	r := admit.Request{Tool: s.Tool, Epoch: epoch, Unsettled: !sure, Stream: req.Delivery != codec.DeliverNone, Depth: req.Depth, Account: subjects.Account(s.Session, epoch)}
	if req.IsAgain {
		r.First = c.Start.Add(-req.Again)
	}
	named := req.RPCID != ""
	switch {
	case named:
	case r.Stream:
		req.RPCID, named = subjects.NewRPCID("rpc_stream_"), true // its caller learns it, and may cancel by it
	default:
		req.RPCID = subjects.NewRPCID("rpc_")
	}
	if named {
		r.Key = admit.Key{Session: s.Session, RPC: subjects.WireName(req.RPCID)}
		r.Digest = admit.DigestOf(req.Body())
	}
	return c, r
}

// instead answers a request that must not start. If it repeats a call of this node it gets that
// call's answer: "not started" would be wrong, and its caller would start it on another node.
func (in *intake) instead(c *inflight, r admit.Request, answer admit.Record) {
	verdict, call, record, err, ok := in.calls.Repeated(r)
	if !ok {
		in.run.spendFor(c.Request, answer.Err)
		in.replies.Answer(&c.Reader, answer)
		if answer.Err != nil { // else it is a result that was kept
			in.run.audit(c, answer)
		}
		return
	}
	in.follow(c, verdict, call, record, err)
}

// check says why a request must not be started here and now; nil for most.
func (in *intake) check(c *inflight, mine, directed bool) *toolmesh.Error {
	t, req := c.tool, c.Request
	refuse := func(code toolmesh.Code, format string, args ...any) *toolmesh.Error {
		return admit.Refusal(toolmesh.Errorf(code, format, args...))
	}
	if bad := in.foreign(req, mine); bad != nil {
		return bad
	}
	if t == nil && directed {
		return refuse(toolmesh.CodeToolNotFound, "node %s does not serve tool %q", in.node, req.Tool)
	}
	if bad := in.late(req); bad != nil {
		return bad
	}
	switch {
	case t == nil || t.withdrawn.Load() && directed:
		return admit.Refusal(in.takenOff(req.Tool))
	case in.draining.Load() && directed:
		return refuse(toolmesh.CodeUnavailable, "node %s is draining: send to another", in.node)
	case req.Delivery != codec.DeliverNone && !in.presence.Joined():
		return refuse(toolmesh.CodeUnavailable, "node %s has not found the chunk store: without JetStream there are no streams", in.node)
	case req.Revision != "" && req.Revision != t.identity.Revision:
		return refuse(toolmesh.CodeUnavailable, "revision %q of tool %q is asked for, node %s serves %q", req.Revision, req.Tool, in.node, t.identity.Revision).
			WithDetail("revision", t.identity.Revision)
	case req.IdempotencyKey != "" && req.Delivery != codec.DeliverNone:
		return refuse(toolmesh.CodeInvalidRequest, "header %s: a stream cannot have an idempotency key, only a call with one result", codec.HeaderIdempotencyKey)
	case req.IdempotencyKey != "" && !in.presence.Joined():
		return refuse(toolmesh.CodeUnavailable, "node %s has not found the store of idempotency keys: without JetStream there are none", in.node)
	}
	return in.replies.Unread(&c.Reader)
}

// foreign says why a request, mine or not, is not for this start of the node.
func (in *intake) foreign(req *codec.Request, mine bool) *toolmesh.Error {
	switch {
	case !mine:
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "another process has become node %s: send the call again", in.node))
	case req.Boot != "" && req.Boot != in.boot:
		// The request was sent before, to another start of this node, which may
		// have run it.
		return toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s has restarted: whether the tool ran is not known", in.node).
			WithOrigin(toolmesh.OriginAgent).WithDetail("node", string(in.node))
	}
	return nil
}

// late says why a request comes too late, or from too deep, to be run anywhere.
func (in *intake) late(req *codec.Request) *toolmesh.Error {
	switch {
	case req.Depth > in.opts.MaxDepth:
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the call is nested %d calls deep, at most %d are allowed: do tools call each other in a circle?",
			req.Depth, in.opts.MaxDepth).WithDetail("limit", "depth").WithDetail("max", in.opts.MaxDepth))
	case req.HasTimeout && req.Timeout <= 0:
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time was up before it arrived"))
	case req.Deadline.IsZero():
		return nil
	}
	if now := in.bus.Time(); req.Deadline.Before(now.Now.Add(-now.Bound)) {
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's deadline passed %v before it arrived", now.Now.Sub(req.Deadline).Round(time.Millisecond)))
	}
	return nil
}

// admit gives the call its slot, and returns it; nil if it is not to be run here:
// then it has its answer, or gets that of the call that it repeats. bad is why it must
// not be started.
func (in *intake) admit(c *inflight, r admit.Request, bad *toolmesh.Error) *admit.Running[*inflight] {
	if bad != nil {
		in.instead(c, r, admit.Record{Err: bad})
		return nil
	}
	if c.tool.cached != nil && in.fromCache(c, r) {
		return nil
	}
	if budget := in.run.budget(c.tool, c.Request); budget > 0 {
		c.deadline = c.Start.Add(budget)
	}
	c.begin()
	verdict, call, record, bad := in.calls.Begin(r, c)
	if verdict == admit.Run {
		return call
	}
	c.finish()
	in.follow(c, verdict, call, record, bad)
	return nil
}

// takenOff refuses a call of a tool that was withdrawn.
func (k *core) takenOff(id subjects.ToolID) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s has just stopped serving tool %q: send the call again", k.node, id)
}

// follow answers a request that is not run: now, or when the call that it
// repeats has its answer.
func (in *intake) follow(c *inflight, verdict admit.Verdict, call *admit.Running[*inflight], record admit.Record, bad *toolmesh.Error) {
	c.Request.Drop() // it waits at most
	switch verdict {
	case admit.Refuse:
		in.run.spendFor(c.Request, bad)
		refused := admit.Record{Err: in.run.withoutSlot(c, bad)}
		in.replies.AnswerNow(&c.Reader, refused)
		in.run.audit(c, refused)
	case admit.Repeat:
		in.run.spend(c.Request)
		c.readers.Repeat(record)
	case admit.Join:
		if of := call.Value.Request.Ref; of != nil && c.Request.Ref != nil && of.Name != c.Request.Ref.Name {
			in.run.spend(c.Request) // arguments of a running call are deleted at its end
		}
		call.Value.readers.Join(&c.readers)
	}
}
