package deploy_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// lateAnswer is the answer of an agent that sends so many keepalives, then only heartbeats for
// much longer than its caller waits.
func lateAnswer(nc *nats.Conn, m *nats.Msg, keepalives int) {
	for range keepalives {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Mesh-Node": {"one"}, "Mesh-Boot": {"b"}, "Mesh-Keepalive": {"1"}}})
	}
	for range 25 {
		if nc.IsClosed() { // the test has seen enough
			return
		}
		_ = nc.Publish("mesh.hb.one", codec.Encode(codec.Heartbeat{Node: "one", Boot: "b", State: "serving", Slots: 1}))
		time.Sleep(200 * time.Millisecond)
	}
	_ = m.Respond([]byte(`{"index":"x"}`))
	_ = m.Respond(nil)
}

// An administrative request yields the lines of its answer, and ends when no agent takes it,
// or when the agent that has it is silent.
func TestAsk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		agent   func(*nats.Conn, *nats.Msg) // nil: no agent
		lines   int
		code    toolmesh.Code
		started toolmesh.Started
	}{
		"no agent": {nil, 0, toolmesh.CodeUnavailable, toolmesh.StartedNo},
		"frozen":   {func(*nats.Conn, *nats.Msg) {}, 0, toolmesh.CodeNodeLost, toolmesh.StartedUnknown},
		"frozen after a line": {func(_ *nats.Conn, m *nats.Msg) {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Mesh-Node": {"one"}, "Mesh-Boot": {"b"}}, Data: []byte(`{"text":"building"}`)})
		}, 1, toolmesh.CodeNodeLost, toolmesh.StartedUnknown},
		"keepalives end, node well": {func(nc *nats.Conn, m *nats.Msg) { lateAnswer(nc, m, 2) }, 0, toolmesh.CodeNodeLost, toolmesh.StartedUnknown},
		"one keepalive, node well":  {func(nc *nats.Conn, m *nats.Msg) { lateAnswer(nc, m, 1) }, 0, toolmesh.CodeNodeLost, toolmesh.StartedUnknown},
		"fails": {func(_ *nats.Conn, m *nats.Msg) {
			_ = m.Respond([]byte(`{"text":"building"}`))
			_ = m.Respond([]byte(`{"error":{"code":"install_failed","message":"no"}}`))
			_ = m.Respond(nil)
		}, 1, toolmesh.CodeInstallFailed, 0},
		"succeeds": {func(_ *nats.Conn, m *nats.Msg) {
			_ = m.Respond([]byte(`{"text":"building"}`))
			_ = m.Respond([]byte(`{"index":"x"}`))
			_ = m.Respond(nil)
		}, 2, "", 0},
		"says nothing": {func(_ *nats.Conn, m *nats.Msg) { _ = m.Respond(nil) }, 0, toolmesh.CodeProtocolError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			b := testmesh.Bus(t, broker.Connect(t), nil)
			if c.agent != nil {
				var answering sync.WaitGroup
				t.Cleanup(answering.Wait) // after the connection is closed
				nc := broker.Connect(t)
				if _, err := nc.Subscribe("mesh.admin.install", func(m *nats.Msg) {
					answering.Add(1)
					defer answering.Done()
					c.agent(nc, m)
				}); err != nil {
					t.Fatal(err)
				}
				if err := nc.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			lines := 0
			var err error
			for _, failed := range deploy.Ask(t.Context(), b, "", "install", map[string]string{"source": "x"}, nil) {
				if err = failed; err == nil {
					lines++
				}
			}
			if toolmesh.CodeOf(err) != c.code || lines != c.lines {
				t.Errorf("%d lines, then %v; want %d and %q", lines, err, c.lines, c.code)
			}
			if c.agent == nil && !strings.Contains(err.Error(), b.Conn().ConnectedAddr()) {
				t.Errorf("%v does not say where", err)
			}
			if e := toolmesh.AsError(err); err != nil && e.Started != c.started {
				t.Errorf("%v: started %v", err, e.Started)
			}
		})
	}
}
