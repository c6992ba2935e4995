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
	if err := r.setRawID("the envelope's rpc_id", e.RPCID); err != nil {
		return err
	}
	tool, ok := jsonText(e.ToolID)
	if !ok {
		return invalid("the envelope's tool_id is missing or not text: it is the subject's, %q", r.Tool)
	}
	if !subjects.SameTool(subjects.ToolID(tool), r.Tool) {
		return invalid("the envelope names tool %q, the subject %q", tool, r.Tool)
	}
	r.Tool = subjects.ToolID(tool)
	var err error
	r.Args, r.Positional, err = readArgs("the envelope's ", e.Args, e.Kwargs)
	return err
}

// setRawID takes an id of an envelope: a number, or text.
func (r *Request) setRawID(what string, raw json.RawMessage) error {
	id, text := jsonText(raw)
	if !text {
		if id = string(raw); raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
			return invalid("%s is %.40s: it is a number or text", what, raw)
		}
	}
	if err := r.setID(id); err != nil {
		return err
	}
	r.rawID = raw
	return nil
}

// readArgs reads the arguments of an envelope or of a member of a batch, of which each may be absent
// or null.
func readArgs(of string, args, kwargs json.RawMessage) (object json.RawMessage, positional []json.RawMessage, err error) {
	if object = kwargs; kwargs == nil || isNull(kwargs) {
		object = json.RawMessage("{}")
	}
	switch {
	case args != nil && string(args) != "[]" && json.Unmarshal(args, &positional) != nil:
		err = invalid("%sargs are not an array", of)
	case object[0] != '{':
		err = invalid("%skwargs are not an object", of)
	}
	return object, positional, err
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
