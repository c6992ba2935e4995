package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// An index of 2,000 functions, and with MESH_SOAK of 20,000, the most that one may have, is
// installed, listed, described, resolved, called and uninstalled like any other.
func TestIndexOfThousandsOfFunctions(t *testing.T) {
	t.Parallel()
	const most = 20_000
	n := 2_000
	if meshtest.Soak() {
		n = most
	}
	var names, code strings.Builder
	for i := range n {
		fmt.Fprintf(&names, "%q,\n", fmt.Sprintf("m.f%d", i))
		fmt.Fprintf(&code, "def f%d(x: int) -> int:\n    \"\"\"Adds %d.\"\"\"\n    return x + %d\n\n", i, i, i)
	}
	// Smaller messages than a broker has by default: their limit is met earlier.
	s := meshtest.Broker(t, meshtest.MaxPayload(128<<10))
	start(t, s, "one")
	nc := s.Connect(t)
	c := newClient(t, nc, nil)
	toml := "[index]\nname = \"big\"\ntools = [" + names.String() + "%s]\n"
	code.WriteString("def more() -> int:\n    return 1\n")
	source := repository(t, "many", map[string]string{"tools.toml": fmt.Sprintf(toml, `"m.more"`), "m.py": code.String()})
	if n == most {
		if _, err := admin(t, nc, "install", map[string]any{"source": source}); err == nil || err.Code != toolmesh.CodeInstallFailed || !strings.Contains(err.Message, "20000") {
			t.Errorf("one function too many: %v", err)
		}
	}
	testmesh.Commit(t, strings.TrimPrefix(source, "file://"), map[string]string{"tools.toml": fmt.Sprintf(toml, "")})
	lines, failure := admin(t, nc, "install", map[string]any{"source": source})
	installed := 0
	for _, line := range lines {
		tools, _ := line["tools"].([]any)
		installed += len(tools)
	}
	if failure != nil || installed != n {
		t.Fatalf("%d tools are installed: %v", installed, failure)
	}
	meshtest.Until(t, "all tools are listed", func() bool {
		all, err := c.List(t.Context())
		if err != nil && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable { // a loaded machine takes longer than the registry may
			t.Fatal(err)
		}
		return err == nil && len(all) == n
	})
	for _, i := range []int{0, n / 2, n - 1} {
		id := subjects.ToolID(fmt.Sprintf("big.m.f%d", i))
		if a := describe(t, c, string(id)); a.Description != fmt.Sprintf("Adds %d.", i) || len(a.Nodes) != 1 {
			t.Errorf("%s: %+v", id, a)
		}
		result, err := c.Call(t.Context(), subjects.ToolID(fmt.Sprintf("f%d", i)), json.RawMessage(`{"x":1}`))
		if err != nil || string(result.Value) != fmt.Sprint(i+1) {
			t.Errorf("call: %v, %v", result, err)
		}
	}
	if _, err := admin(t, nc, "uninstall", map[string]any{"name": "big"}); err != nil {
		t.Fatal(err)
	}
}
