package agent_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A caller that asks a node for something that takes long learns at once which node
// it is, and from every line of the answer: it can tell silence from death.
func TestAdministrativeAnswersNameTheirNode(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	for _, tc := range []struct {
		name, keepalive string
		want            []string // Mesh-Keepalive of each message
	}{{"asked", "1", []string{"1", "", ""}}, {"not asked", "", []string{"", ""}}} {
		t.Run(tc.name, func(t *testing.T) {
			reply := nc.NewInbox()
			sub, err := nc.SubscribeSync(reply)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sub.Unsubscribe() }()
			m := &nats.Msg{Subject: "mesh.admin.uninstall", Reply: reply, Data: []byte(`{"name":"nothing"}`), Header: nats.Header{}}
			if tc.keepalive != "" {
				m.Header.Set("Mesh-Keepalive", tc.keepalive)
			}
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			for n, keepalive := range tc.want {
				m, err := sub.NextMsgWithContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if m.Header.Get("Mesh-Node") != "one" || m.Header.Get("Mesh-Boot") == "" || m.Header.Get("Mesh-Keepalive") != keepalive {
					t.Errorf("message %d has the headers %v", n, m.Header)
				}
				if empty := n != len(tc.want)-2; empty != (len(m.Data) == 0) {
					t.Errorf("message %d has the body %q", n, m.Data)
				}
			}
		})
	}
}

// The command that an index has run before its import is a step of its own: it
// may take longer than all others.
func TestInitCommandIsAStepOfTheInstall(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	source := repository(t, "good", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python3\", \"-c\", \"\"]\n", "t.py": "def tool(): pass\n",
	})
	lines, failure := admin(t, s.Connect(t), "install", map[string]any{"source": source})
	if failure != nil {
		t.Fatal(failure)
	}
	var steps []string
	for _, l := range lines {
		if l["step"] == "init" || l["step"] == "import" {
			steps = append(steps, fmt.Sprint(l["step"], " ", l["state"]))
		}
	}
	if want := []string{"init running", "init done", "import running", "import done"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
}

// A caller that asked for keepalives gets one each second until the answer's end.
func TestAdministrativeAnswersAreAlive(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	source := repository(t, "good", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python3\", \"-c\", \"import time; time.sleep(2.5)\"]\n", "t.py": "def tool(): pass\n",
	})
	nc := s.Connect(t)
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"source": source})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishMsg(&nats.Msg{Subject: "mesh.admin.install", Reply: sub.Subject, Data: body, Header: nats.Header{"Mesh-Keepalive": {"1"}}}); err != nil {
		t.Fatal(err)
	}
	for alive := 0; ; {
		m, err := sub.NextMsgWithContext(t.Context())
		switch {
		case err != nil:
			t.Fatal(err)
		case len(m.Header["Mesh-Keepalive"]) > 0:
			alive++
		case len(m.Data) == 0:
			if alive < 3 {
				t.Errorf("%d keepalives", alive)
			}
			return
		}
	}
}

// The connection of an agent is cut before its second keepalive, and its heartbeats continue
// afterwards: the caller gets an error and does not wait for ever.
func TestLostAdministrativeAnswerIsAnError(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	proxy, logs := meshtest.NewProxy(t, s), meshtest.CaptureLogs(t)
	startOn(t, proxy.Connect(t), "one", t.TempDir(), func(o *agent.Options) { o.Logger = logs.Logger })
	b := testmesh.Bus(t, s.Connect(t), nil)
	cut := sync.OnceFunc(func() { proxy.Cut(true) })
	if _, err := b.Conn().Subscribe("_INBOX.>", func(m *nats.Msg) {
		if len(m.Header["Mesh-Keepalive"]) > 0 {
			cut()
		}
	}); err != nil {
		t.Fatal(err)
	}
	var healed sync.WaitGroup
	healed.Go(func() {
		logs.Wait(t, "install failed")
		proxy.Heal()
	})
	failing := repository(t, "failing", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"false\"]\n", "t.py": "def tool(): pass\n",
	})
	var err error
	for _, failed := range deploy.Ask(t.Context(), b, "", "install", map[string]string{"source": failing}, nil) {
		err = failed
	}
	if toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
		t.Errorf("%v, want node_lost", err)
	}
	healed.Wait()
}
