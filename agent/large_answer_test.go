package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// An answer of an install that no message carries has the first items of its lists, and how many there are more.
func TestLargeAnswersOfInstallsAreShortened(t *testing.T) {
	t.Parallel()
	const count = 2000
	s := meshtest.Broker(t, meshtest.MaxPayload(64<<10))
	start(t, s, "one")
	nc := s.Connect(t)
	var names, wrong strings.Builder
	for i := range count {
		fmt.Fprintf(&names, "'m.function_of_a_long_name_%d',", i)
	}
	for i := range 20 {
		fmt.Fprintf(&wrong, "%s%d = 1\n", strings.Repeat("g", 10<<10), i)
	}
	toml := "[index]\ninit = ['python', 'i.py']\ntools = [" + names.String() + "]\n"
	good := repository(t, "good", map[string]string{"tools.toml": toml, "i.py": "", "m.py": ""})
	bad := repository(t, "bad", map[string]string{"tools.toml": toml + "[tool]\n" + wrong.String(), "i.py": "", "m.py": ""})
	total := func(what string, plan any) {
		t.Helper()
		p, _ := plan.(map[string]any)
		tools, _ := p["tools"].([]any)
		omitted, _ := p["omitted"].(map[string]any)
		more, _ := omitted["tools"].(float64)
		if len(tools) == 0 || more == 0 || len(tools)+int(more) != count {
			t.Errorf("%s: %d tools and %v more", what, len(tools), more)
		}
	}

	lines, failure := admin(t, nc, "install", map[string]any{"source": good, "dry_run": true})
	if failure != nil || len(lines) == 0 {
		t.Fatalf("dry run: %v", failure)
	}
	total("dry run", lines[len(lines)-1]["plan"])
	_, failure = admin(t, nc, "install", map[string]any{"source": good, "no_build": true})
	if failure == nil || failure.Details["reason"] != "builds" {
		t.Fatalf("an install that may not build: %v", failure)
	}
	total("no build", failure.Details["plan"])
	_, failure = admin(t, nc, "install", map[string]any{"source": bad})
	if failure == nil || failure.Code != toolmesh.CodeInstallFailed || failure.Details["reason"] != "bad_manifest" || !strings.Contains(failure.Message, "tools.toml") {
		t.Fatalf("a manifest with mistakes: %v", failure)
	}
}
