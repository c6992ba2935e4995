package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// An answer of an install above the message limit is an error: a truncated plan could hide steps.
func TestLargeAnswersOfInstallsAreErrors(t *testing.T) {
	t.Parallel()
	const count = 2000
	s := meshtest.Broker(t, meshtest.MaxPayload(16<<10))
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
	_, failure := admin(t, nc, "install", map[string]any{"source": good, "dry_run": true})
	if failure == nil || failure.Code != toolmesh.CodePayloadTooLarge {
		t.Errorf("dry run: %v", failure)
	}
	lines, failure := admin(t, nc, "install", map[string]any{"source": good, "no_build": true})
	if failure == nil || failure.Code != toolmesh.CodePayloadTooLarge || failure.Started != toolmesh.StartedNo {
		t.Errorf("an install that may not build: %v", failure)
	}
	for _, line := range lines {
		if line["step"] == "build" || line["step"] == "init" {
			t.Errorf("an install that may not build began the step %v", line["step"])
		}
	}
	_, failure = admin(t, nc, "install", map[string]any{"source": bad})
	if failure == nil || failure.Code != toolmesh.CodeInstallFailed || failure.Details["reason"] != "bad_manifest" || !strings.Contains(failure.Message, "tools.toml") {
		t.Fatalf("a manifest with mistakes: %v", failure)
	}
}
