package agent_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/meshtest"
)

// An agent is ready once the indexes that were installed at its start are built: a slow build
// delays it; a failed build is named and does not, nor does a later install.
func TestConditionFollowsEnvironments(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	first := start(t, s, "one")
	nc := s.Connect(t)
	const tools = "[index]\ntools = [\"t.f\"]\n"
	// On the second agent the import of one takes its time, and that of the other fails.
	slow := "import time\nif 'agent-two' in __file__: time.sleep(3)\ndef f(): pass\n"
	broken := "if 'agent-two' in __file__: raise RuntimeError('not here')\ndef f(): pass\n"
	for name, source := range map[string]string{"slow": slow, "broken": broken} {
		install(t, nc, map[string]any{"source": repository(t, name, map[string]string{"tools.toml": tools, "t.py": source})})
	}
	if note, err := first.Condition(); err != nil || note != "" {
		t.Fatalf("the first agent: %q, %v", note, err)
	}
	second := startIn(t, s, "two", filepath.Join(t.TempDir(), "agent-two"))
	if note, err := second.Condition(); err == nil || !strings.Contains(err.Error(), "being built: ") || !strings.Contains(err.Error(), "slow") {
		t.Errorf("while the index is being built: %q, %v", note, err)
	}
	if err := second.Stuck(); err != nil {
		t.Errorf("while the index is being built: %v", err)
	}
	meshtest.Until(t, "the agent is ready", func() bool {
		note, err := second.Condition()
		return err == nil && note == "not served as installed, see mesh ls: broken"
	})
	if w := second.Workers(); w.Workers == 0 {
		t.Errorf("it has the workers %+v", w)
	}

	third := startIn(t, s, "three", filepath.Join(t.TempDir(), "agent-three"))
	if err := third.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := "import time\nif 'agent-three' in __file__: time.sleep(1)\ndef f(): pass\n"
	install(t, nc, map[string]any{"source": repository(t, "late", map[string]string{"tools.toml": tools, "t.py": late})})
	for _, a := range []*agent.Agent{first, second, third} { // the third is asked for the first time
		if _, err := a.Condition(); err != nil {
			t.Errorf("with another index: %v", err)
		}
	}
	meshtest.End(t, second)
	if _, err := second.Condition(); err == nil {
		t.Error("an agent that has stopped is ready")
	}
	if err := second.Stuck(); err != nil {
		t.Errorf("an agent that has stopped: %v", err)
	}
	if f := second.Figures(); f == nil || f.Node != "two" || second.Seen() != nil {
		t.Errorf("an agent that has stopped has %+v", f)
	}
}
