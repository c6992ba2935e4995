package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// mostCalls is the max number of the program's calls in flight.
	mostCalls = 1024
	// readAtOnce is how many requests of a batch look up their tools concurrently.
	readAtOnce = 32
)

// own is a call, a stream or a batch of the program.
type own struct {
	id     []byte // as the program wrote it
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	granted int64         // items that may be sent; negative: no limit
	raised  chan struct{} // capacity 1: granted has grown
}

// question is the options of a call.
type question struct {
	tool    subjects.ToolID
	session subjects.SessionID // empty: that of the parent call, or the bridge's
	args    []json.RawMessage
	kwargs  json.RawMessage
	timeout time.Duration // 0: the mesh's default
	above   *served       // parent call; nil: none
}

func (q question) read(b *Bridge, f *frame) (question, error) {
	id, ok := text(f.ToolID)
	if !ok {
		return q, invalid("tool_id is missing or not text")
	}
	q.tool = subjects.ToolID(id)
	if !absent(f.Args) && json.Unmarshal(f.Args, &q.args) != nil {
		return q, invalid("args is %.100s: it is a list", f.Args)
	}
	if q.kwargs = json.RawMessage(f.Kwargs); absent(q.kwargs) {
		q.kwargs = json.RawMessage(`{}`)
	} else if q.kwargs[0] != '{' {
		return q, invalid("kwargs is %.100s: it is an object", f.Kwargs)
	}
	return q.place(b, f)
}

// place reads the session, node and timeout of a frame's calls.
func (q question) place(b *Bridge, f *frame) (question, error) {
	session, err := optional(f.Session, "session_id")
	if err != nil {
		return q, err
	}
	if session != "" {
		q.session = subjects.SessionID(session)
	}
	ms, err := whole(f.Timeout, "timeout_ms")
	switch {
	case err != nil:
		return q, err
	case ms > 0:
		q.timeout = time.Duration(min(ms, int64(mostTimeout/time.Millisecond))) * time.Millisecond
	case !absent(f.Timeout):
		return q, toolmesh.AsError(context.DeadlineExceeded).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	if !absent(f.Parent) {
		name, ok := nameOf(f.Parent)
		if !ok {
			return q, invalid("parent is %.100s: it is the rpc_id of a call that is being served", f.Parent)
		}
		if q.above = b.servedAs(name); q.above == nil {
			return q, errParentEnded
		}
	}
	return q, nil
}

// mostTimeout is above the max timeout of a call.
const mostTimeout = 1000 * time.Hour

// enter registers a call of the program under its name. The error is that of the frame, as the name
// cannot be answered.
func (b *Bridge) enter(name []byte, field string) (*own, string, error) {
	key, ok := nameOf(name)
	if !ok {
		return nil, "", invalid("%s is missing, or neither text nor a number", field)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls[key] != nil {
		return nil, "", invalid("a call of the %s %s is in flight", field, name)
	}
	c := &own{id: name, granted: -1, raised: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancelCause(b.base)
	b.calls[key] = c
	b.busy++
	return c, key, nil
}

// leave forgets a call of the program and frees its name.
func (b *Bridge) leave(c *own, key string) {
	c.cancel(nil)
	b.mu.Lock()
	delete(b.calls, key)
	b.mu.Unlock()
}

// done counts an answered call of the program.
func (b *Bridge) done() {
	b.mu.Lock()
	b.busy--
	idle := b.busy == 0
	b.mu.Unlock()
	if idle {
		wake.Up(b.idle)
	}
}

// mayCall returns why the program may make no call now.
func (b *Bridge) mayCall(q *question) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.draining && q.above == nil:
		return errDraining
	case len(b.calls) > mostCalls:
		return toolmesh.Errorf(toolmesh.CodeBusy, "%d calls of the program are in flight", mostCalls).
			WithDetail("limit", "calls").WithDetail("max", mostCalls).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	return nil
}

// under ends a call with its parent, in which calls with c.ctx are then nested.
func (c *own) under(q *question) (end func()) {
	if q.above == nil {
		return func() {}
	}
	mine := c.ctx
	above, cancel := context.WithCancelCause(q.above.ctx)
	release := context.AfterFunc(mine, func() { cancel(context.Cause(mine)) })
	c.ctx = above
	return func() {
		release()
		cancel(nil)
	}
}

// call makes an rpc_tool_call, an rpc_tool_stream or a describe_tool. bad is a fault of the frame,
// which fails the call.
func (b *Bridge) call(f *frame, bad error) {
	c, key, err := b.enter(f.RPCID, "rpc_id")
	if err != nil {
		b.refuse(f.RPCID, err)
		return
	}
	var q question
	if err = bad; err == nil {
		q, err = q.read(b, f)
	}
	if err == nil {
		err = b.mayCall(&q)
	}
	if err == nil && f.kind == typeStream && !absent(f.Credit) {
		c.granted, err = whole(f.Credit, "credit")
	}
	go func() { // ends with the call; b.busy counts it
		defer b.done()
		if f.kind == typeStream {
			b.stream(c, key, &q, err)
			return
		}
		var value json.RawMessage
		switch {
		case err != nil:
		case f.kind == typeCall:
			value, err = b.unary(c, &q)
		default:
			if q.timeout > 0 {
				var stop context.CancelFunc
				c.ctx, stop = context.WithTimeout(c.ctx, q.timeout)
				defer stop()
			}
			if f.kind == typeTask {
				value, err = b.task(c, &q)
			} else {
				value, err = b.described(c, &q)
			}
		}
		b.leave(c, key)
		_ = b.pipe.put(b.base, respond(c.id, value, err))
	}()
}

// arguments returns the arguments object of a question. Positional arguments get their names from
// the tool's declaration.
func (b *Bridge) arguments(ctx context.Context, q *question) (json.RawMessage, error) {
	if len(q.args) == 0 {
		return q.kwargs, nil
	}
	d, err := b.describe(ctx, b.sessionOf(q), q.tool)
	if err != nil {
		return nil, err
	}
	object, rest, err := tool.Bind(d, q.args, q.kwargs)
	if err == nil && rest != nil {
		err = toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%s takes %d arguments by position, and %d were given: its further ones (*%s) cannot be sent from a bridge",
			q.tool, len(d.Positional), len(q.args), d.VarArgs).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	return object, err
}

// describe returns the declaration of a tool. The program's own tools are known before the registry
// has them.
func (b *Bridge) describe(ctx context.Context, session subjects.SessionID, id subjects.ToolID) (*tool.Descriptor, error) {
	if own := b.own(session, id); own != nil {
		return own, nil
	}
	return inventory.Describe(ctx, b.client.In(session), id)
}

// own returns the declaration of a tool of the program; nil if it offers none of that id.
func (b *Bridge) own(session subjects.SessionID, id subjects.ToolID) *tool.Descriptor {
	at := place{session: session}
	if index, ok := id.Index(); ok {
		at = place{index: index}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.offered[at][id]
}

func (b *Bridge) sessionOf(q *question) subjects.SessionID {
	switch {
	case q.session != "":
		return q.session
	case q.above != nil:
		return q.above.call.Session
	}
	return b.opts.Session
}

func (b *Bridge) options(q *question) []client.CallOption {
	return []client.CallOption{client.WithSession(b.sessionOf(q)), client.WithTimeout(q.timeout)}
}

func (b *Bridge) unary(c *own, q *question) (json.RawMessage, error) {
	defer c.under(q)()
	args, err := b.arguments(c.ctx, q)
	if err != nil {
		return nil, err
	}
	result, err := b.client.Call(c.ctx, q.tool, args, b.options(q)...)
	if err != nil {
		return nil, err
	}
	return result.Value, nil
}

// task makes a request about durable tasks: the tool of the question is its verb.
func (b *Bridge) task(c *own, q *question) (value json.RawMessage, err error) {
	defer c.under(q)()
	var request codec.TaskRequest
	if bad := codec.ParseBody(nil, q.kwargs, &request); bad != nil {
		return nil, bad
	}
	if q.above != nil {
		request.Parent = q.above.call.RPCID
	}
	err = b.client.In(b.sessionOf(q)).TaskVerb(c.ctx, string(q.tool), &request, &value)
	return value, err
}

// described returns the description of a tool. The program's own tools are known before the
// registry has them.
func (b *Bridge) described(c *own, q *question) (json.RawMessage, error) {
	defer c.under(q)()
	raw, err := b.client.In(b.sessionOf(q)).Describe(c.ctx, q.tool)
	own := b.own(b.sessionOf(q), q.tool)
	if own == nil || toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
		return raw, err
	}
	digest, err := own.Digest()
	if err != nil {
		return nil, err
	}
	return registry.DescribeAnswer{Descriptor: own, Served: registry.Served{Digest: digest, Nodes: []subjects.NodeID{b.opts.Node}}}.MarshalJSON()
}

// stream makes a streaming call, or fails it with err.
func (b *Bridge) stream(c *own, key string, q *question, err error) {
	var sent int64
	chunk := func(kind, name string, value any) []byte {
		return object("type", typeChunk, "rpc_id", c.id, "chunk_type", kind, "seq", sent+1, name, value)
	}
	read := func() error {
		defer c.under(q)()
		args, err := b.arguments(c.ctx, q)
		if err != nil {
			return err
		}
		for one, err := range b.client.Stream(c.ctx, q.tool, args, b.options(q)...) {
			if err == nil {
				err = c.await(sent + 1)
			}
			if err == nil {
				err = b.pipe.put(c.ctx, chunk("data", "data", one.Data))
			}
			if err != nil {
				return err
			}
			sent++
		}
		return nil
	}
	if err == nil {
		err = read()
	}
	b.leave(c, key)
	last := chunk("complete", "", nil)
	if err != nil {
		last = chunk("error", "error", err)
	}
	_ = b.pipe.put(b.base, last)
}

// await waits for credit for item seq. The error is why the call ended.
func (c *own) await(seq int64) error {
	for {
		c.mu.Lock()
		ok := c.granted < 0 || seq <= c.granted
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.raised:
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}

// batch makes the calls of an rpc_batch_call.
func (b *Bridge) batch(f *frame, bad error) {
	c, key, err := b.enter(f.BatchID, "batch_id")
	if err != nil {
		b.refuse(f.BatchID, err)
		return
	}
	var q question
	var requests []json.RawMessage
	var parallel bool
	var opts []client.CallOption
	if err = bad; err == nil {
		q, err = q.place(b, f)
	}
	if err == nil && (json.Unmarshal(f.Requests, &requests) != nil || absent(f.Requests)) {
		err = invalid("requests is missing or no list")
	}
	if err == nil && !absent(f.Parallel) && json.Unmarshal(f.Parallel, &parallel) != nil {
		err = invalid("parallel is %.40s: it is true or false", f.Parallel)
	}
	if parallel {
		opts = append(opts, client.Parallel())
	}
	if err == nil && len(requests) > codec.MaxBatch {
		err = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the batch has %d requests, at most %d are taken", len(requests), codec.MaxBatch).
			WithDetail("limit", codec.MaxBatch).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	if err == nil {
		err = b.mayCall(&q)
	}
	go func() { // ends with the calls; b.busy counts them
		defer b.done()
		var results [][]byte
		if err == nil {
			results, err = b.together(c, q, requests, opts)
		}
		b.leave(c, key)
		answer := []any{"type", typeBatchResponse, "batch_id", c.id}
		if err != nil {
			answer = append(answer, outcome(nil, err)...)
		} else {
			answer = append(answer, "results", slices.Concat([]byte("["), bytes.Join(results, []byte(",")), []byte("]")))
		}
		_ = b.pipe.put(b.base, object(answer...))
	}()
}

// request is one request of a batch.
type request struct {
	index []byte // as written, or its position
	call  client.BatchCall
	err   error // why it is not sent
}

// together makes the calls of a batch and returns their results.
func (b *Bridge) together(c *own, q question, raws []json.RawMessage, opts []client.CallOption) ([][]byte, error) {
	defer c.under(&q)()
	all := make([]request, len(raws))
	var reading errgroup.Group
	reading.SetLimit(readAtOnce)
	for i, raw := range raws {
		reading.Go(func() error {
			all[i] = b.member(c, q, raw, i)
			return nil
		})
	}
	_ = reading.Wait()
	var calls []client.BatchCall
	for _, r := range all {
		if r.err == nil {
			calls = append(calls, r.call)
		}
	}
	var ends []client.BatchResult
	if len(calls) > 0 {
		var err error
		if ends, err = b.client.Batch(c.ctx, calls, append(opts, client.WithSession(b.sessionOf(&q)))...); err != nil {
			return nil, err
		}
	}
	name, _ := nameOf(c.id)
	results := make([][]byte, len(all))
	for i, r := range all {
		var value json.RawMessage
		err := r.err
		if err == nil {
			value, err = ends[0].Value, ends[0].Err
			ends = ends[1:]
		}
		results[i] = object(append([]any{"index", r.index, "rpc_id", name + "." + string(r.index)}, outcome(value, err)...)...)
	}
	return results, nil
}

// member reads one request of a batch.
func (b *Bridge) member(c *own, q question, raw json.RawMessage, i int) request {
	r := request{index: []byte(strconv.Itoa(i))}
	f, err := parseFrame(raw)
	if err == nil {
		if !absent(f.Session) || !absent(f.Parent) {
			err = invalid("session_id and parent are those of the batch")
		} else {
			q, err = q.read(b, &f)
		}
	}
	if !absent(f.Index) {
		r.index = integer(f.Index)
	}
	var args json.RawMessage
	if err == nil {
		args, err = b.arguments(c.ctx, &q)
	}
	r.call, r.err = client.BatchCall{Tool: q.tool, Args: args, Timeout: q.timeout}, err
	return r
}

// cancel cancels a call of the program, unless it has ended.
func (b *Bridge) cancel(f *frame) {
	if c := b.callAs(f); c != nil {
		c.cancel(errCancelled)
	}
}

// credit gives a stream of the program more credit, unless it has ended.
func (b *Bridge) credit(f *frame) {
	seq, err := whole(f.Seq, "seq")
	if err != nil {
		b.refuse(f.RPCID, err)
		return
	}
	c := b.callAs(f)
	if c == nil {
		return
	}
	c.mu.Lock()
	if c.granted >= 0 {
		c.granted = max(c.granted, seq)
	}
	c.mu.Unlock()
	wake.Up(c.raised)
}

func (b *Bridge) callAs(f *frame) *own {
	name, _ := nameOf(f.RPCID)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[name]
}
