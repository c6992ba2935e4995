package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
)

// Bounds on the items that a program sends before the mesh takes them.
const (
	firstCredit = 32 // while their size is unknown
	leastCredit = 4
	mostCredit  = 128
	creditBytes = 4 << 20
)

// served is a call that the program serves. It is kept until the program's answer, even if
// cancelled.
type served struct {
	id    string // on the pipe
	ctx   context.Context
	call  *host.Call
	items chan item // capacity: items of a program that ignores credit
	// waiting is how many bytes of queued items are too large for a message.
	waiting atomic.Int64
}

// mostWaiting bounds waiting for one call.
const mostWaiting = 128 << 20

// item is an answer of the program: an item of a stream, or the end with a call's result. err is
// why the call fails. An error before the end cancels the program's call.
type item struct {
	data []byte // nil for none
	last bool
	err  *toolmesh.Error
	// large is the size in bytes of an item too large for a message: it goes by reference.
	large int64
}

// program serves a tool of the program. It is a [host.Handler].
type program struct {
	b         *Bridge
	name      string // the program's name of the tool; empty: its id
	streaming bool
}

// ServeTool implements [host.Handler]. When ctx ends the program is told to cancel. The call keeps
// its slot until the program answers: only then has it stopped.
func (p *program) ServeTool(ctx context.Context, call *host.Call, sink host.Sink) error {
	b := p.b
	s := b.begin(ctx, call, p.streaming)
	if s == nil {
		return errGone
	}
	defer b.over(s)
	if err := b.pipe.put(ctx, p.request(s)); err != nil {
		return toolmesh.AsError(err).WithStarted(toolmesh.StartedNo) // the program does not know the call yet
	}
	var failed error // why items are dropped
	done := ctx.Done()
	stop := func(err error) {
		failed, done = err, nil
		b.pipe.push(object("type", typeCancel, "rpc_id", s.id))
	}
	var taken, bytes, granted int64 = 0, 0, firstCredit
	for {
		select {
		case one := <-s.items:
			if one.data != nil && failed == nil {
				if err := sink.Send(ctx, one.data); err != nil {
					if one.last {
						return err
					}
					stop(err)
				}
			}
			s.waiting.Add(-one.large)
			if one.last {
				if failed == nil && one.err != nil {
					failed = one.err
				}
				return failed
			}
			if failed == nil && one.err != nil {
				stop(one.err)
			}
			taken++
			bytes += int64(len(one.data))
			window := min(max(creditBytes/max(bytes/taken, 1), leastCredit), mostCredit)
			if failed == nil && granted-taken < min(window, firstCredit)/2 {
				granted = taken + window
				_ = b.pipe.put(ctx, object("type", typeCredit, "rpc_id", s.id, "seq", granted))
			}
		case <-done:
			stop(context.Cause(ctx))
		case <-b.gone:
			return errCrashed
		}
	}
}

// request returns the frame that calls the program.
func (p *program) request(s *served) []byte {
	call, kind, args := s.call, typeCall, s.call.VarArgs
	var left, credit any
	if p.streaming {
		kind, credit = typeStream, int64(firstCredit)
	}
	if len(args) == 0 {
		args = json.RawMessage("[]")
	}
	if !call.Deadline.IsZero() {
		left = max(time.Until(call.Deadline).Milliseconds(), 0)
	}
	return object("type", kind, "rpc_id", s.id, "tool_id", cmp.Or(p.name, string(call.Tool)), "args", args, "kwargs", call.Args,
		"session_id", string(call.Session), "timeout_ms", left, "depth", int64(call.Depth), "parent", string(call.Parent),
		codec.HeaderTraceparent, call.Traceparent, codec.HeaderTracestate, call.Tracestate, codec.HeaderBaggage, call.Baggage, "credit", credit)
}

// begin registers a call before the program gets it; nil if the program has ended.
func (b *Bridge) begin(ctx context.Context, call *host.Call, streaming bool) *served {
	capacity := 1
	if streaming {
		capacity = mostCredit + 1 // one more for the end
	}
	s := &served{id: string(call.RPCID), ctx: ctx, call: call, items: make(chan item, capacity)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return nil
	}
	for b.serving[s.id] != nil {
		s.id += "'" // its id is used in another session
	}
	b.serving[s.id] = s
	return s
}

func (b *Bridge) over(s *served) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.serving[s.id] == s {
		delete(b.serving, s.id)
	}
}

// answered passes an answer of the program to its call; the end forgets the call. It blocks until
// the call has taken earlier answers.
func (b *Bridge) answered(f *frame, bad error) {
	name, ok := nameOf(f.RPCID)
	b.mu.Lock()
	s := b.serving[name]
	var one item
	if ok && s != nil {
		if one, bad = read(f, bad); one.last {
			delete(b.serving, name)
		}
	}
	b.mu.Unlock()
	if s == nil {
		bad = invalid("an answer to call %.100s, which is not being served", f.RPCID)
	} else {
		if most := b.bus.MaxPayload(); most > 0 && int64(len(one.data)) > most {
			one.large = int64(len(one.data))
			if waiting := s.waiting.Add(one.large); waiting > mostWaiting {
				one.err = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%d bytes of the tool's items wait for the mesh, at most %d may: mind the credit", waiting, mostWaiting).
					WithDetail("limit", mostWaiting).WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedYes)
				one.data = nil
			}
		}
		select {
		case s.items <- one:
		case <-b.base.Done():
		}
	}
	if bad != nil {
		b.refuse(f.RPCID, bad)
	}
}

// progress records the progress of a call that the program serves. It ignores calls that have
// ended.
func (b *Bridge) progress(f *frame) error {
	name, ok := nameOf(f.RPCID)
	var p codec.Progress
	if !ok || f.Progress == nil || json.Unmarshal(f.Progress, &p) != nil {
		return invalid("progress is %.100s: it is an object with a fraction from 0 to 1, a text, or both", f.Progress)
	}
	if s := b.servedAs(name); s != nil {
		s.call.Report(codec.NewProgress(p.Fraction, p.Text))
	}
	return nil
}

// read returns the content of a response or a chunk. A fault of the frame becomes the error that
// ends the call.
func read(f *frame, bad error) (item, error) {
	if bad != nil {
		e := toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the program's answer cannot be read: %w", bad).
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
		return item{last: true, err: e}, bad
	}
	status, name := f.Status, "status"
	if f.kind == typeChunk {
		status, name = f.ChunkType, "chunk_type"
	}
	word, _ := text(status)
	orNull := func(raw []byte) []byte {
		if raw == nil {
			return []byte("null")
		}
		return raw
	}
	switch {
	case f.kind == typeChunk && word == "data":
		return item{data: orNull(f.Data)}, nil
	case f.kind == typeChunk && word == "complete":
		return item{last: true}, nil
	case f.kind != typeChunk && word == "ok":
		return item{data: orNull(f.Result), last: true}, nil
	case word == "error" && f.Error == nil: // of older programs
		return item{last: true, err: readFailure(f.Data)}, nil
	case word == "error":
		return item{last: true, err: readFailure(f.Error)}, nil
	}
	e := toolmesh.Errorf(toolmesh.CodeProtocolError, "the program answered a call with %s %.100s", name, status).
		WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedYes)
	return item{last: true, err: e}, invalid("%s is %.100s", name, status)
}

func (b *Bridge) servedAs(name string) *served {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.serving[name]
}
