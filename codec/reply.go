package codec

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Identity is what a serving side says of itself on each reply. Make one per
// index revision and reuse it: its header values are shared.
type Identity struct {
	Node     subjects.NodeID
	Boot     subjects.BootID
	Revision string

	node, boot, revision []string
}

// NewIdentity prepares an identity. revision may be empty.
func NewIdentity(node subjects.NodeID, boot subjects.BootID, revision string) *Identity {
	return &Identity{
		Node: node, Boot: boot, Revision: revision,
		node: []string{string(node)}, boot: []string{string(boot)}, revision: []string{revision},
	}
}

var protoValue = []string{strconv.Itoa(Proto)}

func (id *Identity) header(rpc subjects.RPCID, extra int) Header {
	h := make(Header, 5+extra)
	h[HeaderRPCID] = []string{string(rpc)}
	h[HeaderNode] = id.node
	h[HeaderBoot] = id.boot
	h[HeaderProto] = protoValue
	if id.Revision != "" {
		h[HeaderRevision] = id.revision
	}
	return h
}

// Load is a node's own view of itself: calls it runs, calls it can run at once.
type Load struct{ InFlight, Slots int }

// String renders <in_flight>/<slots>.
func (l Load) String() string { return strconv.Itoa(l.InFlight) + "/" + strconv.Itoa(l.Slots) }

// ParseLoad reads the value of Mesh-Load; ok is false when it is malformed.
func ParseLoad(v string) (load Load, ok bool) {
	a, b, ok := strings.Cut(v, "/")
	if !ok {
		return Load{}, false
	}
	x, errA := strconv.Atoi(a)
	y, errB := strconv.Atoi(b)
	if errA != nil || errB != nil || x < 0 || y < 0 {
		return Load{}, false
	}
	return Load{InFlight: x, Slots: y}, true
}

// response is the envelope form of a reply.
type response struct {
	Type   string          `json:"type"`
	RPCID  json.RawMessage `json:"rpc_id"`
	Status string          `json:"status"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *toolmesh.Error `json:"error,omitempty"`
}

// streamChunk is the envelope form of a chunk.
type streamChunk struct {
	Type      string          `json:"type"`
	RPCID     json.RawMessage `json:"rpc_id"`
	ChunkType string          `json:"chunk_type"`
	Data      json.RawMessage `json:"data,omitempty"`
	Seq       int64           `json:"seq,omitempty"`
	Error     *toolmesh.Error `json:"error,omitempty"`
}

func (r *Request) responseType() string {
	if r.Form == FormLegacy {
		return typeResponse
	}
	return typeToolResponse
}

func (r *Request) echoID() json.RawMessage {
	if r.rawID != nil {
		return r.rawID
	}
	return json.RawMessage("null")
}

// Result renders the reply of a call that succeeded, in the request's form.
// load is sent to who asked for it.
func (r *Request) Result(id *Identity, result json.RawMessage, load Load) (Header, []byte) {
	if r.Form != FormPlain {
		return nil, mustMarshal(response{Type: r.responseType(), RPCID: r.echoID(), Status: "ok", Result: result})
	}
	h := id.header(r.RPCID, 1)
	if r.WantLoad {
		h.Set(HeaderLoad, load.String())
	}
	return h, result
}

// Failure renders the reply of a call that failed, in the request's form; for
// an envelope stream that is one chunk of type error.
func (r *Request) Failure(id *Identity, err *toolmesh.Error, load Load) (Header, []byte) {
	if r.Form != FormPlain {
		wire := withType(err)
		if r.Delivery == DeliverEnvelope {
			return nil, mustMarshal(streamChunk{Type: typeChunk, RPCID: r.echoID(), ChunkType: string(ChunkError), Seq: 1, Error: wire})
		}
		return nil, mustMarshal(response{Type: r.responseType(), RPCID: r.echoID(), Status: "error", Error: wire})
	}
	h := id.header(r.RPCID, 6)
	if r.RPCID == "" {
		delete(h, HeaderRPCID)
	}
	setError(h, err)
	if r.WantLoad {
		h.Set(HeaderLoad, load.String())
	}
	return h, ErrorBody(err)
}

// withType gives readers of the envelope's older error object the type that
// they expect: the exception's class, else the code.
func withType(err *toolmesh.Error) *toolmesh.Error {
	if err.Type != "" {
		return err
	}
	c := *err
	c.Type = string(err.Code)
	return &c
}

func setError(h Header, err *toolmesh.Error) {
	h.Set(HeaderErrorCode, string(err.Code))
	switch err.Started {
	case toolmesh.StartedNo:
		h.Set(HeaderStarted, "false")
	case toolmesh.StartedYes:
		h.Set(HeaderStarted, "true")
	}
	h.Set(HeaderServiceErrorCode, strconv.Itoa(err.Code.Number()))
	h.Set(HeaderServiceError, HeaderText(err.Message))
}

// HeaderText makes any text safe as a header's value: one line, bounded.
func HeaderText(s string) string {
	const limit = 512
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return strings.TrimSpace(s)
}

type errorBody struct {
	Error *toolmesh.Error `json:"error"`
}

// ErrorBody renders {"error":{…}}.
func ErrorBody(err *toolmesh.Error) []byte { return mustMarshal(errorBody{err}) }

// ErrorReply renders a failure outside of any call: what a registry or
// administrative request is answered with.
func ErrorReply(err *toolmesh.Error) (Header, []byte) {
	h := make(Header, 4)
	setError(h, err)
	return h, ErrorBody(err)
}

// Ack renders the acknowledgement of a live stream.
func (r *Request) Ack(id *Identity, load Load) (Header, []byte) {
	h := id.header(r.RPCID, 1)
	if r.WantLoad {
		h.Set(HeaderLoad, load.String())
	}
	return h, mustMarshal(struct {
		RPCID subjects.RPCID  `json:"rpc_id"`
		Node  subjects.NodeID `json:"node"`
	}{r.RPCID, id.Node})
}

// KeepaliveHeader renders the sign of life of a call that still runs. high is the
// last stored item of a stream, negative for a unary call. The body is empty.
func (r *Request) KeepaliveHeader(id *Identity, high int64) Header {
	h := id.header(r.RPCID, 2)
	h[HeaderKeepalive] = flagOn
	if high >= 0 {
		h.Set(HeaderHigh, strconv.FormatInt(high, 10))
	}
	return h
}

func mustMarshal(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// Only details that a tool or a handler made can fail to marshal.
		var again bytes.Buffer
		enc := json.NewEncoder(&again)
		_ = enc.Encode(stripped(v))
		buf = again
	}
	return bytes.TrimRight(buf.Bytes(), "\n")
}

// stripped drops an error's details, the one part of a message that is not
// made of plain types.
func stripped(v any) any {
	bare := func(e *toolmesh.Error) *toolmesh.Error {
		if e == nil {
			return nil
		}
		c := *e
		c.Details = nil
		return &c
	}
	switch m := v.(type) {
	case errorBody:
		m.Error = bare(m.Error)
		return m
	case response:
		m.Error = bare(m.Error)
		return m
	case streamChunk:
		m.Error = bare(m.Error)
		return m
	}
	return v
}

// Reply is one message that a caller got on its reply subject, in the plain
// form.
type Reply struct {
	Kind ReplyKind
	Node subjects.NodeID
	Boot subjects.BootID
	Load Load
	// HasLoad says whether Load was sent.
	HasLoad bool
	// Revision of the index that answered.
	Revision string
	// Body is the result of a unary call.
	Body json.RawMessage
	// Err is set for ReplyError.
	Err *toolmesh.Error
	// High is the last stored item, for a keepalive of a stream; -1 when absent.
	High int64
	// Chunk is set for ReplyChunk.
	Chunk Chunk
}

// ReplyKind says what a reply is.
type ReplyKind uint8

// The kinds of reply.
const (
	ReplyResult ReplyKind = iota
	ReplyError
	ReplyKeepalive
	ReplyChunk
	// ReplyNoResponders is NATS's own 503: nobody serves the subject.
	ReplyNoResponders
	// ReplyEnd is the empty message that ends an inbox stream.
	ReplyEnd
)

// ParseReply reads a message of the plain form. It never fails: what cannot be
// read is a ReplyError with protocol_error.
func ParseReply(h Header, body []byte) Reply {
	r := Reply{High: -1}
	if len(h) == 0 {
		if len(body) == 0 {
			r.Kind = ReplyEnd
		}
		r.Body = body
		return r
	}
	if len(body) == 0 && h.Get("Status") == "503" {
		r.Kind = ReplyNoResponders
		return r
	}
	r.Node = subjects.NodeID(first(h, HeaderNode))
	r.Boot = subjects.BootID(first(h, HeaderBoot))
	r.Revision = first(h, HeaderRevision)
	if v := first(h, HeaderLoad); v != "" {
		r.Load, r.HasLoad = ParseLoad(v)
	}
	switch {
	case first(h, HeaderChunk) != "":
		chunk, err := ParseChunk(h, body)
		if err != nil {
			r.Kind, r.Err = ReplyError, toolmesh.AsError(err)
			return r
		}
		r.Kind, r.Chunk = ReplyChunk, chunk
	case first(h, HeaderErrorCode) != "" || first(h, HeaderServiceErrorCode) != "":
		r.Kind, r.Err = ReplyError, parseError(h, body)
	case first(h, HeaderKeepalive) != "" && len(body) == 0:
		r.Kind = ReplyKeepalive
		if v := first(h, HeaderHigh); v != "" {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				r.High = n
			}
		}
	case len(body) == 0:
		r.Kind = ReplyEnd
	default:
		r.Body = body
	}
	return r
}

// first is Get for names that hosts write in their one case; others fall back.
func first(h Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// parseError reads the error of a plain reply. An unknown code is treated by
// its number's class.
func parseError(h Header, body []byte) *toolmesh.Error {
	var wire errorBody
	e := &toolmesh.Error{}
	if json.Unmarshal(body, &wire) == nil && wire.Error != nil {
		e = wire.Error
	}
	if e.Code == "" {
		e.Code = toolmesh.Code(first(h, HeaderErrorCode))
	}
	if e.Message == "" {
		e.Message = first(h, HeaderServiceError)
	}
	if e.Started == toolmesh.StartedUnknown {
		switch first(h, HeaderStarted) {
		case "true":
			e.Started = toolmesh.StartedYes
		case "false":
			e.Started = toolmesh.StartedNo
		}
	}
	if !e.Code.Valid() {
		n, _ := strconv.Atoi(first(h, HeaderServiceErrorCode))
		e = e.WithDetail("code", string(e.Code))
		e.Code = codeOfClass(n)
	}
	return e
}

// codeOfClass is the nearest code to a number that we have no code for.
func codeOfClass(n int) toolmesh.Code {
	switch {
	case n == 403 || n == 401:
		return toolmesh.CodePermissionDenied
	case n == 404:
		return toolmesh.CodeToolNotFound
	case n == 413:
		return toolmesh.CodePayloadTooLarge
	case n == 422:
		return toolmesh.CodeInvalidArguments
	case n == 429:
		return toolmesh.CodeBusy
	case n == 499:
		return toolmesh.CodeCancelled
	case n >= 400 && n < 500:
		return toolmesh.CodeInvalidRequest
	case n == 502:
		return toolmesh.CodeProtocolError
	case n == 503:
		return toolmesh.CodeUnavailable
	case n == 504:
		return toolmesh.CodeDeadlineExceeded
	default:
		return toolmesh.CodeInternal
	}
}
