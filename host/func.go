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

// described is a [Handler] that knows its own schemas.
type described interface {
	// describe says what the Go types say; the errors are of the schema that they
	// do not give, and which the tool's author has to.
	describe() (d tool.Descriptor, input, output error)
}

// Func makes a tool of a Go function. The schemas come from the Go types: In is
// a struct, or a map, whose fields are the arguments; struct{} takes none. An
// error that f returns is a tool_error, unless it is a [toolmesh.Error]. A nil
// slice or map in what f returns is an empty one: the output schema says array
// and object. What writes its own JSON does so whether its methods are those of
// the type or of its pointer. A whole number is taken by an integer however it is
// written: 3.0 and 3e0 are 3.
//
// A type that writes its own JSON has no schema that could be known: give it with
// [Schema].
func Func[In, Out any](f func(ctx context.Context, in In) (Out, error)) Handler {
	return function[In, Out]{f}
}

// Stream makes a streaming tool of a Go function that yields items. An error
// ends the stream; when the caller is gone, ctx ends and yield returns false.
func Stream[In, Out any](f func(ctx context.Context, in In) iter.Seq2[Out, error]) Handler {
	return sequence[In, Out]{f}
}

type function[In, Out any] struct {
	f func(context.Context, In) (Out, error)
}

func (h function[In, Out]) describe() (d tool.Descriptor, input, output error) {
	return describeTypes[In, Out](false)
}

// ServeTool implements [Handler].
func (h function[In, Out]) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	in, err := decodeArgs[In](call)
	if err != nil {
		return err
	}
	out, err := h.f(ctx, in)
	if err != nil {
		return begun(err)
	}
	data, err := encodeItem(&out)
	if err != nil {
		return err
	}
	return sink.Send(ctx, data)
}

type sequence[In, Out any] struct {
	f func(context.Context, In) iter.Seq2[Out, error]
}

func (h sequence[In, Out]) describe() (d tool.Descriptor, input, output error) {
	return describeTypes[In, Out](true)
}

// ServeTool implements [Handler].
func (h sequence[In, Out]) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	in, err := decodeArgs[In](call)
	if err != nil {
		return err
	}
	for out, err := range h.f(ctx, in) {
		if err != nil {
			return begun(err)
		}
		data, err := encodeItem(&out)
		if err != nil {
			return err
		}
		if err := sink.Send(ctx, data); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// begun corrects the error of a function that passes on that of a call it made:
// that one may not have started, but the function has.
func begun(err error) error {
	var e *toolmesh.Error
	if errors.As(err, &e) && e.Started != toolmesh.StartedYes {
		return e.WithStarted(toolmesh.StartedYes)
	}
	return err
}

func describeTypes[In, Out any](streaming bool) (d tool.Descriptor, input, output error) {
	d = tool.Descriptor{Source: tool.SourceGo, Annotations: tool.Annotations{Streaming: streaming}}
	d.InputSchema, input = tool.For[In]()
	d.OutputSchema, output = tool.For[Out]()
	return d, input, output
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
		Message: fmt.Sprintf("the arguments do not fit the function's type: %v", err),
	}
	return in, toolmesh.Errorf(toolmesh.CodeInvalidArguments, "the arguments do not fit the function's type: %w", err).
		WithDetail("errors", []tool.Problem{problem}).WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

// wholeNumbers returns valid JSON with its whole numbers written as integers.
func wholeNumbers(text []byte) []byte {
	var plain bytes.Buffer
	lenient := jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	dec, enc := jsontext.NewDecoder(bytes.NewReader(text), lenient), jsontext.NewEncoder(&plain, lenient)
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

// itemOptions are those of encoding/json, but for HTML and for what is nil.
var itemOptions = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsontext.EscapeForHTML(false),
	jsonv2.FormatNilSliceAsNull(false), jsonv2.FormatNilMapAsNull(false))

func encodeItem(v any) (json.RawMessage, error) {
	data, err := jsonv2.Marshal(v, itemOptions)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the result is not JSON: %w", err).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginTool)
	}
	return data, nil
}

// checkedSink holds handlers that write JSON by hand to it.
type checkedSink struct{ Sink }

// Send implements [Sink].
func (s checkedSink) Send(ctx context.Context, item json.RawMessage) error {
	if !json.Valid(item) {
		return toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the handler sent something that is not JSON").
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginTool)
	}
	return s.Sink.Send(ctx, item)
}
