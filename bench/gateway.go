package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
)

// The section "gateway": calls, streams and lists over HTTP and MCP, next to the NATS calls that
// they make, and next to an MCP server of the official SDK with a local function as its tool.

const (
	manyIndexes = 10
	manyTools   = 1000 // of each
)

// startGateway serves a gateway, the SDK's handlers in both eras, and an index of many tools. args: the broker's URL.
func startGateway(ctx context.Context, args []string) (role, error) {
	debug.SetGCPercent(gcPercent)
	g, err := gateway.New(gateway.Options{Dial: func(options ...nats.Option) (*nats.Conn, error) {
		return nats.Connect(args[0], append(client.ConnectOptions(), options...)...)
	}})
	if err != nil {
		return role{}, err
	}
	served, err := gateway.Listen(ctx, g, gateway.ListenOptions{Address: "127.0.0.1:0"})
	if err != nil {
		return role{}, err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "bill-refund"}, func(ctx context.Context, _ *mcp.CallToolRequest, in refundArgs) (*mcp.CallToolResult, refundResult, error) {
		out, err := refund(ctx, in)
		return nil, out, err
	})
	mux := http.NewServeMux()
	of := func(*http.Request) *mcp.Server { return server }
	mux.Handle("/modern", mcp.NewStreamableHTTPHandler(of, &mcp.StreamableHTTPOptions{Stateless: true}))
	mux.Handle("/sessions", mcp.NewStreamableHTTPHandler(of, nil))
	sdk := httptest.NewServer(mux)
	nc, err := connect(args[0])
	if err != nil {
		return role{}, err
	}
	h, err := host.New(nc, &host.Options{Node: "many"})
	if err != nil {
		return role{}, err
	}
	if err := h.Start(ctx); err != nil {
		return role{}, err
	}
	many := simulated{scale: scale{PerIndex: manyTools}, services: make(map[int]host.Service)}
	for k := range manyIndexes {
		if err := h.Publish(ctx, many.service(k)); err != nil {
			return role{}, err
		}
	}
	end := stops(h.Stop, nc)
	return role{hello: served.URL() + " " + sdk.URL, stop: func() { served.Stop(); sdk.Close(); end() }}, nil
}

func (p *plan) measureGateway(s *stage, r *result) error {
	c, err := s.start("gateway", s.child("broker").hello)
	if err != nil {
		return err
	}
	defer c.end()
	if _, err := s.child("caller").ask(request{Do: "web", Text: c.hello}); err != nil {
		return err
	}
	if err := retried(s.ctx, func() error { // the registry may not have the tools yet
		_, err := s.child("caller").ask(request{Do: "unary", Side: "list-page", N: 1})
		return err
	}); err != nil {
		return err
	}
	b := benchmark{name: "gateway"}
	add := func(name string, r request) {
		b.sides = append(b.sides, side{name, "caller", r})
	}
	for _, name := range []string{sideGo, "http", "mcp", "mcp-sdk", "mcp-session", "mcp-session-sdk"} {
		add(name, request{Do: "unary", Side: name, N: p.Calls})
		if strings.HasPrefix(name, "mcp") {
			add(name+"/64", request{Do: "burst", Side: name, N: p.Burst / 4, Callers: burstCallers})
		}
	}
	add("items", request{Do: "stream", Side: sideGo, N: p.Items})
	add("items-http", request{Do: "stream", Side: "http", N: p.Items})
	lists := []struct {
		name, what string
		goal       time.Duration
	}{
		{"list-all", "MCP tools/list of 1,000 tools, all pages", 5 * time.Millisecond},
		{"list-page", "MCP tools/list of 10,000 tools, first page", 20 * time.Millisecond},
		{"search", "search of 10,000 tools over HTTP", 5 * time.Millisecond},
	}
	for _, l := range lists {
		add(l.name, request{Do: "unary", Side: l.name, N: max(p.Calls/50, 1)})
	}
	if err := p.measure(s, b, r); err != nil {
		return err
	}
	for _, l := range lists {
		took := medianOf(r.samples[b.name][l.name], p50)
		r.add(line{What: l.what + ", p50, against a goal in time", Ours: micros(took), Raw: micros(float64(l.goal)), Ratio: took / float64(l.goal)}, &bound{goal: 1})
	}
	return nil
}

// web is a caller's connection to a gateway and to the SDK's server.
type web struct {
	http         http.Client
	gateway, sdk string
	count        atomic.Int64 // of the requests
	ours, theirs string       // the sessions of MCP before 2026-07-28
}

// begin opens the sessions. urls are those of the gateway and of the SDK's server.
func (w *web) begin(ctx context.Context, urls string) (err error) {
	w.gateway, w.sdk, _ = strings.Cut(urls, " ")
	w.http.Transport = &http.Transport{MaxIdleConnsPerHost: burstCallers}
	for at, session := range map[string]*string{w.gateway + "/mcp": &w.ours, w.sdk + "/sessions": &w.theirs} {
		const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
		a, err := w.send(ctx, at, hello, nil)
		if err != nil {
			return err
		}
		*session = a.Header.Get("Mcp-Session-Id")
		if _, err := read(a, "serverInfo"); err != nil {
			return err
		}
	}
	return nil
}

func (w *web) send(ctx context.Context, url, body string, headers map[string]string) (*http.Response, error) {
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	body = strings.Replace(body, `"id":1`, fmt.Sprint(`"id":`, w.count.Add(1)), 1) // a session accepts each id once
	q, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	for k, v := range headers {
		q.Header.Set(k, v)
	}
	return w.http.Do(q)
}

// read reads an answer, which must have a text.
func read(a *http.Response, want string) ([]byte, error) {
	defer func() { _ = a.Body.Close() }()
	body, err := io.ReadAll(a.Body)
	if err == nil && (a.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(want))) {
		err = fmt.Errorf("%s: the answer is %s %.1000s", a.Request.URL, a.Status, body)
	}
	return body, err
}

// one returns an operation of a side, nil for a side without HTTP.
func (w *web) one(ctx context.Context, side string) func() error {
	do := func(url, body, want string, headers map[string]string) func() error {
		return func() error {
			a, err := w.send(ctx, url, body, headers)
			if err == nil {
				_, err = read(a, want)
			}
			return err
		}
	}
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	const begin = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bill-refund","arguments":` + callArgs
	const call, old = begin + `,` + meta + `}}`, begin + `}}`
	modern := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "bill-refund"}
	list := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
	of := func(session string) map[string]string {
		return map[string]string{"Mcp-Protocol-Version": "2025-11-25", "Mcp-Session-Id": session}
	}
	switch side {
	case "http":
		return do(w.gateway+"/v1/tools/bill.refund", callArgs, callResult, map[string]string{"Accept": "application/json"})
	case "mcp":
		return do(w.gateway+"/mcp", call, callResult, modern)
	case "mcp-sdk":
		return do(w.sdk+"/modern", call, callResult, modern)
	case "mcp-session":
		return do(w.gateway+"/mcp", old, callResult, of(w.ours))
	case "mcp-session-sdk":
		return do(w.sdk+"/sessions", old, callResult, of(w.theirs))
	case "search":
		return do(w.gateway+"/v1/search?q=refund+an+order", "", indexName(0), nil)
	case "list-page":
		return do(w.gateway+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta+`}}`, "nextCursor", list)
	case "list-all":
		return func() error {
			for cursor := ""; ; {
				a, err := w.send(ctx, w.gateway+"/mcp?tools="+indexName(0)+".**", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+cursor+meta+`}}`, list)
				if err != nil {
					return err
				}
				body, err := read(a, indexName(0))
				if err != nil {
					return err
				}
				_, next, more := bytes.Cut(body, []byte(`"nextCursor":"`))
				if !more {
					return nil
				}
				cursor = `"cursor":"` + string(next[:bytes.IndexByte(next, '"')]) + `",`
			}
		}
	}
	return nil
}

// stream reads the items of a stream as events.
func (w *web) stream(ctx context.Context, n int) (answer, error) {
	args, err := json.Marshal(countArgs{To: n})
	if err != nil {
		return answer{}, err
	}
	began, items := time.Now(), 0
	a, err := w.send(ctx, w.gateway+"/v1/tools/bill.count", string(args), map[string]string{"Accept": "text/event-stream"})
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = a.Body.Close() }()
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte("event: item")) {
			items++
		}
	}
	if items != n {
		return answer{}, fmt.Errorf("the stream had %d items of %d: %w", items, n, lines.Err())
	}
	return answer{Took: time.Since(began), Ops: n}, nil
}
