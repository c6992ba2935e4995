package batch

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// atOnce is how many calls of a batch run at the same time.
	atOnce = 64
	// leastResult is the room that is kept in the answer for each result to come, and
	// plenty for an error without its details.
	leastResult = 512
	// mostNames bounds the tools per batch that are described if calls name them by less than
	// their ids: each one needs a search of the whole view.
	mostNames = 64
)

// execution is one batch that runs.
type execution struct {
	s       *Server
	b       *codec.Batch
	to      *reader
	callers stream.Readers
	ctx     context.Context
	cancel  context.CancelCauseFunc
	release context.CancelFunc // of ctx's timer
	unwatch func() bool        // keeps the end of ctx from calling stop
	finish  func(admit.Record)
	members []member
	tools   map[subjects.ToolID]*callee

	mu       sync.Mutex // guards the fields below and the members; taken before the table's; messages are sent under it
	queue    lane.Queue
	ready    []*member // may begin, in order
	running  int
	starting bool // a goroutine is on its way that takes calls
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
	wait  time.Duration // until it began
	alarm *time.Timer   // ends its wait; nil for one without a time of its own
	state state
}

type state uint8

const (
	waiting state = iota
	begun
	over
)

// newExecution makes an execution and starts its timeout: its cancel may come as soon as the
// table has it.
func newExecution(s *Server, to *reader) *execution {
	r := &execution{s: s, b: to.b, to: to, release: func() {}}
	r.callers.Init(s.Node, r, &to.Reader)
	r.ctx, r.cancel = context.WithCancelCause(s.Base)
	if r.b.HasTimeout {
		r.ctx, r.release = context.WithDeadlineCause(r.ctx, to.Start.Add(r.b.Timeout), errDeadline)
	}
	return r
}

// End implements [stream.Execution].
func (r *execution) End(cause *toolmesh.Error) { r.cancel(cause) }

// Epoch implements [stream.Execution]: nothing of a batch is stored.
func (r *execution) Epoch(context.Context) (string, error) { return "", nil }

// close lets go of the run's time.
func (r *execution) close() {
	r.release()
	r.cancel(nil)
}

var errDeadline = toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time was up before it could begin").
	WithStarted(toolmesh.StartedNo).WithDetail("limit", "time").WithOrigin(toolmesh.OriginAgent)

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
		m.turn = r.queue.Add(r.key(m), m)
		if m.turn.Ready() {
			r.ready = append(r.ready, m)
		} else if m.Timeout > 0 {
			m.alarm = time.AfterFunc(time.Until(r.to.Start.Add(m.Timeout)), func() { r.giveUp(m, errDeadline) })
		}
	}
	r.unwatch = context.AfterFunc(r.ctx, r.stop)
	r.starting = true
	r.mu.Unlock()
	r.work()
}

// learn fetches the descriptors of the batch's tools.
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
	known := r.s.descriptors(ctx, r.b.Session, names)
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

// descriptors returns the descriptors of tools by the names in calls. Unknown tools are missing. The
// node's own tools are known before the registry has them.
func (s *Server) descriptors(ctx context.Context, session subjects.SessionID, names []subjects.ToolID) map[subjects.ToolID]*tool.Descriptor {
	all := make(map[subjects.ToolID]*tool.Descriptor)
	digests := make(map[subjects.ToolID]string)
	short := 0
	for _, name := range names {
		if all[name] = s.Host.Served(session, name); all[name] != nil {
			continue
		}
		route, ok := s.View.Route(session, name)
		if !ok && short < mostNames {
			short++
			route, ok = s.View.Named(session, string(name))
		}
		if ok {
			digests[name] = route.Digest
		}
	}
	found, err := s.Records.Descriptors(ctx, slices.Collect(maps.Values(digests)))
	if err != nil {
		s.Log.Warn("a batch runs its calls one after the other: its tools could not be looked up", slog.String("error", err.Error()))
	}
	for name, digest := range digests {
		all[name] = found[digest]
	}
	return all
}

// key returns the lane key of a call. It makes positional arguments named ones, where that can be: so
// each node, and a plain request, has the same call under its rpc id.
func (r *execution) key(m *member) lane.Key {
	c, args := r.tools[m.Tool], m.Args
	if d := c.descriptor; d != nil && len(m.Positional) > 0 {
		object, more, err := tool.Bind(d, m.Positional, args)
		switch {
		case err != nil:
			m.Err = cmp.Or(m.Err, admit.Refusal(err))
		case more == nil:
			m.Args, m.Positional = object, nil
		}
		args = object
	}
	key := c.rule.Key(args)
	if bad := key.Check(); bad != nil {
		m.Err = cmp.Or(m.Err, bad)
	}
	return key
}

// next starts a goroutine for the calls that may begin; r.mu is held. Goroutines start one at a
// time, and each starts the next if there are more calls. Calls that end at once thus share few
// goroutines, with warm stacks, and slow ones run in parallel.
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
		m.state, m.wait = begun, time.Since(r.to.Start)
		if m.alarm != nil {
			m.alarm.Stop()
		}
		r.running++
		return m
	}
	return nil
}

// stop ends the calls that have not begun, once the batch is over.
func (r *execution) stop() {
	cause := toolmesh.AsError(context.Cause(r.ctx)).WithStarted(toolmesh.StartedNo)
	for i := range r.members {
		r.giveUp(&r.members[i], cause)
	}
}

// giveUp ends a call that has not begun.
func (r *execution) giveUp(m *member, why *toolmesh.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.state == waiting {
		m.wait = time.Since(r.to.Start)
		r.end(m, admit.Record{Err: why})
	}
}

// call makes one call, here or on another node.
func (r *execution) call(m *member) {
	if m.Err != nil {
		r.ended(m, admit.Record{Err: m.Err})
		return
	}
	ctx, cancel := r.ctx, func() {}
	if m.Timeout > 0 {
		ctx, cancel = context.WithDeadline(r.ctx, r.to.Start.Add(m.Timeout))
	}
	defer cancel()
	if !r.here(ctx, m) {
		r.ended(m, r.elsewhere(ctx, m))
	}
}

// here makes a call on this node, and reports whether it had it: neither where it is
// not served nor where there is no room, nor one of a revision, for which the client finds a node.
func (r *execution) here(ctx context.Context, m *member) bool {
	tool := r.tools[m.Tool]
	if tool.subject.Kind == subjects.KindNone || r.b.Revision != "" {
		return false
	}
	req := &codec.Request{Args: m.Args, Positional: m.Positional, Call: codec.Call{
		Session: r.b.Session, Tool: tool.id, RPCID: r.b.RPCID(m.Member),
		Depth: r.b.Depth, Parent: r.b.Parent, Lanes: r.b.Lanes, Trace: r.b.Trace, AcceptRef: r.b.AcceptRef,
		Isolation: r.b.Isolation, NoCache: r.b.NoCache,
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
		r.ended(m, rec)
	})
	return mine && told.CompareAndSwap(asking, asked)
}

// elsewhere makes a call by the client, which finds a node.
func (r *execution) elsewhere(ctx context.Context, m *member) (rec admit.Record) {
	callee := r.tools[m.Tool]
	switch d := callee.descriptor; { // of all others the arguments have names
	case len(m.Positional) == 0:
	case d == nil:
		rec.Err = toolmesh.Errorf(toolmesh.CodeToolNotFound, "the positional arguments of %q are unknown: no node describes the tool", m.Tool).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		return rec
	default:
		rec.Err = toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%q takes %d positional arguments from another node, %d are given: *%s cannot be sent in a batch",
			m.Tool, len(d.Positional), len(m.Positional), d.VarArgs).WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
		return rec
	}
	options := []client.CallOption{
		client.WithSession(r.b.Session), client.WithRPCID(r.b.RPCID(m.Member)), client.WithLineage(client.Lineage{Parent: r.b.Parent, Depth: r.b.Depth, Lanes: r.b.Lanes}), client.ByReference(),
		client.WithRevision(r.b.Revision), client.WithIsolation(r.b.Isolation),
	}
	if r.b.NoCache {
		options = append(options, client.NoCache())
	}
	result, err := r.s.Client.Call(ctx, callee.id, m.Args, options...)
	switch {
	case err != nil:
		rec.Err = toolmesh.AsError(err)
	case result.Ref != nil && !r.b.AcceptRef:
		r.s.Client.Forget(r.b.Session, result.Ref)
		rec.Err = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the result is too large for a message: return less, stream it, or take it by reference (%s)", codec.HeaderAcceptRef).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
	case r.b.AcceptRef && result.Ref == nil && !r.s.Replies.Fits(len(result.Value)): // it goes into no message, not even alone
		rec.Ref, rec.Err = r.s.Replies.Keep(r.b.Session, result.Value)
	default:
		rec.Result, rec.Ref = result.Value, result.Ref
	}
	return rec
}

// ended notes the outcome of a call that began.
func (r *execution) ended(m *member, rec admit.Record) {
	if r.b.Delivery == codec.DeliverInbox {
		req := r.b.Request
		req.RPCID = r.b.RPCID(m.Member)
		r.s.Replies.Pace(r.ctx, &stream.Reader{Reply: r.to.Reply, Request: &req}, admit.Record{Result: rec.Result, Ref: rec.Ref}) // this node answers, whichever ran it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.state == begun {
		r.running--
		r.end(m, rec)
	}
}

// end notes the outcome of a call, and begins the calls that waited for it; r.mu is held.
func (r *execution) end(m *member, rec admit.Record) {
	m.state = over
	if m.alarm != nil {
		m.alarm.Stop()
	}
	result := codec.BatchResult{Index: m.Index, RPCID: r.b.RPCID(m.Member), Result: rec.Result, Ref: rec.Ref, Err: rec.Err, LaneWait: m.wait}
	if rec.Ref != nil {
		result.Result = nil // the value is kept separately
	}
	if rec.Err == nil && len(result.Result) > 0 && !json.Valid(result.Result) {
		result.Result, result.Err = nil, codec.NotJSON()
	}
	r.put(m, &result)
	for _, turn := range r.queue.Done(m.turn) {
		r.ready = append(r.ready, turn.Value.(*member)) //nolint:forcetypeassert // start stores members
	}
	r.next()
	if r.left--; r.left > 0 {
		return
	}
	final := admit.Record{Result: joined(r.results)}
	if !r.s.Replies.Paced(&r.to.Reader, final) {
		r.conclude(final)
		return
	}
	r.s.running.Go(func() { // it keeps its place among the batches, which bounds the waiting answers
		r.s.Replies.Pace(r.ctx, &r.to.Reader, final)
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
		slog.Int("calls", len(r.members)), slog.Duration("took", time.Since(r.to.Start)))
	r.finish(final)
	r.to.Claim() // no keepalive follows the answer
	r.callers.Close()
	r.s.answer(r.to, final)
	r.callers.End(final)
}

// put keeps a result for the answer, if it fits, and sends it to callers that asked for single
// results; r.mu is held.
func (r *execution) put(m *member, result *codec.BatchResult) {
	encoded := result.Encode()
	if r.b.Delivery == codec.DeliverInbox {
		header, body := r.b.OneResult(r.s.Identity, result, encoded)
		if !r.s.send(r.to, header, body) {
			small := codec.BatchResult{Index: result.Index, RPCID: result.RPCID, Err: tooLarge(len(encoded), r.s.Bus.MaxPayload())}
			header, body = r.b.OneResult(r.s.Identity, &small, small.Encode())
			r.s.Replies.Publish(r.to.Reply, header, body)
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
