package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// Func makes a tool of a Go function. The schemas come from the Go types: In is a struct, or a
// map, whose fields are the arguments; struct{} takes none. An error of f is a tool_error, unless
// it is a [toolmesh.Error]. A nil slice or map in the result becomes an empty one, as the output
// schema says array or object. A type may have its JSON methods on itself or on its pointer. An
// integer may be written as 3.0 or 3e0.
//
// The schema of a type with its own JSON methods is unknown: give it with [Schema].
func Func[In, Out any](f func(ctx context.Context, in In) (Out, error)) Handler {
	return function{typesOf[In, Out](false), f == nil, func(ctx context.Context, call *Call, sink Sink) error {
		in, err := decodeArgs[In](call)
		if err != nil {
			return err
		}
		out, err := f(ctx, in)
		if err != nil {
			return begun(err)
		}
		return sendItem(ctx, sink, &out)
	}}
}

// Stream makes a streaming tool of a Go function that yields items. An error ends the stream; if
// the caller leaves, ctx ends and yield returns false.
func Stream[In, Out any](f func(ctx context.Context, in In) iter.Seq2[Out, error]) Handler {
	return function{typesOf[In, Out](true), f == nil, func(ctx context.Context, call *Call, sink Sink) error {
		in, err := decodeArgs[In](call)
		if err != nil {
			return err
		}
		for out, err := range f(ctx, in) {
			if err != nil {
				return begun(err)
			}
			if err := sendItem(ctx, sink, &out); err != nil {
				return err
			}
		}
		return ctx.Err()
	}}
}

// function is the handler of a Go function with types, which is nil if none is set.
type function struct {
	// describe returns the tool's descriptor by its Go types. input and output are errors for
	// types without a schema, which the tool's author must give.
	describe func() (d tool.Descriptor, input, output error)
	none     bool
	serve    func(ctx context.Context, call *Call, sink Sink) error
}

// ServeTool implements [Handler].
func (h function) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	return h.serve(ctx, call, sink)
}

// begun corrects the error of a function that passes on that of a call it made:
// that one may not have started, but the function has.
func begun(err error) error {
	if e, ok := errors.AsType[*toolmesh.Error](err); ok && e.Started != toolmesh.StartedYes {
		return e.WithStarted(toolmesh.StartedYes)
	}
	return err
}

func typesOf[In, Out any](streaming bool) func() (d tool.Descriptor, input, output error) {
	return func() (d tool.Descriptor, input, output error) {
		d = tool.Descriptor{Source: tool.SourceGo, Annotations: tool.Annotations{Streaming: streaming}}
		d.InputSchema, input = tool.For[In]()
		d.OutputSchema, output = tool.For[Out]()
		return d, input, output
	}
}

func decodeArgs[In any](call *Call) (In, error) {
	var in In
	err := json.Unmarshal(call.Args, &in)
	if err == nil {
		return in, nil
	}
	// The schema takes 3.0 for an integer, encoding/json does not.
	var again In
	if json.Unmarshal(wholeNumbers(call.Args), &again) == nil {
		return again, nil
	}
	problem := tool.Problem{
		Expected: "what the function's type takes", Got: "something else",
		Message: fmt.Sprintf("the arguments do not fit the function's parameter type: %v", err),
	}
	return in, toolmesh.Errorf(toolmesh.CodeInvalidArguments, "the arguments do not fit the function's parameter type: %w", err).
		WithDetail("errors", []tool.Problem{problem}).WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

// anyText takes JSON as encoding/json does.
var anyText = jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// wholeNumbers returns valid JSON with its whole numbers written as integers.
func wholeNumbers(text []byte) []byte {
	var plain bytes.Buffer
	dec, enc := jsontext.NewDecoder(bytes.NewReader(text), anyText), jsontext.NewEncoder(&plain, anyText)
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return plain.Bytes()
		}
		if whole, ok := tool.WholeNumber(token.String()); ok && token.Kind() == '0' {
			err = enc.WriteValue(jsontext.Value(whole))
		} else {
			err = enc.WriteToken(token)
		}
		if err != nil {
			return nil
		}
	}
}

// itemOptions are those of encoding/json, without escapes for HTML and with empty lists and
// objects for nil.
var itemOptions = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsontext.EscapeForHTML(false),
	jsonv2.FormatNilSliceAsNull(false), jsonv2.FormatNilMapAsNull(false))

func sendItem(ctx context.Context, sink Sink, v any) error {
	data, err := encodeItem(v)
	if err != nil {
		return err
	}
	return sink.Send(ctx, data)
}

func encodeItem(v any) (json.RawMessage, error) {
	data, err := jsonv2.Marshal(v, itemOptions)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the result is not JSON: %w", err).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginTool)
	}
	return data, nil
}

// checkedSink refuses items that are not JSON, from handlers that encode their own.
type checkedSink struct{ Sink }

// Send implements [Sink].
func (s checkedSink) Send(ctx context.Context, item json.RawMessage) error {
	if !jsontext.Value(item).IsValid(anyText) { // json.Valid takes five times as long for a large text
		return toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the handler sent something that is not JSON").
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginTool)
	}
	return s.Sink.Send(ctx, item)
}
