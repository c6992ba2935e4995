package bridge

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
)

const (
	maxFrame = 64 << 20
	// noLength is the smallest invalid length: text without a length starts with such bytes.
	noLength = 0x20000000
	// lengthBytes is the size of a frame's length.
	lengthBytes = 4
)

// Types of frames.
const (
	typeCall          = "rpc_tool_call"
	typeStream        = "rpc_tool_stream"
	typeBatch         = "rpc_batch_call"
	typeBatchResponse = "rpc_batch_response"
	typeResponse      = "rpc_tool_response"
	typeChunk         = "rpc_stream_chunk"
	typeProgress      = "rpc_progress"
	typeCancel        = "rpc_cancel"
	typeCredit        = "rpc_credit"
	typeError         = "rpc_error"
	typeInit          = "init_tool_bridge"
	typeRemove        = "remove_tools"
	typeDescribe      = "describe_tool"
	typeTask          = "task_request"
	typeDrain         = "drain"
)

// frame is one frame of the program. Its values are unparsed, nil if absent.
type frame struct {
	kind      string
	Type      jsontext.Value `json:"type"`
	RPCID     jsontext.Value `json:"rpc_id"`
	BatchID   jsontext.Value `json:"batch_id"`
	ToolID    jsontext.Value `json:"tool_id"`
	Args      jsontext.Value `json:"args"`
	Kwargs    jsontext.Value `json:"kwargs"`
	Session   jsontext.Value `json:"session_id"`
	Timeout   jsontext.Value `json:"timeout_ms"`
	Parent    jsontext.Value `json:"parent"`
	Credit    jsontext.Value `json:"credit"`
	Seq       jsontext.Value `json:"seq"`
	Index     jsontext.Value `json:"index"`
	Requests  jsontext.Value `json:"requests"`
	Tools     jsontext.Value `json:"tools"`
	ToolNames jsontext.Value `json:"tool_names"`
	Status    jsontext.Value `json:"status"`
	Result    jsontext.Value `json:"result"`
	Error     jsontext.Value `json:"error"`
	ChunkType jsontext.Value `json:"chunk_type"`
	Data      jsontext.Value `json:"data"`
	Progress  jsontext.Value `json:"progress"`
	Parallel  jsontext.Value `json:"parallel"`
}

// parseFrame parses a JSON object. With an error the frame has the fields before the fault, so that
// its call can be failed.
func parseFrame(body []byte) (f frame, err error) {
	if kind := jsontext.Value(body).Kind(); kind != '{' && kind != jsontext.KindInvalid {
		return f, invalid("the frame is not an object")
	}
	err = jsonv2.Unmarshal(body, &f, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	f.kind, _ = text(f.Type)
	if err != nil {
		return f, invalid("the frame is not JSON: %w", err)
	}
	return f, nil
}

// text returns a value that is text; ok is false for others.
func text(raw []byte) (value string, ok bool) {
	return value, len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &value) == nil
}

// optional returns a value's text, empty without a value.
func optional(raw []byte, name string) (string, error) {
	if absent(raw) {
		return "", nil
	}
	value, ok := text(raw)
	if !ok {
		return "", invalid("%s is %.100s: it is text", name, raw)
	}
	return value, nil
}

// whole returns a value's whole number, 0 without a value.
func whole(raw []byte, name string) (int64, error) {
	if absent(raw) {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(integer(raw)), 10, 64)
	if err != nil || n < 0 {
		return 0, invalid("%s is %.100s: it is a whole number from 0", name, raw)
	}
	return n, nil
}

// integer returns a number in the form of integers: 7.0 is 7.
func integer(raw []byte) []byte { return bytes.TrimSuffix(raw, []byte(".0")) }

func absent(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// nameOf returns the name of a call, text or a number; 7, 7.0 and "7" are the same.
func nameOf(raw []byte) (string, bool) {
	if len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9') {
		return string(integer(raw)), true
	}
	name, ok := text(raw)
	return name, ok && name != ""
}

func invalid(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

type reader struct {
	from   io.Reader
	packed bool // MessagePack
}

// errFraming ends the input: the beginning of the next frame is unknown.
var errFraming = toolmesh.Errorf(toolmesh.CodeProtocolError, "the program's output is not a frame: expected four bytes of length, big-endian, then JSON (with --msgpack MessagePack)")

// next returns the next frame as JSON. A *toolmesh.Error other than errFraming is about this frame
// only; body is then its readable part. io.EOF is the end.
func (r *reader) next() (body []byte, err error) {
	var head [lengthBytes]byte
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return nil, io.EOF // the input ended inside a length
	}
	n := binary.BigEndian.Uint32(head[:])
	switch {
	case n >= noLength:
		return nil, errFraming
	case n > maxFrame:
		if _, err := io.CopyN(io.Discard, r.from, int64(n)); err != nil {
			return nil, io.EOF
		}
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the frame has %d bytes, at most %d are taken", n, maxFrame).
			WithDetail("limit", maxFrame).WithDetail("size", n).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(r.from, body); err != nil {
		return nil, io.EOF
	}
	if !r.packed {
		return body, nil
	}
	plain, err := codec.Unpack(body, 0)
	if err != nil {
		return plain, invalid("the frame is not MessagePack that could be JSON: %w", err)
	}
	return plain, nil
}

// object returns a JSON object of alternating names and values: text, whole numbers, errors, and JSON. It leaves out
// members without a value: nil, and empty text and JSON.
func object(members ...any) []byte {
	var o []byte
	for i := 0; i < len(members); i += 2 {
		var value []byte
		switch v := members[i+1].(type) {
		case string:
			if v != "" {
				value = appendText(nil, v)
			}
		case int64:
			value = strconv.AppendInt(nil, v, 10)
		case error:
			value = writeFailure(v)
		case []byte:
			value = v
		case json.RawMessage:
			value = v
		}
		if len(value) > 0 {
			o = appendText(append(o, ','), members[i].(string)) //nolint:forcetypeassert // names are text
			o = append(append(slices.Grow(o, len(value)+2), ':'), value...)
		}
	}
	o[0] = '{'
	return append(o, '}')
}

// outcome returns the members of an object that say how a call ended.
func outcome(value json.RawMessage, err error) []any {
	if err != nil {
		return []any{"status", "error", "error", err}
	}
	return []any{"status", "ok", "result", value}
}

// respond returns the answer to a call or a request.
func respond(id []byte, value json.RawMessage, err error) []byte {
	return object(append([]any{"type", typeResponse, "rpc_id", id}, outcome(value, err)...)...)
}

func appendText(to []byte, value string) []byte {
	to, _ = jsontext.AppendQuote(to, value) // replaces invalid UTF-8
	return to
}

// appendFrame appends a JSON frame with its length.
func appendFrame(to, body []byte, packed bool) []byte {
	start := len(to)
	to = append(to, 0, 0, 0, 0)
	if packed {
		to = codec.Pack(to, body)
	} else {
		to = append(to, body...)
	}
	binary.BigEndian.PutUint32(to[start:], uint32(len(to)-start-lengthBytes)) //nolint:gosec // the mesh's values are far smaller
	return to
}
