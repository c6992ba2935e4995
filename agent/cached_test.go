package agent_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/internal/testmesh"
)

// Results of Python tools are cached, and another variable or revision of their index begins with
// an empty cache.
func TestPythonToolsKeepResults(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	dir := filepath.Join(t.TempDir(), "idx")
	for revision, regions := range [][]string{{"eu", "us"}, {"us"}} {
		testmesh.Commit(t, dir, map[string]string{
			"tools.toml": "[index]\ntools = [\"t.stamp\"]\n[[index.env]]\nname = \"REGION\"\n[tool.\"t.stamp\"]\ncache_ttl = \"1h\"\n",
			"t.py":       fmt.Sprintf("import os, time\n\ndef stamp() -> str:\n    return f\"%d {os.environ['REGION']} {time.time_ns()}\"\n", revision),
		})
		for _, region := range regions {
			install(t, nc, map[string]any{"source": "file://" + dir, "env": map[string]string{"REGION": region}})
			var first string
			for _, use := range []string{"miss", "hit"} {
				r, err := c.Call(t.Context(), "idx.t.stamp", nil)
				if err != nil || r.Cache != use || !strings.HasPrefix(string(r.Value), fmt.Sprintf(`"%d %s `, revision, region)) || use == "hit" && string(r.Value) != first {
					t.Fatalf("revision %d in %s: %+v (%v), want a %s", revision, region, r, err, use)
				}
				first = string(r.Value)
			}
		}
	}
}
