package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// raw sends bytes as they are and reads the answer, if there is one.
func (r *rig) raw(t *testing.T, sent string) (status int, body string) {
	t.Helper()
	conn := r.dial(t)
	if _, err := io.WriteString(conn, sent); err != nil {
		return 0, err.Error() // it was cut off before it had sent all
	}
	a, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	text, _ := io.ReadAll(a.Body)
	return a.StatusCode, string(text)
}

func (r *rig) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// What strangers send is answered, with a status of 4xx, or their connection is closed; others are served
// meanwhile, and nothing grows.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxStreams = 300 })
	const head = "POST /v1/tools/lab.add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	for what, c := range map[string]struct {
		sent   string
		status []int // 0: the connection is closed
	}{
		"no HTTP":                    {"\x16\x03\x01\x02\x00hello\r\n\r\n", []int{400}},
		"no Host":                    {"GET /v1/tools HTTP/1.1\r\n\r\n", []int{400}},
		"two Hosts":                  {"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", []int{400}},
		"two tokens":                 {"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", []int{401}},
		"an absolute URL":            {"GET http://evil.example/v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{403}},
		"CONNECT":                    {"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n", []int{403, 404}},
		"a header that is a bomb":    {"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", []int{431}},
		"many headers":               {"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: y\r\n", 20_000) + "\r\n", []int{431}},
		"a long path":                {"GET /v1/tools/" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{414, 431}},
		"a body of 1 GB":             {head + "Content-Length: 1073741824\r\n\r\n", []int{413}},
		"a body of 12 MiB":           {head + "Content-Length: 12582912\r\n\r\n" + strings.Repeat(" ", 12<<20), []int{413}},
		"a negative length":          {head + "Content-Length: -1\r\n\r\n", []int{400}},
		"two lengths":                {head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", []int{400}},
		"length and chunks":          {head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{400, 422}},
		"chunks that are none":       {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", []int{400}},
		"dots":                       {"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{404}},
		"encoded dots":               {"GET /v1/tools/%2e%2e%2f%2e%2e HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{404}},
		"a backslash":                {"GET /v1/tools/..\\..\\x HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{404}},
		"a wrong escape":             {"GET /v1/tools/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{400}},
		"a subject":                  {"GET /v1/tasks/* HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{404}},
		"a subject of another":       {"GET /v1/calls/a.b.%3E/stream HTTP/1.1\r\nHost: localhost\r\n\r\n", []int{400, 404, 503}},
		"a session that is none":     {"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\nMesh-Session: *\r\n\r\n", []int{400, 403}},
		"a trace that is none":       {head + "Traceparent: x\r\nContent-Length: 13\r\n\r\n{\"a\":1,\"b\":1}", []int{200}},
		"a long idempotency key":     {head + "Idempotency-Key: " + strings.Repeat("k", 600) + "\r\nContent-Length: 13\r\n\r\n{\"a\":1,\"b\":1}", []int{400}},
		"two idempotency keys":       {head + "Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 13\r\n\r\n{\"a\":1,\"b\":1}", []int{400}},
		"two sessions":               {"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\nMesh-Session: default\r\nMesh-Session: mine\r\n\r\n", []int{400}},
		"a body that is not UTF-8":   {head + "Content-Length: 9\r\n\r\n{\"a\":\"\xff\"}", []int{422}},
		"JSON as deep as it is long": {head + "Content-Length: 100000\r\n\r\n" + strings.Repeat("[", 100_000), []int{400, 422}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var status int
			var body string
			meshtest.Until(t, "the request is answered", func() bool { // on a busy machine the mesh behind the gateway may be late
				status, body = r.raw(t, c.sent)
				return slices.Contains(c.status, status) || status < 502
			})
			if !slices.Contains(c.status, status) {
				t.Errorf("status %d: %.300s", status, body)
			}
		})
	}
	t.Run("others are served", func(t *testing.T) {
		t.Parallel()
		// Slow senders and readers, and unread streams: each costs only itself.
		for range 20 {
			slow := r.dial(t)
			_, _ = io.WriteString(slow, head+"Content-Length: 1000\r\n\r\n{")
			silent := r.dial(t)
			_, _ = io.WriteString(silent, "POST /v1/tools/lab.large HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		for range 60 {
			a := r.open(t, ctx, "POST", "/v1/tools/lab.count", `{"n":1,"wait":true}`, headers{"Accept": "text/event-stream", "Authorization": "Bearer " + r.token})
			defer a.Body.Close()
			<-r.ran
		}
		for range 10 {
			if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, nil); a.status != 200 || a.body != "5" {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
	})
}

// An idle stream holds what net/http and the SDK hold for it, and little more. The test runs alone: it is about
// memory of the process.
func TestIdleStreamsAreSmall(t *testing.T) {
	r := newRig(t, nil)
	const streams = 300
	ask := func(method, more, body string) *http.Response {
		conn := r.dial(t)
		if _, err := fmt.Fprintf(conn, "%s /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n\r\n%s", method, r.token, len(body), more, body); err != nil {
			t.Fatal(err)
		}
		a, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || a.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", method, a, err)
		}
		return a
	}
	var ids []string
	for range streams {
		a := ask("POST", "Connection: close\r\nAccept: application/json, text/event-stream", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
		_, _ = io.Copy(io.Discard, a.Body)
		ids = append(ids, a.Header.Get("Mcp-Session-Id"))
	}
	before := live()
	for _, id := range ids {
		ask("GET", "Accept: text/event-stream\r\nMcp-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: "+id, "")
	}
	now := live()
	each := (now - min(now, before)) / streams
	t.Logf("an idle stream of MCP holds %d KiB, its client's part among them", each>>10)
	if each > 96<<10 {
		t.Errorf("an idle stream of MCP holds %d KiB", each>>10)
	}
}

// live is how many bytes of the heap are in use.
func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// A body of any size that does not say its size is read up to the limit, and the connection is closed.
func TestEndlessBodyEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 16 })
	conn := r.dial(t)
	_, _ = io.WriteString(conn, "POST /v1/tools/lab.add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
	sent := make(chan error, 1)
	go func() {
		for {
			if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", 1<<12, strings.Repeat(" ", 1<<12)); err != nil {
				sent <- err
				return
			}
		}
	}()
	a, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || a.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("%v %v", a, err)
	}
	_ = a.Body.Close()
	if err := <-sent; errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the gateway goes on reading: %v", err)
	}
}

// The bodies of one token that have not come whole have a bound together, on every path, and others are served.
func TestBodiesOfATokenAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 16 })
	for _, path := range []string{"/v1/tools/lab.add", "/mcp"} {
		conns := make([]net.Conn, 9)
		answers := make(chan int, len(conns))
		for i := range conns {
			conns[i] = r.dial(t)
			go func() {
				_, _ = io.WriteString(conns[i], "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 65536\r\n\r\n"+strings.Repeat(" ", 65_000))
				status := 0
				if a, err := http.ReadResponse(bufio.NewReader(conns[i]), nil); err == nil {
					status = a.StatusCode
				}
				answers <- status
			}()
		}
		if status := <-answers; status != http.StatusTooManyRequests {
			t.Errorf("%s: the first answer is %d", path, status)
		}
		if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, as(r.token)); a.status != 200 {
			t.Errorf("%s: another token: %d %s", path, a.status, a.body)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		for range len(conns) - 1 {
			<-answers
		}
		meshtest.Until(t, "there is room again", func() bool {
			return r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`+strings.Repeat(" ", 60_000), nil).status == 200
		})
	}
	// Answers that nobody reads fill the token's room. Of those that come then, slow readers are cut off long
	// before the others: what is sent on their connections is refused. Readers that read are served.
	waits, _ := r.unreadOne(t, "", nil)
	cut, _ := r.unreadOne(t, "", nil)
	for began := time.Now(); ; began = time.Now() {
		a := r.open(t, t.Context(), "POST", "/v1/tools/lab.large", "", nil)
		n, err := io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
		if n == 3<<20+2 {
			break
		}
		if time.Since(began) < 2*time.Second { // so long it may take
			t.Fatalf("a reader that reads: %d, %d bytes, %v", a.StatusCode, n, err)
		}
	}
	meshtest.Until(t, "the slow reader is cut off", func() bool {
		_, err := io.WriteString(cut, " ")
		return err != nil
	})
	for range 2 { // a closed connection refuses what comes behind its first answer
		if _, err := io.WriteString(waits, " "); err != nil {
			t.Errorf("the reader that was first is cut off: %v", err)
		}
		r.do(t, "GET", "/v1/tools", "", nil)
	}
	// Once the readers that are hurried have as much again, results that came in a message are refused, too.
	meshtest.Until(t, "a result is refused", func() bool {
		refused, leave := r.unread(t, `{"n":900000}`, 16, nil)
		leave()
		return refused > 0
	})
}

// unread makes calls of lab.large at once whose answers have begun, and whose clients read no more of them. It returns
// how many were refused.
func (r *rig) unread(t *testing.T, args string, calls int, h headers) (refused int32, leave func()) {
	t.Helper()
	conns := make([]net.Conn, calls)
	var opening sync.WaitGroup
	var busy atomic.Int32
	for i := range conns {
		opening.Go(func() {
			var head []byte
			if conns[i], head = r.unreadOne(t, args, h); string(head) != "HTTP/1.1 429" {
				return
			}
			a, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), conns[i])), nil)
			if err != nil {
				t.Error(err)
				return
			}
			body, _ := io.ReadAll(a.Body)
			_ = a.Body.Close()
			if refusedResult(t, answer{a.StatusCode, a.Header, string(body)}) {
				busy.Add(1)
			}
		})
	}
	opening.Wait()
	return busy.Load(), func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}
}

func (r *rig) unreadOne(t *testing.T, args string, h headers) (conn net.Conn, head []byte) {
	t.Helper()
	conn, err := (&net.Dialer{Control: smallBuffer}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	t.Cleanup(func() { _ = conn.Close() })
	line := ""
	for name, value := range h {
		line += name + ": " + value + "\r\n"
	}
	_, _ = fmt.Fprintf(conn, "POST /v1/tools/lab.large HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", line, len(args), args)
	head = make([]byte, len("HTTP/1.1 200"))
	_, _ = io.ReadFull(conn, head)
	return conn, head
}

// refusedResult reports whether an answer says that a call has run and its result may not be held.
func refusedResult(t *testing.T, a answer) bool {
	p := a.problem(t)
	ok := a.status == 429 && p["code"] == "busy" && p["started"] == true && a.header.Get("Retry-After") != "" && a.header.Get("Mesh-Rpc-Id") != ""
	if !ok {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	return ok
}

// Of the large results of one token 8 are passed on at once. Those of its other calls wait in the mesh's store, and
// are refused where that lasts; results of other tokens are not.
func TestLargeResultsOfATokenAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	leave := func() {}
	meshtest.Until(t, "a result is refused", func() bool { // at once, unless the machine is so slow that readers were cut off
		leave()
		_, leave = r.unread(t, "", 8, nil)
		a := r.do(t, "POST", "/v1/tools/lab.large", "", nil)
		return a.status != 200 && refusedResult(t, a)
	})
	large := func(h headers) {
		t.Helper()
		if a := r.do(t, "POST", "/v1/tools/lab.large", `{"n":9000000}`, h); a.status != 200 || len(a.body) != 9_000_002 || a.header.Get("Mesh-Node") != "n1" {
			t.Errorf("%d %v, %d bytes", a.status, a.header, len(a.body))
		}
	}
	large(as(r.token))
	waiting := make(chan answer, 1)
	go func() { waiting <- r.do(t, "POST", "/v1/tools/lab.large", "", nil) }()
	leave()
	if a := <-waiting; a.status != 200 {
		t.Errorf("a result that waited: %d %s", a.status, a.body)
	}
	large(nil)
}

// Items of streams that come by reference have the room of large results, one at a time: many that each fit pass, a
// larger one ends the stream with a problem, and the room is free afterwards.
func TestLargeItemsOfStreamsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 18 }) // so large answers have 2 MiB
	const fits, all, more = 3 << 19, 1<<21 - 2, 1 << 21
	type args struct {
		Sizes []int `json:"sizes"`
	}
	blobs := host.Stream(func(_ context.Context, a args) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, size := range a.Sizes {
				if !yield(strings.Repeat("x", size), nil) {
					return
				}
			}
		}
	})
	for name, collect := range map[string]bool{"blobs": false, "collected": true} {
		if _, err := r.host.Handle(name, blobs, host.Annotate(tool.Annotations{Streaming: true, Collect: collect})); err != nil {
			t.Fatal(err)
		}
	}
	s := r.connect(t, "/mcp", "2025-11-25", nil)
	for _, c := range []struct {
		sizes              []int
		items              int // that HTTP streams have before their end
		problem, collected string
	}{
		{[]int{fits, fits, fits, 1}, 4, "", "bytes together"},
		{[]int{1, more}, 1, "payload_too_large", "bytes together"},
		{[]int{more}, 0, "payload_too_large", "bytes together"},
		{[]int{all}, 1, "", ""},
	} {
		arguments := map[string]any{"sizes": c.sizes}
		body, _ := json.Marshal(arguments)
		for accept, item := range map[string]string{"text/event-stream": "event: item\n", "application/x-ndjson": `"seq":`} {
			h := as(r.token)
			h["Accept"] = accept
			a := r.do(t, "POST", "/v1/tools/lab.blobs", string(body), h)
			var again answer
			meshtest.Until(t, "a node answers for the stored items", func() bool { // on a busy machine not the first time
				again = r.do(t, "GET", "/v1/calls/"+a.header.Get("Mesh-Rpc-Id")+"/stream", "", h)
				return again.status != 503
			})
			for _, a := range []answer{a, again} {
				text := strings.ReplaceAll(a.body, strings.Repeat("x", 100), "")
				if n := strings.Count(a.body, item); n != c.items || !strings.Contains(text, c.problem) || (a.status == 200) != (c.items > 0) || strings.Contains(text, "complete") != (c.problem == "") {
					t.Errorf("%s %v: %d with %d items: %.300s", accept, c.sizes, a.status, n, text)
				}
			}
		}
		for name, want := range map[string]string{"lab-blobs": c.problem, "lab-collected": c.collected} {
			params := &mcp.CallToolParams{Name: name, Arguments: arguments}
			params.SetProgressToken("p")
			a, err := s.CallTool(t.Context(), params)
			text := fmt.Sprint(err)
			if err == nil {
				text = texts(a)
			}
			if failed := err != nil || a.IsError; failed != (want != "") || failed && !strings.Contains(text, "bytes together") {
				t.Errorf("%s %v: %.300s", name, c.sizes, text)
			}
		}
	}
}

// Of all tokens together 32 large results are passed on at once: one of a further token waits and is refused, though
// the token has no other, and is passed on once there is room.
func TestLargeResultsOfAllTokensAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	tokens := []headers{nil, as(r.token)}
	for i := range 3 {
		r.AsSession(t, subjects.SessionID(fmt.Sprintf("further%d", i)))
		seed, err := os.ReadFile(filepath.Join(r.DataDir, fmt.Sprintf("session%d.nk", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, as(string(seed)))
	}
	large := func() answer { return r.do(t, "POST", "/v1/tools/lab.large", "", tokens[4]) }
	meshtest.Until(t, "a result is refused", func() bool { // at once, unless the machine is so slow that readers were cut off
		for _, h := range tokens[:4] {
			_, leave := r.unread(t, "", 8, h)
			defer leave()
		}
		a := large()
		return a.status != 200 && refusedResult(t, a)
	})
	meshtest.Until(t, "there is room again", func() bool { return large().status == 200 })
}

// Calls that have run say so where there is no room for their answer.
func TestCallsWithoutRoomForTheirAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 17 }) // answers that wait may have eight times that, and hurried ones the same
	meshtest.Until(t, "the answer is refused", func() bool {
		_, leave := r.unread(t, `{"n":930000}`, 2, nil)
		defer leave()
		// The answer has the result twice.
		a := r.do(t, "POST", "/v1/tool-calls", `{"provider":"gemini","calls":[{"name":"lab-large","args":{"n":60000}}]}`, nil)
		if a.status == 200 { // a reader was cut off meanwhile
			return false
		}
		if p := a.problem(t); a.status != 429 || p["code"] != "busy" || p["started"] != true || a.header.Get("Retry-After") == "" {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
		return true
	})
}

// Requests of one token that arrive together are each answered for the session that they name, and
// tokens that strangers make up take no connected token's place.
func TestTokensThatConnect(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	dials, proceed := make(chan struct{}, 100), make(chan struct{})
	r := newRig(t, func(o *gateway.Options) {
		dial := o.Dial
		o.KeyOf, o.MaxTokens = nil, 2
		o.Dial = func(options ...nats.Option) (*nats.Conn, error) {
			if slow.Load() {
				dials <- struct{}{}
				<-proceed
			}
			return dial(options...)
		}
	})
	slow.Store(true)
	var asking sync.WaitGroup
	ask := func(want int, token, session string) <-chan struct{} {
		written := make(chan struct{})
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(written) }})
		q, err := http.NewRequestWithContext(ctx, "GET", r.url+"/v1/tools", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+token)
		q.Header.Set("Mesh-Session", session)
		asking.Go(func() {
			a, err := http.DefaultTransport.RoundTrip(q)
			if err != nil {
				t.Error(err)
				return
			}
			defer a.Body.Close()
			if a.StatusCode != want {
				t.Errorf("session %q: status %d, want %d", session, a.StatusCode, want)
			}
		})
		return written
	}
	ask(401, r.token, "")
	<-dials
	for range 5 {
		<-ask(200, r.token, "mine")
	}
	slow.Store(false)
	proceed <- struct{}{}
	asking.Wait()

	slow.Store(true)
	for range 5 {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := pair.Seed()
		if err != nil {
			t.Fatal(err)
		}
		ask(401, string(seed), "")
		<-dials
	}
	if a := r.do(t, "GET", "/v1/tools", "", headers{"Authorization": "Bearer " + r.token}); a.status != 200 {
		t.Errorf("a connected token next to strangers: %d %s", a.status, a.body)
	}
	slow.Store(false)
	close(proceed)
	asking.Wait()
}

// smallBuffer has a socket receive little that is not read. With small segments the sender's kernel keeps little for
// it, too: 90 KB in place of up to 3 MB.
func smallBuffer(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
	})
}
