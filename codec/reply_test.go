package codec

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

var identity = NewIdentity("gpu-1", "boot-1", "rev-1")

// plain and the others are requests as they arrive in each form.
func plain(t testing.TB, pairs ...string) *Request {
	t.Helper()
	r, err := ParseRequest(forecast, h(append([]string{"Mesh-Rpc-Id", "r"}, pairs...)...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func envelopeOf(t testing.TB, kind, id string) *Request {
	t.Helper()
	r, err := ParseRequest(forecast, nil, []byte(`{"type":"`+kind+`","rpc_id":`+id+`,"tool_id":"weather.forecast"}`))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkSafe fails when a header could not travel as it is: on one line, as text.
func checkSafe(t *testing.T, name string, header Header) {
	t.Helper()
	for k, values := range header {
		if len(values) != 1 {
			t.Errorf("%s: header %s has %d values", name, k, len(values))
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c > '~' }) || strings.TrimSpace(v) != v {
				t.Errorf("%s: header %s is %q", name, k, v)
			}
		}
	}
}

func TestResult(t *testing.T) {
	t.Parallel()
	head := h("Mesh-Rpc-Id", "r", "Mesh-Node", "gpu-1", "Mesh-Boot", "boot-1", "Mesh-Revision", "rev-1", "Mesh-Proto", "1")
	with := func(pairs ...string) Header {
		c := h(pairs...)
		for k, v := range head {
			c[k] = v
		}
		return c
	}
	for name, c := range map[string]struct {
		r      *Request
		result string
		header Header
		body   string
	}{
		"plain":                    {plain(t), `{"a": 1}`, head, `{"a": 1}`},
		"plain, load asked for":    {plain(t, "Mesh-Want-Load", "1"), `1`, with("Mesh-Load", "3/8"), `1`},
		"plain, nothing":           {plain(t), ``, head, `null`},
		"envelope":                 {envelopeOf(t, "rpc_tool_call", `"e"`), `{"a":"<b>"}`, nil, `{"type":"rpc_tool_response","rpc_id":"e","status":"ok","result":{"a":"<b>"}}`},
		"envelope, number":         {envelopeOf(t, "rpc_tool_call", `7`), `null`, nil, `{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":null}`},
		"envelope, nothing":        {envelopeOf(t, "rpc_tool_call", `7`), ``, nil, `{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":null}`},
		"older name":               {envelopeOf(t, "rpc_call", `7`), `[1]`, nil, `{"type":"rpc_response","rpc_id":7,"status":"ok","result":[1]}`},
		"envelope, a large number": {envelopeOf(t, "rpc_call", `7`), `12345678901234567890`, nil, `{"type":"rpc_response","rpc_id":7,"status":"ok","result":12345678901234567890}`},
	} {
		header, body := c.r.Result(identity, json.RawMessage(c.result), Load{3, 8})
		if diff := cmp.Diff(c.header, header); diff != "" {
			t.Errorf("%s: header (-want +got):\n%s", name, diff)
		}
		if string(body) != c.body {
			t.Errorf("%s: got %s, want %s", name, body, c.body)
		}
	}
	if header, _ := plain(t).Result(NewIdentity("n", "b", ""), nil, Load{}); header.Get(HeaderRevision) != "" {
		t.Errorf("a service without revisions sends one: %v", header)
	}
}

// A result that no envelope can hold is a failure, never an empty message.
func TestResultThatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"rpc_tool_call", "rpc_call"} {
		_, body := envelopeOf(t, kind, `7`).Result(identity, json.RawMessage(`{"a":`), Load{})
		reply, id := ParseEnvelope(body)
		if reply.Kind != ReplyError || reply.Err.Code != toolmesh.CodeResultNotSerializable || string(id) != "7" {
			t.Errorf("%s: got %s", kind, body)
		}
	}
	c := Chunk{Type: ChunkData, Seq: 3, Data: json.RawMessage(`NaN`)}
	reply, _ := ParseEnvelope(c.Envelope(envelopeOf(t, "rpc_tool_stream", `7`)))
	if reply.Kind != ReplyChunk || reply.Chunk.Err == nil || reply.Chunk.Err.Code != toolmesh.CodeResultNotSerializable || reply.Chunk.Seq != 3 {
		t.Errorf("chunk: got %+v", reply)
	}
}

func TestFailure(t *testing.T) {
	t.Parallel()
	err := toolmesh.Errorf(toolmesh.CodeToolError, "no city <x>").WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes).WithDetail("n", 1)
	err.Type, err.Stacktrace = "ValueError", "a.py:3"
	object := `{"code":"tool_error","message":"no city <x>","details":{"n":1},"origin":"tool","retryable":false,"started":true,"type":"ValueError","stacktrace":"a.py:3"}`
	head := h(
		"Mesh-Rpc-Id", "r", "Mesh-Node", "gpu-1", "Mesh-Boot", "boot-1", "Mesh-Revision", "rev-1", "Mesh-Proto", "1",
		"Mesh-Error-Code", "tool_error", "Mesh-Started", "true", "Nats-Service-Error-Code", "500", "Nats-Service-Error", "no city <x>",
	)
	for name, c := range map[string]struct {
		r      *Request
		header Header
		body   string
	}{
		"plain":           {plain(t), head, `{"error":` + object + `}`},
		"envelope":        {envelopeOf(t, "rpc_tool_call", `"e"`), nil, `{"type":"rpc_tool_response","rpc_id":"e","status":"error","error":` + object + `}`},
		"older name":      {envelopeOf(t, "rpc_call", `1`), nil, `{"type":"rpc_response","rpc_id":1,"status":"error","error":` + object + `}`},
		"envelope stream": {envelopeOf(t, "rpc_tool_stream", `1`), nil, `{"type":"rpc_stream_chunk","rpc_id":1,"chunk_type":"error","seq":1,"error":` + object + `}`},
	} {
		header, body := c.r.Failure(identity, err, Load{})
		if diff := cmp.Diff(c.header, header); diff != "" {
			t.Errorf("%s: header (-want +got):\n%s", name, diff)
		}
		if string(body) != c.body {
			t.Errorf("%s: got %s, want %s", name, body, c.body)
		}
	}
	header, body := plain(t, "Mesh-Want-Load", "1").Failure(identity, toolmesh.Errorf(toolmesh.CodeBusy, "full").WithStarted(toolmesh.StartedNo), Load{8, 8})
	if header.Get(HeaderLoad) != "8/8" || header.Get(HeaderStarted) != "false" || header.Get(HeaderServiceErrorCode) != "429" {
		t.Errorf("busy: got %v", header)
	}
	if got := ParseReply(header, body); !got.HasLoad || got.Load != (Load{8, 8}) || !got.Err.Retryable || got.Err.Started != toolmesh.StartedNo {
		t.Errorf("busy reads as %+v", got)
	}
	if header, _ = plain(t).Failure(identity, toolmesh.Errorf(toolmesh.CodeNodeLost, "x"), Load{}); header.Get(HeaderStarted) != "" {
		t.Errorf("an unknown start is told: %v", header)
	}
	// Readers of the older object expect a type: without an exception's class, the code.
	_, body = envelopeOf(t, "rpc_call", `1`).Failure(identity, toolmesh.Errorf(toolmesh.CodeBusy, "full"), Load{})
	if !strings.Contains(string(body), `"type":"busy"`) {
		t.Errorf("the envelope's error has no type: %s", body)
	}
}

// A message is the tool's text: it must not become a header of its own.
func TestMessagesStayInTheirHeader(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a\r\nMesh-Node: evil", "a\nb\n", "\x00\x1b[31m", "\xff\xfe", "  spaces  ", strings.Repeat("ü", 5000), strings.Repeat("\xff", 5000), "", "\n",
		strings.Repeat(" ", 600) + "x", strings.Repeat("a", 511) + "ü", "\u2028line\u0085next", "nul\x7f", strings.Repeat("a", 5000), strings.Repeat("😀", 5000),
	} {
		err := &toolmesh.Error{Code: toolmesh.CodeToolError, Message: text}
		header, body := plain(t).Failure(identity, err, Load{})
		checkSafe(t, "plain", header)
		if n := len(header.Get(HeaderServiceError)); n > 600 {
			t.Errorf("%.20q: the header has %d bytes", text, n)
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("%.20q: the body is not JSON: %.100s", text, body)
		}
		if got := ParseReply(header, body); got.Err == nil || got.Err.Code != toolmesh.CodeToolError {
			t.Errorf("%.20q: it reads as %+v", text, got)
		} else if utf8.ValidString(text) && got.Err.Message != text {
			t.Errorf("%.20q: the message reads as %.40q", text, got.Err.Message)
		}
		header, body = ErrorReply(err)
		checkSafe(t, "outside of a call", header)
		if got := ParseReply(header, body); got.Kind != ReplyError {
			t.Errorf("%.20q: outside of a call it reads as %+v", text, got)
		}
	}
}

// Details that cannot be rendered cost the details, not the error.
func TestDetailsThatDoNotMarshal(t *testing.T) {
	t.Parallel()
	err := toolmesh.Errorf(toolmesh.CodeToolError, "boom").WithDetail("f", func() {})
	check := func(name string, got *toolmesh.Error) {
		t.Helper()
		if got == nil || got.Code != toolmesh.CodeToolError || got.Message != "boom" {
			t.Errorf("%s: got %+v, want the error without its details", name, got)
		}
	}
	header, body := plain(t).Failure(identity, err, Load{})
	check("plain", ParseReply(header, body).Err)
	for _, kind := range []string{"rpc_tool_call", "rpc_call", "rpc_tool_stream"} {
		_, body := envelopeOf(t, kind, `1`).Failure(identity, err, Load{})
		reply, _ := ParseEnvelope(body)
		if kind == "rpc_tool_stream" {
			reply.Err = reply.Chunk.Err
		}
		check(kind, reply.Err)
	}
	c := Chunk{Type: ChunkError, Seq: 1, Err: err}
	header, body = c.Encode("r", "")
	chunk, failed := ParseChunk(header, body)
	if failed != nil {
		t.Fatal(failed)
	}
	check("chunk", chunk.Err)
	reply, _ := ParseEnvelope(c.Envelope(envelopeOf(t, "rpc_tool_stream", `1`)))
	check("envelope chunk", reply.Chunk.Err)
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	node := []string{"Mesh-Node", "n", "Mesh-Boot", "b", "Mesh-Rpc-Id", "r"}
	with := func(pairs ...string) Header { return h(append(append([]string(nil), node...), pairs...)...) }
	for name, c := range map[string]struct {
		header Header
		body   string
		want   Reply
	}{
		"a result":                    {with("Mesh-Revision", "v", "Mesh-Load", "1/4"), `{"a":1}`, Reply{Kind: ReplyResult, Node: "n", Boot: "b", Revision: "v", HasLoad: true, Load: Load{1, 4}, Body: json.RawMessage(`{"a":1}`), High: -1}},
		"names in another case":       {h("mesh-node", "n", "MESH-BOOT", "b"), `1`, Reply{Node: "n", Boot: "b", Body: json.RawMessage(`1`), High: -1}},
		"load that cannot be read":    {with("Mesh-Load", "many"), `1`, Reply{Node: "n", Boot: "b", Body: json.RawMessage(`1`), High: -1}},
		"a result without headers":    {nil, `1`, Reply{Body: json.RawMessage(`1`), High: -1}},
		"the end of an inbox stream":  {nil, ``, Reply{Kind: ReplyEnd, High: -1}},
		"the end of a replay":         {h("Mesh-High", "300"), ``, Reply{Kind: ReplyEnd, High: 300}},
		"the end of a whole one":      {h("Mesh-High", "300;terminal"), ``, Reply{Kind: ReplyEnd, High: 300, Terminal: true}},
		"the end of an empty one":     {h("Mesh-High", "0"), ``, Reply{Kind: ReplyEnd, High: 0}},
		"a keepalive":                 {with("Mesh-Keepalive", "1"), ``, Reply{Kind: ReplyKeepalive, Node: "n", Boot: "b", High: -1}},
		"a keepalive of a stream":     {with("Mesh-Keepalive", "1", "Mesh-High", "7"), ``, Reply{Kind: ReplyKeepalive, Node: "n", Boot: "b", High: 7}},
		"a keepalive that says more":  {with("Mesh-Keepalive", "1", "Mesh-High", "7;terminal"), ``, Reply{Kind: ReplyKeepalive, Node: "n", Boot: "b", High: 7, Terminal: true}},
		"a keepalive with a bad high": {with("Mesh-Keepalive", "1", "Mesh-High", "x"), ``, Reply{Kind: ReplyKeepalive, Node: "n", Boot: "b", High: -1}},
		"a result is no keepalive":    {with("Mesh-Keepalive", "1"), `1`, Reply{Kind: ReplyResult, Node: "n", Boot: "b", Body: json.RawMessage(`1`), High: -1}},
		"no responders":               {h("Status", "503"), ``, Reply{Kind: ReplyNoResponders, High: -1}},
		"a body behind a status":      {h("Status", "503"), `1`, Reply{Body: json.RawMessage(`1`), High: -1}},
		"a chunk":                     {h("Mesh-Chunk", "data", "Mesh-Seq", "2"), `5`, Reply{Kind: ReplyChunk, High: -1, Chunk: Chunk{Type: ChunkData, Seq: 2, Data: json.RawMessage(`5`)}}},
		"a terminal":                  {h("Mesh-Chunk", "complete", "Mesh-Seq", "3", "Mesh-Count", "2"), ``, Reply{Kind: ReplyChunk, High: -1, Chunk: Chunk{Type: ChunkComplete, Seq: 3, Count: 2}}},
	} {
		got := ParseReply(c.header, []byte(c.body))
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, c := range map[string]struct {
		header Header
		body   string
	}{
		"a chunk of no number": {h("Mesh-Chunk", "data"), `1`},
		"an end of no number":  {h("Mesh-High", "many"), ``},
	} {
		if got := ParseReply(c.header, []byte(c.body)); got.Kind != ReplyError || got.Err.Code != toolmesh.CodeProtocolError {
			t.Errorf("%s: got %+v, want protocol_error", name, got)
		}
	}
}

func TestParseReplyErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header  Header
		body    string
		code    toolmesh.Code
		message string
		started toolmesh.Started
	}{
		"headers and body":          {h("Mesh-Error-Code", "busy", "Nats-Service-Error-Code", "429", "Nats-Service-Error", "f", "Mesh-Started", "false"), `{"error":{"code":"busy","message":"full","started":false}}`, toolmesh.CodeBusy, "full", toolmesh.StartedNo},
		"headers alone":             {h("Mesh-Error-Code", "busy", "Nats-Service-Error-Code", "429", "Nats-Service-Error", "full", "Mesh-Started", "false"), ``, toolmesh.CodeBusy, "full", toolmesh.StartedNo},
		"names in another case":     {h("mesh-error-code", "tool_error", "nats-service-error", "x", "MESH-STARTED", "true"), ``, toolmesh.CodeToolError, "x", toolmesh.StartedYes},
		"a micro service's error":   {h("Nats-Service-Error-Code", "404", "Nats-Service-Error", "no"), `text`, toolmesh.CodeToolNotFound, "no", toolmesh.StartedUnknown},
		"a body that is no object":  {h("Mesh-Error-Code", "internal"), `[]`, toolmesh.CodeInternal, "", toolmesh.StartedUnknown},
		"a started that is unknown": {h("Mesh-Error-Code", "internal", "Mesh-Started", "perhaps"), ``, toolmesh.CodeInternal, "", toolmesh.StartedUnknown},
		"the body wins":             {h("Mesh-Error-Code", "internal"), `{"error":{"code":"cancelled","message":"m","started":true}}`, toolmesh.CodeCancelled, "m", toolmesh.StartedYes},
	} {
		got := ParseReply(c.header, []byte(c.body))
		if got.Kind != ReplyError || got.Err.Code != c.code || got.Err.Message != c.message || got.Err.Started != c.started {
			t.Errorf("%s: got %+v", name, got.Err)
		}
	}
	for number, want := range map[string]toolmesh.Code{
		"400": toolmesh.CodeInvalidRequest, "401": toolmesh.CodePermissionDenied, "403": toolmesh.CodePermissionDenied, "404": toolmesh.CodeToolNotFound,
		"409": toolmesh.CodeInvalidRequest, "413": toolmesh.CodePayloadTooLarge, "422": toolmesh.CodeInvalidArguments, "429": toolmesh.CodeBusy,
		"499": toolmesh.CodeCancelled, "500": toolmesh.CodeInternal, "501": toolmesh.CodeInternal, "502": toolmesh.CodeProtocolError,
		"503": toolmesh.CodeUnavailable, "504": toolmesh.CodeDeadlineExceeded, "599": toolmesh.CodeInternal, "": toolmesh.CodeInternal, "x": toolmesh.CodeInternal,
	} {
		got := ParseReply(h("Mesh-Error-Code", "teapot", "Nats-Service-Error-Code", number), []byte(`{"error":{"code":"teapot","message":"m"}}`))
		if got.Err.Code != want || got.Err.Details["code"] != "teapot" {
			t.Errorf("an unknown code of number %q: got %s with %v, want %s", number, got.Err.Code, got.Err.Details, want)
		}
	}
	// Every code of ours comes back as itself, with its number beside it.
	for _, code := range toolmesh.Codes() {
		sent := &toolmesh.Error{Code: code, Message: "m"}
		header, body := plain(t).Failure(identity, sent, Load{})
		if got := ParseReply(header, body); got.Err.Code != code {
			t.Errorf("%s came back as %s", code, got.Err.Code)
		}
		if got := ParseReply(header, nil); got.Err.Code != code {
			t.Errorf("%s came back from its headers as %s", code, got.Err.Code)
		}
	}
}

func TestAckAndKeepalive(t *testing.T) {
	t.Parallel()
	header, body := plain(t, "Mesh-Want-Load", "1").Ack(identity, Load{1, 2})
	if string(body) != `{"rpc_id":"r","node":"gpu-1"}` {
		t.Errorf("acknowledgement: got %s", body)
	}
	if got := ParseReply(header, body); got.Kind != ReplyResult || got.Node != "gpu-1" || got.Boot != "boot-1" || got.Load != (Load{1, 2}) {
		t.Errorf("the acknowledgement reads as %+v", got)
	}
	for high, want := range map[int64]string{-1: "", 0: "0", 9: "9"} {
		header := plain(t).KeepaliveHeader(identity, high, nil)
		if header.Get(HeaderHigh) != want || header.Get(HeaderKeepalive) != "1" {
			t.Errorf("keepalive at %d: got %v", high, header)
		}
		if got := ParseReply(header, nil); got.Kind != ReplyKeepalive || got.High != high {
			t.Errorf("the keepalive at %d reads as %+v", high, got)
		}
	}
}

func TestLoadAndHeaderText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Load{"0/0": {}, "3/8": {3, 8}} {
		if got, ok := ParseLoad(text); !ok || got != want || got.String() != text {
			t.Errorf("ParseLoad(%q): got %+v, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "/", "3", "3/", "/8", "-1/8", "1/-8", "a/b", "1/2/3"} {
		if got, ok := ParseLoad(text); ok || got != (Load{}) {
			t.Errorf("ParseLoad(%q): got %+v, %t, want nothing", text, got, ok)
		}
	}
	for text, want := range map[string]string{
		"": "", " a\tb\r\nc ": "a b  c", "naïve 😀 “x”": `na\u00efve \U0001f600 \u201cx\u201d`, "a\u00a0b\u2028c\u0085d": "a b c d", "\xff": `\ufffd`,
		strings.Repeat("a", 512): strings.Repeat("a", 512), strings.Repeat("a", 513): strings.Repeat("a", 512) + "...",
		strings.Repeat("a", 510) + "ü": strings.Repeat("a", 510) + "...", // an escape is not cut in two
	} {
		if got := HeaderText(text); got != want {
			t.Errorf("HeaderText(%q): got %q, want %q", text, got, want)
		}
	}
}

// The reader of jnats ends at a byte of a header that is not ASCII, and hears
// nothing more: a node's name must not do that to its callers.
func TestANodesNameInAHeaderIsASCII(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 40)
	for name, want := range map[string]string{
		"gpu-1": "gpu-1", "rack 7.example.org": "rack 7.example.org", "x--rack": "x--rack", "büro": "x--cb1rosjf", long: "x--h-nnsrvp86e2c7jscs2223dg2ego",
	} {
		header, _ := plain(t).Result(NewIdentity(subjects.NodeID(name), "b", "größer"), nil, Load{})
		checkSafe(t, name, header)
		if got := header.Get(HeaderNode); got != want {
			t.Errorf("%q stands there as %q, want %q", name, got, want)
		}
		if got := ParseReply(header, []byte("1")).Node; !subjects.SameName(got, subjects.NodeID(name)) || got != subjects.NodeID(name) && name != long {
			t.Errorf("%q is read as %q", name, got)
		}
		named := plain(t)
		named.RPCID = subjects.RPCID(name)
		for what, header := range map[string]Header{"a keepalive": named.KeepaliveHeader(identity, -1, nil), "at a router": named.AwaitsHeader(AwaitsNode, 0)} {
			if got := header.Get(HeaderRPCID); got != want {
				t.Errorf("%s: the call %q stands there as %q, want %q", what, name, got, want)
			}
		}
		for _, value := range []string{name, want} { // in a request it may be either
			r, bad := ReadRequest(forecast, Header{HeaderRPCID: {value}, HeaderParent: {value}}, nil)
			if bad != nil || !subjects.SameName(r.RPCID, subjects.RPCID(name)) || r.Parent != r.RPCID || name != long && string(r.RPCID) != name {
				t.Errorf("a request of %q is of %q below %q, %v", value, r.RPCID, r.Parent, bad)
			}
		}
		// A subject is built of it without knowing of this.
		direct, err := subjects.EncodeToken(name)
		if token := header.Get(HeaderNode); err != nil || name != want && token != direct {
			t.Errorf("%q: in a header %q, in a subject %q %v", name, token, direct, err)
		}
	}
}

func TestParseEnvelopeReplies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		id   string
		want Reply
	}{
		"a result":        {`{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":[1]}`, "7", Reply{Body: json.RawMessage(`[1]`)}},
		"of an older one": {`{"type":"rpc_response","rpc_id":"a","status":"ok","result":null}`, `"a"`, Reply{Body: json.RawMessage(`null`)}},
		"an item":         {`{"type":"rpc_stream_chunk","rpc_id":"a","chunk_type":"data","data":5,"seq":2}`, `"a"`, Reply{Kind: ReplyChunk, Chunk: Chunk{Type: ChunkData, Seq: 2, Data: json.RawMessage(`5`)}}},
		"the last":        {`{"type":"rpc_stream_chunk","rpc_id":"a","chunk_type":"complete","seq":3}`, `"a"`, Reply{Kind: ReplyChunk, Chunk: Chunk{Type: ChunkComplete, Seq: 3, Count: 2}}},
		"the older end":   {`{"type":"rpc_stream_end","rpc_id":"a"}`, `"a"`, Reply{Kind: ReplyEnd}},
		"an older error": {
			`{"type":"rpc_response","rpc_id":"a","status":"error","error":{"type":"ValueError","message":"m"}}`, `"a"`,
			Reply{Kind: ReplyError, Err: &toolmesh.Error{Code: toolmesh.CodeToolError, Type: "ValueError", Message: "m"}},
		},
		"a code of later": {
			`{"type":"rpc_response","rpc_id":"a","status":"error","error":{"code":"teapot","message":"m"}}`, `"a"`,
			Reply{Kind: ReplyError, Err: &toolmesh.Error{Code: toolmesh.CodeInternal, Message: "m", Details: map[string]any{"code": "teapot"}}},
		},
	} {
		c.want.High = -1
		got, id := ParseEnvelope([]byte(c.body))
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(toolmesh.Error{})); diff != "" || string(id) != c.id {
			t.Errorf("%s: id %s, reply (-want +got):\n%s", name, id, diff)
		}
	}
	for _, body := range []string{``, `x`, `[]`, `{}`, `{"type":"rpc_tool_response"}`, `{"type":"rpc_stream_chunk","chunk_type":"data","seq":0}`, `{"type":"rpc_response","status":"error"}`} {
		if got, _ := ParseEnvelope([]byte(body)); got.Kind != ReplyError || got.Err.Code != toolmesh.CodeProtocolError {
			t.Errorf("%s: got %+v, want protocol_error", body, got)
		}
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	header := Header{"Mesh-Node": {"a", "b"}, "mesh-boot": {"c"}, "Mesh-Load": nil}
	for name, want := range map[string]string{"Mesh-Node": "a", "MESH-NODE": "a", "Mesh-Boot": "c", "Mesh-Load": "", "Mesh-Seq": ""} {
		if got := header.Get(name); got != want {
			t.Errorf("Get(%s): got %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]bool{"Mesh-Node": true, "mesh-node": true, "Mesh-Boot": true, "Mesh-Seq": false} {
		if got := header.Get(name) != ""; got != want {
			t.Errorf("Get(%s) != \"\": got %t, want %t", name, got, want)
		}
	}
	if (Header{"Nats-Msg-Id": {"1"}, "Mesh-": {"1"}, "Meshed": {"1"}}).hasMesh() {
		t.Error("foreign headers are taken for ours")
	}
	if headerName("Mesh-Rpc-Id-And-Much-More-Than-Any-Header") != "" || headerName("X-Mine") != "" || headerName("") != "" {
		t.Error("a foreign header has one of our names")
	}
	for lower, name := range canonical {
		if headerName(lower) != name || headerName(strings.ToUpper(name)) != name || headerName(name) != name {
			t.Errorf("headerName does not find %s", name)
		}
	}
}

// An id that travels hashed is echoed as the caller wrote it.
func TestLongIDIsEchoed(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("long ", 50) + "x"
	r, err := ParseRequest(forecast, h("Mesh-Rpc-Id", id), nil)
	if err != nil {
		t.Fatal(err)
	}
	if header, _ := r.Result(identity, nil, Load{}); header.Get(HeaderRPCID) != id || r.RPCID != subjects.RPCID(id) {
		t.Errorf("got %q", header.Get(HeaderRPCID))
	}
}
