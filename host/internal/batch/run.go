package batch

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// atOnce is how many calls of a batch run at the same time.
	atOnce = 64
	// leastResult is the room that is kept in the answer for each result to come, and
	// plenty for an error without its details.
	leastResult = 512
	// callerGone is for how long no keepalive may meet a batch's caller.
	callerGone = 5 * time.Second
)

// execution is one batch that runs.
type execution struct {
	s       *Server
	b       *codec.Batch
	to      *reader
	began   time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	release context.CancelFunc // of ctx's timer
	unwatch func() bool        // of what stop waits for
	finish  func(admit.Record)
	members []member
	tools   map[subjects.ToolID]*callee

	mu       sync.Mutex // guards what follows, and the members; taken before the table's, and messages are sent under it
	queue    lane.Queue
	ready    []*member // may begin, in order
	running  int
	starting bool // a goroutine is on its way that takes calls
	joined   []*reader
	final    *admit.Record // nil while it runs
	left     int
	room     int64 // for results, in the answer
	results  [][]byte
}

// callee is a tool that the batch calls, as far as it is known.
type callee struct {
	descriptor *tool.Descriptor // nil: nothing is known
	id         subjects.ToolID  // the full one, if it is known
	subject    subjects.Subject // of its calls, as it is parsed; KindNone for an id that cannot travel
	rule       *lane.Rule
}

// member is one call.
type member struct {
	*codec.Member
	at    int // in the batch
	turn  *lane.Turn
	wait  time.Duration // for its turn
	alarm *time.Timer   // ends its wait; nil for one without a time of its own
	state state
}

type state uint8

const (
	waiting state = iota
	begun
	over
)

// newExecution makes an execution with its time: its cancel may come as soon as the table has it.
func newExecution(s *Server, to *reader) *execution {
	r := &execution{s: s, b: to.b, to: to, began: to.began, release: func() {}}
	r.ctx, r.cancel = context.WithCancelCause(s.Base)
	if r.b.HasTimeout {
		r.ctx, r.release = context.WithDeadlineCause(r.ctx, r.began.Add(r.b.Timeout), errDeadline)
	}
	return r
}

// errGone ends a batch whose callers are gone.
var errGone = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller is gone").WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo).WithDetail("reason", "caller_gone")

// close lets go of the run's time.
func (r *execution) close() {
	r.release()
	r.cancel(nil)
}

var errDeadline = toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the time was up before the call's turn came").
	WithStarted(toolmesh.StartedNo).WithDetail("limit", "time").WithOrigin(toolmesh.OriginAgent)

// join answers a repetition when the batch has ended.
func (r *execution) join(to *reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.final != nil {
		r.s.later(to, *r.final)
	} else {
		r.joined = append(r.joined, to)
	}
}

// keepAlive says that the batch runs, and ends it once nobody is there to hear it. It is
// the ticker's.
func (r *execution) keepAlive(now time.Time) {
	r.mu.Lock()
	all := append([]*reader{r.to}, r.joined...)
	r.mu.Unlock()
	gone := true
	for _, to := range all {
		if to.b.Keepalive && now.Sub(to.told) >= bus.KeepaliveEvery && now.Sub(to.began) >= bus.KeepaliveEvery {
			to.told = now
			r.s.Host.Send(&nats.Msg{Subject: to.reply, Reply: to.probe.Next(r.s.Bus), Header: nats.Header(to.b.KeepaliveHeader(r.s.Identity, -1, nil))})
		}
		gone = gone && to.probe.Gone(callerGone)
	}
	if gone {
		r.cancel(errGone)
	}
}

// start makes the calls, with this goroutine and as many more as there are calls to make
// at once; finish is called when all have ended.
func (r *execution) start(finish func(admit.Record)) {
	r.finish = finish
	r.left = len(r.b.Members)
	r.results = make([][]byte, r.left)
	r.members = make([]member, r.left)
	r.room = r.s.Bus.MaxPayload() - 4096 - int64(r.left)*leastResult
	if r.b.AcceptRef {
		r.room = math.MaxInt64 // the answer goes by reference where it must
	}
	r.learn()
	r.mu.Lock()
	for i := range r.members {
		m := &r.members[i]
		m.Member, m.at = &r.b.Members[i], i
		r.bind(m.Member)
		m.turn = r.queue.Add(r.key(m), m)
		if m.turn.Ready() {
			r.ready = append(r.ready, m)
		} else if m.Timeout > 0 {
			m.alarm = time.AfterFunc(time.Until(r.began.Add(m.Timeout)), func() { r.giveUp(m, errDeadline) })
		}
	}
	r.unwatch = context.AfterFunc(r.ctx, r.stop)
	r.starting = true
	r.mu.Unlock()
	r.work()
}

// learn finds out what the tools of the batch are.
func (r *execution) learn() {
	names := make([]subjects.ToolID, 0, len(r.b.Members))
	r.tools = make(map[subjects.ToolID]*callee)
	for i := range r.b.Members {
		if name := r.b.Members[i].Tool; r.tools[name] == nil {
			r.tools[name] = &callee{id: name}
			names = append(names, name)
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, lookWait)
	defer cancel()
	known := r.s.View.Descriptors(ctx, r.b.Session, names)
	for name, c := range r.tools {
		if c.descriptor = known[name]; c.descriptor != nil {
			c.id = c.descriptor.ID
		}
		c.rule = lane.RuleOf(c.descriptor, r.b.Independent)
		if subject, err := subjects.Tool(r.b.Session, c.id); err == nil {
			c.subject, _ = subjects.Parse(subject)
		}
	}
}

// bind makes positional arguments named ones, where that can be: so each node, and a plain
// request, has the same call under its rpc id.
func (r *execution) bind(m *codec.Member) {
	if d := r.tools[m.Tool].descriptor; d != nil && len(m.Positional) > 0 {
		if object, more, err := tool.Bind(d, m.Positional, m.Args); err == nil && more == nil {
			m.Args, m.Positional = object, nil
		}
	}
}

// key is what a call touches.
func (r *execution) key(m *member) lane.Key {
	c := r.tools[m.Tool]
	args := m.Args
	if len(m.Positional) > 0 && c.descriptor != nil {
		var err error
		if args, _, err = tool.Bind(c.descriptor, m.Positional, args); err != nil {
			return lane.Key{} // it fails when it is called
		}
	}
	key := c.rule.Key(args)
	if bad := key.Check(); bad != nil && m.Err == nil {
		m.Err = bad
	}
	return key
}

// next has what may begin do so; r.mu is held. One goroutine is started at a time: it
// sees to the next one, as long as there is something for it to do. So calls that end at
// once are made by few, whose stacks have grown, and slow ones run side by side.
func (r *execution) next() {
	if len(r.ready) > 0 && !r.starting && r.running < atOnce && r.ctx.Err() == nil { // else stop gives them up
		r.starting = true
		r.s.running.Go(r.work)
	}
}

// work makes calls until none may begin.
func (r *execution) work() {
	first := true
	for {
		r.mu.Lock()
		if first {
			r.starting, first = false, false
		}
		m := r.take()
		r.next()
		r.mu.Unlock()
		if m == nil {
			return
		}
		r.call(m)
	}
}

// take returns the next call that is to begin, nil for none; r.mu is held.
func (r *execution) take() *member {
	for r.running < atOnce && len(r.ready) > 0 && r.ctx.Err() == nil {
		m := r.ready[0]
		r.ready = r.ready[1:]
		if m.state != waiting {
			continue
		}
		m.state, m.wait = begun, time.Since(r.began)
		if m.alarm != nil {
			m.alarm.Stop()
		}
		r.running++
		return m
	}
	return nil
}

// stop gives up what has not begun, once the batch is over.
func (r *execution) stop() {
	cause := toolmesh.AsError(context.Cause(r.ctx)).WithStarted(toolmesh.StartedNo)
	for i := range r.members {
		r.giveUp(&r.members[i], cause)
	}
}

// giveUp ends a call that waits for its turn.
func (r *execution) giveUp(m *member, why *toolmesh.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.state == waiting {
		m.wait = time.Since(r.began)
		r.end(m, value{}, why)
	}
}

// call makes one call, here or on another node.
func (r *execution) call(m *member) {
	if m.Err != nil {
		r.ended(m, value{}, m.Err)
		return
	}
	ctx, cancel := r.ctx, func() {}
	if m.Timeout > 0 {
		ctx, cancel = context.WithDeadline(r.ctx, r.began.Add(m.Timeout))
	}
	defer cancel()
	if r.here(ctx, m) {
		return
	}
	if result, err := r.elsewhere(ctx, m); err != nil {
		r.ended(m, value{}, toolmesh.AsError(err))
	} else {
		result, bad := r.refer(result)
		r.ended(m, result, bad)
	}
}

// here makes a call on this node, and reports whether it had it: neither where it is
// not served nor where there is no room.
func (r *execution) here(ctx context.Context, m *member) bool {
	tool := r.tools[m.Tool]
	if tool.subject.Kind == subjects.KindNone {
		return false
	}
	req := &codec.Request{Args: m.Args, Positional: m.Positional, Call: codec.Call{
		Session: r.b.Session, Tool: tool.id, RPCID: r.b.RPCID(m.Member),
		Depth: r.b.Depth, Parent: r.b.Parent, Lanes: r.b.Lanes, Trace: r.b.Trace, AcceptRef: r.b.AcceptRef,
	}}
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout, req.HasTimeout = time.Until(deadline), true
	}
	const (
		asking = iota
		asked
		full
	)
	var told atomic.Int32
	mine := r.s.Host.Here(ctx, tool.subject, req, func(rec admit.Record) {
		if rec.Err != nil && admit.Full(rec.Err) && told.CompareAndSwap(asking, full) {
			return
		}
		r.ended(m, value{rec.Result, rec.Ref}, rec.Err)
	})
	return mine && told.CompareAndSwap(asking, asked)
}

// elsewhere makes a call by the client, which finds a node.
func (r *execution) elsewhere(ctx context.Context, m *member) (value, error) {
	args, callee := m.Args, r.tools[m.Tool]
	if len(m.Positional) > 0 {
		d := callee.descriptor
		if d == nil {
			return value{}, toolmesh.Errorf(toolmesh.CodeToolNotFound, "the positional arguments of %q are unknown: no node describes the tool", m.Tool).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		}
		object, more, err := tool.Bind(d, m.Positional, args)
		if err != nil {
			return value{}, err
		}
		if more != nil {
			return value{}, toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%q takes %d positional arguments from another node, %d are given: *%s cannot be sent in a batch",
				m.Tool, len(d.Positional), len(m.Positional), d.VarArgs).WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
		}
		args = object
	}
	result, err := r.s.Client.Call(ctx, callee.id, args,
		client.WithSession(r.b.Session), client.WithRPCID(r.b.RPCID(m.Member)), client.WithLineage(client.Lineage{Parent: r.b.Parent, Depth: r.b.Depth, Lanes: r.b.Lanes}), client.ByReference())
	if err != nil {
		return value{}, err
	}
	if result.Ref != nil && !r.b.AcceptRef {
		r.s.Client.Forget(r.b.Session, result.Ref)
		return value{}, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the result is too large for a message: return less, stream it, or take it by reference (%s)", codec.HeaderAcceptRef).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
	}
	return value{result.Value, result.Ref}, nil
}

// value is what a call returned, or where that is.
type value struct {
	json json.RawMessage
	ref  *codec.Ref
}

// refer leaves a result that no message carries, not even alone, to a reference of its own,
// so that the answer need not hold it.
func (r *execution) refer(v value) (value, *toolmesh.Error) {
	if !r.b.AcceptRef || v.ref != nil || r.s.Host.Fits(len(v.json)) {
		return v, nil
	}
	ref, bad := r.s.Host.Keep(r.b.Session, v.json)
	return value{ref: ref}, bad
}

// ended takes what a call that began has ended with.
func (r *execution) ended(m *member, value value, err *toolmesh.Error) {
	if r.b.Delivery == codec.DeliverInbox {
		req := r.b.Request
		req.RPCID = r.b.RPCID(m.Member)
		r.s.Host.Pace(r.ctx, &stream.Reader{Reply: r.to.reply, Request: &req}, admit.Record{Result: value.json, Ref: value.ref})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.state == begun {
		r.running--
		r.end(m, value, err)
	}
}

// end takes what a call has ended with, and begins what waited for it; r.mu is held.
func (r *execution) end(m *member, value value, err *toolmesh.Error) {
	m.state = over
	if m.alarm != nil {
		m.alarm.Stop()
	}
	result := codec.BatchResult{Index: m.Index, RPCID: r.b.RPCID(m.Member), Result: value.json, Ref: value.ref, Err: err, LaneWait: m.wait}
	if value.ref != nil {
		result.Result = nil // it is kept beside
	}
	if err == nil && len(result.Result) > 0 && !json.Valid(result.Result) {
		result.Result, result.Err = nil, toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the tool returned a value that is not JSON").
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
	}
	r.put(m, &result)
	for _, turn := range r.queue.Done(m.turn) {
		r.ready = append(r.ready, turn.Value.(*member)) //nolint:forcetypeassert // it is what start put in
	}
	r.next()
	if r.left--; r.left > 0 {
		return
	}
	final := admit.Record{Result: joined(r.results)}
	if len(final.Result) < reply.PacedFrom || !r.s.Host.Fits(len(final.Result)) {
		r.conclude(final)
		return
	}
	r.s.running.Go(func() { // with its place among the batches: no more answers wait than these may be
		r.s.Host.Pace(r.ctx, &stream.Reader{Reply: r.to.reply, Request: &r.b.Request}, final)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conclude(final)
	})
}

// conclude answers a batch whose calls have ended; r.mu is held.
func (r *execution) conclude(final admit.Record) {
	r.unwatch()
	r.close()
	r.s.Log.Debug("batch finished", slog.String("rpc_id", string(r.b.Request.RPCID)), slog.String("session", string(r.b.Session)),
		slog.Int("calls", len(r.members)), slog.Duration("took", time.Since(r.began)))
	r.final = &final
	r.finish(final)
	r.to.probe.Close()
	r.s.answer(r.to, final)
	for _, to := range r.joined {
		to.probe.Close()
		r.s.later(to, final)
	}
}

// put holds a result for the answer, where it fits, and sends it alone to who asked for
// that; r.mu is held.
func (r *execution) put(m *member, result *codec.BatchResult) {
	encoded := result.Encode()
	if r.b.Delivery == codec.DeliverInbox {
		header, body := r.b.OneResult(r.s.Identity, result, encoded)
		if !r.s.send(r.to, header, body) {
			small := codec.BatchResult{Index: result.Index, RPCID: result.RPCID, Err: tooLarge(len(encoded), r.s.Bus.MaxPayload())}
			header, body = r.b.OneResult(r.s.Identity, &small, small.Encode())
			r.s.Host.Send(&nats.Msg{Subject: r.to.reply, Header: nats.Header(header), Data: body})
		}
	}
	if extra := int64(len(encoded)) - leastResult; extra > r.room {
		result.Result = nil
		if result.Err == nil {
			result.Err = tooLarge(len(encoded), r.s.Bus.MaxPayload())
		} else {
			e := *result.Err
			e.Stacktrace, e.Details = "", map[string]any{"truncated": true}
			e.Message = reply.Cut(e.Message, 256)
			result.Err = &e
		}
		encoded = result.Encode()
	}
	r.room -= max(int64(len(encoded))-leastResult, 0)
	r.results[m.at] = encoded
}
