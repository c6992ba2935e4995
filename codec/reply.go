package codec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// AnswerRoom is how many bytes the headers of an answer, or its envelope, may take.
const AnswerRoom = 1024

// Identity is the sender of replies: node, boot and revision. Make one per index revision and
// reuse it: its header values are shared.
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
		node: []string{NameHeader(node)}, boot: []string{string(boot)}, revision: []string{HeaderText(revision)},
	}
}

// NameHeader is the name of a node or of a call as a value of Mesh-Node or Mesh-Rpc-Id. It
// is ASCII like every header's: a name that is not is its token there (decision 060).
func NameHeader[T ~string](name T) string {
	if isASCII(string(name)) {
		return string(name)
	}
	token, err := subjects.EncodeToken(string(name))
	if err != nil {
		return HeaderText(string(name))
	}
	return token
}

// ParseNameHeader is the name that such a value is: itself, or behind its token.
func ParseNameHeader[T ~string](value string) T {
	if subjects.Encoded(value) {
		if name, err := subjects.DecodeToken(value); err == nil && !isASCII(name) {
			return T(name)
		}
	}
	return T(value)
}

// isASCII reports whether a text has printable characters of ASCII alone.
func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// Values that many headers share.
var (
	protoValue = []string{strconv.Itoa(Proto)}
	flagOn     = []string{"1"}
)

// header begins a reply to r. A request without an rpc id, or with one that
// cannot be echoed, gets none.
func (id *Identity) header(r *Request) Header {
	h := newHeader()
	h[HeaderNode], h[HeaderBoot], h[HeaderProto] = id.node, id.boot, protoValue
	if r.RPCID != "" {
		h.Set(HeaderRPCID, NameHeader(r.RPCID))
	}
	if id.Revision != "" {
		h[HeaderRevision] = id.revision
	}
	return h
}

// withLoad is header with the node's load for a caller that asks for it.
func (id *Identity) withLoad(r *Request, load Load) Header {
	h := id.header(r)
	if r.WantLoad {
		h.Set(HeaderLoad, load.String())
	}
	return h
}

// Load is a node's own view of itself: calls it runs, calls it can run at once.
type Load struct{ InFlight, Slots int }

// String renders <in_flight>/<slots>.
func (l Load) String() string { return strconv.Itoa(l.InFlight) + "/" + strconv.Itoa(l.Slots) }

// ParseLoad reads the value of Mesh-Load; ok is false when it is malformed.
func ParseLoad(v string) (load Load, ok bool) {
	a, b, _ := strings.Cut(v, "/")
	x, errA := strconv.ParseUint(a, 10, 31)
	y, errB := strconv.ParseUint(b, 10, 31)
	if errA != nil || errB != nil {
		return Load{}, false
	}
	return Load{InFlight: int(x), Slots: int(y)}, true //nolint:gosec // of 31 bits
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
	return jsonNull
}

// jsonNull is the body of an empty result or item: an empty body means something else.
var jsonNull = json.RawMessage("null")

// Result renders the reply of a call that succeeded, in the request's form.
// result is JSON, nothing for null; the plain form sends it as it is. load is
// sent where the request asks for it.
func (r *Request) Result(id *Identity, result json.RawMessage, load Load) (Header, []byte) {
	if len(result) == 0 {
		result = jsonNull
	}
	switch {
	case r.Form != FormPlain && !json.Valid(result):
		return r.Failure(id, NotJSON(), load)
	case r.Form != FormPlain:
		return r.Encode(nil, Encode(response{Type: r.responseType(), RPCID: r.echoID(), Status: "ok", Result: result}))
	case r.packed && !json.Valid(result):
		return r.Failure(id, NotJSON(), load)
	}
	return r.Encode(id.withLoad(r, load), result)
}

// ResultRef renders the reply of a call with its result in the object store, for a plain request
// with AcceptRef. The stored result is JSON, also for a request in MessagePack.
func (r *Request) ResultRef(id *Identity, ref *Ref, load Load) (Header, []byte) {
	h := id.withLoad(r, load)
	ref.put(h)
	return h, nil
}

// Failure renders the reply of a call that failed, in the request's form; for
// an envelope stream that is one chunk of type error.
func (r *Request) Failure(id *Identity, err *toolmesh.Error, load Load) (Header, []byte) {
	if r.Form != FormPlain {
		wire := withType(err)
		if r.Delivery == DeliverEnvelope {
			return r.Encode(nil, Encode(streamChunk{Type: typeChunk, RPCID: r.echoID(), ChunkType: string(ChunkError), Seq: 1, Error: wire}))
		}
		return r.Encode(nil, Encode(response{Type: r.responseType(), RPCID: r.echoID(), Status: "error", Error: wire}))
	}
	h := id.withLoad(r, load)
	setError(h, err)
	return r.Encode(h, ErrorBody(err))
}

// withType gives readers of the envelope's older error object the type that
// they expect: the exception's class, else the code.
func withType(err *toolmesh.Error) *toolmesh.Error {
	c := *sendable(err)
	c.Type = cmp.Or(c.Type, string(c.Code))
	return &c
}

func setError(h Header, err *toolmesh.Error) {
	h.Set(HeaderErrorCode, string(err.Code))
	if !err.Started.IsZero() {
		text, _ := err.Started.MarshalJSON()
		h.Set(HeaderStarted, string(text))
	}
	h.Set(HeaderServiceErrorCode, strconv.Itoa(err.Code.Number()))
	h.Set(HeaderServiceError, HeaderText(err.Message))
}

// HeaderText makes a text safe as a header's value: one line, bounded, in ASCII, with escapes for
// other characters. NATS headers are ASCII, and clients rely on it: io.nats:jnats stops reading its
// connection at any other byte.
func HeaderText(s string) string {
	const limit = 512
	var b strings.Builder
	for _, c := range strings.TrimSpace(s) {
		text := string(c)
		switch {
		case unicode.IsControl(c) || unicode.IsSpace(c):
			text = " "
		case c > unicode.MaxASCII:
			text = strings.Trim(strconv.QuoteRuneToASCII(c), "'")
		}
		if b.Len()+len(text) > limit {
			b.WriteString("...")
			break
		}
		b.WriteString(text)
	}
	return strings.TrimSpace(b.String())
}

type errorBody struct {
	Error *toolmesh.Error `json:"error"`
}

// ErrorBody renders {"error":{…}}.
func ErrorBody(err *toolmesh.Error) []byte { return Encode(errorBody{sendable(err)}) }

// ErrorReply renders a failure outside of any call: the answer to a registry or administrative
// request.
func ErrorReply(err *toolmesh.Error) (Header, []byte) {
	h := make(Header, 4)
	setError(h, err)
	return h, ErrorBody(err)
}

// Ack renders the acknowledgement of a live stream.
func (r *Request) Ack(id *Identity, load Load) (Header, []byte) {
	return id.withLoad(r, load), Encode(struct {
		RPCID subjects.RPCID  `json:"rpc_id"`
		Node  subjects.NodeID `json:"node"`
	}{r.RPCID, id.Node})
}

// KeepaliveHeader renders the keepalive of a call that still runs. high is the last stored item of
// a stream, negative for a unary call, and progress the tool's last report, or nil. The body is
// empty.
func (r *Request) KeepaliveHeader(id *Identity, high int64, progress *Progress) Header {
	h := id.header(r)
	h.Set(HeaderKeepalive, "1")
	if high >= 0 {
		h.Set(HeaderHigh, strconv.FormatInt(high, 10))
	}
	if progress != nil {
		h.Set(HeaderProgress, progress.header())
	}
	return h
}

// Awaits is the word about its wait in the keepalive of a call that waits at a router.
type Awaits string

// The words of a router.
const (
	// AwaitsNode: it waits, and may begin at any time.
	AwaitsNode Awaits = "1"
	// AwaitsWord: it waits, and begins only after the caller was asked and has answered.
	AwaitsWord Awaits = "held"
	// AwaitsAnswer asks: once the caller answers, it may begin.
	AwaitsAnswer Awaits = "ask"
)

// AwaitsHeader renders the keepalive of a call that waits at a router for a node. It has no
// Mesh-Node: the node is not known yet. question is the number of a keepalive that asks, else 0.
func (r *Request) AwaitsHeader(word Awaits, question int64) Header {
	h := newHeader()
	h[HeaderProto], h[HeaderKeepalive], h[HeaderAwaits] = protoValue, flagOn, []string{string(word)}
	if question > 0 {
		h.Set(HeaderSeq, strconv.FormatInt(question, 10))
	}
	if r.RPCID != "" {
		h.Set(HeaderRPCID, NameHeader(r.RPCID))
	}
	return h
}

// PassOn renders the headers of a request that a router took from the queue group and passes to a
// node after waited: one more hop, and less time or none. An envelope stays as it is, since headers
// would make it another form.
func (r *Request) PassOn(h Header, waited time.Duration) Header {
	if r.Form != FormPlain {
		return h.without()
	}
	out := h.without(HeaderHops, HeaderTimeout)
	out.Set(HeaderHops, strconv.Itoa(r.Hops+1))
	if r.HasTimeout {
		out.Set(HeaderTimeout, strconv.FormatInt(max((r.Timeout-waited).Milliseconds(), 0), 10))
	}
	return out
}

// Encode renders the JSON of a message of ours: of a struct of this package. Parts that come
// from others have been checked: results by json.Valid, errors by [sendable].
func Encode(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// sendable is an error without details that are not JSON.
func sendable(err *toolmesh.Error) *toolmesh.Error {
	if err == nil {
		return nil
	}
	if _, failed := json.Marshal(err.Details); failed == nil {
		return err
	}
	c := *err
	c.Details = nil
	return &c
}

// NotJSON is the failure of a call with a result or item that is not JSON: a plain reply has it as the tool's
// process wrote it. Check it before it becomes a part of anything else.
func NotJSON() *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the tool returned a value that is not JSON").WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
}

// Reply is one message that a caller got on its reply subject, in the plain
// form.
type Reply struct {
	Kind     ReplyKind
	Node     subjects.NodeID
	Boot     subjects.BootID
	Load     Load
	HasLoad  bool            // Load was sent
	Revision string          // of the index that answered
	Cache    string          // hit, miss or bypass; empty for a tool that keeps no results
	Warning  string          // a fault of the result, for people
	LaneWait time.Duration   // for a lane
	NodeWait time.Duration   // at a router, for a node
	Awaits   Awaits          // of a keepalive of a call that waits there; else empty
	Question int64           // its number, for AwaitsAnswer
	Body     json.RawMessage // the result of a unary call
	Ref      *Ref            // where the result is, if it is in the object store; else nil
	Err      *toolmesh.Error // for ReplyError
	Read     bool            // the caller must confirm the answer
	Progress *Progress       // the call's last report, for a keepalive; else nil
	High     int64           // the last stored item, for a keepalive of a stream and for the end of a replay; -1 if absent
	Terminal bool            // next to High: the terminal is stored, too
	Chunk    Chunk           // for ReplyChunk
}

// ReplyKind is the kind of a reply.
type ReplyKind uint8

// The kinds of reply.
const (
	ReplyResult ReplyKind = iota
	ReplyError
	ReplyKeepalive
	ReplyChunk
	// ReplyNoResponders is NATS's own 503: no process serves the subject.
	ReplyNoResponders
	// ReplyEnd is the empty message that ends an inbox stream or a replay.
	ReplyEnd
)

// ParseReply reads a message of the plain form. It never fails: an unreadable message is a
// ReplyError with protocol_error.
func ParseReply(h Header, body []byte) Reply {
	r := Reply{High: -1}
	if len(h) == 0 {
		if len(body) == 0 {
			r.Kind = ReplyEnd
		}
		r.Body = body
		return r
	}
	if status := h["Status"]; len(body) == 0 && len(status) > 0 && status[0] == "503" {
		r.Kind = ReplyNoResponders
		return r
	}
	// The headers of less frequent answers are read once the kind is known.
	var failed, referred, keepalive, chunk bool
	for k, values := range h {
		if len(values) == 0 {
			continue
		}
		v := values[0]
		switch headerName(k) {
		case HeaderNode:
			r.Node = ParseNameHeader[subjects.NodeID](v)
		case HeaderBoot:
			r.Boot = subjects.BootID(v)
		case HeaderRevision:
			r.Revision = v
		case HeaderCache:
			r.Cache = v
		case HeaderWarning:
			r.Warning = v
		case HeaderLaneWait:
			r.LaneWait = laneWait(v)
		case HeaderNodeWait:
			r.NodeWait = laneWait(v)
		case HeaderAwaits:
			r.Awaits = Awaits(v)
		case HeaderLoad:
			r.Load, r.HasLoad = ParseLoad(v)
		case HeaderRead:
			r.Read = v != ""
		case HeaderProgress:
			r.Progress = parseProgress(v)
		case HeaderKeepalive:
			keepalive = v != ""
		case HeaderChunk:
			chunk = v != ""
		case HeaderRef:
			referred = v != ""
		case HeaderErrorCode, HeaderServiceErrorCode:
			failed = failed || v != ""
		}
	}
	switch {
	case chunk:
		c, err := ParseChunk(h, body)
		if err != nil {
			r.Kind, r.Err = ReplyError, toolmesh.AsError(err)
			return r
		}
		r.Kind, r.Chunk = ReplyChunk, c
	case failed:
		r.Kind, r.Err = ReplyError, parseFailure(h, body)
	case len(body) > 0:
		r.Body = body
	case referred:
		r.Ref = h.Referred()
	default:
		r.Kind = ReplyEnd
		if keepalive {
			r.Kind = ReplyKeepalive
			r.Question, _ = strconv.ParseInt(h.Get(HeaderSeq), 10, 64)
		}
		if high := h.Get(HeaderHigh); high != "" {
			stored, err := ParseHigh(high)
			switch {
			case err == nil:
				r.High, r.Terminal = stored.Seq, stored.Terminal
			case r.Kind == ReplyEnd: // a keepalive stays one
				r.Kind, r.Err = ReplyError, toolmesh.AsError(err)
			}
		}
	}
	return r
}

// parseFailure reads the error of a plain reply: the body's error object, completed by the headers.
// An unknown code is treated as its number's class.
func parseFailure(h Header, body []byte) *toolmesh.Error {
	var wire errorBody
	e := &toolmesh.Error{}
	if json.Unmarshal(body, &wire) == nil && wire.Error != nil {
		e = wire.Error
	}
	e.Code = cmp.Or(e.Code, toolmesh.Code(h.Get(HeaderErrorCode)))
	e.Message = cmp.Or(e.Message, h.Get(HeaderServiceError))
	if e.Started == toolmesh.StartedUnknown {
		_ = e.Started.UnmarshalJSON([]byte(h.Get(HeaderStarted))) // unknown, of another text
	}
	if !e.Code.Valid() {
		n, _ := strconv.Atoi(h.Get(HeaderServiceErrorCode))
		if e.Code != "" {
			e = e.WithDetail("code", string(e.Code))
		}
		e.Code = codeOfClass(n)
	}
	return e
}

// codes are the nearest to the numbers that we have codes for.
var codes = map[int]toolmesh.Code{
	401: toolmesh.CodePermissionDenied, 403: toolmesh.CodePermissionDenied, 404: toolmesh.CodeToolNotFound,
	413: toolmesh.CodePayloadTooLarge, 422: toolmesh.CodeInvalidArguments, 429: toolmesh.CodeBusy, 499: toolmesh.CodeCancelled,
	502: toolmesh.CodeProtocolError, 503: toolmesh.CodeUnavailable, 504: toolmesh.CodeDeadlineExceeded,
}

// codeOfClass is the nearest code to a number.
func codeOfClass(n int) toolmesh.Code {
	if code, ok := codes[n]; ok {
		return code
	}
	if n >= 400 && n < 500 {
		return toolmesh.CodeInvalidRequest
	}
	return toolmesh.CodeInternal
}
