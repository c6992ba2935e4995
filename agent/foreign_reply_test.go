package agent_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
)

// TestForeignReplySubjectIsNotAnswered is the attack of docs/protocol, section 2: a caller
// that may call tools names a subject of the broker as its reply subject.
func TestForeignReplySubjectIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "idx", map[string]string{"tools.toml": working, "t.py": "def tool(): return 1\n"})})
	victim, err := nc.SubscribeSync("victim.>")
	if err != nil {
		t.Fatal(err)
	}
	stream := "$JS.API.STREAM.DELETE.MESH_CHUNKS"
	for _, subject := range []string{
		"tools.default.idx.t.tool", "mesh.node.one.tools.default.idx.t.tool", "mesh.node.one.tools.default.idx.t.nothing", "mesh.registry.default.list",
		"mesh.replay.default.rpc_1", "mesh.ctl.default.rpc_1", "mesh.node.one.ctl.default.rpc_1", "mesh.admin.uninstall", "mesh.node.one.admin.label",
	} {
		for _, reply := range []string{"victim." + subject, stream, "tools.default.idx.t.tool", "_INBOXES.x"} {
			if err := nc.PublishRequest(subject, reply, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := newClient(t, nc, nil)
	for range 20 { // behind everything that was sent
		if _, err := c.Call(t.Context(), "idx.t.tool", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := victim.NextMsg(time.Millisecond) // an answer has arrived already
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("an answer went to %s: %s", m.Subject, m.Data)
	}
	info, err := nc.RequestWithContext(t.Context(), "$JS.API.STREAM.INFO.MESH_CHUNKS", nil)
	if err != nil || strings.Contains(string(info.Data), `"error"`) {
		t.Errorf("the stream of chunks: %s %v", info.Data, err)
	}
}
