package host

import (
	"context"
	"errors"
	"fmt"
	"go/token"
	"log/slog"
	"reflect"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/grants"
	"github.com/toolmesh/toolmesh/host/internal/once"
	"github.com/toolmesh/toolmesh/host/internal/sessions"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Times of docs/protocol, sections 5, 6 and 8.
const (
	defaultTimeout = 30 * time.Second // of a unary call, when nobody says
	// overdueGrace is how long a handler may take to return once its time is up;
	// then its caller is answered all the same.
	overdueGrace = time.Second
	// timeWait is how long the broker may be asked for its time before a deadline
	// is judged by what is known of it.
	timeWait = 2 * time.Second
)

// Causes with which a call's context ends. Whether the tool's code began the
// handler knows better: see [Host.outcome].
var (
	errCancelled   = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller cancelled the call").WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginCaller)
	errDeadline    = toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time is up").WithStarted(toolmesh.StartedYes).WithDetail("limit", "time")
	errSessionOver = toolmesh.Errorf(toolmesh.CodeCancelled, "the call's session has ended").WithStarted(toolmesh.StartedYes).WithDetail("reason", "session_ended")
	errStopping    = toolmesh.Errorf(toolmesh.CodeUnavailable, "the node stopped before the call ended").WithStarted(toolmesh.StartedYes)
)

// ended is a context that has ended: what needs to wait fails with it.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// served is one tool that the host offers.
type served struct {
	descriptor *tool.Descriptor
	validator  *tool.Validator
	handler    Handler
	cached     *cached // the handler of a tool that keeps results; nil for most
	identity   *codec.Identity
	session    subjects.SessionID // empty: every session's
	tenure     *sessions.Tenure   // of session; nil: every session's
	sessions   string             // see [Tool.Sessions]
	maxArgs    int64              // see [Tool.MaxArgs]
	withdrawn  atomic.Bool
	pace       pace
}

// inflight is one admitted call.
type inflight struct {
	// Set before the call is admitted, and then read by anyone.
	stream.Reader // the first caller, of which the call has its request
	h             *Host
	tool          *served
	directed      bool      // to this node's own subject
	deadline      time.Time // zero for a stream without a total
	epoch         string    // of the session; see Epoch
	ctx           callContext
	stop          context.CancelCauseFunc
	alarm         *time.Timer  // fires at the deadline; nil for none
	call          Call         // what the handler sees
	sink          unarySink    // of a unary call
	home          *grants.Home // of a call in its session's worker, once that is known to be here

	held      int64                         // of the node's room for arguments; the goroutine that runs it
	unsettled atomic.Bool                   // epoch is still to be looked up
	lane      atomic.Pointer[codec.LaneUse] // once it has its turn in a lane, or got none

	cause   atomic.Pointer[toolmesh.Error] // why the call was told to end
	ending  atomic.Int64                   // when it was, as [bus.Mono]; 0 = not yet
	looked  time.Time                      // when the session was last looked for; the ticker only
	follows string                         // the epoch with which it ends, once that is known; the ticker only
	readers stream.Readers
}

// receive is a request's way through the host, in this order:
//
//	subject     subjects.Parse      session and tool, and whether it is directed to this node
//	reply rule  bus.MayAnswer       what does not ask for an answer at an inbox gets none
//	parse       codec.ReadRequest   headers; the body stays as it came
//	find        routes.find         the tool, and what the view says of the session
//	check       Host.check          what must not be started here and now
//	admit       admit.Table         a result that is kept, a new call with a slot or to be passed on, a repetition, or refused
//	run         Handler.ServeTool   in this goroutine; or [Host.passOn]
//	answer      reply.Replies
//
// Nothing on it leaves the process or waits, with two exceptions that have a bound,
// and hold up no other request. After a freeze or a cut, what find and check rest on
// is asked first: see [Host.catchUp]. And a call that has its slot may have to look
// its session up before its handler runs: see [inflight.Epoch].
func (h *Host) receive(m *nats.Msg) {
	arrived := time.Now()
	s, err := subjects.Parse(m.Subject)
	if !h.bus.MayAnswer(m, s.Session, h.opts.SessionCredentials) {
		h.refusedReplies.Add(1)
		return
	}
	if s.Kind == subjects.KindBatch || s.Kind == subjects.KindNodeBatch {
		h.batches.Load().Serve(s, m) // it has subscribed them
		return
	}
	directed := s.Kind == subjects.KindNodeTool
	if directed {
		h.lastDirected.Store(bus.Mono(arrived))
	}
	req, bad := parse(&s, m, err)
	mine := h.catchUp(req)
	if !mine && directed {
		return // the other process has it, too: the answer is its to give
	}
	c, r := h.find(&s, req, m.Reply, arrived, bad)
	if bad != nil {
		h.replies.AnswerNow(&c.Reader, admit.Record{Err: bad})
		return
	}
	c.directed, r.MayPass = directed, !directed && h.mayPass(req)
	if call := h.admit(c, r, h.check(c, mine, directed)); call != nil {
		h.run(call)
	}
}

// parse reads a request. One whose headers cannot be read is answered in the
// plain form: nobody knows whether its body is an envelope. err is what is wrong
// with its subject.
func parse(s *subjects.Subject, m *nats.Msg, err error) (*codec.Request, *toolmesh.Error) {
	var req *codec.Request
	header, bad := bus.RequestHeader(m)
	if bad != nil {
		req, bad = &codec.Request{Session: s.Session, Tool: s.Tool}, admit.Refusal(bad)
	} else {
		req, bad = codec.ReadRequest(*s, header, m.Data)
	}
	if err != nil {
		bad = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err).WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
	}
	return req, bad
}

// catchUp reports whether this process is the node. As a rule that is known, and so
// is the time. After a freeze or a cut the request may have waited, so that it is
// asked whose the node is, for 9 s at most, and by what time a deadline is measured,
// for 2 s at most; all that wait share the answers.
func (h *Host) catchUp(req *codec.Request) (mine bool) {
	mine = h.presence.Certain() || h.presence.Confirm(h.base)
	if mine && !req.Deadline.IsZero() {
		h.freshenTime()
	}
	return mine
}

// freshenTime has the broker asked for its time unless that is known. Without an
// answer the bound of what is known is as wide as it must be.
func (h *Host) freshenTime() {
	if h.bus.FreshTime(ended) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(h.base, timeWait)
	defer cancel()
	_ = h.bus.FreshTime(ctx)
}

// find makes a call of a request: with its tool, if there is one, its session's
// epoch, as far as the view knows it, and what it is admitted by. Both have the names
// of the subject, where a long one is a hash. Of a request that cannot be read (bad)
// only the tool is looked for.
func (h *Host) find(s *subjects.Subject, req *codec.Request, reply string, arrived time.Time, bad *toolmesh.Error) (*inflight, admit.Request) {
	c := &inflight{h: h, tool: h.routes.find(s.Session, s.Tool), Reader: stream.Reader{Request: req, Reply: reply, Identity: h.identity, Start: arrived}}
	c.readers.Init(&h.streams, c, &c.Reader)
	if c.tool != nil {
		c.Identity = c.tool.identity
	}
	if bad != nil {
		return c, admit.Request{}
	}
	epoch, sure := h.sessions.Known(req.Session, req.Delivery != codec.DeliverNone || req.IdempotencyKey != "" || c.tool.keepsBySession() || h.bound(c.tool, req))
	if c.tool != nil && c.tool.tenure.Ended(epoch) {
		sure = false // the tool is about to be withdrawn, or the view is behind
	}
	c.epoch = epoch
	c.unsettled.Store(!sure)
	r := admit.Request{Tool: s.Tool, Epoch: epoch, Unsettled: !sure, Stream: req.Delivery != codec.DeliverNone, Depth: req.Depth, Account: subjects.Account(s.Session, epoch)}
	if req.IsAgain {
		r.First = c.Start.Add(-req.Again)
	}
	if req.RPCID == "" && r.Stream {
		req.RPCID = newRPCID(req.Delivery) // its caller learns it, and may cancel by it
	}
	if req.RPCID != "" {
		r.Key = admit.Key{Session: s.Session, RPC: subjects.WireName(req.RPCID)}
		r.Digest = admit.DigestOf(req.Body())
	} else {
		req.RPCID = newRPCID(req.Delivery)
	}
	return c, r
}

// instead answers a request that is not to be started. If it repeats a call that
// this node has, that call's answer is what it gets: "not started" would be
// wrong, and would have the caller start it elsewhere.
func (h *Host) instead(c *inflight, r admit.Request, answer admit.Record) {
	verdict, call, record, err, ok := h.calls.Repeated(r, func(rec admit.Record) { c.readers.Settle(rec) })
	if !ok {
		h.spendFor(c.Request, answer.Err)
		h.replies.Answer(&c.Reader, answer)
		return
	}
	h.follow(c, verdict, call, record, err)
}

// check says why a request must not be started here and now; nil for most.
func (h *Host) check(c *inflight, mine, directed bool) *toolmesh.Error {
	t, req := c.tool, c.Request
	refuse := func(code toolmesh.Code, format string, args ...any) *toolmesh.Error {
		return admit.Refusal(toolmesh.Errorf(code, format, args...))
	}
	if bad := h.foreign(req, mine); bad != nil {
		return bad
	}
	if t == nil && directed {
		return refuse(toolmesh.CodeToolNotFound, "node %s does not serve tool %q", h.node, req.Tool)
	}
	if bad := h.late(req); bad != nil {
		return bad
	}
	switch {
	case t == nil || t.withdrawn.Load() && directed:
		return admit.Refusal(h.takenOff(req.Tool))
	case h.draining.Load() && directed:
		return refuse(toolmesh.CodeUnavailable, "node %s is draining: send to another", h.node)
	case req.Delivery != codec.DeliverNone && !h.presence.Joined():
		return refuse(toolmesh.CodeUnavailable, "node %s has not found the chunk store: without JetStream there are no streams", h.node)
	case req.Revision != "" && req.Revision != t.identity.Revision:
		return refuse(toolmesh.CodeUnavailable, "revision %q of tool %q is asked for, node %s serves %q", req.Revision, req.Tool, h.node, t.identity.Revision).
			WithDetail("revision", t.identity.Revision)
	}
	if req.IdempotencyKey != "" {
		switch {
		case req.Delivery != codec.DeliverNone:
			return refuse(toolmesh.CodeInvalidRequest, "header %s: a stream cannot have an idempotency key, only a call with one result", codec.HeaderIdempotencyKey)
		case !h.presence.Joined():
			return refuse(toolmesh.CodeUnavailable, "node %s has not found the store of idempotency keys: without JetStream there are none", h.node)
		}
	}
	if req.Delivery != codec.DeliverNone {
		if used, most, short := h.room.Short(); short {
			return refuse(toolmesh.CodeUnavailable, "the chunk store holds %d of %d bytes, and the rest is for the streams that run: wait until older streams expire, or give it more room", used, most).
				WithOrigin(toolmesh.OriginMesh).WithDetail("limit", "chunks_max").WithDetail("stored", used).WithDetail("max", most)
		}
	}
	return nil
}

// foreign says why a request, mine or not, is not for this start of the node.
func (h *Host) foreign(req *codec.Request, mine bool) *toolmesh.Error {
	switch {
	case !mine:
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "another process has become node %s: send again", h.node))
	case req.Boot != "" && req.Boot != h.boot:
		// The request was sent before, to another start of this node, which may
		// have run it.
		return toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s was started anew: whether the tool ran is not known", h.node).
			WithOrigin(toolmesh.OriginAgent).WithDetail("node", string(h.node))
	}
	return nil
}

// late says why a request comes too late, or from too deep, to be run anywhere.
func (h *Host) late(req *codec.Request) *toolmesh.Error {
	switch {
	case req.Depth > h.opts.MaxDepth:
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the call is nested %d calls deep, at most %d are allowed: do tools call each other in a circle?",
			req.Depth, h.opts.MaxDepth).WithDetail("limit", "depth").WithDetail("max", h.opts.MaxDepth))
	case req.HasTimeout && req.Timeout <= 0:
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time was up before it arrived"))
	case req.Deadline.IsZero():
		return nil
	}
	if now := h.bus.Time(); req.Deadline.Before(now.Now.Add(-now.Bound)) {
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's deadline passed %v before it arrived", now.Now.Sub(req.Deadline).Round(time.Millisecond)))
	}
	return nil
}

// admit gives the call its slot, and returns it; nil if it is not to be run here:
// then it has its answer, or gets that of the call that it repeats. bad is why it must
// not be started.
func (h *Host) admit(c *inflight, r admit.Request, bad *toolmesh.Error) *admit.Call[*inflight] {
	if bad != nil {
		h.instead(c, r, admit.Record{Err: bad})
		return nil
	}
	if c.tool.cached != nil && h.fromCache(c, r) {
		return nil
	}
	if budget := h.budget(c.tool, c.Request); budget > 0 {
		c.deadline = c.Start.Add(budget)
	}
	c.begin()
	verdict, call, record, bad := h.calls.Begin(r, c, func(rec admit.Record) { c.readers.Settle(rec) })
	if verdict == admit.Run {
		return call
	}
	c.finish()
	h.follow(c, verdict, call, record, bad)
	return nil
}

// takenOff refuses a call of a tool that is not served any more.
func (h *Host) takenOff(id subjects.ToolID) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "tool %q has just been taken off node %s", id, h.node)
}

// follow answers a request that is not run: now, or when the call that it
// repeats has its answer.
func (h *Host) follow(c *inflight, verdict admit.Verdict, call *admit.Call[*inflight], record admit.Record, bad *toolmesh.Error) {
	c.Request.Drop() // it waits at most
	switch verdict {
	case admit.Refuse:
		h.spendFor(c.Request, bad)
		h.replies.AnswerNow(&c.Reader, admit.Record{Err: h.withoutSlot(c, bad)})
	case admit.Repeat:
		h.spend(c.Request)
		c.readers.Repeat(record)
	case admit.Join:
		if of := call.Value.Request.Ref; of != nil && c.Request.Ref != nil && of.Name != c.Request.Ref.Name {
			h.spend(c.Request) // what runs has its own
		}
		call.Value.readers.Join(&c.readers)
	}
}

func newRPCID(d codec.Delivery) subjects.RPCID {
	if d != codec.DeliverNone {
		return subjects.NewRPCID("rpc_stream_")
	}
	return subjects.NewRPCID("rpc_")
}

// run executes one call and answers it.
func (h *Host) run(call *admit.Call[*inflight]) {
	c := call.Value
	if h.base.Err() != nil {
		c.stop(context.Cause(h.base))
	}
	h.conclude(call, h.execute(call))
}

// conclude answers a call whose handler has returned.
func (h *Host) conclude(call *admit.Call[*inflight], record admit.Record) {
	c := call.Value
	if s := c.readers.Stream(); s != nil {
		h.calls.Vacate(call) // before anybody reads the stream's end
		record = s.Finish(record)
	}
	record = h.replies.Bounded(&c.ctx, c.Request, record)
	took := time.Since(c.Start)
	h.replies.Pace(c.ctx.Done(), &c.Reader, record) // with its slot: no more results wait than there are
	c.finish()
	if record.Err != nil {
		h.failed.Add(1)
		h.failures.add(record.Err.Code)
	}
	h.handled.Add(1)
	h.took.Add(int64(time.Since(c.Start)))
	if use := c.lane.Load(); use != nil {
		record.Lane = use
	}
	h.paced(call, &record, took)
	h.release(call, record)
	if c.held > 0 {
		h.args.Give(c.account(), c.held)
	}
	first := c.Claim()
	c.readers.Close()
	h.calls.Finish(call, record)
	if first && !record.Streamed {
		h.replies.AnswerNow(&c.Reader, record)
	}
	h.logCall(c, record)
}

func (h *Host) logCall(c *inflight, record admit.Record) {
	level := slog.LevelDebug
	code := ""
	if record.Err != nil {
		level, code = slog.LevelInfo, string(record.Err.Code)
	}
	if !h.log.Enabled(h.base, level) {
		return
	}
	h.log.LogAttrs(h.base, level, "call finished", slog.String("rpc_id", string(c.Request.RPCID)),
		slog.String("session", string(c.Request.Session)), slog.String("tool", string(c.Request.Tool)),
		slog.Duration("took", time.Since(c.Start)), slog.String("code", code))
}

// execute prepares the call and runs its handler.
func (h *Host) execute(running *admit.Call[*inflight]) admit.Record {
	c := running.Value
	_, err := c.Epoch(&c.ctx)
	if err == nil && c.tool.tenure.Ended(c.epoch) {
		err = h.takenOff(c.Request.Tool)
	}
	if err != nil {
		bad := admit.Refusal(err).WithStarted(toolmesh.StartedNo)
		if c.Request.IsAgain {
			bad = bad.WithStarted(toolmesh.StartedUnknown) // it may have run in the session that has ended
		}
		return admit.Record{Err: bad}
	}
	if h.bound(c.tool, c.Request) {
		if record, here := h.goHome(running); !here {
			return record
		}
		defer c.home.Leave()
	}
	if c.Request.Ref != nil && running.Full != nil {
		return h.passOn(running, c.Request, nil, nil) // who runs it reads them
	}
	args, varArgs, bad := h.arguments(c)
	if bad != nil {
		return admit.Record{Err: bad}
	}
	if running.Full != nil {
		return h.passOn(running, c.Request, args, varArgs)
	}
	ctx, call := &c.ctx, &c.call
	*call = Call{
		Session: c.Request.Session, Epoch: c.epoch, Tool: c.Request.Tool, RPCID: c.Request.RPCID, Args: args, VarArgs: varArgs,
		Stream: c.Request.Delivery != codec.DeliverNone, Collect: c.tool.descriptor.Annotations.Collect,
		Deadline: c.deadline, Depth: c.Request.Depth, Parent: c.Request.Parent, Isolation: c.Request.Isolation, NoCache: c.Request.NoCache, Traceparent: c.Request.Traceparent,
		lanes: c.Request.Lanes, running: running,
		host: h,
	}
	if c.home != nil {
		call.Home = c.home.ID
	}
	if call.Stream {
		s, err := c.stream()
		if err != nil {
			// The cause of a call that is over already says that it began.
			return admit.Record{Err: admit.Refusal(err).WithStarted(toolmesh.StartedNo)}
		}
		return h.unlessCrowded(running, args, admit.Record{Err: outcome(ctx, h.guard(running, s)), Streamed: true})
	}
	c.sink.collect = call.Collect
	if c.Request.IdempotencyKey != "" {
		return h.unlessCrowded(running, args, h.keys.Do(ctx, once.Call{
			Request: c.Request, Epoch: c.epoch, Args: args, VarArgs: varArgs, Idempotent: c.tool.descriptor.Annotations.Idempotent,
		}, func() admit.Record { return h.replies.Bounded(ctx, c.Request, h.unary(running)) }))
	}
	return h.unlessCrowded(running, args, h.unary(running))
}

// unary runs the handler of a call that has one result.
func (h *Host) unary(running *admit.Call[*inflight]) admit.Record {
	c := running.Value
	if err := h.guard(running, &c.sink); err != nil {
		return admit.Record{Err: outcome(&c.ctx, err)}
	}
	return admit.Record{Result: c.sink.result(), Cache: c.sink.cache, Warning: c.sink.warning}
}

// budget is the call's time: the caller's, up to what the tool declares, or up
// to the node's limit where it declares nothing. 0 is no limit.
func (h *Host) budget(t *served, req *codec.Request) time.Duration {
	declared := time.Duration(t.descriptor.Annotations.Timeout)
	most := declared
	if most == 0 {
		most = h.opts.MaxTimeout
	}
	switch {
	case req.HasTimeout:
		return min(req.Timeout, most)
	case declared == 0 && req.Delivery == codec.DeliverNone:
		return min(defaultTimeout, most)
	}
	return declared
}

// errExited is the error of a handler that ended its goroutine.
var errExited = func() *toolmesh.Error {
	e := toolmesh.Errorf(toolmesh.CodeToolError, "the function ended its goroutine instead of returning, as runtime.Goexit and a test's Fatal do")
	e.Type = "goexit"
	return e.WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
}()

// guard keeps a panicking handler from taking the node down, and one that ends
// its goroutine from keeping its slot: nothing of what follows the handler runs
// then, so the call is concluded here.
func (h *Host) guard(running *admit.Call[*inflight], sink Sink) (err error) {
	c, returned := running.Value, false
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
		} else if !returned {
			h.conclude(running, admit.Record{Err: outcome(&c.ctx, errExited), Streamed: c.call.Stream})
		}
	}()
	err = c.tool.handler.ServeTool(&c.ctx, &c.call, sink)
	returned = true
	return err
}

// panicked is the error of a handler that panics; it is made while that is recovered.
func panicked(p any) error {
	e := toolmesh.Errorf(toolmesh.CodeToolError, "%v", p)
	e.Type, e.Stacktrace = "panic", string(debug.Stack())
	return e
}

// outcome turns what a handler returned into the call's error. When the call's
// context had ended, its cause is the reason, whatever the handler makes of it;
// whether the tool's code had begun by then only the handler knows.
func outcome(ctx *callContext, err error) *toolmesh.Error {
	if err == nil {
		return nil
	}
	ended, unsure := ctx.Err() != nil, false
	var e *toolmesh.Error
	switch {
	case errors.As(err, &e):
		if ctx.nested.Load() && e.Started != toolmesh.StartedYes {
			e = e.WithStarted(toolmesh.StartedYes) // it may be that of the call it made
		}
		// Did the code begin whose worker died, or speaks in riddles? Who runs the
		// code itself knows that it did.
		unsure = e.Started == toolmesh.StartedUnknown &&
			(e.Origin == toolmesh.OriginWorker || e.Code == toolmesh.CodeWorkerCrashed || e.Code == toolmesh.CodeWorkerOutOfMemory)
		// What is over is not to be tried again, whoever had no room for it.
		again := e.Started == toolmesh.StartedNo && e.Retryable
		if ended && (again || e.Code == toolmesh.CodeCancelled || e.Code == toolmesh.CodeDeadlineExceeded) {
			e = because(ctx, e, unsure)
		}
	case ended && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		e = toolmesh.AsError(context.Cause(ctx))
	default:
		e = toolmesh.Errorf(toolmesh.CodeToolError, "%w", err).WithOrigin(toolmesh.OriginTool)
		e.Type = errorType(err)
	}
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	if e.Code == toolmesh.CodeToolError && e.Origin == toolmesh.OriginAgent {
		e = e.WithOrigin(toolmesh.OriginTool)
	}
	if e.Started == toolmesh.StartedUnknown && !unsure {
		e = e.WithStarted(toolmesh.StartedYes)
	}
	return e
}

// errorType is the first type in an error's chain that its package exports, as
// callers can know it by; those of errors.New and fmt.Errorf say nothing.
func errorType(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		t := reflect.TypeOf(err)
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if token.IsExported(t.Name()) {
			return fmt.Sprintf("%T", err)
		}
	}
	return ""
}

// because is the cause of a context that ended, with what the handler's error
// knows of the call's beginning.
func because(ctx context.Context, e *toolmesh.Error, unsure bool) *toolmesh.Error {
	cause := toolmesh.AsError(context.Cause(ctx))
	if unsure || e.Started == toolmesh.StartedNo {
		cause = cause.WithStarted(e.Started)
	}
	// No worker has anything to do with what never began.
	if cause.Origin == "" && e.Started != toolmesh.StartedNo {
		cause = cause.WithOrigin(e.Origin)
	}
	return cause
}

// End implements [stream.Call]: it tells the call's handler to stop.
func (c *inflight) End(cause *toolmesh.Error) {
	if c.cause.CompareAndSwap(nil, cause) {
		c.ending.Store(bus.Mono(time.Now()))
	}
	c.stop(cause)
}

// Epoch implements [stream.Call]: it looks the call's session up where the view did not
// say enough, once the call holds its slot.
func (c *inflight) Epoch(ctx context.Context) (string, error) {
	if c.unsettled.Load() {
		epoch, err := c.h.sessions.Epoch(ctx, c.Request.Session)
		if err != nil {
			return "", err
		}
		c.epoch = epoch
		c.unsettled.Store(false)
	}
	return c.epoch, nil
}

// report notes how far the call says that it is.
func (c *inflight) report(p codec.Progress) { c.readers.Report(&p) }

// why is the error of a call whose handler does not return. It is said to have
// begun: what waits for its turn returns at once when its call is over, and
// should it yet say otherwise, nobody has run it twice for that.
func (c *inflight) why() *toolmesh.Error {
	if cause := c.cause.Load(); cause != nil {
		return cause
	}
	return errDeadline
}
