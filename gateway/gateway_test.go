package gateway_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

type addArgs struct {
	A    int      `json:"a"`
	B    int      `json:"b"`
	More []string `json:"more,omitempty"`
}

type largeArgs struct {
	N int `json:"n,omitempty"` // bytes; 3 MiB without it
}

type countArgs struct {
	N    int  `json:"n"`
	Wait bool `json:"wait,omitempty"` // behind item n, until the test lets it go or the call ends
	Fail bool `json:"fail,omitempty"`
}

// rig is a mesh with keys and a gateway.
type rig struct {
	*meshtest.Keyed
	g       *gateway.Gateway
	server  *gateway.Server
	url     string
	ran     chan string // names of executed tools
	ended   chan error  // why a waiting tool ended
	proceed chan struct{}
	router  *router.Router
	admin   string
	token   string // of session "mine"
	host    *host.Host
}

type noArgs struct{}

func newRig(t *testing.T, change func(*gateway.Options)) *rig {
	t.Helper()
	r := &rig{Keyed: meshtest.WithKeys(t), ran: make(chan string, 100), ended: make(chan error, 100), proceed: make(chan struct{})}
	nc := r.As(t, access.Node)
	var err error
	if r.router, err = router.New(nc, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r.router) })
	if err := r.router.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.host, err = host.New(r.As(t, access.Node), &host.Options{Index: "lab", Node: "n1"}); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]host.Handler{
		"add": host.Func(func(_ context.Context, a addArgs) (int, error) {
			r.ran <- "add"
			return a.A + a.B, nil
		}),
		"fail": host.Func(func(context.Context, noArgs) (int, error) { return 0, errors.New("out of paper") }),
		"large": host.Func(func(_ context.Context, a largeArgs) (string, error) {
			return strings.Repeat("x", cmp.Or(a.N, 3<<20)), nil
		}),
		"wait": host.Func(func(ctx context.Context, _ noArgs) (int, error) {
			r.ran <- "wait"
			select {
			case <-ctx.Done():
				r.ended <- context.Cause(ctx)
				return 0, ctx.Err()
			case <-r.proceed:
				return 1, nil
			}
		}),
		"count": host.Stream(func(ctx context.Context, a countArgs) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				r.ran <- "count"
				for i := range a.N {
					if !yield(i, nil) {
						return
					}
				}
				if a.Wait {
					select {
					case <-ctx.Done():
						r.ended <- context.Cause(ctx)
						return
					case <-r.proceed:
						if !yield(a.N, nil) {
							return
						}
					}
				}
				if a.Fail {
					yield(0, errors.New("jammed"))
				}
			}
		}),
	} {
		if _, err := r.host.Handle(name, h); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.host.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(r.proceed)
		meshtest.End(t, r.host)
	})
	seed, err := os.ReadFile(access.File(r.DataDir, access.Admin))
	if err != nil {
		t.Fatal(err)
	}
	r.admin = string(seed)
	view, err := r.router.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.Seen = func() *registry.View { return view }
	r.AsSession(t, "mine")
	if seed, err = os.ReadFile(filepath.Join(r.DataDir, "session0.nk")); err != nil {
		t.Fatal(err)
	}
	r.token = string(seed)
	o := gateway.Options{
		Dial: func(options ...nats.Option) (*nats.Conn, error) {
			return nats.Connect(r.URL, append(bus.ConnectOptions(&bus.ConnectConfig{Name: "gateway"}), options...)...)
		},
		KeyOf: view.Key,
	}
	if change != nil {
		change(&o)
	}
	if r.g, err = gateway.New(o); err != nil {
		t.Fatal(err)
	}
	if r.server, err = gateway.Listen(t.Context(), r.g, gateway.ListenOptions{Address: "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		r.server.Stop()
	})
	r.url = r.server.URL()
	meshtest.Until(t, "the tools are listed", func() bool {
		a := r.do(t, "GET", "/v1/tools", "", nil)
		return a.status == 200 && strings.Count(a.body, `"serving"`) == 5
	})
	return r
}

// answer is one HTTP answer that was read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) problem(t *testing.T) map[string]any {
	t.Helper()
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("%d %s is no problem: %s", a.status, got, a.body)
	}
	var p map[string]any
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	return p
}

type headers map[string]string

func (r *rig) open(t *testing.T, ctx context.Context, method, path, body string, h headers) *http.Response {
	t.Helper()
	var send io.Reader
	if body != "" {
		send = strings.NewReader(body)
	}
	q, err := http.NewRequestWithContext(ctx, method, r.url+path, send)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	for k, v := range h {
		if k == "Host" {
			q.Host = v
		}
		q.Header.Set(k, v)
	}
	a, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (r *rig) do(t *testing.T, method, path, body string, h headers) answer {
	t.Helper()
	a := r.open(t, t.Context(), method, path, body, h)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{a.StatusCode, a.Header, string(text)}
}

func TestCallAnswersWithTheResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for name, h := range map[string]headers{
		"without a token":  nil,
		"a session's key":  {"Authorization": "Bearer " + r.token},
		"an administrator": {"Authorization": "Bearer " + r.admin, "Mesh-Session": "mine"},
		"its own session":  {"Authorization": "bearer " + r.token, "Mesh-Session": "mine"},
	} {
		a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, h)
		if a.status != 200 || a.body != "5" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if !strings.HasPrefix(a.header.Get("Mesh-Rpc-Id"), "rpc_") || a.header.Get("Mesh-Node") != "n1" || !strings.HasPrefix(a.header.Get("Server-Timing"), "call;dur=") || a.header.Get("Mesh-Changed") != "" {
			t.Errorf("%s: headers %v", name, a.header)
		}
	}
	// An administrator's token opens any session, another token its own one alone.
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	for token, want := range map[string]int{r.admin: 200, r.token: 403} {
		if a := r.do(t, "POST", "/mcp/other", hello, headers{"Authorization": "Bearer " + token, "Accept": "application/json, text/event-stream"}); a.status != want {
			t.Errorf("/mcp/other: %d %s", a.status, a.body)
		}
	}
	if a := r.do(t, "POST", "/v1/tools/lab.large", "", nil); a.status != 200 || len(a.body) != 3<<20+2 {
		t.Errorf("a large result: %d, %d bytes", a.status, len(a.body))
	}
	// As curl -d sends it.
	if a := r.do(t, "POST", "/v1/tools/lab.add", ` {"a":1,"b":1}`, headers{"Content-Type": "application/x-www-form-urlencoded"}); a.status != 200 || a.body != "2" {
		t.Errorf("curl -d: %d %s", a.status, a.body)
	}
}

// A refused request has the status and the code of EDGES, and a reason.
func TestProblems(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 16 })
	stranger := `SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY`
	for name, c := range map[string]struct {
		method, path, body string
		h                  headers
		status             int
		code               string
		more               string // in the body
	}{
		"unknown tool":              {"POST", "/v1/tools/lab.ad", `{}`, nil, 404, "tool_not_found", `"nearest":["lab.add"]`},
		"unknown tool, shown":       {"GET", "/v1/tools/lab.ad", "", nil, 404, "tool_not_found", `"nearest":["lab.add"]`},
		"wrong arguments":           {"POST", "/v1/tools/lab.add", `{"a":1,"b":[],"c":1}`, nil, 422, "invalid_arguments", `"pointer":"/b"`},
		"no arguments":              {"POST", "/v1/tools/lab.add", ``, nil, 422, "invalid_arguments", `"pointer":"/a"`},
		"no object":                 {"POST", "/v1/tools/lab.add", `[1]`, nil, 422, "invalid_arguments", ``},
		"no JSON":                   {"POST", "/v1/tools/lab.add", `{"a":`, nil, 422, "invalid_arguments", ``},
		"a failing tool":            {"POST", "/v1/tools/lab.fail", `{}`, nil, 500, "tool_error", `"exception":{"message":"`},
		"wrong media type":          {"POST", "/v1/tools/lab.add", `<a/>`, headers{"Content-Type": "application/xml"}, 415, "invalid_request", ""},
		"a form":                    {"POST", "/v1/tools/lab.add", `a=1&b=2`, headers{"Content-Type": "application/x-www-form-urlencoded"}, 415, "invalid_request", ""},
		"wrong method":              {"PUT", "/v1/tools/lab.add", `{}`, nil, 405, "invalid_request", ""},
		"a timeout above all":       {"POST", "/v1/tools/lab.add", `{}`, headers{"Mesh-Timeout": "99999999h"}, 400, "invalid_request", "at most"},
		"wrong timeout":             {"POST", "/v1/tools/lab.add", `{}`, headers{"Mesh-Timeout": "soon"}, 400, "invalid_request", ""},
		"time is up":                {"POST", "/v1/tools/lab.wait", `{}`, headers{"Mesh-Timeout": "50ms"}, 504, "deadline_exceeded", ""},
		"large body":                {"POST", "/v1/tools/lab.add", strings.Repeat(" ", 1<<17), nil, 413, "payload_too_large", ""},
		"bad limit":                 {"GET", "/v1/tools?limit=0", "", nil, 400, "invalid_request", ""},
		"bad full":                  {"GET", "/v1/tools?full=true", "", nil, 400, "invalid_request", ""},
		"no words":                  {"GET", "/v1/search?q=", "", nil, 400, "invalid_request", "/v1/search?q=WORDS"},
		"bad limit of a search":     {"GET", "/v1/search?q=add&limit=1001", "", nil, 400, "invalid_request", ""},
		"bad format":                {"GET", "/v1/tools?format=cobol", "", nil, 400, "invalid_request", ""},
		"a compressed body":         {"POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, headers{"Content-Encoding": "gzip"}, 415, "invalid_request", "not compressed"},
		"an empty key":              {"POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, headers{"Idempotency-Key": ""}, 400, "invalid_request", "Idempotency-Key"},
		"a query that is none":      {"GET", "/v1/tools?limit=%zz", "", nil, 400, "invalid_request", "the query"},
		"a word twice":              {"GET", "/v1/tools?limit=1&limit=2", "", nil, 400, "invalid_request", "limit is given 2 times"},
		"an unknown word":           {"GET", "/v1/tools?idnex=lab", "", nil, 400, "invalid_request", `cannot have \"idnex\"`},
		"a word of a call":          {"POST", "/v1/tools/lab.add?timeout=1s", `{}`, nil, 400, "invalid_request", `it may have no words`},
		"a number for a name":       {"POST", "/v1/calls:batch", `{"calls":[{"tool":5}]}`, nil, 400, "invalid_request", `"calls.tool of the request's body is JSON of type number: the body has the form`},
		"a list for a body":         {"POST", "/v1/calls:batch", `[]`, nil, 400, "invalid_request", `"all of the request's body is JSON of type array: the body has the form`},
		"a text for a list":         {"POST", "/v1/calls:batch", `{"calls":"a"}`, nil, 400, "invalid_request", `"calls of the request's body is JSON of type string: the body has the form`},
		"half a body":               {"POST", "/v1/calls:batch", `{"calls":`, nil, 400, "invalid_request", `not valid JSON`},
		"a call of no tool":         {"POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.add"},{"args":{}}]}`, nil, 400, "invalid_request", `call 1 has no tool`},
		"args that are a list":      {"POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.add","args": [1]}]}`, nil, 400, "invalid_request", `the args of call 0 are not an object`},
		"no token":                  {"GET", "/v1/tools", "", headers{"Authorization": "Bearer sesame"}, 401, "unauthenticated", ""},
		"another kind":              {"GET", "/v1/tools", "", headers{"Authorization": "Basic sesame"}, 401, "unauthenticated", ""},
		"a token of another mesh":   {"GET", "/v1/tools", "", headers{"Authorization": "Bearer " + stranger}, 401, "unauthenticated", ""},
		"another session":           {"POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, headers{"Authorization": "Bearer " + r.token, "Mesh-Session": "other"}, 403, "permission_denied", "the token is of session"},
		"another session, no token": {"GET", "/v1/tools", "", headers{"Mesh-Session": "other"}, 403, "permission_denied", "the token is of session"},
		"another site's page":       {"GET", "/v1/tools", "", headers{"Origin": "https://evil.example"}, 403, "permission_denied", ""},
		"another site's name":       {"GET", "/v1/tools", "", headers{"Host": "evil.example"}, 403, "permission_denied", ""},
		"unknown stream":            {"GET", "/v1/calls/rpc_stream_1/stream", "", nil, 404, "not_found", ""},
		"wrong item":                {"GET", "/v1/calls/rpc_stream_1/stream?from=0", "", nil, 400, "invalid_request", ""},
		"a slash in the name":       {"POST", "/v1/tools/lab%2fadd", `{}`, nil, 404, "tool_not_found", ""},
		"a subject in the name":     {"POST", "/v1/tools/lab.%3E", `{}`, nil, 404, "tool_not_found", ""},
		"a null in the name":        {"POST", "/v1/tools/%00", `{}`, nil, 404, "tool_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			a := r.do(t, c.method, c.path, c.body, c.h)
			p := a.problem(t)
			if a.status != c.status || p["code"] != c.code || p["status"] != float64(c.status) || p["type"] != "urn:toolmesh:error:"+c.code || p["title"] == "" || p["detail"] == "" {
				t.Errorf("%d %s", a.status, a.body)
			}
			if !strings.Contains(a.body, c.more) {
				t.Errorf("no %s in %s", c.more, a.body)
			}
			if c.status == 401 && a.header.Get("WWW-Authenticate") == "" || c.status == 405 && a.header.Get("Allow") != "GET, POST" {
				t.Errorf("headers %v", a.header)
			}
			if d := time.Since(begun); d > 5*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
	for _, path := range []string{"/", "/v1", "/v1/tools/", "/v1/tools/../healthz", "//v1/tools", "/v2/tools", "/v1/calls"} {
		if p := r.do(t, "GET", path, "", nil); p.status != 404 || p.problem(t)["type"] != "about:blank" || strings.Contains(p.body, `"code"`) {
			t.Errorf("%s: %d %s", path, p.status, p.body)
		}
	}
	// HEAD is GET without the body, and begins nothing that goes on.
	for path, want := range map[string]int{"/v1/tools": 200, "/v1/events": 405, "/v1/files/x?digest=x": 405, "/v1/calls/rpc_1/stream": 405} {
		if a := r.do(t, "HEAD", path, "", nil); a.status != want || want == 405 && a.header.Get("Allow") != "GET" {
			t.Errorf("HEAD %s: %d %v", path, a.status, a.header)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if a := r.do(t, "GET", path, "", nil); a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

func TestListOfTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := r.do(t, "GET", "/v1/tools?limit=2", "", nil)
	var page struct {
		Tools []struct {
			ID, Index, Session, State string
			Streaming                 bool
			Nodes                     []string
		}
		Next string
	}
	var ids []string
	for {
		if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		for _, one := range page.Tools {
			ids = append(ids, one.ID)
			if one.Index != "lab" || one.State != "serving" || one.Streaming != (one.ID == "lab.count") || fmt.Sprint(one.Nodes) != "[n1]" {
				t.Errorf("%+v", one)
			}
		}
		if page.Next == "" {
			break
		}
		next := page.Next
		page.Next = ""
		a = r.do(t, "GET", "/v1/tools?limit=2&cursor="+next, "", nil)
	}
	if fmt.Sprint(ids) != "[lab.add lab.count lab.fail lab.large lab.wait]" {
		t.Errorf("ids %v", ids)
	}
	whole := r.do(t, "GET", "/v1/tools", "", nil)
	tag := whole.header.Get("ETag")
	if again := r.do(t, "GET", "/v1/tools", "", headers{"If-None-Match": tag}); tag == "" || again.status != 304 || again.body != "" {
		t.Errorf("ETag %s: %d %s", tag, again.status, again.body)
	}
	if a := r.do(t, "GET", "/v1/tools?q=&index=&limit=&cursor=&format=&full=", "", nil); a.body != whole.body {
		t.Errorf("empty parameters: %d %s", a.status, a.body)
	}
	if a := r.do(t, "GET", "/v1/tools?index=other", "", nil); a.body != `{"tools":[]}`+"\n" {
		t.Errorf("another index: %s", a.body)
	}
	for path, want := range map[string]string{
		"/v1/tools?format=openai":    `"function":{"name":"lab-add"`,
		"/v1/tools?format=anthropic": `"input_schema":{"type":"object"`,
		"/v1/tools?format=mcp":       `"title":"lab.add"`,
		"/v1/tools?full=1":           `"input_schema":{`,
		"/v1/tools/lab.add":          `"digest":"`,
		"/v1/tools/add":              `"id":"lab.add"`,
		"/v1/tools?q=add":            `{"tools":[{"id":"lab.add","index":"lab"`,
		"/v1/tools?q=add&index=lab":  `{"tools":[{"id":"lab.add","index":"lab"`,
		"/v1/tools?q=add&index=la":   `{"tools":[]}`,
		"/v1/search?q=add&limit=1":   `{"tools":[{"id":"lab.add","description":"`,
		"/v1/search?q=zebra":         `{"tools":[]}`,
	} {
		if a := r.do(t, "GET", path, "", nil); a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}

	// Lists with schemas wait for room; others need none.
	free := r.g.HoldDocuments()
	full := make(chan answer, 1)
	go func() { full <- r.do(t, "GET", "/v1/tools?full=1", "", nil) }()
	for range 10 {
		if a := r.do(t, "GET", "/v1/tools", "", nil); a.status != 200 {
			t.Errorf("a list without schemas: %d %s", a.status, a.body)
		}
	}
	select {
	case a := <-full:
		t.Errorf("a list with schemas needs no room: %d %.200s", a.status, a.body)
		free()
	default:
		free()
		if a := <-full; a.status != 200 {
			t.Errorf("a list with schemas: %d %s", a.status, a.body)
		}
	}
}

// Arguments that a model wrote in another form are fitted and reported if their meaning is plain.
func TestLenientEdge(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct{ path, body, want, changed string }{
		{"/v1/tools/lab.add", `{"a":"2","b":3}`, "5", "/a"},
		{"/v1/tools/lab.add", `{"a":"2","b":"3","more":"[\"x\"]"}`, "5", "/a,/b,/more"},
		{"/v1/tools/lab-add", `{"a":2,"b":3}`, "5", ""},
		{"/v1/tools/Lab_Add", `{"a":2,"b":"3"}`, "5", "/b"},
	} {
		a := r.do(t, "POST", c.path, c.body, nil)
		if a.status != 200 || a.body != c.want || a.header.Get("Mesh-Changed") != c.changed {
			t.Errorf("%s %s: %d %s, changed %q", c.path, c.body, a.status, a.body, a.header.Get("Mesh-Changed"))
		}
	}
}

func TestIdempotencyKeyRunsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for range 2 {
		a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, headers{"Idempotency-Key": "k1"})
		if a.status != 200 || a.body != "5" {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if n := len(r.ran); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":4}`, headers{"Idempotency-Key": "k1"})
	if p := a.problem(t); a.status != 400 || p["code"] != "invalid_request" {
		t.Errorf("the key for another body: %d %s", a.status, a.body)
	}
	// A call whose text is read as numbers.
	for range 2 {
		if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":"2","b":3}`, headers{"Idempotency-Key": "k2"}); a.status != 200 || a.body != "5" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := len(r.ran); n != 2 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestCallIsCancelledWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	// The second body has more behind its last part than the server reads by itself.
	for kind, body := range map[string]string{"application/json": "{}", "multipart/form-data; boundary=b": "--b--\r\n" + strings.Repeat(" ", 20_000)} {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			q, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/tools/lab.wait", strings.NewReader(body))
			q.Header.Set("Content-Type", kind)
			if a, err := http.DefaultTransport.RoundTrip(q); err == nil {
				_ = a.Body.Close()
			}
		}()
		<-r.ran
		leave()
		<-left
		if err := <-r.ended; err == nil {
			t.Errorf("%s: the tool was not cancelled", kind)
		}
	}
}

// event is one event of a stream.
type event struct{ id, name, data string }

func nextEvent(t *testing.T, lines *bufio.Reader) (e event) {
	t.Helper()
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream broke off behind %+v: %v", e, err)
		}
		switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); name {
		case "":
			if e != (event{}) {
				return e
			}
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		}
	}
}

func TestStreamOfEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	sse := headers{"Accept": "text/event-stream"}
	a := r.do(t, "POST", "/v1/tools/lab.count", `{"n":2}`, sse)
	want := "id: 1\nevent: item\ndata: 0\n\nid: 2\nevent: item\ndata: 1\n\nevent: complete\ndata: {\"count\":2}\n\n"
	if a.status != 200 || a.header.Get("Content-Type") != "text/event-stream" || a.header.Get("X-Accel-Buffering") != "no" || a.body != want {
		t.Errorf("%d %v %q", a.status, a.header, a.body)
	}
	for accept, live := range map[string]bool{"Accept: text/event-stream;q=0.0": false, "Accept: application/json\r\nAccept: text/event-stream": true} {
		_, body := r.raw(t, "POST /v1/tools/lab.count HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+accept+"\r\nContent-Length: 7\r\n\r\n{\"n\":2}")
		if live != (body == want) || !live && body != "1" {
			t.Errorf("%q: %q", accept, body)
		}
	}
	rpc := a.header.Get("Mesh-Rpc-Id")
	// The whole stream again, and from an item on, at any replica: the gateway keeps no state.
	for path, want := range map[string]string{
		"/v1/calls/" + rpc + "/stream":        want,
		"/v1/calls/" + rpc + "/stream?from=2": want[strings.Index(want, "id: 2"):],
		"/v1/calls/" + rpc + "/stream?from=3": want[strings.Index(want, "event: complete"):],
	} {
		if a := r.do(t, "GET", path, "", nil); a.status != 200 || a.body != want {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
	}
	if a := r.do(t, "GET", "/v1/calls/"+rpc+"/stream", "", headers{"Last-Event-ID": "1"}); a.body != want[strings.Index(want, "id: 2"):] {
		t.Errorf("behind 1: %q", a.body)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.count", `{"n":1}`, headers{"Accept": "application/x-ndjson"}); a.body != `{"seq":1,"data":0}`+"\n"+`{"complete":true,"count":1}`+"\n" {
		t.Errorf("lines: %q", a.body)
	}
	// A failure before the first item is an ordinary answer, one behind it an event.
	if p := r.do(t, "POST", "/v1/tools/lab.count", `{"n":0,"fail":true}`, sse); p.status != 500 || p.problem(t)["code"] != "tool_error" {
		t.Errorf("%d %s", p.status, p.body)
	}
	if p := r.do(t, "POST", "/v1/tools/lab.count", `{"n":true}`, sse); p.status != 422 || p.problem(t)["code"] != "invalid_arguments" {
		t.Errorf("%d %s", p.status, p.body)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.count", `{"n":"1","fail":true}`, sse); a.header.Get("Mesh-Changed") != "/n" || !strings.Contains(a.body, "event: problem\ndata: {\"type\":\"urn:toolmesh:error:tool_error\"") {
		t.Errorf("%v %q", a.header, a.body)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.count", `{"n":1,"fail":true}`, headers{"Accept": "application/x-ndjson"}); !strings.Contains(a.body, "\n"+`{"error":{"code":"tool_error"`) {
		t.Errorf("%q", a.body)
	}
	// A call that was no stream has none, once it has ended.
	plain := r.do(t, "POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, nil)
	if p := r.do(t, "GET", "/v1/calls/"+plain.header.Get("Mesh-Rpc-Id")+"/stream", "", nil); p.status != 404 || p.problem(t)["code"] != "not_found" {
		t.Errorf("the stream of a plain call: %d %s", p.status, p.body)
	}
	// A plain function is one item.
	if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, sse); a.body != "id: 1\nevent: item\ndata: 2\n\nevent: complete\ndata: {\"count\":1}\n\n" {
		t.Errorf("%q", a.body)
	}
}

// A reader that loses its connection goes on, at another gateway; one that stays away is missed.
func TestReaderComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	a := r.open(t, ctx, "POST", "/v1/tools/lab.count", `{"n":3,"wait":true}`, headers{"Accept": "text/event-stream"})
	lines := bufio.NewReader(a.Body)
	for range 3 {
		nextEvent(t, lines)
	}
	leave()
	_ = a.Body.Close()
	back, away := context.WithCancel(t.Context())
	defer away()
	a = r.open(t, back, "GET", "/v1/calls/"+a.Header.Get("Mesh-Rpc-Id")+"/stream", "", headers{"Last-Event-ID": "2"})
	defer a.Body.Close()
	lines = bufio.NewReader(a.Body)
	if e := nextEvent(t, lines); e != (event{"3", "item", "2"}) {
		t.Fatalf("%+v", e)
	}
	r.proceed <- struct{}{}
	if e := nextEvent(t, lines); e != (event{"4", "item", "3"}) {
		t.Fatalf("%+v", e)
	}
	if e := nextEvent(t, lines); e != (event{"", "complete", `{"count":4}`}) {
		t.Fatalf("%+v", e)
	}
	// No reader returns for the next one: it ends by itself.
	ctx, leave = context.WithCancel(t.Context())
	b := r.open(t, ctx, "POST", "/v1/tools/lab.count", `{"n":1,"wait":true}`, headers{"Accept": "text/event-stream"})
	nextEvent(t, bufio.NewReader(b.Body))
	left := time.Now()
	leave()
	_ = b.Body.Close()
	if err := <-r.ended; err == nil || time.Since(left) < 5*time.Second {
		t.Errorf("ended by %v after %v", err, time.Since(left))
	}
}

// A gateway that stops tells the readers of its streams, and they read on at another one.
func TestStoppedGatewayLeavesStreams(t *testing.T) {
	t.Parallel()
	var o gateway.Options
	r := newRig(t, func(own *gateway.Options) { o = *own })
	a := r.open(t, t.Context(), "POST", "/v1/tools/lab.count", `{"n":1,"wait":true}`, headers{"Accept": "text/event-stream"})
	defer a.Body.Close()
	lines := bufio.NewReader(a.Body)
	nextEvent(t, lines)
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.server.Stop() }()
	if e := nextEvent(t, lines); e.name != "problem" || !strings.Contains(e.data, `"code":"unavailable"`) {
		t.Errorf("%+v", e)
	}
	<-stopped
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	other, err := gateway.Listen(t.Context(), g, gateway.ListenOptions{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Stop)
	r.url = other.URL()
	a = r.open(t, t.Context(), "GET", "/v1/calls/"+a.Header.Get("Mesh-Rpc-Id")+"/stream", "", headers{"Last-Event-ID": "0"})
	defer a.Body.Close()
	lines = bufio.NewReader(a.Body)
	if e := nextEvent(t, lines); e != (event{"1", "item", "0"}) {
		t.Errorf("%+v", e)
	}
	r.proceed <- struct{}{}
	if e := nextEvent(t, lines); e != (event{"2", "item", "1"}) {
		t.Errorf("%+v", e)
	}
	if e := nextEvent(t, lines); e != (event{"", "complete", `{"count":2}`}) {
		t.Errorf("%+v", e)
	}
}

// The end of a session ends streams of its token, and the next request is refused.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	h := headers{"Authorization": "Bearer " + r.token, "Accept": "text/event-stream"}
	a := r.open(t, t.Context(), "POST", "/v1/tools/lab.count", `{"n":1,"wait":true}`, h)
	defer a.Body.Close()
	lines := bufio.NewReader(a.Body)
	nextEvent(t, lines)
	if err := r.router.EndSession(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	e := nextEvent(t, lines)
	if e.name != "problem" {
		t.Errorf("%+v", e)
	}
	begun := time.Now()
	meshtest.Until(t, "the token is refused", func() bool {
		a := r.do(t, "GET", "/v1/tools", "", headers{"Authorization": "Bearer " + r.token})
		return a.status == 401 && a.problem(t)["code"] == "unauthenticated"
	})
	if d := time.Since(begun); d > 10*time.Second { // 3 s on a machine with time
		t.Errorf("it took %v", d)
	}
}

// One token's streams are bounded, and others go on.
func TestStreamsOfATokenAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxStreams = 2 })
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	sse := headers{"Accept": "text/event-stream"}
	for range 2 {
		a := r.open(t, ctx, "POST", "/v1/tools/lab.count", `{"n":1,"wait":true}`, sse)
		defer a.Body.Close()
	}
	a := r.do(t, "POST", "/v1/tools/lab.count", `{"n":1}`, sse)
	if a.status != 429 || a.problem(t)["code"] != "busy" || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.count", `{"n":1}`, headers{"Authorization": "Bearer " + r.token, "Accept": "text/event-stream"}); a.status != 200 {
		t.Errorf("another token: %d %s", a.status, a.body)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	nowhere := func(...nats.Option) (*nats.Conn, error) { return nil, nats.ErrNoServers }
	for name, o := range map[string]gateway.Options{
		"MaxBody": {MaxBody: -1}, "MaxBody of all": {MaxBody: math.MaxInt64 / 8}, "MaxUpload": {MaxUpload: -1}, "MaxTokens": {MaxTokens: -1},
		"MaxStreams": {MaxStreams: -1}, "MCPResultMax": {MCPResultMax: -1}, "Idle": {Idle: -1}, "Dial": {},
	} {
		if name != "Dial" {
			o.Dial = nowhere
		}
		field, _, _ := strings.Cut(name, " ")
		if _, err := gateway.New(o); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "gateway.Options."+field) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := gateway.Pipe(t.Context(), nil, nil, &gateway.Options{MCPResultMax: -1}, nil, nil); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("a pipe: %v", err)
	}
	g, err := gateway.New(gateway.Options{Dial: nowhere})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	if s, err := gateway.Listen(t.Context(), g, gateway.ListenOptions{Address: "127.0.0.1:0", KeyFile: "key.pem"}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		s.Stop()
		t.Errorf("a key without its certificate: %v", err)
	}
}

func TestWhereAGatewayListens(t *testing.T) {
	t.Parallel()
	nowhere := func(...nats.Option) (*nats.Conn, error) { return nil, nats.ErrNoServers }
	g, err := gateway.New(gateway.Options{Dial: nowhere, CORSOrigins: []string{" https://App.example:443/ "}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0"} {
		if _, err := gateway.Listen(t.Context(), g, gateway.ListenOptions{Address: address}); !errors.Is(err, gateway.ErrInsecure) {
			t.Errorf("%s: %v", address, err)
		}
	}
	s, err := gateway.Listen(t.Context(), g, gateway.ListenOptions{Address: "0.0.0.0:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") {
		t.Errorf("a client is told %s", s.URL())
	}
	r := &rig{url: s.URL()}
	a := r.do(t, "OPTIONS", "/v1/tools", "", headers{"Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("an allowed origin: %d %v", a.status, a.header)
	}
	// A page of another server, by a name that DNS gives to the gateway's address now.
	q := httptest.NewRequestWithContext(t.Context(), "GET", "http://evil.example/v1/tools", nil)
	q.Header.Set("Origin", "http://evil.example")
	page := httptest.NewRecorder()
	g.ServeHTTP(page, q)
	if page.Code != http.StatusForbidden {
		t.Errorf("a page of the gateway's own name: %d %s", page.Code, page.Body)
	}
	for _, origin := range []string{"", "*", "null", "app.example", "https://app.example/page", "https://a@app.example"} {
		if _, err := gateway.New(gateway.Options{Dial: nowhere, CORSOrigins: []string{origin}}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("the origin %q: %v", origin, err)
		}
	}
	// No mesh is there: health says nothing of that, and the rest says so.
	if a := r.do(t, "GET", "/healthz", "", nil); a.status != 200 {
		t.Errorf("healthz %d", a.status)
	}
	if a := r.do(t, "GET", "/v1/tools", "", nil); a.status != 503 || a.problem(t)["code"] != "unavailable" {
		t.Errorf("%d %s", a.status, a.body)
	}
}
