package mcp_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// hosted are the scenarios that only hosted servers can serve.
var hosted = []struct{ scenario, needs string }{
	{`completion-`, "completion"}, {`resources-(read|templates|subscribe|unsubscribe)`, "resources"}, {`prompts-get-`, "prompts"},
	{`tools-call-sampling`, "sampling"}, {`tools-call-elicitation|elicitation-`, "elicitation"},
	{`input-required-result-`, "elicitation, sampling or roots"}, {`tasks-`, "the extension tasks"},
}

// needs lists the requirements of a scenario besides tools; empty for one that must pass.
func needs(scenario string) string {
	for _, h := range hosted {
		if regexp.MustCompile("^(" + h.scenario + ")").MatchString(scenario) {
			return h.needs
		}
	}
	return ""
}

var summary = regexp.MustCompile(`(?m)^[✓✗] ([\w-]+): (\d+) passed, (\d+) failed$`)

// Both requirement sets of the protocol's own suite pass, as far as a server of tools can serve them.
func TestConformance(t *testing.T) {
	r := newRig(t)
	node := filepath.Join(r.tools, "node_modules", ".bin", "node")
	suite := filepath.Join(r.tools, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
	// localhost: the suite tries DNS rebinding against it. Scenarios that drop the query still find the fixtures.
	url := strings.Replace(r.url, "127.0.0.1", "localhost", 1) + "/mcp?prefix=off&tools=conformance.**"
	for revision, scenarios := range map[string]int{"2025-11-25": 33, "2026-07-28": 50} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			// Its status is that of all scenarios, those of hosted servers included.
			cmd := exec.CommandContext(t.Context(), node, suite, "server", "--url", url, "--requirements", revision)
			cmd.Env = append(os.Environ(), "NO_COLOR=1")
			out, _ := cmd.CombinedOutput()
			var table strings.Builder
			ran, later := 0, 0
			for _, m := range summary.FindAllStringSubmatch(string(out), -1) {
				ran++
				failed, _ := strconv.Atoi(m[3])
				note := ""
				switch what := needs(m[1]); {
				case failed > 0 && what != "":
					later++
					note = "needs " + what + ": hosted servers"
				case failed > 0:
					note = "FAILED"
					t.Errorf("%s: %s checks failed", m[1], m[3])
				}
				fmt.Fprintf(&table, "%-44s %4s %4s  %s\n", m[1], m[2], m[3], note)
			}
			if ran != scenarios {
				t.Errorf("the suite ran %d scenarios, want %d", ran, scenarios)
			}
			t.Logf("%s: %d scenarios, %d pass, %d come with hosted servers\n%-44s pass fail\n%s", revision, ran, ran-later, later, "", table.String())
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}
