package index

import (
	"slices"
	"strings"
	"testing"
)

// An entry that is not a function is listed with its reason; the others are not
// affected.
func TestWrongEntryPointFailsOneTool(t *testing.T) {
	t.Parallel()
	m := load(t, "pyproject.toml", `[project.entry-points."toolmesh.tools"]
extras = "epx.core:f [x]"
number = 1
shout = "epx.core:shout"
whisper = "epx.core:K.w"
"no tool" = "epx.core:f"
[tool.toolmesh.tool.whisper]
timeout = "2s"
`)
	if want := []string{"extras", "number", "shout", "whisper"}; !slices.Equal(m.Tools, want) {
		t.Errorf("tools %q, want %q", m.Tools, want)
	}
	for name, want := range map[string]string{
		"extras": "extras", "number": "a whole number", "whisper": `whisper = "epx.core:K.w", which is not a function of its module`,
	} {
		if got := m.Tool(name).Refused; !strings.Contains(got, want) || m.Tool(name).Function != "" {
			t.Errorf("%s is refused for %q and is the function %q; want %q and none", name, got, m.Tool(name).Function, want)
		}
	}
	if m.Tool("shout").Refused != "" || m.Tool("shout").Function != "epx.core.shout" {
		t.Errorf("shout is refused for %q and is the function %q", m.Tool("shout").Refused, m.Tool("shout").Function)
	}
	if len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], "no tool") {
		t.Errorf("warnings %q, want one of what cannot be listed", m.Warnings)
	}
}
