package codec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/fair"
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

// farthest is the last deadline, in unix ms: the year 2200, so that the time until then fits a
// [time.Duration].
const farthest = 7_258_118_400_000

// maxRPCID is the max length of an rpc id: a node stores one for each call.
const maxRPCID = 512

// Request is one parsed request. RPCID is empty if a plain request had none; Timeout is the rest of
// the caller's budget, 0 without HasTimeout.
type Request struct {
	Call
	Form  Form
	rawID json.RawMessage

	Args       json.RawMessage   // the arguments object, never empty
	Positional []json.RawMessage // positional arguments of the envelope form
	Again      time.Duration     // since it was first sent, with IsAgain
	Boot       subjects.BootID   // the one start of a node that may answer

	HasTimeout bool
	HasCredit  bool
	IsAgain    bool // it is sent again: a call of this rpc id may have run

	body         []byte
	packed, zstd bool // how the answer is written
	zipped       bool // the body is compressed
}

// Body is the message's body as received: two requests with one rpc id must have the same. For
// arguments by reference it is their digest; for a request that did not arrive in a message, the
// body that a plain one would have. It must not be changed.
func (r *Request) Body() []byte {
	if len(r.body) == 0 {
		return r.Args
	}
	return r.body
}

// ReadRequest reads a request that arrived on a tools subject, directed or
// not. s is that subject, parsed. Arguments that are not written in JSON stay as they
// came: see [Request.Decode]. On an error the returned Request still says
// in which form to answer, and under which rpc id if one could be read; the
// error has started:false.
func ReadRequest(s subjects.Subject, h Header, body []byte) (*Request, *toolmesh.Error) {
	r := &Request{Call: Call{Session: s.Session, Tool: s.Tool}, body: body}
	var err error
	enveloped := false
	if !h.hasMesh() {
		if r.content(h.Get(HeaderContentType), h.Get(HeaderContentEncoding)) == nil {
			enveloped, err = r.tryEnvelope()
		}
		if !enveloped {
			*r = Request{Call: Call{Session: s.Session, Tool: s.Tool}, body: body}
		}
	}
	if enveloped {
		r.zstd = acceptsZstd(h.Get(HeaderAcceptEncoding))
	} else {
		err = r.parsePlain(h, body)
	}
	if err != nil {
		return r, refused(err)
	}
	return r, nil
}

// tryEnvelope reports whether the body is an envelope, in any encoding; err is the fault inside of one.
func (r *Request) tryEnvelope() (is bool, err error) {
	read := func() {
		if body, bad := r.decode(); bad == nil {
			is = r.parseEnvelope(body, &err)
		}
	}
	if !r.packed && !r.zipped {
		read()
		return is, err
	}
	fair.Heavy(read)
	r.Args, r.Positional = nil, nil
	return is, err
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
	var proto, contentType, contentEncoding, accept, tool, session, ref, digest, id string
	var require []string
	named := false
	var first error
	for k, values := range h {
		name := headerName(k)
		if name == "" || len(values) == 0 {
			continue
		}
		if (k != name || len(values) > 1 && strings.HasPrefix(name, "Mesh-")) && !isList(name) {
			first = cmp.Or(first, h.oneValue(name))
		}
		v := values[0]
		var err error
		switch name {
		case HeaderRPCID:
			id, named = ParseNameHeader[string](v), true
		case HeaderTool:
			tool = v
		case HeaderSession:
			session = v
		case HeaderTimeout:
			r.Timeout, err = parseMillis(HeaderTimeout, v, math.MinInt64)
			r.HasTimeout = true
		case HeaderDeadline:
			var ms int64
			if ms, err = parseInt(HeaderDeadline, v, math.MinInt64); err == nil {
				r.Deadline = time.UnixMilli(min(max(ms, 0), farthest))
			}
		case HeaderAgain:
			r.Again, err = parseMillis(HeaderAgain, v, 0)
			r.IsAgain = true
		case HeaderStream:
			switch v {
			case "1":
				r.Delivery = DeliverLive
			case "inbox":
				r.Delivery = DeliverInbox
			default:
				err = invalid("header %s is %q: it is 1 or inbox", HeaderStream, v)
			}
		case HeaderCredit:
			r.Credit, err = parseInt(HeaderCredit, v, 0)
			r.HasCredit = true
		case HeaderHops:
			r.Hops, err = parseSmall(HeaderHops, v)
		case HeaderDepth:
			r.Depth, err = parseSmall(HeaderDepth, v)
		case HeaderParent:
			r.Parent = ParseNameHeader[subjects.RPCID](v)
		case HeaderLanes:
			r.Lanes = v
		case HeaderKeepalive:
			r.Keepalive, err = parseFlag(HeaderKeepalive, v)
		case HeaderAwaits:
			r.Answers, err = parseFlag(HeaderAwaits, v)
		case HeaderOutlive:
			r.Outlive, err = parseFlag(HeaderOutlive, v)
		case HeaderWantProgress:
			r.WantProgress, err = parseFlag(HeaderWantProgress, v)
		case HeaderWantLoad:
			r.WantLoad, err = parseFlag(HeaderWantLoad, v)
		case HeaderCache:
			if r.NoCache = v == string(CacheBypass); !r.NoCache {
				err = invalid("header %s is %q: it is %s", HeaderCache, v, CacheBypass)
			}
		case HeaderAcceptRef:
			r.AcceptRef, err = parseFlag(HeaderAcceptRef, v)
		case HeaderRead:
			r.Read, err = parseFlag(HeaderRead, v)
		case HeaderRef:
			ref = v
		case HeaderDigest:
			digest = v
		case HeaderRevision:
			r.Revision = v
		case HeaderBoot:
			r.Boot = subjects.BootID(v)
		case HeaderIsolation:
			if r.Isolation = toolmesh.Isolation(v); !r.Isolation.Valid() { // a typing error must not loosen it
				err = invalid("header %s is %q: it is warm, session, fork or fresh", HeaderIsolation, v)
			}
		case HeaderIdempotencyKey:
			if r.IdempotencyKey = strings.Clone(v); v == "" { // a repetition that waits keeps it, without the header block
				err = invalid("header %s is empty", HeaderIdempotencyKey)
			}
		case HeaderTraceparent:
			r.Traceparent = v
		case HeaderTracestate:
			r.Tracestate = headerText(values, maxTracestate)
		case HeaderBaggage:
			r.Baggage = headerText(values, maxBaggage)
		case HeaderProto:
			proto = v
		case HeaderRequire:
			require = append(require, values...)
		case HeaderContentType:
			contentType = v
		case HeaderContentEncoding:
			contentEncoding = v
		case HeaderAcceptEncoding:
			accept = strings.Join(values, ",")
		}
		first = cmp.Or(first, err)
	}
	// The id first, so that any other error finds its caller.
	if named {
		if err := r.setID(id); err != nil {
			return err
		}
	} else if r.IsAgain && first == nil && r.Tool != "" { // the body of a batch names it
		first = unnamed(HeaderRPCID)
	}
	if err := checkVersion(proto, require); err != nil {
		return err
	}
	if first != nil {
		return first
	}
	r.zstd = accept != "" && acceptsZstd(accept)
	if contentType != "" || contentEncoding != "" {
		if err := r.content(contentType, contentEncoding); err != nil {
			return err
		}
		if r.packed || r.zipped {
			r.Args = nil
		}
	}
	if tool != "" {
		if !subjects.SameTool(subjects.ToolID(tool), r.Tool) {
			return invalid("header %s names tool %q, the subject %q", HeaderTool, tool, r.Tool)
		}
		r.Tool = subjects.ToolID(tool)
	}
	if session != "" {
		if !subjects.SameName(subjects.SessionID(session), r.Session) {
			return invalid("header %s names session %q, the subject %q", HeaderSession, session, r.Session)
		}
		r.Session = subjects.SessionID(session)
	}
	if ref != "" {
		return r.refer(Ref{Name: ref, Digest: digest}, contentEncoding)
	}
	return nil
}

// unnamed refuses a request that is sent again and could be any.
func unnamed(by string) error {
	return invalid("header %s says that the call is sent again, and no %s names it", HeaderAgain, by)
}

// parseInt reads a whole number of at least so much; one beyond 64 bits is the last that they have.
func parseInt(name, v string, least int64) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || n < least {
		return 0, invalid("header %s is %q: it is a whole number", name, v)
	}
	return n, nil
}

func parseSmall(name, v string) (int, error) {
	n, err := parseInt(name, v, 0)
	if err == nil && n > 1<<20 {
		return 0, invalid("header %s is %q: too large", name, v)
	}
	return int(n), err
}

// parseMillis reads a time of at least so many milliseconds. A budget that is
// spent (0 or less) is 0: the call is then answered deadline_exceeded.
func parseMillis(name, v string, least int64) (time.Duration, error) {
	n, err := parseInt(name, v, least)
	return toolmesh.Millis(max(n, 0)), err
}

func parseFlag(name, v string) (bool, error) {
	switch v {
	case "1", "true":
		return true, nil
	case "0", "false", "":
		return false, nil
	}
	return false, invalid("header %s is %q: it is 1 or absent", name, v)
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
	r.RPCID = subjects.RPCID(strings.Clone(id)) // a node stores it, and nothing else of the header block
	return nil
}

// Call has the caller's settings of a call. The zero value of a field leaves its header out.
type Call struct {
	Session   subjects.SessionID
	Tool      subjects.ToolID
	RPCID     subjects.RPCID
	Delivery  Delivery      // never DeliverEnvelope where a caller writes it
	Timeout   time.Duration // of its budget
	Deadline  time.Time     // mesh time
	Credit    int64         // items that may be sent
	Hops      int
	Depth     int
	Parent    subjects.RPCID
	Lanes     string             // the grants that calls above it hold, with commas between
	Revision  string             // pin
	Isolation toolmesh.Isolation // in addition to the tool's declaration

	Keepalive    bool
	Answers      bool // the caller answers a router that asks whether it may pass the call on
	Outlive      bool // it goes on when its caller is gone: another one will ask for it
	WantLoad     bool
	WantProgress bool // with Keepalive: progress is sent when the tool reports it, not once a second
	NoCache      bool // the tool runs even if a result is cached
	AcceptRef    bool // the caller takes results by reference
	Read         bool // the caller confirms an answer that asks for that

	// Ref replaces arguments that are in the object store; else nil.
	Ref *Ref

	IdempotencyKey string
	Trace
}

// Header returns the headers of the call.
func (c *Call) Header() Header {
	h := newHeader()
	values := make([]string, 0, 4) // one array for all
	text := func(name, value string) {
		if value != "" {
			values = append(values, value)
			h[name] = values[len(values)-1 : len(values) : len(values)]
		}
	}
	count := func(name string, n int64) {
		if n > 0 {
			text(name, strconv.FormatInt(n, 10))
		}
	}
	flag := func(name string, on bool) {
		if on {
			h[name] = flagOn
		}
	}
	text(HeaderRPCID, string(c.RPCID))
	// The real names behind hashed tokens.
	if subjects.WireName(c.Session) != c.Session {
		text(HeaderSession, string(c.Session))
	}
	if wire, err := subjects.WireTool(c.Tool); err == nil && wire != c.Tool {
		text(HeaderTool, string(c.Tool))
	}
	flag(HeaderStream, c.Delivery == DeliverLive)
	if c.Delivery == DeliverInbox {
		text(HeaderStream, "inbox")
	}
	// Rounded up: a budget of half a millisecond is not a spent one.
	count(HeaderTimeout, int64(c.Timeout/time.Millisecond)+min(1, int64(c.Timeout%time.Millisecond)))
	if !c.Deadline.IsZero() {
		text(HeaderDeadline, strconv.FormatInt(c.Deadline.UnixMilli(), 10))
	}
	count(HeaderCredit, c.Credit)
	count(HeaderHops, int64(c.Hops))
	count(HeaderDepth, int64(c.Depth))
	text(HeaderParent, string(c.Parent))
	text(HeaderLanes, c.Lanes)
	text(HeaderRevision, c.Revision)
	text(HeaderIsolation, string(c.Isolation))
	text(HeaderIdempotencyKey, c.IdempotencyKey)
	text(HeaderTraceparent, c.Traceparent)
	text(HeaderTracestate, c.Tracestate)
	text(HeaderBaggage, c.Baggage)
	flag(HeaderKeepalive, c.Keepalive)
	flag(HeaderAwaits, c.Answers)
	flag(HeaderOutlive, c.Outlive)
	flag(HeaderWantLoad, c.WantLoad)
	flag(HeaderWantProgress, c.WantProgress)
	flag(HeaderAcceptRef, c.AcceptRef)
	flag(HeaderRead, c.Read)
	if c.Ref != nil {
		c.Ref.put(h)
	}
	if c.NoCache {
		CacheBypass.Put(h)
	}
	return h
}
