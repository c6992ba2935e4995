package gateway_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// bearer sends a token with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// narrow reads 1 MiB of an event stream, as the Python SDK does of an event.
type narrow struct{ bearer }

func (n narrow) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := n.bearer.RoundTrip(r)
	if err == nil && a.Header.Get("Content-Type") == "text/event-stream" {
		a.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(a.Body, 1<<20), a.Body}
	}
	return a, err
}

// connect connects an MCP client of one revision.
func (r *rig) connect(t *testing.T, path, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	return r.connectBy(t, bearer(r.token), path, version, o)
}

func (r *rig) connectBy(t *testing.T, by http.RoundTripper, path, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url + path, HTTPClient: &http.Client{Transport: by}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func names(t *testing.T, s *mcp.ClientSession) string {
	t.Helper()
	var all []string
	meshtest.Until(t, "the tools are listed", func() bool { // a busy machine's registry may be late
		all = nil
		for one, err := range s.Tools(t.Context(), nil) {
			if err != nil {
				t.Log(err)
				return false
			}
			all = append(all, one.Name)
		}
		return true
	})
	return strings.Join(all, " ")
}

func texts(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if one, ok := c.(*mcp.TextContent); ok {
			all = append(all, one.Text)
		}
	}
	return strings.Join(all, "|")
}

// Both eras of MCP at one URL list, call, get progress, cancel, and are notified of new tools.
func TestMCP(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	type picture struct {
		Type     string `json:"type"`
		Data     []byte `json:"data"`
		MIMEType string `json:"mimeType"`
	}
	next := make(chan struct{})
	if _, err := r.host.Handle("steps", host.Func(func(ctx context.Context, _ noArgs) (int, error) {
		for i, text := range []string{"one", "two", "three"} {
			host.Progress(ctx, []float64{0.25, 0.5, 0.5}[i], text)
			select {
			case <-next:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		return 3, nil
	})); err != nil {
		t.Fatal(err)
	}
	if _, err := r.host.Handle("tell", host.HandlerFunc(func(ctx context.Context, c *host.Call, s host.Sink) error {
		value, _ := json.Marshal(c.Trace)
		return s.Send(ctx, value)
	})); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the tool tell is served", func() bool { return r.do(t, "POST", "/v1/tools/lab.tell", "{}", as(r.token)).status == 200 })
	trace := headers{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1,b=2", "baggage": "user=a%20b"}
	for name, c := range map[string]struct{ wrong, value, want string }{
		"all":                     {"", "", `{"Traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","Tracestate":"a=1,b=2","Baggage":"user=a%20b"}`},
		"a parent that is none":   {"traceparent", "00-1-2-3", `{"Traceparent":"","Tracestate":"","Baggage":"user=a%20b"}`},
		"a state of 513 bytes":    {"tracestate", strings.Repeat("a", 513), `{"Traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","Tracestate":"","Baggage":"user=a%20b"}`},
		"a baggage of 8193 bytes": {"baggage", strings.Repeat("a", 8193), `{"Traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","Tracestate":"a=1,b=2","Baggage":""}`},
	} {
		h := as(r.token)
		maps.Copy(h, trace)
		meta := mcp.Meta{}
		if c.wrong != "" {
			h[c.wrong] = c.value
		}
		for _, name := range []string{"traceparent", "tracestate", "baggage"} {
			meta[name] = h[name]
		}
		if a := r.do(t, "POST", "/v1/tools/lab.tell", "{}", h); a.body != c.want {
			t.Errorf("HTTP: %s: %d %s", name, a.status, a.body)
		}
		if a, err := r.connect(t, "/mcp", "2026-07-28", nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "lab-tell", Meta: meta}); err != nil || texts(a) != c.want {
			t.Errorf("MCP: %s: %+v, %v", name, a, err)
		}
	}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		changed, progress := make(chan struct{}, 10), make(chan string, 100)
		o := &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
			ProgressNotificationHandler: func(_ context.Context, q *mcp.ProgressNotificationClientRequest) {
				progress <- fmt.Sprint(q.Params.Progress, " ", q.Params.Message)
			},
		}
		s := r.connect(t, "/mcp", version, o)
		call := func(name string, args map[string]any) (*mcp.CallToolResult, error) {
			return s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		}
		if got := s.InitializeResult().ProtocolVersion; got != version {
			t.Errorf("%s: negotiated %s", version, got)
		}
		if got := names(t, s); !strings.HasPrefix(got, "lab-add lab-count lab-fail lab-large ") {
			t.Errorf("%s: tools %s", version, got)
		}
		for _, name := range []string{"lab-add", "lab.add", "Lab_Add"} {
			a, err := call(name, map[string]any{"a": 2, "b": 3})
			if err != nil || a.IsError || texts(a) != "5" || fmt.Sprint(a.StructuredContent) != "map[result:5]" {
				t.Errorf("%s: %s: %+v, %v", version, name, a, err)
			}
		}
		if a, err := call("lab-add", map[string]any{"a": "2", "b": 3}); err != nil || texts(a) != "5" || fmt.Sprint(a.Meta["toolmesh/changed"]) != "[/a]" {
			t.Errorf("%s: lenient: %+v, %v", version, a, err)
		}
		if a, err := call("lab-fail", nil); err != nil || !a.IsError || !strings.HasSuffix(texts(a), "out of paper") {
			t.Errorf("%s: a failing tool: %+v, %v", version, a, err)
		}
		if a, err := call("lab-add", map[string]any{"a": 1}); err != nil || !a.IsError || !strings.Contains(texts(a), `"b"`) {
			t.Errorf("%s: wrong arguments: %+v, %v", version, a, err)
		}
		if _, err := call("lab-nothing", nil); err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("%s: unknown tool: %v", version, err)
		}
		params := &mcp.CallToolParams{Name: "lab-count", Arguments: map[string]any{"n": 1}}
		params.SetProgressToken("p1")
		if a, err := s.CallTool(t.Context(), params); err != nil || texts(a) != "0" {
			t.Errorf("%s: a stream: %+v, %v", version, a, err)
		}
		if got := <-progress; got != "1 0" {
			t.Errorf("%s: progress %s", version, got)
		}
		// A tool's progress reaches the client while it runs, and increases.
		params = &mcp.CallToolParams{Name: "lab-steps"}
		params.SetProgressToken(7)
		done := make(chan string)
		go func() {
			a, err := s.CallTool(t.Context(), params)
			done <- fmt.Sprint(texts(a), err)
		}()
		for _, want := range []string{"0.25 one", "0.5 two", "0.5000000000000001 three"} {
			if got := <-progress; got != want {
				t.Errorf("%s: progress %q, want %q", version, got, want)
			}
			next <- struct{}{}
		}
		if got := <-done; got != "3<nil>" {
			t.Errorf("%s: steps: %s", version, got)
		}
		// A call that its client gives up is cancelled where it runs.
		for len(r.ran) > 0 {
			<-r.ran
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = s.CallTool(ctx, &mcp.CallToolParams{Name: "lab-wait"})
		}()
		<-r.ran
		leave()
		<-left
		if err := <-r.ended; err == nil {
			t.Errorf("%s: the call was not cancelled", version)
		}
		// So is one whose response is closed, or whose session ends.
		for _, ends := range []string{"response", "session"} {
			if version > "2026" {
				break
			}
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				r.legacyCall(ctx, s.ID(), "lab-wait")
			}()
			<-r.ran
			if ends == "response" {
				leave()
			} else {
				_ = s.Close()
				s = r.connect(t, "/mcp", version, o)
			}
			if err := <-r.ended; err == nil {
				t.Errorf("%s: the call did not end with its %s", version, ends)
			}
			leave()
			<-left
		}
		// A new tool is told of.
		for len(changed) > 0 {
			<-changed
		}
		name := "new" + version[:4]
		if _, err := r.host.Handle(name, host.Func(func(context.Context, noArgs) (picture, error) {
			return picture{"image", []byte("png"), "image/png"}, nil
		})); err != nil {
			t.Fatal(err)
		}
		if version < "2026" { // a client of 2026-07-28 must subscribe, which the SDK's does not
			<-changed
		}
		meshtest.Until(t, "the new tool is listed", func() bool { return strings.Contains(names(t, s), name) })
		a, err := call("lab-"+name, nil)
		if image, ok := a.Content[0].(*mcp.ImageContent); err != nil || !ok || string(image.Data) != "png" || image.MIMEType != "image/png" || a.StructuredContent == nil {
			t.Errorf("%s: an image: %+v, %v", version, a, err)
		}
	}
	// Bytes that a schema gives a type are an image or a sound.
	for name, media := range map[string]string{"png": "image/png", "ogg": "audio/ogg", "pdf": "application/pdf"} {
		output := fmt.Sprintf(`{"type":"string","contentEncoding":"base64","contentMediaType":%q}`, media)
		if _, err := r.host.Handle(name, host.Func(func(context.Context, noArgs) ([]byte, error) { return []byte("bytes"), nil }), host.Schema(nil, json.RawMessage(output))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.host.Handle("peek", host.Func(func(context.Context, noArgs) (int, error) { return 1, nil }), func(d *tool.Descriptor) { d.Annotations.ReadOnly = true }); err != nil {
		t.Fatal(err)
	}
	typed := r.connect(t, "/mcp", "2026-07-28", nil)
	meshtest.Until(t, "the tools of typed bytes are listed", func() bool {
		got := names(t, typed)
		return strings.Contains(got, "lab-png") && strings.Contains(got, "lab-ogg") && strings.Contains(got, "lab-pdf") && strings.Contains(got, "lab-peek")
	})
	for name, want := range map[string]mcp.Content{
		"lab-png": &mcp.ImageContent{Data: []byte("bytes"), MIMEType: "image/png"},
		"lab-ogg": &mcp.AudioContent{Data: []byte("bytes"), MIMEType: "audio/ogg"},
		"lab-pdf": &mcp.TextContent{Text: "Ynl0ZXM="},
	} {
		a, err := typed.CallTool(t.Context(), &mcp.CallToolParams{Name: name})
		if err != nil || len(a.Content) != 1 || !reflect.DeepEqual(a.Content[0], want) || fmt.Sprint(a.StructuredContent) != "map[result:Ynl0ZXM=]" {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	for path, want := range map[string]string{
		"/mcp?tools=lab.a*,*.wait":      "lab-add lab-wait",
		"/mcp?tools=l**d":               "lab-add",
		"/mcp?tools=l*d":                "",
		"/mcp?read_only=1":              "lab-peek",
		"/mcp?tools=lab.*a*&prefix=off": "add fail large wait",
		"/mcp/mine?tools=lab.add":       "lab-add",
	} {
		s := r.connect(t, path, "2026-07-28", nil)
		if got := names(t, s); got != want {
			t.Errorf("%s: tools %q, want %q", path, got, want)
		}
	}
	// A list of several pages is read to its end.
	var many []host.Tool
	for i := range 1100 {
		id := subjects.ToolID(fmt.Sprintf("many.t%04d", i))
		many = append(many, host.Tool{Handler: host.Func(func(context.Context, noArgs) (int, error) { return 0, nil }), Descriptor: &tool.Descriptor{
			ID: id, Name: string(id[5:]), InputSchema: json.RawMessage(`{"type":"object"}`), Metadata: json.RawMessage(`{}`),
		}})
	}
	if err := r.host.Publish(t.Context(), host.Service{Index: "many", Revision: "1", Tools: many}); err != nil {
		t.Fatal(err)
	}
	s := r.connect(t, "/mcp", "2025-11-25", nil)
	meshtest.Until(t, "all pages are listed", func() bool { return strings.Count(names(t, s), "many-t") == len(many) })
	left := make(chan struct{})
	go func() {
		defer close(left)
		r.legacyCall(t.Context(), s.ID(), "lab-wait")
	}()
	<-r.ran
	r.g.Close()
	if err := <-r.ended; err == nil {
		t.Error("the call did not end with the gateway")
	}
	<-left
}

// legacyCall calls a tool in a session by a bare POST, which knows no other way to cancel than to close it.
func (r *rig) legacyCall(ctx context.Context, session, name string) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":"bare","method":"tools/call","params":{"name":"`+name+`"}}`))
	if err != nil {
		panic(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"} {
		q.Header.Set(k, v)
	}
	if a, err := (&http.Client{Transport: bearer(r.token)}).Do(q); err == nil {
		_, _ = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
	}
}

// An invalid MCP request is answered as such, and a session's id is worthless with another token.
func TestMCPBadInput(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	s := r.connect(t, "/mcp", "2025-11-25", nil)
	mine := headers{"Authorization": "Bearer " + r.token, "Accept": "application/json, text/event-stream", "Mcp-Session-Id": s.ID(), "Mcp-Protocol-Version": "2025-11-25"}
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	if a := r.do(t, "POST", "/mcp", list, mine); a.status != 200 || !strings.Contains(a.body, "lab-add") {
		t.Fatalf("%d %s", a.status, a.body)
	}
	delete(mine, "Authorization")
	if a := r.do(t, "POST", "/mcp", list, mine); a.status != 404 {
		t.Errorf("a session of another token: %d %s", a.status, a.body)
	}
	accept := "application/json, text/event-stream"
	for name, c := range map[string]struct {
		body string
		h    headers
		want int
		in   string
	}{
		"a list by hand":     {`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"curl","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, headers{"Mcp-Method": "tools/list", "Mcp-Protocol-Version": "2026-07-28"}, 200, "lab-add"},
		"a call by hand":     {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"lab-add","arguments":{"a":2,"b":3},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"curl","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, headers{"Mcp-Method": "tools/call", "Mcp-Name": "lab-add", "Mcp-Protocol-Version": "2026-07-28"}, 200, `{"result":5}`},
		"no JSON":            {`{`, nil, 400, ""},
		"a batch":            {`[` + list + `]`, headers{"Mcp-Protocol-Version": "2025-11-25"}, 400, "invalid_request"},
		"a batch of 2025-03": {" \n[" + list + `]`, nil, 400, "invalid_request"},
		"read_only=true":     {list, headers{"Query": "?read_only=true"}, 400, "invalid_request"},
		"a wrong escape":     {list, headers{"Query": "?tools=a%zz"}, 400, "invalid_request"},
		"an unknown word":    {list, headers{"Query": "?tool=lab.add"}, 400, "invalid_request"},
		"two times tools":    {list, headers{"Query": "?tools=a&tools=b"}, 400, "invalid_request"},
		"no headers":         {`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`, nil, 400, ""},
		"an unknown version": {`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01","io.modelcontextprotocol/clientCapabilities":{}}}}`, headers{"Mcp-Method": "tools/list", "Mcp-Protocol-Version": "2099-01-01"}, 400, "-32022"},
		"another method":     {list, headers{"Mcp-Method": "tools/call", "Mcp-Protocol-Version": "2026-07-28"}, 400, ""},
		"another page":       {list, headers{"Origin": "https://evil.example"}, 403, ""},
		"no version of RPC":  {`{"id":1,"method":"tools/list"}`, nil, 400, ""},
		"an id that is none": {`{"jsonrpc":"2.0","id":{},"method":"tools/list"}`, nil, 400, ""},
		"an unknown method":  {`{"jsonrpc":"2.0","id":"a","method":"no/method","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, headers{"Mcp-Method": "no/method", "Mcp-Protocol-Version": "2026-07-28"}, 404, "-32601"},
		"a bad cursor":       {`{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"cursor":"?","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, headers{"Mcp-Method": "tools/list", "Mcp-Protocol-Version": "2026-07-28"}, 400, "-32602"},
		"a bad view":         {list, headers{"Query": "?prefix=on"}, 400, "invalid_request"},
		"a body of 9 MiB":    {`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 9<<20) + `"}`, nil, 413, "payload_too_large"},
		"a bad token":        {list, headers{"Authorization": "Bearer x"}, 401, "unauthenticated"},
	} {
		h := headers{"Accept": accept}
		for k, v := range c.h {
			h[k] = v
		}
		if a := r.do(t, "POST", "/mcp"+c.h["Query"], c.body, h); a.status != c.want || !strings.Contains(a.body, c.in) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

// A token's views are bounded, and a view is not notified of another view's tools.
func TestMCPViewsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	h := headers{"Authorization": "Bearer " + r.token, "Accept": "application/json, text/event-stream"}
	begin := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	session := ""
	for i := range 64 {
		a := r.do(t, "POST", fmt.Sprintf("/mcp?tools=lab.add,x.%d", i), begin, h)
		if session = a.header.Get("Mcp-Session-Id"); a.status != 200 || session == "" {
			t.Fatalf("view %d: %d %s", i, a.status, a.body)
		}
	}
	if a := r.do(t, "POST", "/mcp", begin, h); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("a view too many: %d %s", a.status, a.body)
	}
	if a := r.do(t, "POST", "/mcp/other", begin, h); a.status != 403 || !strings.Contains(a.body, "mine") {
		t.Errorf("a session of others: %d %s", a.status, a.body)
	}
	if a := r.do(t, "POST", "/mcp/other", begin, headers{"Authorization": "Bearer " + r.admin, "Accept": h["Accept"]}); a.status != 200 {
		t.Errorf("an administrator in a session of others: %d %s", a.status, a.body)
	}
	h["Mcp-Session-Id"] = session
	if a := r.do(t, "DELETE", "/mcp?tools=lab.add,x.63", "", h); a.status != 204 {
		t.Fatalf("end a session: %d %s", a.status, a.body)
	}
	s := r.connect(t, "/mcp?tools=lab.add", "2025-11-25", nil)
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "lab-fail"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("a tool of another view: %v", err)
	}
}

// A result of which a model's context would be full is its beginning and a link to all of it.
func TestMCPLargeResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MCPResultMax = 1000 })
	type row struct {
		Name string `json:"name"`
		N    int    `json:"n"`
	}
	for name, h := range map[string]host.Handler{
		"rows": host.Func(func(context.Context, noArgs) ([]row, error) { return slices.Repeat([]row{{"a name", 7}}, 1000), nil }),
		"page": host.Func(func(context.Context, noArgs) (map[string]string, error) {
			return map[string]string{"id": "p", "text": strings.Repeat("é", 5000)}, nil
		}),
	} {
		if _, err := r.host.Handle(name, h); err != nil {
			t.Fatal(err)
		}
	}
	exact := host.Schema(nil, json.RawMessage(`{"type":"string","minLength":5000}`))
	if _, err := r.host.Handle("exact", host.Func(func(context.Context, noArgs) (string, error) { return strings.Repeat("x", 5000), nil }), exact); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		s := r.connectBy(t, narrow{bearer(r.token)}, "/mcp", version, nil)
		a, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "lab-large"})
		if err != nil || len(a.Content) != 3 {
			t.Fatalf("%s: %d blocks, %v", version, len(a.Content), err)
		}
		// Cut structured content fits the schema and is marked as cut: clients refuse content that does not fit.
		var tools map[string]*mcp.Tool
		meshtest.Until(t, "the tools are listed", func() bool {
			tools = make(map[string]*mcp.Tool)
			for one, err := range s.Tools(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				tools[one.Name] = one
			}
			return tools["lab-rows"] != nil && tools["lab-page"] != nil && tools["lab-exact"] != nil
		})
		for name, begins := range map[string]string{
			"lab-large": `"result":"xxxxx`, "lab-rows": `"result":[{"n":7,"name":"a name"},{"n":7,"name":"a name"},`, "lab-page": `"id":"p","text":"ééé`,
		} {
			a, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name})
			if err != nil || a.IsError || a.Meta["toolmesh/shortened"] != true {
				t.Fatalf("%s: %s: %+v, %v", version, name, a, err)
			}
			schema, _ := json.Marshal(tools[name].OutputSchema)
			cut, _ := tool.MarshalPlain(a.StructuredContent)
			fits, err := tool.Compile(schema)
			if err != nil {
				t.Fatal(err)
			}
			if wrong, err := fits.CheckResult(cut); wrong != nil || err != nil || len(cut) < 500 || len(cut) > 2000 || !strings.Contains(string(cut), begins) || !strings.Contains(string(cut), "mesh://results/") {
				t.Errorf("%s: %s: %d bytes %s, %v, %v", version, name, len(cut), cut, wrong, err)
			}
		}
		if a, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "lab-exact"}); err != nil || !a.IsError || a.StructuredContent != nil || !strings.Contains(texts(a), "The tool has run") || len(texts(a)) > 2000 {
			t.Errorf("%s: no cut fits: %+v, %v", version, a, err)
		}
		link, ok := a.Content[1].(*mcp.ResourceLink)
		if got := texts(a); !ok || !strings.HasPrefix(got, strings.Repeat("x", 1000)+"|The result has 3145728 characters") || *link.Size != 3<<20 || link.MIMEType != "text/plain" {
			t.Fatalf("%s: %.2000s, %+v", version, got, a.Content[1])
		}
		for range 2 { // it is kept for its time
			whole, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link.URI})
			if err != nil || len(whole.Contents) != 1 || whole.Contents[0].Text != strings.Repeat("x", 3<<20) {
				t.Fatalf("%s: the link: %v", version, err)
			}
		}
		for _, uri := range []string{"mesh://results/x", "mesh://results/" + base64.RawURLEncoding.EncodeToString([]byte("a\nb\nc")), "file:///etc/passwd"} {
			if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil || !strings.Contains(err.Error(), "not found") {
				t.Errorf("%s: %s: %v", version, uri, err)
			}
		}
		// It is the session's alone.
		other := &mcp.StreamableClientTransport{Endpoint: r.url + "/mcp"}
		if c, err := mcp.NewClient(&mcp.Implementation{Name: "other", Version: "1"}, nil).Connect(t.Context(), other, nil); err != nil {
			t.Error(err)
		} else if _, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link.URI}); err == nil {
			t.Errorf("%s: another session reads the result", version)
		} else {
			_ = c.Close()
		}
	}
}

// A link may name any object of its session, also one that is larger than what the gateway holds for a token.
func TestMCPReadsNoLargeObject(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 16 }) // so large answers have 512 KiB
	c, err := client.NewOn(testmesh.Bus(t, r.AsSession(t, "mine"), nil), &client.Options{Session: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s := r.connect(t, "/mcp", "2025-11-25", nil)
	for size, want := range map[int]string{1 << 10: "", 1 << 20: "bytes together"} {
		file, err := c.PutBytes(t.Context(), bytes.Repeat([]byte("x"), size))
		if err != nil {
			t.Fatal(err)
		}
		uri := "mesh://results/" + base64.RawURLEncoding.EncodeToString([]byte(file.Ref+"\n"+file.Digest+"\ntext/plain"))
		got, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		switch {
		case want == "" && (err != nil || len(got.Contents[0].Text) != size):
			t.Errorf("%d bytes: %v", size, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%d bytes: %v, want an error with %q", size, err, want)
		}
	}
}

// A client on a pipe has the same views; search=1 shows two tools, by which all are found and called.
func TestMCPSearchAndPipe(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	pipe := func(query string) (*mcp.ClientSession, func() error) {
		b := testmesh.Bus(t, r.AsSession(t, "mine"), nil)
		c, err := client.NewOn(b, &client.Options{Session: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		in, toServer := io.Pipe()
		fromServer, out := io.Pipe()
		served := make(chan error, 1)
		go func() { served <- gateway.Pipe(t.Context(), c, q, &gateway.Options{}, in, out) }()
		s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s, func() error {
			_ = s.Close()
			_ = toServer.Close()
			return <-served
		}
	}
	plain, end := pipe("tools=lab.add&prefix=off")
	if got := names(t, plain); got != "add" {
		t.Errorf("on a pipe: %s", got)
	}
	if err := end(); err != nil {
		t.Errorf("a pipe ends with %v", err)
	}
	onPipe, end := pipe("search=1&tools=lab.**")
	for name, s := range map[string]*mcp.ClientSession{
		"a pipe": onPipe, "HTTP, legacy": r.connect(t, "/mcp?search=1", "2025-11-25", nil), "HTTP": r.connect(t, "/mcp?search=1", "2026-07-28", nil),
	} {
		if got := names(t, s); got != "call_tool find_tools" {
			t.Fatalf("%s: %s", name, got)
		}
		a, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "find_tools", Arguments: map[string]any{"query": "add", "limit": 1}})
		if err != nil || a.IsError {
			t.Fatalf("%s: %s %v", name, texts(a), err)
		}
		var found struct {
			Tools []struct {
				Name, Description string
				InputSchema       map[string]any
				Score             float64
			}
		}
		raw, _ := json.Marshal(a.StructuredContent)
		if err := json.Unmarshal(raw, &found); err != nil || len(found.Tools) != 1 || found.Tools[0].Name != "lab-add" || found.Tools[0].Score <= 0 || found.Tools[0].InputSchema["properties"] == nil || found.Tools[0].Description == "" {
			t.Errorf("%s: found %s", name, raw)
		}
		a, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "call_tool", Arguments: map[string]any{"name": "lab-add", "arguments": map[string]any{"a": "2", "b": 3}}})
		if err != nil || texts(a) != "5" || fmt.Sprint(a.Meta["toolmesh/changed"]) != "[/a]" {
			t.Errorf("%s: call_tool: %+v %v", name, a, err)
		}
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "call_tool", Arguments: map[string]any{"name": "lab-none"}}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("%s: an unknown tool: %v", name, err)
		}
		for _, args := range []map[string]any{nil, {"query": ""}, {"query": "x", "limit": 1000}, {"query": 3}} {
			if a, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "find_tools", Arguments: args}); err != nil || !a.IsError {
				t.Errorf("%s: find_tools %v: %+v %v", name, args, a, err)
			}
		}
	}
	if err := end(); err != nil {
		t.Errorf("a pipe ends with %v", err)
	}
}

// A session lasts as long as its client listens, also without a POST, and ends when it is idle.
func TestMCPSessionWithAnOpenStreamLasts(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.Idle = 100 * time.Millisecond })
	h := headers{"Authorization": "Bearer " + r.token, "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25"}
	begin := func() headers {
		mine := maps.Clone(h)
		a := r.do(t, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, h)
		if mine["Mcp-Session-Id"] = a.header.Get("Mcp-Session-Id"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return mine
	}
	list := `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	var listens headers
	meshtest.Until(t, "a client listens", func() bool {
		listens = begin()
		a := r.open(t, t.Context(), "GET", "/mcp", "", listens)
		t.Cleanup(func() { _ = a.Body.Close() })
		return a.StatusCode == 200
	})
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		idle := begin()
		time.Sleep(wait) // the session is to have no request for this long
		if a := r.do(t, "POST", "/mcp", list, idle); a.status == 404 {
			break
		}
	}
	if a := r.do(t, "POST", "/mcp", list, listens); a.status != 200 || !strings.Contains(a.body, "lab-add") {
		t.Errorf("the session of a client that listens: %d %s", a.status, a.body)
	}
}

// A read-only token lists, finds and calls over MCP the tools that declare read_only, and no others.
func TestMCPReadOnlyToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if _, err := r.host.Handle("peek", host.Func(func(context.Context, noArgs) (int, error) { return 1, nil }), func(d *tool.Descriptor) {
		d.Annotations.ReadOnly, d.Description = true, "Adds nothing, and counts nothing."
	}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the tool is served", func() bool { return r.do(t, "POST", "/v1/tools/lab.peek", "{}", as(r.token)).status == 200 })
	reader := *r
	reader.token = strings.TrimPrefix(r.narrowed(t, registry.TokenRecord{ReadOnly: true})["Authorization"], "Bearer ")
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		s, search := reader.connect(t, "/mcp", version, nil), reader.connect(t, "/mcp?search=1", version, nil)
		if got := names(t, s); got != "lab-peek" {
			t.Errorf("%s: tools %q", version, got)
		}
		if a, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "lab-peek"}); err != nil || texts(a) != "1" {
			t.Errorf("%s: %+v, %v", version, a, err)
		}
		if a, err := search.CallTool(t.Context(), &mcp.CallToolParams{Name: "find_tools", Arguments: map[string]any{"query": "add count", "limit": 9}}); err != nil || strings.Count(texts(a), `"name"`) != 1 || !strings.Contains(texts(a), `"lab-peek"`) {
			t.Errorf("%s: found %+v, %v", version, a, err)
		}
		for name, call := range map[string]func() (*mcp.CallToolResult, error){
			"directly": func() (*mcp.CallToolResult, error) {
				return s.CallTool(t.Context(), &mcp.CallToolParams{Name: "lab.add", Arguments: map[string]any{"a": 1, "b": 2}})
			},
			"by call_tool": func() (*mcp.CallToolResult, error) {
				return search.CallTool(t.Context(), &mcp.CallToolParams{Name: "call_tool", Arguments: map[string]any{"name": "lab-add", "arguments": map[string]any{"a": 1, "b": 2}}})
			},
		} {
			if a, err := call(); err == nil || !strings.Contains(err.Error(), "unknown tool") {
				t.Errorf("%s: another tool %s: %+v, %v", version, name, a, err)
			}
		}
	}
	if len(r.ran) > 0 {
		t.Errorf("%s ran", <-r.ran)
	}
	for path, want := range map[string]int{"/v1/tools/lab.peek": 200, "/v1/tools/lab.add": 404} {
		if a := r.do(t, "GET", path, "", as(reader.token)); a.status != want {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

// Of a list that has changed only the tools that are new are read.
func TestMCPReadsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	s := r.connect(t, "/mcp", "2025-11-25", nil)
	if got := names(t, s); got != "lab-add lab-count lab-fail lab-large lab-wait" {
		t.Fatalf("tools %s", got)
	}
	nc := r.As(t, access.Admin)
	asked := make(chan *nats.Msg, 1000)
	for _, verb := range []string{registry.VerbDescribe, registry.VerbRender} {
		subject, err := subjects.Registry("mine", verb)
		if err == nil {
			_, err = nc.ChanSubscribe(subject, asked)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.host.Handle("more", host.Func(func(context.Context, noArgs) (int, error) { return 1, nil })); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the new tool is listed", func() bool { return strings.Contains(names(t, s), "lab-more") })
	if err := nc.Flush(); err != nil { // behind what was asked
		t.Fatal(err)
	}
	if len(asked) == 0 {
		t.Error("it was not asked for")
	}
	for len(asked) > 0 {
		if m := <-asked; !strings.Contains(string(m.Data), `"lab.more"`) || strings.Contains(string(m.Data), `"lab.add"`) {
			t.Errorf("%s is asked: %s", m.Subject, m.Data)
		}
	}
}

// A DELETE that names no session ends none of the token's calls: those of 2026-07-28 have no session either.
func TestMCPDeleteWithoutASession(t *testing.T) {
	r := newRig(t, nil)
	h := headers{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Method": "tools/call", "Mcp-Name": "lab-wait", "Mcp-Protocol-Version": "2026-07-28"}
	maps.Copy(h, as(r.token))
	done := make(chan answer, 1)
	go func() {
		done <- r.do(t, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"lab-wait","arguments":{},"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, h)
	}()
	<-r.ran
	if a := r.do(t, "DELETE", "/mcp", "", as(r.token)); a.status != 400 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, as(r.token)); a.status != 200 { // comes behind a cancel
		t.Errorf("%d %s", a.status, a.body)
	}
	select {
	case why := <-r.ended:
		t.Fatalf("the call was ended: %v", why)
	default:
	}
	r.proceed <- struct{}{}
	if a := <-done; a.status != 200 || strings.Contains(a.body, "cancelled") {
		t.Errorf("%d %s", a.status, a.body)
	}
}
