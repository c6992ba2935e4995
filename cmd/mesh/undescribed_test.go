package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A plain NATS service describes its tool nowhere, so that no schema types the arguments.
func TestCallOfAToolWithoutADescription(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	testmesh.Start(t, testmesh.Router(t, broker.Connect(t), nil))
	service := broker.Connect(t)
	if _, err := service.QueueSubscribe("tools.default.echo", "mesh", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := service.Flush(); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) (status int, stdout string) {
		var out, errs bytes.Buffer
		env := []string{"HOME=" + t.TempDir(), "MESH_NATS_URL=" + broker.URL}
		status = execute(t.Context(), append([]string{"call", "--json"}, args...), env, strings.NewReader(""), &out, &errs)
		return status, out.String()
	}
	if status, out := call("echo", "a=1", "b:=2"); status != 0 || !strings.Contains(out, `"result":{"a":"1","b":2}`) {
		t.Errorf("status %d: %s", status, out)
	}
	if status, out := call("ecco", "a=1"); status != 3 || !strings.Contains(out, `"tool_not_found"`) {
		t.Errorf("of a tool that nothing serves: status %d: %s", status, out)
	}
}
