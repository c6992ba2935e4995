package e2e_test

// A client in Go that knows the protocol's page and nats.go, and nothing of ours.

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// foreign is a mesh with the lab index and a plain connection to it.
func foreign(t *testing.T) (*process, *nats.Conn) {
	t.Helper()
	u := newUser(t)
	m := u.up(t, filepath.Join(u.home, "the-mesh"))
	u.mesh(t, 0, "install", "file://"+example(t, "lab"))
	u.mesh(t, 0, "install", "file://"+example(t, "weather"))
	return m, plain(t, m.url)
}

func request(t *testing.T, nc *nats.Conn, subject, body string, headers ...string) *nats.Msg {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	r, err := nc.RequestMsgWithContext(t.Context(), m)
	if err != nil {
		t.Fatalf("%s %s: %v", subject, body, err)
	}
	return r
}

// equalJSON compares two JSON texts.
func equalJSON(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Errorf("%s: %v: %s", what, err, got)
		return
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func TestForeignGoClient(t *testing.T) {
	t.Parallel()
	_, nc := foreign(t)
	t.Run("plain form", func(t *testing.T) {
		r := request(t, nc, "tools.default.lab.bank.withdraw", `{"account":"alice","amount":20}`)
		equalJSON(t, "result", r.Data, `{"account":"alice","amount":20,"balance":100}`)
		for _, name := range []string{"Mesh-Rpc-Id", "Mesh-Node", "Mesh-Boot", "Mesh-Revision", "Mesh-Proto"} {
			if r.Header.Get(name) == "" {
				t.Errorf("the reply has no %s: %v", name, r.Header)
			}
		}
		if r.Header.Get("Mesh-Load") != "" {
			t.Errorf("Mesh-Load was not asked for: %v", r.Header)
		}
		r = request(t, nc, "tools.default.lab.bank.withdraw", `{"account":"alice","amount":20}`, "mesh-rpc-id", "mine", "Mesh-Want-Load", "1")
		if r.Header.Get("Mesh-Rpc-Id") != "mine" || !strings.Contains(r.Header.Get("Mesh-Load"), "/") {
			t.Errorf("headers of the reply: %v", r.Header)
		}
		directed := "mesh.node." + r.Header.Get("Mesh-Node") + ".tools.default.lab.timing.nap"
		equalJSON(t, "directed", request(t, nc, directed, `{"seconds":0}`).Data, `"napped 0 s"`)
	})
	t.Run("envelope", func(t *testing.T) {
		for body, want := range map[string]string{
			`{"type":"rpc_tool_call","rpc_id":"e1","tool_id":"lab.bank.withdraw","args":["alice"],"kwargs":{"amount":1}}`: `{"type":"rpc_tool_response","rpc_id":"e1","status":"ok","result":{"account":"alice","amount":1,"balance":119}}`,
			`{"type":"rpc_tool_call","rpc_id":7,"tool_id":"lab.bank.withdraw","args":["alice",2]}`:                        `{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":{"account":"alice","amount":2,"balance":118}}`,
			`{"type":"rpc_call","rpc_id":"e3","tool_id":"lab.timing.nap","kwargs":{"seconds":0}}`:                         `{"type":"rpc_response","rpc_id":"e3","status":"ok","result":"napped 0 s"}`,
		} {
			var envelope struct {
				ToolID string `json:"tool_id"`
			}
			if err := json.Unmarshal([]byte(body), &envelope); err != nil {
				t.Fatal(err)
			}
			equalJSON(t, body, request(t, nc, "tools.default."+envelope.ToolID, body).Data, want)
		}
	})
	t.Run("typed errors", func(t *testing.T) {
		for _, tc := range []struct {
			tool, body, code, number, started string
			headers                           []string
			check                             func(e map[string]any) bool
		}{
			{tool: "lab.bank.withdraw", body: `{"account":"bob","amount":20}`, code: "tool_error", number: "500", started: "true", check: func(e map[string]any) bool {
				return e["type"] == "InsufficientFunds" && e["message"] == "bob is short of 15" && e["origin"] == "tool" && strings.Contains(fmt.Sprint(e["stacktrace"]), "bank.py")
			}},
			{tool: "lab.bank.withdraw", body: `{"account":"bob","amount":"x","colour":1}`, code: "invalid_arguments", number: "422", started: "false", check: func(e map[string]any) bool {
				text := fmt.Sprint(e["details"])
				return strings.Contains(text, "pointer:/amount") && strings.Contains(text, "colour")
			}},
			{tool: "lab.timing.slow", body: `{"seconds":60}`, headers: []string{"Mesh-Timeout-Ms", "200"}, code: "deadline_exceeded", number: "504", started: "true"},
			{tool: "lab.timing.slow", body: `{`, code: "invalid_arguments", number: "422", started: "false"},
			{tool: "lab.timing.slow", body: `{}`, headers: []string{"Mesh-Require", "telepathy"}, code: "protocol_error", number: "502", started: "false"},
			{tool: "lab.timing.slow", body: `{}`, headers: []string{"Mesh-Revision", "elsewhere"}, code: "unavailable", number: "503", started: "false"},
		} {
			r := request(t, nc, "tools.default."+tc.tool, tc.body, tc.headers...)
			var answer struct{ Error map[string]any }
			if err := json.Unmarshal(r.Data, &answer); err != nil {
				t.Errorf("%s: %v: %s", tc.code, err, r.Data)
				continue
			}
			e := answer.Error
			if r.Header.Get("Mesh-Error-Code") != tc.code || r.Header.Get("Nats-Service-Error-Code") != tc.number || r.Header.Get("Mesh-Started") != tc.started ||
				r.Header.Get("Nats-Service-Error") == "" || e["code"] != tc.code || fmt.Sprint(e["started"]) != tc.started || e["message"] == "" {
				t.Errorf("%s %s: %v %s", tc.tool, tc.body, r.Header, r.Data)
			}
			if tc.check != nil && !tc.check(e) {
				t.Errorf("%s: the error is %s", tc.code, r.Data)
			}
		}
		r := request(t, nc, "tools.default.lab.bank.withdraw", `{"type":"rpc_tool_call","rpc_id":"e9","tool_id":"lab.bank.withdraw","args":["bob",20]}`)
		if !strings.Contains(string(r.Data), `"status":"error"`) || !strings.Contains(string(r.Data), "InsufficientFunds") || r.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("the envelope form: %v %s", r.Header, r.Data)
		}
		if _, err := nc.RequestWithContext(t.Context(), "tools.default.lab.bank.nothing", nil); err == nil || !strings.Contains(err.Error(), "no responders") {
			t.Errorf("an unknown tool: %v, want NATS's 503", err)
		}
		// Our clients then ask the registry.
		r = request(t, nc, "mesh.registry.default.resolve", `{"name":"lab.bank.withdrw"}`)
		if r.Header.Get("Mesh-Error-Code") != "tool_not_found" || !strings.Contains(string(r.Data), "lab.bank.withdraw") {
			t.Errorf("resolve: %v %s", r.Header, r.Data)
		}
		equalJSON(t, "short name", request(t, nc, "mesh.registry.default.resolve", `{"name":"bank.withdraw"}`).Data, `{"id":"lab.bank.withdraw"}`)
	})
	t.Run("a stream to the inbox", func(t *testing.T) {
		got := collect(t, nc, "tools.default.lab.streams.countdown", `{"start":3,"pause":0}`, "Mesh-Stream", "inbox")
		want := []string{"data 1 3", "data 2 2", "data 3 1", "data 4 0", "complete 5 ", "end"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		got = collect(t, nc, "tools.default.lab.streams.breaks", `{"after":1}`, "Mesh-Stream", "inbox")
		if len(got) != 3 || got[0] != `data 1 "item 1"` || !strings.HasPrefix(got[1], "error 2 ") || !strings.Contains(got[1], "broke after 1 items") || got[2] != "end" {
			t.Errorf("a stream that breaks: %q", got)
		}
		got = collect(t, nc, "tools.default.lab.bank.withdraw", `{"account":"alice","amount":1}`, "Mesh-Stream", "inbox")
		if len(got) != 3 || !strings.HasPrefix(got[0], "data 1 {") || got[1] != "complete 2 " {
			t.Errorf("a plain function as a stream: %q", got)
		}
		got = collect(t, nc, "tools.default.lab.streams.countdown", `{"start":"x"}`, "Mesh-Stream", "inbox")
		if len(got) != 2 || !strings.HasPrefix(got[0], "failure invalid_arguments") || got[1] != "end" {
			t.Errorf("a stream that does not begin: %q", got)
		}
	})
	t.Run("an envelope stream", func(t *testing.T) {
		inbox, sub := subscribed(t, nc, "")
		if err := nc.PublishRequest("tools.default.lab.streams.words", inbox,
			[]byte(`{"type":"rpc_tool_stream","rpc_id":"es","tool_id":"lab.streams.words","kwargs":{"text":"a b","pause":0}}`)); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{
			`{"type":"rpc_stream_chunk","rpc_id":"es","chunk_type":"data","data":{"index":0,"word":"a"},"seq":1}`,
			`{"type":"rpc_stream_chunk","rpc_id":"es","chunk_type":"data","data":{"index":1,"word":"b"},"seq":2}`,
		} {
			m := next(t, sub)
			equalJSON(t, fmt.Sprint("chunk ", i), m.Data, want)
		}
		if m := next(t, sub); !strings.Contains(string(m.Data), `"chunk_type":"complete"`) {
			t.Errorf("the terminal is %s", m.Data)
		}
		request(t, nc, "tools.default.lab.timing.nap", `{"seconds":0}`)
		if m, err := sub.NextMsg(time.Millisecond); err == nil {
			t.Errorf("after the terminal came %s", m.Data)
		}
	})
	t.Run("live and again by replay", func(t *testing.T) {
		const rpc = "foreign_live"
		_, sub := subscribed(t, nc, "mesh.live.default."+rpc)
		ack := request(t, nc, "tools.default.lab.streams.countdown", `{"start":4,"pause":0.01}`, "Mesh-Stream", "1", "Mesh-Rpc-Id", rpc)
		var body struct {
			RPC  string `json:"rpc_id"`
			Node string `json:"node"`
		}
		if err := json.Unmarshal(ack.Data, &body); err != nil || body.RPC != rpc || body.Node == "" {
			t.Errorf("the acknowledgement is %v %s", ack.Header, ack.Data)
		}
		var live []string
		for len(live) == 0 || !strings.HasPrefix(live[len(live)-1], "complete") {
			live = append(live, chunk(next(t, sub)))
		}
		want := []string{"data 1 4", "data 2 3", "data 3 2", "data 4 1", "data 5 0", "complete 6 "}
		if !slices.Equal(live, want) {
			t.Errorf("live: %q, want %q", live, want)
		}
		for from := 1; from <= 6; from++ {
			items, terminal := replay(t, nc, rpc, from)
			if !terminal || len(items) != 6-from {
				t.Errorf("replay from %d: %q, terminal %v", from, items, terminal)
			}
		}
		if items, terminal := replay(t, nc, "never_was", 1); terminal || len(items) > 0 {
			t.Errorf("a stream that never was: %q %v", items, terminal)
		}
		r := request(t, nc, "mesh.replay.default."+rpc, `{"from_seq":0}`)
		if r.Header.Get("Mesh-Error-Code") != "invalid_request" {
			t.Errorf("replay from 0: %v %s", r.Header, r.Data)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		inbox, sub := subscribed(t, nc, "")
		m := nats.NewMsg("tools.default.lab.streams.countdown")
		m.Reply, m.Data = inbox, []byte(`{"start":1000,"pause":0.02}`)
		m.Header.Set("Mesh-Stream", "inbox")
		m.Header.Set("Mesh-Rpc-Id", "to_cancel")
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		if got := chunk(next(t, sub)); got != "data 1 1000" {
			t.Errorf("the first chunk is %q", got)
		}
		r := request(t, nc, "mesh.ctl.default.to_cancel", "")
		equalJSON(t, "cancel", r.Data, `{"cancelled":true}`)
		var last string
		for last = chunk(next(t, sub)); strings.HasPrefix(last, "data"); {
			last = chunk(next(t, sub))
		}
		if !strings.HasPrefix(last, "error") || !strings.Contains(last, "cancelled") {
			t.Errorf("the terminal is %q", last)
		}
		// Before it starts: the node remembers, and never starts it.
		if err := nc.Publish("mesh.ctl.default.early", nil); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		r = request(t, nc, "tools.default.lab.timing.nap", `{"seconds":0}`, "Mesh-Rpc-Id", "early")
		if r.Header.Get("Mesh-Error-Code") != "cancelled" || r.Header.Get("Mesh-Started") != "false" {
			t.Errorf("a call that was cancelled before: %v %s", r.Header, r.Data)
		}
	})
	t.Run("a repeated call runs once", func(t *testing.T) {
		first := request(t, nc, "tools.default.weather.forecast.cities", `{}`, "Mesh-Rpc-Id", "again")
		second := request(t, nc, "tools.default.weather.forecast.cities", `{}`, "Mesh-Rpc-Id", "again")
		if string(first.Data) != string(second.Data) {
			t.Errorf("%s, then %s", first.Data, second.Data)
		}
		other := request(t, nc, "tools.default.weather.forecast.today", `{"city":"Oslo"}`, "Mesh-Rpc-Id", "again")
		if other.Header.Get("Mesh-Error-Code") != "invalid_request" {
			t.Errorf("the id of another call: %v %s", other.Header, other.Data)
		}
	})
	t.Run("keepalives where asked for", func(t *testing.T) {
		inbox, sub := subscribed(t, nc, "")
		m := nats.NewMsg("tools.default.lab.timing.nap")
		m.Reply, m.Data = inbox, []byte(`{"seconds":1.6}`)
		m.Header.Set("Mesh-Keepalive", "1")
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		first := next(t, sub)
		if first.Header.Get("Mesh-Keepalive") != "1" || len(first.Data) > 0 || first.Header.Get("Mesh-Node") == "" {
			t.Errorf("the first message is %v %s, want a keepalive", first.Header, first.Data)
		}
		last := next(t, sub)
		for last.Header.Get("Mesh-Keepalive") != "" {
			last = next(t, sub)
		}
		equalJSON(t, "the reply", last.Data, `"napped 1.6 s"`)
	})
}

// TestServiceDiscovery uses the queries of nats micro: each agent is one service.
func TestServiceDiscovery(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	nc := plain(t, m.url)
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		inbox, sub := subscribed(t, nc, "")
		if err := nc.PublishRequest("$SRV."+verb, inbox, nil); err != nil {
			t.Fatal(err)
		}
		nodes := map[string]string{}
		for range 2 {
			var s struct {
				Type, Name, ID, Version string
				Metadata                map[string]string
			}
			if err := json.Unmarshal(next(t, sub).Data, &s); err != nil {
				t.Fatal(err)
			}
			if s.Name != "mesh-agent" || s.ID == "" || s.Version != "1.2.3-e2e" || s.Type != "io.nats.micro.v1."+strings.ToLower(verb)+"_response" {
				t.Errorf("%s: %+v", verb, s)
			}
			nodes[s.Metadata["node"]] = s.ID
		}
		if len(nodes) != 2 || nodes["a"] == "" || nodes["b"] == "" {
			t.Errorf("%s: services of the nodes %v", verb, nodes)
		}
		// A third one would have answered before this call did.
		request(t, nc, "tools.default.held.t.fast", "{}")
		if extra, err := sub.NextMsg(50 * time.Millisecond); err == nil {
			t.Errorf("%s: a third service: %s", verb, extra.Data)
		}
	}
}

// subscribed subscribes to a subject, or to a new inbox, which it returns.
func subscribed(t *testing.T, nc *nats.Conn, subject string) (string, *nats.Subscription) {
	t.Helper()
	if subject == "" {
		subject = nc.NewInbox()
	}
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	return subject, sub
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsgWithContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// chunk is a message of a stream in brief.
func chunk(m *nats.Msg) string {
	switch kind := m.Header.Get("Mesh-Chunk"); {
	case kind != "":
		return kind + " " + m.Header.Get("Mesh-Seq") + " " + string(m.Data)
	case m.Header.Get("Mesh-Error-Code") != "":
		return "failure " + m.Header.Get("Mesh-Error-Code")
	case len(m.Data) == 0:
		return "end"
	default:
		return fmt.Sprintf("unexpected %v %s", m.Header, m.Data)
	}
}

// collect reads the messages on the reply subject until the empty one.
func collect(t *testing.T, nc *nats.Conn, subject, body string, headers ...string) (all []string) {
	t.Helper()
	inbox, sub := subscribed(t, nc, "")
	m := nats.NewMsg(subject)
	m.Reply, m.Data = inbox, []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	for {
		c := chunk(next(t, sub))
		all = append(all, c)
		if c == "end" {
			return all
		}
	}
}
