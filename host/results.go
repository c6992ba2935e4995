package host

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// mostChecked is the max size, in bytes, of a result that is checked for a warning alone:
	// the time of a check grows with the size.
	mostChecked = 16 << 10
	// checkShare is the time to the next check for a warning alone, in times of the last one:
	// checks take a hundredth of the time at most.
	checkShare = 100
	// warningText is the max size of a warning, in bytes.
	warningText = 300
)

// checked wraps the handler of a tool that declares an output schema: each result and item is
// checked against it.
type checked struct {
	Handler
	h         *publisher
	of        *served
	index     serviceKey
	validator func() (*tool.Validator, error)
	told      atomic.Bool
	next      atomic.Int64 // when a value is checked again, as [bus.Mono]
}

// checkResults puts the check around the handler of a tool that has an output schema. The
// schema is compiled for the first result.
func (p *publisher) checkResults(index serviceKey, t *served) {
	d := t.descriptor
	if len(d.OutputSchema) > 0 && d.Annotations.Results != tool.ResultOff {
		compile := func() (*tool.Validator, error) { return tool.Compile(d.OutputSchema) }
		t.handler = &checked{Handler: t.handler, h: p, of: t, index: index, validator: sync.OnceValues(compile)}
	}
}

// ServeTool implements [Handler].
func (t *checked) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	into, unary := sink.(*unarySink)
	if !unary {
		items := &resultSink{Sink: sink, t: t, call: call}
		err := t.Handler.ServeTool(ctx, call, items)
		if failed := items.failed.Load(); failed != nil {
			return failed // in place of the handler's own error
		}
		return err
	}
	if err := t.Handler.ServeTool(ctx, call, sink); err != nil {
		return err
	}
	result := into.result()
	values := slices.Values([]json.RawMessage{result})
	switch n := t.of.descriptor.Annotations; { // the schema of a streaming tool is an item's
	case n.Streaming && into.items == 0, n.Results != tool.ResultStrict && len(result) > mostChecked:
		return nil
	case n.Streaming && call.Collect:
		values = itemsOf(result)
	}
	for value := range values {
		warning, bad := t.check(ctx, call, value)
		if bad != nil {
			return bad
		}
		if into.warning == "" {
			into.warning = warning
		}
	}
	return nil
}

// itemsOf yields the items of a list one by one: together they would take many times its size.
func itemsOf(list json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		d := json.NewDecoder(bytes.NewReader(list))
		_, err := d.Token()
		for one := json.RawMessage(nil); err == nil && d.More(); one = nil {
			if err = d.Decode(&one); err == nil && !yield(one) {
				return
			}
		}
	}
}

// resultSink checks the items of a stream.
type resultSink struct {
	Sink
	t      *checked
	call   *Call
	failed atomic.Pointer[toolmesh.Error] // why an item does not fit, which ends the stream
}

// Send implements [Sink].
func (s *resultSink) Send(ctx context.Context, item json.RawMessage) error {
	if failed := s.failed.Load(); failed != nil {
		return failed
	}
	if _, err := s.t.check(ctx, s.call, item); err != nil {
		s.failed.Store(err)
		return err
	}
	return s.Sink.Send(ctx, item)
}

// check checks a value against the schema. A value that does not fit is the tool's failure if
// the tool is strict, else a warning for the caller. The log and the registry, which others
// read, have the schema's part of the first mismatch, and nothing of the value.
func (t *checked) check(ctx context.Context, call *Call, value json.RawMessage) (warning string, bad *toolmesh.Error) {
	strict := t.of.descriptor.Annotations.Results == tool.ResultStrict
	began := time.Now()
	if !strict && (len(value) > mostChecked || bus.Mono(began) < t.next.Load()) {
		return "", nil
	}
	v, err := t.validator()
	if err != nil {
		return "", nil // the descriptor's warnings already say it
	}
	wrong, undecided := v.CheckResult(value)
	if undecided != nil && strict {
		return "", failure("ResultUndecided", undecided.Error())
	}
	if wrong == nil {
		took := time.Since(began)
		t.next.Store(bus.Mono(began.Add(checkShare * took)))
		return "", nil
	}
	const unfit = "the result does not fit the output schema: "
	warning = reply.Cut(unfit+wrong.Text, warningText)
	if strict {
		return "", failure("ResultMismatch", warning)
	}
	level := slog.LevelDebug
	if !t.told.Swap(true) {
		level = slog.LevelWarn
		t.h.warn(t.index, t.of, reply.Cut(unfit+wrong.Public, warningText))
	}
	t.h.log.Log(ctx, level, "a result does not fit the output schema", slog.String("tool", string(call.Tool)), slog.String("rpc_id", string(call.RPCID)), slog.String("error", wrong.Public))
	return warning, nil
}

// failure is that of a strict tool.
func failure(kind, text string) *toolmesh.Error {
	e := toolmesh.Errorf(toolmesh.CodeToolError, "%s", text).WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
	e.Type = kind
	return e
}

// warn writes a warning for people to the registry's record of a tool.
func (p *publisher) warn(index serviceKey, t *served, warning string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.services[index]
	if s == nil {
		return
	}
	if o := s.tools[t.descriptor.ID]; o != nil && o == t {
		route := o.entry.route
		route.Warning = warning
		o.entry = newEntry(o.descriptor, route)
		p.records.put(s, o.entry)
		p.presence.Wake()
	}
}
