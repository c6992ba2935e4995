package host

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// mostChecked is how large a result may be, in bytes, that is checked where a mismatch is
	// only told: the check takes time by the size.
	mostChecked = 16 << 10
	// checkShare is how much longer than a check that fits the time to the next one is, there:
	// checks take a hundredth of the time at most.
	checkShare = 100
	// warningText is how many bytes of a mismatch are told.
	warningText = 300
)

// checked is the handler of a tool that says what it returns, around its own: each result
// and item is held against the output schema.
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
		if failed := items.failure(); failed != nil {
			return failed // whatever the handler has made of it
		}
		return err
	}
	if err := t.Handler.ServeTool(ctx, call, sink); err != nil {
		return err
	}
	result := into.result()
	var values []json.RawMessage                                 // json.Unmarshal would write into the bytes of what is in it: into the result
	switch streaming := t.of.descriptor.Annotations.Streaming; { // then the schema is an item's
	case streaming && into.items == 0:
		return nil
	case streaming && call.Collect:
		if json.Unmarshal(result, &values) != nil {
			return nil
		}
	default:
		values = []json.RawMessage{result}
	}
	for _, value := range values {
		warning, err := t.check(ctx, call, value)
		if err != nil {
			return err
		}
		if into.warning == "" {
			into.warning = warning
		}
	}
	return nil
}

// resultSink checks the items of a stream.
type resultSink struct {
	Sink
	t    *checked
	call *Call

	mu     sync.Mutex // no other lock is taken under it
	failed error      // the item that does not fit ends the stream: nothing is sent behind it
}

func (s *resultSink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Send implements [Sink].
func (s *resultSink) Send(ctx context.Context, item json.RawMessage) error {
	if err := s.failure(); err != nil {
		return err
	}
	if _, err := s.t.check(ctx, s.call, item); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = err
		return err
	}
	return s.Sink.Send(ctx, item)
}

// check holds a value against the schema. What does not fit is the tool's failure where it
// is strict, else a warning for the caller; the log and the registry, which others read, have
// the first time what the schema says of it, and nothing of the value.
func (t *checked) check(ctx context.Context, call *Call, value json.RawMessage) (warning string, err error) {
	strict := t.of.descriptor.Annotations.Results == tool.ResultStrict
	began := time.Now()
	if !strict && (len(value) > mostChecked || bus.Mono(began) < t.next.Load()) {
		return "", nil
	}
	v, err := t.validator()
	if err != nil {
		return "", nil // the descriptor's warnings say so
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
func failure(kind, text string) error {
	e := toolmesh.Errorf(toolmesh.CodeToolError, "%s", text).WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
	e.Type = kind
	return e
}

// warn has the registry say what people should know of a tool that is offered.
func (p *publisher) warn(index serviceKey, t *served, warning string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.services[index]
	if s == nil {
		return
	}
	if o := s.tools[t.descriptor.ID]; o != nil && o.served == t {
		route := o.entry.route
		route.Warning = warning
		o.entry = newEntry(o.descriptor, route)
		p.records.put(s, o.entry)
		p.presence.Wake()
	}
}
