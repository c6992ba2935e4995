package program

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/tool"
)

// stdout reads the program's output to its end and passes items on as they come. The error is
// payload_too_large, the sink's, or result_not_serializable.
func (r *run) stdout(ctx context.Context) ([]byte, error) {
	if !r.call.Lines {
		out, err := io.ReadAll(io.LimitReader(r.proc.Stdout, int64(r.most)+1))
		if len(out) > r.most {
			return nil, r.tooLong()
		}
		if err != nil && !errors.Is(err, os.ErrClosed) {
			return nil, failure.Unavailable("the output of %s cannot be read: %s", r.program(), err)
		}
		return out, nil
	}
	lines := bufio.NewScanner(r.proc.Stdout)
	lines.Buffer(nil, r.most+2) // room for a line break, and one byte to see that it is missing
	for number := 0; lines.Scan(); {
		line := bytes.Clone(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if len(line) > r.most {
			return nil, r.tooLong()
		}
		number++
		if err := r.item(ctx, line, number); err != nil {
			return nil, err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, r.tooLong()
	}
	return nil, nil // the program's end decides
}

// item handles one line of a program that streams.
func (r *run) item(ctx context.Context, line []byte, number int) error {
	if !r.call.Text && len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	value, err := r.value(line, fmt.Sprintf("line %d", number))
	if err != nil {
		return err
	}
	switch {
	case r.call.Stream:
		return r.sink.Item(ctx, value)
	case r.call.Collect:
		if r.list.Len()+len(value)+1 > r.most {
			return r.tooLong()
		}
		r.list.Write(value)
		r.list.WriteByte(',')
	default:
		r.last = value
	}
	return nil
}

// value makes JSON of the program's output; what names that part of it.
func (r *run) value(text []byte, what string) (json.RawMessage, error) {
	bad := func(why string) error {
		redact := r.runner.cfg.Redact
		shown := string(text[:min(len(text), 4096+redact.Overlap())])
		shown = redact.Text(shown[:redact.Apart(shown, min(len(shown), 4096))])
		shown = shown[:min(len(shown), 200)]
		return toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "%s of %s %s", what, r.program(), why).
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes).
			WithDetail("tool", r.call.Tool).WithDetail("output", strings.ToValidUTF8(shown, "\uFFFD"))
	}
	if !utf8.Valid(text) {
		return nil, bad("is not UTF-8")
	}
	if r.call.Text {
		value, err := tool.MarshalPlain(string(text))
		if len(value) > r.most && err == nil { // a control character takes six bytes
			err = r.tooLong()
		}
		return value, err
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, bad(`is empty, not JSON: write "null", or declare stdout = "text"`)
	}
	if !json.Valid(text) {
		err := json.Unmarshal(text, new(json.RawMessage))
		return nil, bad(fmt.Sprintf("is not one JSON value (%s): write one, or declare stdout = \"text\"", err))
	}
	return text, nil
}

// result makes the answer of a successful program.
func (r *run) result(ctx context.Context, out []byte) (json.RawMessage, error) {
	switch {
	case r.call.Lines && r.call.Stream:
		return nil, nil
	case r.call.Lines && r.call.Collect:
		return slices.Concat([]byte("["), bytes.TrimSuffix(r.list.Bytes(), []byte(",")), []byte("]")), nil
	case r.call.Lines:
		return r.last, nil
	}
	if r.call.Text {
		out = bytes.TrimSuffix(bytes.TrimSuffix(out, []byte("\n")), []byte("\r"))
	}
	value, err := r.value(out, "the output")
	if err != nil {
		return nil, err
	}
	if r.call.Stream {
		return nil, r.sink.Item(ctx, value)
	}
	return value, nil
}
