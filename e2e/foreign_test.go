package e2e_test

// Requests of a client in Go that uses only nats.go. e2e/python/test_foreign.py has the same for Python.

import (
	"encoding/json"
	"fmt"
	"path/filepath"
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

// Each agent is one service in the answers to nats micro.
func TestServiceDiscovery(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	nc := plain(t, m.url)
	var ours struct{ Version string }
	newUser(t).json(t, &ours, "version", "--json")
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
			if s.Name != "mesh-agent" || s.ID == "" || !strings.Contains(s.Version, strings.TrimPrefix(ours.Version, "v")) || s.Type != "io.nats.micro.v1."+strings.ToLower(verb)+"_response" {
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
