package deploy_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/meshtest"
)

// An administrative request yields the lines of its answer, and ends when no agent takes it,
// or when the agent that has it is silent.
func TestAsk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		agent   func(*nats.Msg) // nil: there is none
		lines   int
		code    toolmesh.Code
		started toolmesh.Started
	}{
		"no agent": {nil, 0, toolmesh.CodeUnavailable, toolmesh.StartedNo},
		"frozen":   {func(*nats.Msg) {}, 0, toolmesh.CodeNodeLost, toolmesh.StartedUnknown},
		"frozen after a line": {func(m *nats.Msg) {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Mesh-Node": {"one"}, "Mesh-Boot": {"b"}}, Data: []byte(`{"text":"building"}`)})
		}, 1, toolmesh.CodeNodeLost, toolmesh.StartedUnknown},
		"fails": {func(m *nats.Msg) {
			_ = m.Respond([]byte(`{"text":"building"}`))
			_ = m.Respond([]byte(`{"error":{"code":"install_failed","message":"no"}}`))
			_ = m.Respond(nil)
		}, 1, toolmesh.CodeInstallFailed, 0},
		"succeeds": {func(m *nats.Msg) {
			_ = m.Respond([]byte(`{"text":"building"}`))
			_ = m.Respond([]byte(`{"index":"x"}`))
			_ = m.Respond(nil)
		}, 2, "", 0},
		"says nothing": {func(m *nats.Msg) { _ = m.Respond(nil) }, 0, toolmesh.CodeProtocolError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			b, err := bus.New(broker.Connect(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			if c.agent != nil {
				nc := broker.Connect(t)
				if _, err := nc.Subscribe("mesh.admin.install", c.agent); err != nil {
					t.Fatal(err)
				}
				if err := nc.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			lines := 0
			err = nil
			for _, failed := range deploy.Ask(t.Context(), b, "", "install", map[string]string{"source": "x"}, nil) {
				if err = failed; err == nil {
					lines++
				}
			}
			if toolmesh.CodeOf(err) != c.code || lines != c.lines {
				t.Errorf("%d lines, then %v; want %d and %q", lines, err, c.lines, c.code)
			}
			if e := toolmesh.AsError(err); err != nil && e.Started != c.started {
				t.Errorf("%v: started %v", err, e.Started)
			}
		})
	}
}
