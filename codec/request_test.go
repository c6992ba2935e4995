package codec

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// forecast is the subject that most requests of these tests arrive on.
var forecast = subjects.Subject{Kind: subjects.KindTool, Session: "s1", Tool: "weather.forecast"}

// h makes a header from names and values in turn.
func h(pairs ...string) Header {
	header := make(Header)
	for i := 0; i < len(pairs); i += 2 {
		header[pairs[i]] = append(header[pairs[i]], pairs[i+1])
	}
	return header
}

var ignoreUnexported = cmpopts.IgnoreUnexported(Request{})

func TestParsePlainRequest(t *testing.T) {
	t.Parallel()
	base := func(change func(*Request)) Request {
		r := Request{Call: Call{Session: "s1", Tool: "weather.forecast"}, Form: FormPlain, Args: json.RawMessage(`{"city":"Oslo"}`)}
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		header Header
		body   string
		want   Request
	}{
		"nothing but arguments": {nil, `{"city":"Oslo"}`, base(func(*Request) {})},
		"an empty body":         {nil, ``, base(func(r *Request) { r.Args = json.RawMessage(`{}`) })},
		"a blank body":          {h("Mesh-Rpc-Id", "r"), " \n", base(func(r *Request) { r.Args, r.RPCID = json.RawMessage(`{}`), "r" })},
		"every header": {h(
			"Mesh-Rpc-Id", "rpc_1", "Mesh-Timeout-Ms", "1500", "Mesh-Deadline", "1700000000123", "Mesh-Again", "2600", "Mesh-Idempotency-Key", "k",
			"Mesh-Stream", "1", "Mesh-Isolation", "fork", "Mesh-Revision", "abc", "Mesh-Hops", "1", "Mesh-Depth", "2", "Mesh-Parent", "rpc_0",
			"Mesh-Keepalive", "1", "Mesh-Want-Load", "1", "Mesh-Cache", "bypass", "Mesh-Proto", "1", "Mesh-Credit", "10", "Content-Type", "application/json; charset=utf-8",
			"Content-Encoding", "identity", "Accept-Encoding", "zstd", "traceparent", "00-aa-bb-01", "tracestate", "a=1", "tracestate", "b=2", "baggage", "k=v", "Mesh-Tool", "weather.forecast", "Mesh-Session", "s1",
			"Mesh-Require", "stream, credit", "Mesh-Require", "Mesh-Timeout-Ms",
		), `{"city":"Oslo"}`, base(func(r *Request) {
			r.RPCID, r.HasTimeout, r.Timeout, r.Deadline = "rpc_1", true, 1500*time.Millisecond, time.UnixMilli(1700000000123)
			r.IsAgain, r.Again = true, 2600*time.Millisecond
			r.IdempotencyKey, r.Delivery, r.Isolation, r.Revision = "k", DeliverLive, "fork", "abc"
			r.Hops, r.Depth, r.Parent, r.Keepalive, r.WantLoad, r.NoCache = 1, 2, "rpc_0", true, true, true
			r.HasCredit, r.Credit, r.Trace = true, 10, Trace{"00-aa-bb-01", "a=1,b=2", "k=v"}
		})},
		"names without regard to case": {h("MESH-RPC-ID", "rpc_1", "mesh-timeout-ms", "5", "mEsH-kEePaLiVe", "true", "Traceparent", "t", "content-type", "application/json"),
			`{"city":"Oslo"}`, base(func(r *Request) {
				r.RPCID, r.HasTimeout, r.Timeout, r.Keepalive, r.Traceparent = "rpc_1", true, 5*time.Millisecond, true, "t"
			})},
		"one header twice with one value":        {h("Mesh-Rpc-Id", "r", "Mesh-Rpc-Id", "r"), `{"city":"Oslo"}`, base(func(r *Request) { r.RPCID = "r" })},
		"several requirements that are known":    {h("Mesh-Require", "unary", "Mesh-Require", "stream", "mesh-require", "credit"), `{"city":"Oslo"}`, base(func(*Request) {})},
		"one header in two spellings that agree": {h("Mesh-Rpc-Id", "r", "mesh-rpc-id", "r"), `{"city":"Oslo"}`, base(func(r *Request) { r.RPCID = "r" })},
		"unknown headers and fields":             {h("Mesh-Later", "1", "X-Mine", "2", "Nats-Msg-Id", "3"), `{"city":"Oslo"}`, base(func(*Request) {})},
		"a stream to the inbox":                  {h("Mesh-Stream", "inbox"), `{"city":"Oslo"}`, base(func(r *Request) { r.Delivery = DeliverInbox })},
		"a spent budget":                         {h("Mesh-Timeout-Ms", "-3"), `{"city":"Oslo"}`, base(func(r *Request) { r.HasTimeout = true })},
		"a repetition from the beginning of time": {h("Mesh-Rpc-Id", "r", "Mesh-Again", "9223372036854775807"), `{"city":"Oslo"}`, base(func(r *Request) {
			r.RPCID, r.IsAgain, r.Again = "r", true, toolmesh.MaxTime
		})},
		"a budget beyond 64 bits": {h("Mesh-Timeout-Ms", "99999999999999999999"), `{"city":"Oslo"}`, base(func(r *Request) {
			r.HasTimeout, r.Timeout = true, toolmesh.MaxTime
		})},
		"a budget beyond any clock": {h("Mesh-Timeout-Ms", "9223372036854775807"), `{"city":"Oslo"}`, base(func(r *Request) {
			r.HasTimeout, r.Timeout = true, toolmesh.MaxTime
		})},
		"no credit at all":                  {h("Mesh-Credit", "0"), `{"city":"Oslo"}`, base(func(r *Request) { r.HasCredit = true })},
		"flags that are off":                {h("Mesh-Keepalive", "0", "Mesh-Want-Load", "false"), `{"city":"Oslo"}`, base(func(*Request) {})},
		"a value for every spelling of one": {Header{"Mesh-Rpc-Id": nil, "Mesh-Keepalive": {}}, `{"city":"Oslo"}`, base(func(*Request) {})},
	} {
		got, err := ParseRequest(forecast, c.header, []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, *got, ignoreUnexported); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A model writes arguments, and they may look like an envelope: a request with
// a Mesh- header is plain, and its body is never looked into.
func TestPlainOrEnvelope(t *testing.T) {
	t.Parallel()
	envelope := `{"type":"rpc_tool_call","rpc_id":"e","tool_id":"weather.forecast","kwargs":{}}`
	for name, c := range map[string]struct {
		header Header
		body   string
		want   Form
		stream Delivery
	}{
		"an envelope":                        {nil, envelope, FormEnvelope, DeliverNone},
		"an envelope with foreign headers":   {h("traceparent", "t", "Nats-Msg-Id", "1", "Content-Type", "application/json"), envelope, FormEnvelope, DeliverNone},
		"an envelope behind spaces":          {nil, " \n" + envelope + "\n", FormEnvelope, DeliverNone},
		"its keys written with escapes":      {nil, strings.Replace(envelope, `"rpc_id"`, `"rpc\u005fid"`, 1), FormEnvelope, DeliverNone},
		"its type written with escapes":      {nil, strings.Replace(envelope, `rpc_tool_call`, `rpc\u005ftool_call`, 1), FormEnvelope, DeliverNone},
		"a streaming envelope":               {nil, strings.Replace(envelope, "rpc_tool_call", "rpc_tool_stream", 1), FormEnvelope, DeliverEnvelope},
		"the older name":                     {nil, strings.Replace(envelope, "rpc_tool_call", "rpc_call", 1), FormLegacy, DeliverNone},
		"an envelope in a plain request":     {h("Mesh-Rpc-Id", "r"), envelope, FormPlain, DeliverNone},
		"any Mesh- header will do":           {h("mesh-anything", "r"), envelope, FormPlain, DeliverNone},
		"a type that is not of the list":     {nil, strings.Replace(envelope, "rpc_tool_call", "rpc_batch_call", 1), FormPlain, DeliverNone},
		"a reply is no request":              {nil, strings.Replace(envelope, "rpc_tool_call", "rpc_tool_response", 1), FormPlain, DeliverNone},
		"no type":                            {nil, `{"rpc_id":"e","tool_id":"weather.forecast"}`, FormPlain, DeliverNone},
		"a type that is no text":             {nil, `{"rpc_id":"e","type":7}`, FormPlain, DeliverNone},
		"no rpc_id":                          {nil, `{"type":"rpc_tool_call","tool_id":"weather.forecast"}`, FormPlain, DeliverNone},
		"rpc_id further in":                  {nil, `{"type":"rpc_tool_call","x":{"rpc_id":"e"}}`, FormPlain, DeliverNone},
		"keys in another case":               {nil, `{"Type":"rpc_tool_call","RPC_ID":"rpc_id"}`, FormPlain, DeliverNone},
		"an array":                           {nil, `[` + envelope + `]`, FormPlain, DeliverNone},
		"two envelopes":                      {nil, envelope + envelope, FormPlain, DeliverNone},
		"not JSON":                           {nil, `rpc_id`, FormPlain, DeliverNone},
		"arguments that mention one in text": {nil, `{"city":"{\"rpc_id\":1,\"type\":\"rpc_tool_call\"}"}`, FormPlain, DeliverNone},
	} {
		r, err := ParseRequest(forecast, c.header, []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Form != c.want || r.Delivery != c.stream {
			t.Errorf("%s: got form %d, delivery %d, want %d, %d", name, r.Form, r.Delivery, c.want, c.stream)
		}
		if r.Form == FormPlain && string(r.Args) != c.body {
			t.Errorf("%s: the body of a plain request was touched: got %s", name, r.Args)
		}
	}
}

func TestParseEnvelopeRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body       string
		rpc        subjects.RPCID
		echo       string
		args       string
		positional []string
	}{
		"text id":             {`{"type":"rpc_tool_call","rpc_id":"a","tool_id":"weather.forecast","kwargs":{"city":"Oslo"}}`, "a", `"a"`, `{"city":"Oslo"}`, nil},
		"number id":           {`{"type":"rpc_tool_call","rpc_id":7,"tool_id":"weather.forecast"}`, "7", `7`, `{}`, nil},
		"the same as text":    {`{"type":"rpc_tool_call","rpc_id":"7","tool_id":"weather.forecast"}`, "7", `"7"`, `{}`, nil},
		"negative id":         {`{"type":"rpc_tool_call","rpc_id":-7,"tool_id":"weather.forecast"}`, "-7", `-7`, `{}`, nil},
		"a number's own text": {`{"type":"rpc_tool_call","rpc_id":7.50e1,"tool_id":"weather.forecast"}`, "7.50e1", `7.50e1`, `{}`, nil},
		"a large number":      {`{"type":"rpc_tool_call","rpc_id":12345678901234567890,"tool_id":"weather.forecast"}`, "12345678901234567890", `12345678901234567890`, `{}`, nil},
		"escapes":             {`{"type":"rpc_tool_call","rpc_id":"\u0061\/","tool_id":"weather.forecast"}`, "a/", `"\u0061\/"`, `{}`, nil},
		"positional":          {`{"type":"rpc_call","rpc_id":"a","tool_id":"weather.forecast","args":["Oslo",null,[1]],"kwargs":{"days":2}}`, "a", `"a"`, `{"days":2}`, []string{`"Oslo"`, `null`, `[1]`}},
		"nulls":               {`{"type":"rpc_tool_call","rpc_id":"a","tool_id":"weather.forecast","args":null,"kwargs":null}`, "a", `"a"`, `{}`, nil},
		"empty lists":         {`{"type":"rpc_tool_call","rpc_id":"a","tool_id":"weather.forecast","args":[],"kwargs":{}}`, "a", `"a"`, `{}`, nil},
		"the last of a key":   {`{"type":"rpc_tool_call","rpc_id":"a","rpc_id":"b","tool_id":"weather.forecast"}`, "b", `"b"`, `{}`, nil},
		"unknown fields":      {`{"type":"rpc_tool_call","rpc_id":"a","tool_id":"weather.forecast","priority":1}`, "a", `"a"`, `{}`, nil},
	} {
		r, err := ParseRequest(forecast, nil, []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.RPCID != c.rpc || string(r.Args) != c.args {
			t.Errorf("%s: got id %q, args %s, want %q, %s", name, r.RPCID, r.Args, c.rpc, c.args)
		}
		var positional []string
		for _, p := range r.Positional {
			positional = append(positional, string(p))
		}
		if diff := cmp.Diff(c.positional, positional); diff != "" {
			t.Errorf("%s: positional (-want +got):\n%s", name, diff)
		}
		_, body := r.Result(identity, json.RawMessage(`1`), Load{})
		if want := `"rpc_id":` + c.echo; !strings.Contains(string(body), want) {
			t.Errorf("%s: the reply %s does not echo %s", name, body, want)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	call := func(rest string) string { return `{"type":"rpc_tool_call",` + rest + `}` }
	for name, c := range map[string]struct {
		header Header
		body   string
		code   toolmesh.Code
		text   string // must be in the message
	}{
		"an empty rpc id":              {h("Mesh-Rpc-Id", ""), `{}`, toolmesh.CodeInvalidRequest, "empty"},
		"a long rpc id":                {h("Mesh-Rpc-Id", strings.Repeat("a", maxRPCID+1)), `{}`, toolmesh.CodeInvalidRequest, "513"},
		"an rpc id with a line break":  {h("Mesh-Rpc-Id", "a\r\nX: y"), `{}`, toolmesh.CodeInvalidRequest, "header"},
		"an rpc id that is not UTF-8":  {h("Mesh-Rpc-Id", "a\xff"), `{}`, toolmesh.CodeInvalidRequest, "header"},
		"a header that disagrees":      {h("Mesh-Tool", "weather.other"), `{}`, toolmesh.CodeInvalidRequest, "weather.other"},
		"a session that disagrees":     {h("Mesh-Session", "s2"), `{}`, toolmesh.CodeInvalidRequest, `"s2"`},
		"a short tool name":            {h("Mesh-Tool", "forecast"), `{}`, toolmesh.CodeInvalidRequest, "forecast"},
		"one spelling that disagrees":  {h("Mesh-Timeout-Ms", "500", "Mesh-Timeout-Ms", "0"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Timeout-Ms is there twice"},
		"three, and the last differs":  {h("Mesh-Rpc-Id", "a", "Mesh-Rpc-Id", "a", "mesh-rpc-id", "b"), `{}`, toolmesh.CodeInvalidRequest, "twice"},
		"a required one among several": {h("Mesh-Require", "stream", "Mesh-Require", "x"), `{}`, toolmesh.CodeProtocolError, `"x"`},
		"required in two spellings":    {h("Mesh-Require", "stream", "mesh-require", "x"), `{}`, toolmesh.CodeProtocolError, `"x"`},
		"two spellings that disagree":  {h("Mesh-Rpc-Id", "a", "mesh-rpc-id", "b"), `{}`, toolmesh.CodeInvalidRequest, "twice"},
		"a repetition of nothing":      {h("Mesh-Again", "5"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Rpc-Id"},
		"a repetition of the future":   {h("Mesh-Rpc-Id", "r", "Mesh-Again", "-5"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Again"},
		"a budget that is no number":   {h("Mesh-Timeout-Ms", "2s"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Timeout-Ms"},
		"a deadline that is no number": {h("Mesh-Deadline", "soon"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Deadline"},
		"a stream of no kind":          {h("Mesh-Stream", "yes"), `{}`, toolmesh.CodeInvalidRequest, "inbox"},
		"credit that is no number":     {h("Mesh-Credit", "many"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Credit"},
		"negative credit":              {h("Mesh-Credit", "-1"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Credit"},
		"negative hops":                {h("Mesh-Hops", "-1"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Hops"},
		"endless depth":                {h("Mesh-Depth", "99999999"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Depth"},
		"a flag of no kind":            {h("Mesh-Keepalive", "often"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Keepalive"},
		"MessagePack":                  {h("Mesh-Rpc-Id", "r", "Content-Type", "application/msgpack"), `{}`, toolmesh.CodeInvalidRequest, "not MessagePack"},
		"a type that is none":          {h("Mesh-Rpc-Id", "r", "Content-Type", ";"), `{}`, toolmesh.CodeInvalidRequest, "application/json"},
		"zstd":                         {h("Mesh-Rpc-Id", "r", "Content-Encoding", "zstd"), `{}`, toolmesh.CodeInvalidRequest, "zstd"},
		"an envelope in MessagePack":   {h("Content-Type", "application/msgpack"), call(`"rpc_id":1,"tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "not MessagePack"},
		"a version that is none":       {h("Mesh-Proto", "new"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Proto"},
		"version 0":                    {h("Mesh-Proto", "0"), `{}`, toolmesh.CodeInvalidRequest, "Mesh-Proto"},
		"an unknown isolation":         {h("Mesh-Isolation", "tight"), `{}`, toolmesh.CodeInvalidRequest, "fresh"},
		"an isolation in capitals":     {h("Mesh-Isolation", "Fork"), `{}`, toolmesh.CodeInvalidRequest, "Fork"},
		"a hit is asked for":           {h("Mesh-Cache", "hit"), `{}`, toolmesh.CodeInvalidRequest, "bypass"},
		"an empty isolation":           {h("Mesh-Isolation", ""), `{}`, toolmesh.CodeInvalidRequest, "Isolation"},
		"a later version":              {h("Mesh-Proto", "2"), `{}`, toolmesh.CodeProtocolError, "2"},
		"a feature that is not known":  {h("Mesh-Require", "teleport"), `{}`, toolmesh.CodeProtocolError, "teleport"},
		"one of several":               {h("Mesh-Require", "stream, teleport"), `{}`, toolmesh.CodeProtocolError, "teleport"},
		"in a second value":            {h("Mesh-Require", "stream", "Mesh-Require", "teleport"), `{}`, toolmesh.CodeProtocolError, "teleport"},
		"a header of a later version":  {h("Mesh-Require", "Mesh-Accept-Pack"), `{}`, toolmesh.CodeProtocolError, "Mesh-Accept-Pack"},
		"what comes later":             {h("Mesh-Require", "mesh-accept-pack"), `{}`, toolmesh.CodeProtocolError, "mesh-accept-pack"},

		"envelope: an empty id":        {nil, call(`"rpc_id":"","tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "empty"},
		"envelope: no id":              {nil, call(`"rpc_id":null,"tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "number or text"},
		"envelope: an id of no kind":   {nil, call(`"rpc_id":true,"tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "number or text"},
		"envelope: an object as id":    {nil, call(`"rpc_id":{},"tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "number or text"},
		"envelope: half a surrogate":   {nil, call(`"rpc_id":"\ud800","tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "header"},
		"envelope: a line break":       {nil, call(`"rpc_id":"a\nb","tool_id":"weather.forecast"`), toolmesh.CodeInvalidRequest, "header"},
		"envelope: another tool":       {nil, call(`"rpc_id":"a","tool_id":"weather.other"`), toolmesh.CodeInvalidRequest, "weather.other"},
		"envelope: no tool":            {nil, call(`"rpc_id":"a"`), toolmesh.CodeInvalidRequest, "tool_id"},
		"envelope: null as tool":       {nil, call(`"rpc_id":"a","tool_id":null`), toolmesh.CodeInvalidRequest, "tool"},
		"envelope: a number as tool":   {nil, call(`"rpc_id":"a","tool_id":7`), toolmesh.CodeInvalidRequest, "tool_id"},
		"envelope: args is an object":  {nil, call(`"rpc_id":"a","tool_id":"weather.forecast","args":{}`), toolmesh.CodeInvalidRequest, "args"},
		"envelope: kwargs is an array": {nil, call(`"rpc_id":"a","tool_id":"weather.forecast","kwargs":[]`), toolmesh.CodeInvalidRequest, "kwargs"},
	} {
		r, err := ParseRequest(forecast, c.header, []byte(c.body))
		if err == nil {
			t.Errorf("%s: it was accepted as %+v", name, r)
			continue
		}
		if err.Code != c.code || !strings.Contains(err.Message, c.text) {
			t.Errorf("%s: got %v, want %s naming %q", name, err, c.code, c.text)
		}
		if err.Started != toolmesh.StartedNo || err.Origin != toolmesh.OriginAgent {
			t.Errorf("%s: got started %d, origin %q, want false, agent", name, err.Started, err.Origin)
		}
		if r == nil {
			t.Errorf("%s: there is no request to answer", name)
			continue
		}
		// For any fault the caller gets an answer in its own form.
		header, body := r.Failure(identity, err, Load{})
		if strings.HasPrefix(name, "envelope") != (r.Form != FormPlain) && name != "an envelope in MessagePack" {
			t.Errorf("%s: the answer has form %d", name, r.Form)
		}
		if r.Form == FormPlain {
			checkSafe(t, name, header)
			if got := ParseReply(header, body); got.Kind != ReplyError || got.Err.Code != c.code || got.Err.Started != toolmesh.StartedNo {
				t.Errorf("%s: the answer reads as %+v", name, got)
			}
		} else if got, _ := ParseEnvelope(body); got.Kind != ReplyError || got.Err.Code != c.code || got.Err.Started != toolmesh.StartedNo {
			t.Errorf("%s: the answer %s reads as %+v", name, body, got)
		}
	}
}

// An error echoes the rpc id even of a request with other faults.
func TestRefusalEchoesTheID(t *testing.T) {
	t.Parallel()
	for _, header := range []Header{
		h("mesh-rpc-id", "r7", "Mesh-Timeout-Ms", "x"),
		h("Mesh-Rpc-Id", "r7", "Mesh-Proto", "9"),
		h("Mesh-Rpc-Id", "r7", "Mesh-Tool", "other"),
	} {
		r, err := ParseRequest(forecast, header, nil)
		if err == nil {
			t.Errorf("%v was accepted", header)
			continue
		}
		answer, _ := r.Failure(identity, err, Load{})
		if got := answer.Get(HeaderRPCID); got != "r7" {
			t.Errorf("%v: the answer echoes %q, want r7", header, got)
		}
	}
	r, err := ParseRequest(forecast, h("Mesh-Rpc-Id", ""), nil)
	if err == nil {
		t.Fatal("an empty rpc id was accepted")
	}
	if answer, _ := r.Failure(identity, err, Load{}); answer.Get(HeaderRPCID) != "" {
		t.Errorf("an empty id is echoed: %v", answer)
	}
}

// A session's name is one token, also with dots in it: the header has the real name of each hashed token.
func TestHashedSessionWithDots(t *testing.T) {
	t.Parallel()
	session := subjects.SessionID(strings.Repeat("a", 25) + "." + strings.Repeat("b", 20))
	text, err := subjects.Tool(session, "x")
	if err != nil {
		t.Fatal(err)
	}
	s, err := subjects.Parse(text)
	if err != nil || !subjects.IsHashed(string(s.Session)) {
		t.Fatalf("%s: %v; want a hashed session", text, err)
	}
	call := Call{RPCID: "r", Session: session, Tool: "x"}
	if r, refusal := ParseRequest(s, call.Header(), nil); refusal != nil || r.Session != session {
		t.Errorf("got %q, %v, want %q", r.Session, refusal, session)
	}
}

// Names that travel hashed are told apart by the headers that carry them.
func TestHashedNames(t *testing.T) {
	t.Parallel()
	session, name := subjects.SessionID(strings.Repeat("s", 70)), strings.Repeat("t", 70)
	tool := subjects.ToolID("weather." + name)
	text, err := subjects.Tool(session, tool)
	if err != nil {
		t.Fatal(err)
	}
	s, err := subjects.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	call := Call{RPCID: "r", Session: session, Tool: tool}
	header := call.Header()
	if header.Get(HeaderSession) != string(session) || header.Get(HeaderTool) != string(tool) {
		t.Fatalf("the real names are missing in %v", header)
	}
	r, refusal := ParseRequest(s, header, nil)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if r.Session != session || r.Tool != tool {
		t.Errorf("got %q, %q, want the real names", r.Session, r.Tool)
	}
	for _, wrong := range []Header{
		h("Mesh-Session", string(session)+"x"), h("Mesh-Tool", string(tool)+"x"), h("Mesh-Tool", name), h("Mesh-Session", "s1"),
	} {
		if _, refusal := ParseRequest(s, wrong, nil); refusal == nil || refusal.Code != toolmesh.CodeInvalidRequest {
			t.Errorf("%v: got %v, want invalid_request", wrong, refusal)
		}
	}
	body := `{"type":"rpc_tool_call","rpc_id":1,"tool_id":` + string(Encode(tool)) + `}`
	if r, refusal = ParseRequest(s, nil, []byte(body)); refusal != nil || r.Tool != tool {
		t.Errorf("envelope: got %q, %v, want the real name", r.Tool, refusal)
	}
	if r, refusal = ParseRequest(s, nil, nil); refusal != nil || !subjects.IsHashed(string(r.Session)) {
		t.Errorf("without the headers: got session %q, %v, want the hashed token", r.Session, refusal)
	}
}

func TestCallHeaderIsReadBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		call Call
		want Request
	}{
		"the least": {Call{RPCID: "r", Session: "s1", Tool: "weather.forecast"}, Request{Call: Call{RPCID: "r"}}},
		"all of it": {
			Call{
				RPCID: "r", Session: "s1", Tool: "weather.forecast", Delivery: DeliverLive, Timeout: 1500 * time.Microsecond, Deadline: time.UnixMilli(5),
				Credit: 3, Depth: 2, Parent: "p", Revision: "v", Isolation: "fork", Keepalive: true, WantLoad: true, NoCache: true, Trace: Trace{"t", "s=1", "k=v"},
			},
			Request{HasTimeout: true, HasCredit: true, Call: Call{
				RPCID: "r", Delivery: DeliverLive, Timeout: 2 * time.Millisecond, Deadline: time.UnixMilli(5), Credit: 3,
				Depth: 2, Parent: "p", Revision: "v", Isolation: "fork", Keepalive: true, WantLoad: true, NoCache: true, Trace: Trace{"t", "s=1", "k=v"},
			}},
		},
		"an inbox stream": {Call{RPCID: "r", Delivery: DeliverInbox, Tool: "weather.forecast", Session: "s1"}, Request{Call: Call{RPCID: "r", Delivery: DeliverInbox}}},
		"a budget without end": {
			Call{RPCID: "r", Tool: "weather.forecast", Session: "s1", Timeout: math.MaxInt64},
			Request{Call: Call{RPCID: "r", Timeout: toolmesh.MaxTime}, HasTimeout: true},
		},
		"a budget that is nearly spent": {
			Call{RPCID: "r", Tool: "weather.forecast", Session: "s1", Timeout: 1},
			Request{Call: Call{RPCID: "r", Timeout: time.Millisecond}, HasTimeout: true},
		},
	} {
		c.want.Session, c.want.Tool, c.want.Args = "s1", "weather.forecast", json.RawMessage(`{}`)
		got, err := ParseRequest(forecast, c.call.Header(), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, *got, ignoreUnexported); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Any refusal is answered in the form that the request asks for.
func TestRefusedRequestSaysHowToAnswer(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string][]string{
		"id": {"Mesh-Rpc-Id", ""}, "version": {"Mesh-Proto", "2"}, "requirement": {"Mesh-Require", "teleport"}, "budget": {"Mesh-Timeout-Ms", "soon"},
	} {
		r, err := ParseRequest(forecast, h(append(wrong, "Mesh-Stream", "inbox", "Mesh-Want-Load", "1")...), nil)
		if err == nil || r.Delivery != DeliverInbox || !r.WantLoad {
			t.Errorf("%s: got %v, delivery %d, load %t, want an error, the inbox and the load", name, err, r.Delivery, r.WantLoad)
		}
	}
}

// The broker acts upon headers of its own with the rights of the one that publishes them.
func TestPassedOnHeadersAreNotTheBrokers(t *testing.T) {
	t.Parallel()
	for _, form := range []Form{FormPlain, FormEnvelope} {
		header := Header{"Mesh-Rpc-Id": {"r"}, "Natsy": {"stays"}, "X-Nats-Trace-Dest": {"stays"}}
		for _, name := range []string{"Nats-Trace-Dest", "nats-trace-dest", "NATS-TRACE-ONLY", "Nats-Trace-Dest ", "Nats-Rollup", "Nats-Expected-Last-Sequence", "Nats-Msg-Id", "Nats-TTL", "Nats-Schedule"} {
			header[name] = []string{"$JS.API.STREAM.PURGE.MESH_CHUNKS"}
		}
		got := (&Request{Form: form}).PassOn(header, 0)
		delete(got, HeaderHops)
		want := Header{"Mesh-Rpc-Id": {"r"}, "Natsy": {"stays"}, "X-Nats-Trace-Dest": {"stays"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("form %v (-want +got):\n%s", form, diff)
		}
	}
}
