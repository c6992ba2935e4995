package codec

import (
	"bytes"
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// envelope is the envelope form of a request: each field as it came, nil if it is absent.
type envelope struct {
	Type   json.RawMessage `json:"type"`
	RPCID  json.RawMessage `json:"rpc_id"`
	ToolID json.RawMessage `json:"tool_id"`
	Args   json.RawMessage `json:"args"`
	Kwargs json.RawMessage `json:"kwargs"`
}

// jsonText returns the text that a valid JSON value is; ok is false if it is
// none.
func jsonText(raw []byte) (text string, ok bool) {
	return text, len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil
}

// mayBeEnvelope is a cheap test before a body is read: an envelope contains its key, or escapes.
func mayBeEnvelope(body []byte) bool {
	return bytes.Contains(body, []byte("rpc_id")) || bytes.Contains(body, []byte(`\u`))
}

// parseEnvelope reports whether body is an envelope: an object with an rpc_id and a type of the
// closed list. *err is the fault inside of one.
func (r *Request) parseEnvelope(body []byte, err *error) bool {
	if !mayBeEnvelope(body) {
		return false
	}
	var e envelope
	if unmarshal(body, &e) != nil || e.RPCID == nil {
		return false
	}
	switch kind, _ := jsonText(e.Type); kind {
	case typeToolCall:
		r.Form = FormEnvelope
	case typeToolStream:
		r.Form, r.Delivery = FormEnvelope, DeliverEnvelope
	case typeCall:
		r.Form = FormLegacy
	default:
		return false
	}
	*err = r.readEnvelope(&e)
	return true
}

func (r *Request) readEnvelope(e *envelope) error {
	id, ok := jsonText(e.RPCID)
	if !ok {
		if c := e.RPCID[0]; c != '-' && (c < '0' || c > '9') {
			return invalid("the envelope's rpc_id is %s: it is a number or text", e.RPCID)
		}
		id = string(e.RPCID)
	}
	if err := r.setID(id); err != nil {
		return err
	}
	r.rawID = e.RPCID
	tool, ok := jsonText(e.ToolID)
	if !ok {
		return invalid("the envelope's tool_id is missing or not text: it is the subject's, %q", r.Tool)
	}
	if !subjects.SameTool(subjects.ToolID(tool), r.Tool) {
		return invalid("the envelope names tool %q, the subject %q", tool, r.Tool)
	}
	r.Tool = subjects.ToolID(tool)
	if len(e.Args) > 0 && !isNull(e.Args) && !bytes.Equal(e.Args, []byte("[]")) {
		if err := json.Unmarshal(e.Args, &r.Positional); err != nil {
			return invalid("the envelope's args are not an array")
		}
	}
	r.Args = e.Kwargs
	if len(e.Kwargs) == 0 || isNull(e.Kwargs) {
		r.Args = json.RawMessage("{}")
	} else if e.Kwargs[0] != '{' {
		return invalid("the envelope's kwargs are not an object")
	}
	return nil
}

func isNull(raw []byte) bool { return string(raw) == "null" }

// readError gives a received error one of our codes. A message of the older form has only a type
// and a text, and is a failure of the tool.
func readError(e *toolmesh.Error) *toolmesh.Error {
	switch {
	case e == nil:
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the call failed with an error that cannot be read")
	case e.Code == "":
		c := *e
		c.Code = toolmesh.CodeToolError
		return &c
	case !e.Code.Valid():
		c := e.WithDetail("code", string(e.Code))
		c.Code = toolmesh.CodeInternal
		return c
	}
	return e
}
