package agent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// about is the answer of describe for a tool.
type about struct {
	Source      string
	Description string
	InputSchema json.RawMessage `json:"input_schema"`
	Positional  []string
	Annotations map[string]any
	Warnings    []string
	Nodes       []string
	Index       struct{ Name, Revision string }
}

// answered asks the registry until it answers: a busy machine may take longer than one question waits.
func answered[T any](t *testing.T, ask func() (T, error)) (answer T) {
	t.Helper()
	meshtest.Until(t, "the registry answers", func() bool {
		var err error
		if answer, err = ask(); err != nil && !strings.Contains(err.Error(), "did not answer within") {
			t.Fatal(err)
		}
		return err == nil
	})
	return answer
}

func describe(t *testing.T, c *client.Client, id string) about {
	t.Helper()
	raw := answered(t, func() (json.RawMessage, error) { return c.Describe(t.Context(), subjects.ToolID(id)) })
	var a about
	if err := json.Unmarshal(raw, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func listed(t *testing.T, c *client.Client, id string) registry.ListedTool {
	t.Helper()
	all := answered(t, func() ([]registry.ListedTool, error) { return c.List(t.Context()) })
	for _, one := range all {
		if string(one.ID) == id {
			return one
		}
	}
	t.Fatalf("%s is not listed: %v", id, all)
	return registry.ListedTool{}
}

var staticIndex = map[string]string{
	"tools.toml": `
[index]
tools = ["works.f", "keyed.ask", "needs.count", "lost.table", "gone.f", "broken.f", "works.none"]

[[index.env]]
name = "ASK_KEY"
required = true
tools = ["keyed.ask"]

[tool."needs.count"]
timeout = "7s"

[tool.program]
description = "Runs a program."
command = ["no-such-program-of-ours", "{text}"]
`,
	"works.py": "def f(x: int) -> int:\n    \"\"\"Works.\"\"\"\n    return x\n",
	"keyed.py": "import os\nfrom shapes import Tone\nKEY = os.environ['ASK_KEY']\n\n" +
		"def ask(question: str, tone: Tone = Tone.KIND, *, times: int = 2) -> str:\n    \"\"\"Ask somebody.\n\n    Args:\n        question: what to ask\n    \"\"\"\n    return KEY + question + tone.value\n",
	"shapes.py": "from enum import Enum\n\nclass Tone(Enum):\n    KIND = 'kind'\n    HARSH = 'harsh'\n",
	"needs.py":  "import os\nNUMBER = os.environ['UNDECLARED']\n\nasync def count(to: int = NUMBER):\n    \"\"\"Count.\"\"\"\n    for i in range(to):\n        yield i\n",
	"lost.py":   "import no_such_package_of_ours as lost\n\ndef table(rows: list[int], frame: 'lost.Frame', *more: str) -> lost.Frame:\n    \"\"\"A table.\"\"\"\n",
	"broken.py": "def f(:\n",
}

// A tool of a module that cannot be imported is described from its source, marked as such, and from
// its import as soon as that succeeds.
func TestToolsThatCannotBeImportedAreDescribedFromSource(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	source := repository(t, "static", staticIndex)
	last := install(t, nc, map[string]any{"source": source})
	if served(last) != "[static.works.f]" {
		t.Errorf("installed %v, want one tool", last["tools"])
	}
	if a := describe(t, c, "static.works.f"); a.Source != "import" || len(a.Nodes) != 1 || a.Description != "Works." {
		t.Errorf("what is imported: %+v", a)
	}

	for _, want := range []struct {
		id, description, schema, reason string
		warning                         string
		positional                      []string
	}{
		{id: "static.needs.count", description: "Count.", reason: "UNDECLARED", warning: "its arguments", schema: `{"type":"object"}`},
		{id: "static.lost.table", description: "A table.", reason: "no_such_package_of_ours", warning: "its arguments", schema: `{"type":"object"}`},
		{
			id: "static.program", description: "Runs a program.", reason: "command not found", positional: []string{"text"},
			schema: `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}`,
		},
	} {
		a := describe(t, c, want.id)
		if a.Source != "static" || len(a.Nodes) != 0 || a.Nodes == nil || a.Description != want.description || !slices.Equal(a.Positional, want.positional) || a.Index.Name != "static" || a.Index.Revision == "" {
			t.Errorf("%s is %+v", want.id, a)
		}
		if string(a.InputSchema) != want.schema {
			t.Errorf("%s takes\n%s, want\n%s", want.id, a.InputSchema, want.schema)
		}
		if found := strings.Join(a.Warnings, "\n"); (want.warning == "") != (found == "") || !strings.Contains(found, want.warning) {
			t.Errorf("%s warns %q, want %q", want.id, found, want.warning)
		}
		l := listed(t, c, want.id)
		if l.State != "unavailable" || !strings.Contains(l.Reason, want.reason) || l.Description != want.description || len(l.Nodes) != 0 {
			t.Errorf("%s is listed as %+v", want.id, l)
		}
		e := fails(t, c, want.id, `{}`, toolmesh.CodeUnavailable, want.reason)
		if e.Started != toolmesh.StartedNo {
			t.Errorf("%s: started %v", want.id, e.Started)
		}
	}
	if a := describe(t, c, "static.needs.count"); a.Annotations["timeout"] != "7s" {
		t.Errorf("what tools.toml says of a tool is lost: %v", a.Annotations)
	}

	// Of a tool that its source does not show, only the reason is known.
	for id, reason := range map[string]string{"static.keyed.ask": "--env ASK_KEY", "static.gone.f": "No module named", "static.broken.f": "SyntaxError", "static.works.none": "has no none"} {
		if l := listed(t, c, id); l.State != "unavailable" || !strings.Contains(l.Reason, reason) || l.Description != "" {
			t.Errorf("%s is listed as %+v", id, l)
		}
		if _, err := c.Describe(t.Context(), subjects.ToolID(id)); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || !strings.Contains(err.Error(), reason) {
			t.Errorf("describe %s: %v", id, err)
		}
	}

	// With the missing variables set, the description of the import replaces that of the source.
	install(t, nc, map[string]any{"source": source, "env": map[string]string{"ASK_KEY": "k"}})
	a := describe(t, c, "static.keyed.ask")
	if a.Source != "import" || len(a.Nodes) != 1 || !strings.Contains(string(a.InputSchema), `"enum":["kind","harsh"]`) || a.Description != "Ask somebody." {
		t.Errorf("after the import: %+v", a)
	}
	if l := listed(t, c, "static.keyed.ask"); l.State != "serving" || l.Reason != "" {
		t.Errorf("after the import it is listed as %+v", l)
	}
	gives(t, c, "static.keyed.ask", `{"question":"?","tone":"harsh"}`, `"k?harsh"`)
}

// A node that cannot make an index's environment lists its tools with the reason; a node that serves
// them is believed before it.
func TestANodeThatCannotBuildAnIndexSaysWhy(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	one := startIn(t, s, "one", t.TempDir())
	nc := s.Connect(t)
	c := newClient(t, nc, nil)
	mark := filepath.Join(t.TempDir(), "no-more")
	install(t, nc, map[string]any{"source": repository(t, "picky", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.f\"]\ninit = [\"python\", \"-c\", \"import os, sys; sys.exit(os.path.exists('" + mark + "'))\"]\n",
		"t.py":       "def f(x: int = 1) -> int:\n    \"\"\"Picky.\"\"\"\n    return x\n",
	})})
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	two := startIn(t, s, "two", t.TempDir())
	ctx := t.Context()
	if err := two.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if a := describe(t, c, "picky.t.f"); a.Source != "import" || !slices.Equal(a.Nodes, []string{"one"}) {
		t.Errorf("while a node serves it: %+v", a)
	}
	gives(t, c, "picky.t.f", `{"x":3}`, `3`)
	stop(t, one)
	for deadline := time.Now().Add(time.Minute); listed(t, c, "picky.t.f").State != "unavailable" && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if l := listed(t, c, "picky.t.f"); l.State != "unavailable" || !strings.Contains(l.Reason, "init command") {
		t.Errorf("it is listed as %+v", l)
	}
}
