package codec

import (
	"bytes"
	"encoding/json"
	"math"
	"mime"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Form is the way a request was written; its reply is written the same way.
type Form uint8

// The request forms.
const (
	// FormPlain: the body is the arguments, everything else is in headers.
	FormPlain Form = iota
	// FormEnvelope: rpc_tool_call, and rpc_tool_stream when it streams.
	FormEnvelope
	// FormLegacy: the older rpc_call.
	FormLegacy
)

// Types of the envelope form.
const (
	typeToolCall     = "rpc_tool_call"
	typeToolStream   = "rpc_tool_stream"
	typeCall         = "rpc_call"
	typeToolResponse = "rpc_tool_response"
	typeResponse     = "rpc_response"
	typeChunk        = "rpc_stream_chunk"
)

// Delivery is how a caller wants a stream.
type Delivery uint8

// The deliveries.
const (
	// DeliverNone: a unary call.
	DeliverNone Delivery = iota
	// DeliverLive: chunks on mesh.live, an acknowledgement on the reply subject.
	DeliverLive
	// DeliverInbox: chunks on the reply subject, an empty message at the end.
	DeliverInbox
	// DeliverEnvelope: rpc_stream_chunk envelopes on the reply subject.
	DeliverEnvelope
)

// maxRPCID bounds what a node remembers per call.
const maxRPCID = 512

// Request is one parsed request.
type Request struct {
	Form    Form
	Session subjects.SessionID
	Tool    subjects.ToolID
	RPCID   subjects.RPCID // "" when a plain request named none
	rawID   json.RawMessage

	Args       json.RawMessage   // the arguments object, never empty
	Positional []json.RawMessage // positional arguments of the envelope form

	Delivery  Delivery
	Timeout   time.Duration // what is left of the caller's budget; 0 when HasTimeout is false
	Deadline  time.Time     // mesh time; zero when absent
	Again     time.Duration // since it was first sent, when IsAgain
	Credit    int64         // items that may be sent, when HasCredit
	Hops      int
	Depth     int
	Parent    subjects.RPCID
	Revision  string             // pin
	Boot      subjects.BootID    // the one start of a node that may answer
	Isolation toolmesh.Isolation // "" for what the tool declares

	HasTimeout bool
	IsAgain    bool // it is sent again: a call of this rpc id may have run
	HasCredit  bool
	Keepalive  bool
	WantLoad   bool

	IdempotencyKey string
	Traceparent    string
	body           []byte
}

// Body is the message's body as it came: what two requests under one rpc id must
// have in common. It must not be changed.
func (r *Request) Body() []byte { return r.body }

// ParseRequest reads a request that arrived on a tools subject, directed or
// not. s is that subject, parsed. On an error the returned Request still says
// in which form to answer, and under which rpc id if one could be read; the
// error has started:false.
func ParseRequest(s subjects.Subject, h Header, body []byte) (*Request, *toolmesh.Error) {
	r := &Request{Session: s.Session, Tool: s.Tool, body: body}
	var err error
	if h.hasMesh() || !r.parseEnvelope(body, &err) {
		err = r.parsePlain(h, body)
	} else if err == nil {
		err = r.checkContent(h.Get(HeaderContentType), h.Get(HeaderContentEncoding))
	}
	if err != nil {
		return r, refused(err)
	}
	return r, nil
}

func refused(err error) *toolmesh.Error {
	return toolmesh.AsError(err).WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

func invalid(format string, args ...any) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...)
}

func (r *Request) parsePlain(h Header, body []byte) error {
	r.Form = FormPlain
	r.Args = json.RawMessage(body)
	if len(bytes.TrimSpace(body)) == 0 {
		r.Args = json.RawMessage("{}")
	}
	if len(h) == 0 {
		return nil
	}
	all, err := h.fields()
	f := fieldReader{all, err}
	// The id first, so that any error finds its caller.
	id, named := all[HeaderRPCID]
	if named {
		if err := r.setID(id); err != nil {
			return err
		}
	}
	if err := checkVersion(all); err != nil {
		return err
	}
	r.Timeout, r.HasTimeout = f.millis(HeaderTimeout, math.MinInt64)
	if ms, ok := f.integer(HeaderDeadline, math.MinInt64, math.MaxInt64); ok {
		r.Deadline = time.UnixMilli(ms)
	}
	if r.Again, r.IsAgain = f.millis(HeaderAgain, 0); r.IsAgain && !named {
		f.refuse("header %s says that the call is sent again, and no %s names it", HeaderAgain, HeaderRPCID)
	}
	switch stream, ok := all[HeaderStream]; {
	case stream == "1":
		r.Delivery = DeliverLive
	case stream == "inbox":
		r.Delivery = DeliverInbox
	case ok:
		f.refuse("header %s is %q: it is 1 or inbox", HeaderStream, stream)
	}
	r.Credit, r.HasCredit = f.integer(HeaderCredit, 0, math.MaxInt64)
	r.Hops, r.Depth = f.count(HeaderHops), f.count(HeaderDepth)
	r.Parent = subjects.RPCID(all[HeaderParent])
	r.Keepalive, r.WantLoad = f.flag(HeaderKeepalive), f.flag(HeaderWantLoad)
	r.Revision, r.Boot = all[HeaderRevision], subjects.BootID(all[HeaderBoot])
	isolation, ok := all[HeaderIsolation]
	if r.Isolation = toolmesh.Isolation(isolation); ok && !r.Isolation.Valid() {
		f.refuse("header %s is %q: it is warm, session, fork or fresh", HeaderIsolation, isolation)
	}
	r.IdempotencyKey, r.Traceparent = all[HeaderIdempotencyKey], all[HeaderTraceparent]
	if f.err != nil {
		return f.err
	}
	if err := r.checkContent(all[HeaderContentType], all[HeaderContentEncoding]); err != nil {
		return err
	}
	if tool := subjects.ToolID(all[HeaderTool]); tool != "" {
		if !subjects.SameTool(tool, r.Tool) {
			return invalid("header %s names tool %q, the subject %q", HeaderTool, tool, r.Tool)
		}
		r.Tool = tool
	}
	if session := subjects.SessionID(all[HeaderSession]); session != "" {
		if !subjects.SameName(session, r.Session) {
			return invalid("header %s names session %q, the subject %q", HeaderSession, session, r.Session)
		}
		r.Session = session
	}
	return nil
}

// fieldReader reads headers of ours; err is the first that went wrong.
type fieldReader struct {
	fields map[string]string
	err    error
}

func (f *fieldReader) refuse(format string, args ...any) {
	if f.err == nil {
		f.err = invalid(format, args...)
	}
}

// integer reads a whole number; ok says whether the header is there.
func (f *fieldReader) integer(name string, least, most int64) (n int64, ok bool) {
	v, ok := f.fields[name]
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
	if err != nil || n < least || n > most {
		f.refuse("header %s is %q: it is no whole number, or out of range", name, v)
	}
	return n, true
}

// count reads a small number.
func (f *fieldReader) count(name string) int {
	n, _ := f.integer(name, 0, 1<<20)
	return int(n)
}

// millis reads a time of at least so many milliseconds. A budget that is spent (0
// or less) is 0: the call is then answered deadline_exceeded.
func (f *fieldReader) millis(name string, least int64) (time.Duration, bool) {
	n, ok := f.integer(name, least, math.MaxInt64)
	return time.Duration(min(max(n, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, ok
}

func (f *fieldReader) flag(name string) bool {
	switch v := f.fields[name]; v {
	case "1", "true":
		return true
	case "0", "false", "":
	default:
		f.refuse("header %s is %q: it is 1 or absent", name, v)
	}
	return false
}

func (r *Request) checkContent(contentType, encoding string) error {
	if contentType != "" && contentType != "application/json" {
		media, _, err := mime.ParseMediaType(contentType)
		if err != nil || media != "application/json" {
			return invalid("content type %q is not understood: send application/json", contentType)
		}
	}
	if encoding != "" && encoding != "identity" {
		return invalid("content encoding %q is not understood: send the body as it is", encoding)
	}
	return nil
}

func (r *Request) setID(id string) error {
	if id == "" {
		return invalid("the rpc_id is empty")
	}
	if len(id) > maxRPCID {
		return invalid("the rpc_id has %d bytes: at most %d", len(id), maxRPCID)
	}
	for _, c := range id {
		if c < ' ' || c >= 0x7f && (unicode.IsControl(c) || c == unicode.ReplacementChar) {
			return invalid("the rpc_id %q holds a character that cannot travel in a header", id)
		}
	}
	r.RPCID = subjects.RPCID(id)
	return nil
}

// Call is what a caller writes into a plain request.
type Call struct {
	RPCID     subjects.RPCID
	Session   subjects.SessionID
	Tool      subjects.ToolID
	Delivery  Delivery // DeliverNone, DeliverLive or DeliverInbox
	Timeout   time.Duration
	Deadline  time.Time // mesh time; zero leaves it out
	Credit    int64     // 0 leaves it out
	Depth     int
	Parent    subjects.RPCID
	Revision  string
	Isolation toolmesh.Isolation // "" leaves it out
	Keepalive bool
	WantLoad  bool

	Traceparent string
}

// Header returns the headers of the call.
func (c *Call) Header() Header {
	h := Header{HeaderRPCID: {string(c.RPCID)}}
	text := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	count := func(name string, n int64) {
		if n > 0 {
			h.Set(name, strconv.FormatInt(n, 10))
		}
	}
	flag := func(name string, on bool) {
		if on {
			h.Set(name, "1")
		}
	}
	if subjectsHashed(string(c.Session)) {
		h.Set(HeaderSession, string(c.Session))
	}
	if subjectsHashed(string(c.Tool)) {
		h.Set(HeaderTool, string(c.Tool))
	}
	flag(HeaderStream, c.Delivery == DeliverLive)
	if c.Delivery == DeliverInbox {
		h.Set(HeaderStream, "inbox")
	}
	// Rounded up: a budget of half a millisecond is not a spent one.
	count(HeaderTimeout, int64(c.Timeout/time.Millisecond)+min(1, int64(c.Timeout%time.Millisecond)))
	if !c.Deadline.IsZero() {
		h.Set(HeaderDeadline, strconv.FormatInt(c.Deadline.UnixMilli(), 10))
	}
	count(HeaderCredit, c.Credit)
	count(HeaderDepth, int64(c.Depth))
	text(HeaderParent, string(c.Parent))
	text(HeaderRevision, c.Revision)
	text(HeaderIsolation, string(c.Isolation))
	text(HeaderTraceparent, c.Traceparent)
	flag(HeaderKeepalive, c.Keepalive)
	flag(HeaderWantLoad, c.WantLoad)
	return h
}

// subjectsHashed reports whether a name may travel as a hashed token, so that
// its real form must travel in a header: long names only.
func subjectsHashed(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if len(part) > 38 {
			if token, err := subjects.EncodeToken(part); err == nil && subjects.IsHashed(token) && token != part {
				return true
			}
		}
	}
	return false
}
