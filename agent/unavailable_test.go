package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
)

// A tool that is refused for its declaration is described from its import, with the reason as a
// sentence.
func TestAToolRefusedForItsAnnotationsIsDescribed(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "lane", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.good\", \"t.keyed\"]\n" +
			"[tool.\"t.keyed\"]\ntimeout = \"7s\"\nresource_key = [\"file\", \"{path}\"]\n",
		"t.py": "def good(): pass\ndef keyed(name: str) -> int:\n    \"\"\"Keyed.\"\"\"\n",
	})})
	if served(last) != "[lane.t.good]" {
		t.Errorf("installed %v, want one tool", last)
	}
	l := listed(t, c, "lane.t.keyed")
	if l.State != "unavailable" || !strings.HasPrefix(l.Reason, "resource_key names the parameter {path}") || l.Description != "Keyed." {
		t.Errorf("it is listed as %+v", l)
	}
	a := describe(t, c, "lane.t.keyed")
	if a.Source != "import" || a.Description != "Keyed." || len(a.Nodes) != 0 || a.Annotations["timeout"] != "7s" ||
		string(a.InputSchema) != `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}` {
		t.Errorf("it is described as %+v %s", a, a.InputSchema)
	}
	fails(t, c, "lane.t.keyed", `{"name":"x"}`, toolmesh.CodeUnavailable, "resource_key")
}

// An entry point that is not a function makes only its own tool unavailable, as a missing function
// does.
func TestAWrongEntryPointIsListed(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "epx", map[string]string{
		"pyproject.toml": "[project]\nname = \"epx\"\nversion = \"1\"\n[project.entry-points.\"toolmesh.tools\"]\n" +
			"shout = \"epx.core:shout\"\nwhisper = \"epx.core:K.w\"\nmissing = \"epx.core:missing\"\n",
		"epx/__init__.py": "", "epx/core.py": "def shout(text: str) -> str: return text.upper()\nclass K:\n    def w(self): pass\n",
	})})
	if served(last) != "[epx.shout]" {
		t.Errorf("installed %v, want one tool", last)
	}
	gives(t, c, "epx.shout", `{"text":"a"}`, `"A"`)
	for id, want := range map[string]string{
		"epx.whisper": `its entry point is whisper = "epx.core:K.w", which is not a function of its module`, "epx.missing": "has no missing",
	} {
		if l := listed(t, c, id); l.State != "unavailable" || !strings.Contains(l.Reason, want) {
			t.Errorf("%s is listed as %+v", id, l)
		}
		if !strings.Contains(fmt.Sprint(last["unavailable"]), want) {
			t.Errorf("the install does not say %q: %v", want, last["unavailable"])
		}
	}
}
