package agent_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/registry"
)

// outside replaces OUTSIDE in a text by a folder that only the sandbox protects.
func outside(t *testing.T, text string) string {
	return strings.ReplaceAll(text, "OUTSIDE", t.TempDir())
}

// number is how a JSON number reads as a float64.
func number(v any) string {
	data, _ := json.Marshal(v)
	var back any
	_ = json.Unmarshal(data, &back)
	return fmt.Sprint(back)
}

// lease returns the status of the only node of the mesh.
func lease(t *testing.T, nc *nats.Conn) registry.NodeStatus {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	view := testmesh.View(t, b, nil)
	defer view.Close()
	nodes := view.Nodes()
	if len(nodes) != 1 {
		t.Fatalf("%d nodes, want one", len(nodes))
	}
	return nodes[0]
}

const limitedCommands = `
[index]

[tool.touch]
command = ["touch", "OUTSIDE/made"]
stdout = "text"

[tool.confined]
command = ["sh", "-c", "echo x > OUTSIDE/elsewhere"]
stdout = "text"
sandbox = "strict"

[tool.temporary]
command = ["sh", "-c", "echo x > $TMPDIR/x && cat $TMPDIR/x"]
stdout = "text"
sandbox = "strict"

[tool.signals]
command = ["sh", "-c", "kill -9 $PPID; echo lives"]
stdout = "text"
sandbox = "guard"

[tool.offline]
command = ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', {port}), 10)"]
input = { port = "integer" }
stdout = "text"
sandbox = "offline"

[tool.online]
command = ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', {port}), 10)"]
input = { port = "integer" }
stdout = "text"

[tool.loop]
command = ["python", "-c", "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"]
stdout = "text"
limits = { cpu_time = "300ms" }

[tool.hoard]
command = ["python", "-c", "import time\nx = [b'x' * (1 << 20) for _ in range(300)]\ntime.sleep(30)"]
stdout = "text"
limits = { memory = "60MB" }

[tool.multiply]
command = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 30 & done; wait"]
stdout = "text"
limits = { pids = 10 }

[tool.opens]
command = ["python", "-c", "x = [open('/dev/null') for _ in range(1000)]"]
stdout = "text"
limits = { open_files = 50 }

[tool.long]
command = ["head", "-c", "20000", "/dev/zero"]
stdout = "text"
limits = { output = "10KB" }
`

// Commands keep the sandbox level and the limits that functions keep.
func TestDeclaredLimitsOfCommandsHold(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "cmd", map[string]string{"tools.toml": outside(t, limitedCommands)})})
	node := lease(t, nc)
	if node.Sandbox.Asked != "guard" || node.Memory != "watchdog" && !strings.HasPrefix(node.Memory, "cgroup v") {
		t.Errorf("by default tools are held to %q, and their memory by %q", node.Sandbox.Asked, node.Memory)
	}
	gives(t, c, "cmd.touch", `{}`, `""`)
	for _, row := range []struct {
		name    string
		code    toolmesh.Code
		details map[string]any
	}{
		{"loop", toolmesh.CodeDeadlineExceeded, map[string]any{"limit": "cpu_time", "max": "300ms"}},
		{"hoard", toolmesh.CodeWorkerOutOfMemory, map[string]any{"limit": 60_000_000}},
		{"multiply", toolmesh.CodeToolError, map[string]any{"limit": "pids", "max": 10}},
		{"opens", toolmesh.CodeToolError, map[string]any{"exit_status": 1}},
		{"long", toolmesh.CodePayloadTooLarge, map[string]any{"limit": "output", "max": 10_000}},
	} {
		e := fails(t, c, "cmd."+row.name, `{}`, row.code, "")
		if source := e.Details["source"]; row.name == "hoard" && source != "watchdog" && (source != "cgroup" || node.Memory == "watchdog") {
			t.Errorf("%s: it was stopped by %v, on a node whose memory limits are kept by %s", row.name, source, node.Memory)
		}
		for key, want := range row.details {
			if got := fmt.Sprint(e.Details[key]); got != number(want) {
				t.Errorf("%s: details.%s = %s, want %v (all: %v)", row.name, key, got, want, e.Details)
			}
		}
		gives(t, c, "cmd.touch", `{}`, `""`)
	}

	port := fmt.Sprintf(`{"port":%s}`, portOf(t, nc.ConnectedUrl()))
	gives(t, c, "cmd.online", port, `""`)
	if len(unavailableOf(last)) > 0 || node.Sandbox.Effective != "guard" {
		t.Skipf("no levels here: %v, %v", node.Reasons, unavailableOf(last))
	}
	gives(t, c, "cmd.temporary", `{}`, `"x"`)
	// Landlock refuses the signal; to the first process of a PID namespace it is sent, without an effect.
	gives(t, c, "cmd.signals", `{}`, `"lives"`)
	if e := fails(t, c, "cmd.confined", `{}`, toolmesh.CodeToolError, "exit status"); !strings.Contains(fmt.Sprint(e.Details["stderr"]), "Read-only file system") {
		t.Errorf("confined: details %v", e.Details)
	}
	if e := fails(t, c, "cmd.offline", port, toolmesh.CodeToolError, "exit status"); !strings.Contains(fmt.Sprint(e.Details["stderr"]), "refused") {
		t.Errorf("offline: details %v", e.Details)
	}
}

func unavailableOf(last map[string]any) []any {
	list, _ := last["unavailable"].([]any)
	return list
}

// portOf is the port of a server on this machine.
func portOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}
