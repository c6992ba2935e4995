package index

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/toolmesh/toolmesh"
)

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// A file with many wrong names is read in linear time: hints are searched for a few, and a few are reported.
func TestManyWrongNamesAreCounted(t *testing.T) {
	t.Parallel()
	const count = 1000
	tools := numbered(count, "'m.f%05d',")
	errorsOf := map[string]fstest.MapFS{
		"tables": {"tools.toml": {Data: []byte("[index]\ntools = [" + tools + "]\n[tool]\n" + numbered(count, "g%05d = 1\n"))}},
		"names":  {"tools.toml": {Data: []byte("[index]\ntools = ['m.f00000']\n" + numbered(count, "[[index.env]]\nname = 'V%d'\ntools = ['m.f00001']\n"))}},
		"inputs": {"tools.toml": {Data: []byte("[tool.c]\ncommand = ['c', '" + numbered(count, "{p%05d}") + "']\ninput = {" + numbered(count, "q%05d = 'string', ") + "q = 'string'}\n[index]\n")}},
	}
	for name, files := range errorsOf {
		_, err := LoadFS(files)
		var e *toolmesh.Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", name, err)
		}
		told, _ := e.Details["errors"].([]string)
		near := strings.Count(strings.Join(told, "\n"), "did you mean")
		if len(told) != 20 || near == 0 || near > 20 || !strings.Contains(e.Message, "more)") || name == "tables" && !strings.Contains(e.Message, "(and 999 more)") {
			t.Errorf("%s: %d errors, %d suggestions: %.200s", name, len(told), near, e.Message)
		}
	}
	warningsOf := map[string]fstest.MapFS{
		"keys":      {"tools.toml": {Data: []byte("[index]\ntools = ['m.f']\n" + numbered(count, "tool%d = 1\n"))}},
		"variables": {"TOOLS.yml": {Data: []byte("tools: [" + tools + "]\nenv_vars: [" + numbered(count, "{A: m.g%05d},") + "]\n")}},
	}
	for name, files := range warningsOf {
		m, err := LoadFS(files)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := len(m.Warnings); n != 21 || !strings.Contains(m.Warnings[20], "980 more") {
			t.Errorf("%s: %d warnings, the last %q", name, n, m.Warnings[n-1])
		}
	}
}

// A manifest that would take a parser of TOML or YAML more than linear time is refused first.
func TestManifestsThatTakeLongAreRefused(t *testing.T) {
	t.Parallel()
	const head = "[index]\ntools = ['m.f']\n"
	for name, c := range map[string]struct{ file, text, want string }{
		"a dotted key":        {"tools.toml", head + strings.Repeat("a.", 41) + "a = 1\n", "line 3: keys, lists and tables have at most 40 levels"},
		"a dotted table":      {"tools.toml", head + "[" + strings.Repeat("'a' . ", 41) + "a]\n", "at most 40 levels"},
		"inline tables":       {"tools.toml", head + "a = " + strings.Repeat("{'}' = {}, a = ", 41) + "1" + strings.Repeat("}", 41) + "\n", "at most 40 levels"},
		"lists":               {"tools.toml", head + "a = " + strings.Repeat("[", 41) + strings.Repeat("]", 41) + "\n", "at most 40 levels"},
		"dotted keys inside":  {"tools.toml", head + "a = " + strings.Repeat("{b = 1, "+strings.Repeat("a.", 9)+"a = ", 5) + "1" + strings.Repeat("}", 5) + "\n", "at most 40 levels"},
		"below a header":      {"tools.toml", head + "[" + strings.Repeat("a.", 21) + "a]\n" + strings.Repeat("b.", 21) + "b = 1\n", "line 4: keys, lists and tables have at most 40 levels"},
		"a long key":          {"tools.toml", head + "['" + strings.Repeat("a", 1001) + "']\nb = 1\n", "25 bytes of keys count as one"},
		"a long inline key":   {"tools.toml", head + "a = {" + strings.Repeat("a", 1001) + " = []}\n", "25 bytes of keys count as one"},
		"after quotes":        {"tools.toml", head + `a = ['''x'''', """\"""", "\\\"", ` + strings.Repeat("{a = ", 41) + "1" + strings.Repeat("}", 41) + "]\n", "at most 40 levels"},
		"parameters":          {"tools.toml", "[index]\n[tool.c]\ncommand = ['c', '" + numbered(1001, "{p%d}") + "']\n", "more than 1000 elements or parameters"},
		"keys of a mapping":   {"TOOLS.yml", "tools: [m.f]\nx: {" + numbered(1001, "k%d: 1, ") + "}\n", "line 2: a mapping has more than 1000 keys"},
		"the same key":        {"TOOLS.yml", "tools: [m.f]\nx: {k: 1, k: 2}\n", `line 2: the key "k" is written twice`},
		"a script's metadata": {"t.py", "# /// script\n# dependencies = []\n# " + strings.Repeat("a.", 41) + "a = 1\n# ///\ndef f():\n    pass\n", "at most 40 levels"},
	} {
		if _, err := LoadFS(fstest.MapFS{c.file: {Data: []byte(c.text)}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dots := strings.Repeat(". { [ ", 50)
	text := "[index]\ntools = ['m.f'] # " + dots + "\ndescription = \"\"\"" + dots + "\n\"" + dots + "\"\"\"\"\nmetadata = {a = '" + dots + "'}\n# " + dots
	text += "\n" + strings.Repeat("[[a.b]]\nc = [{d = {}}, {}, [1.5, {e.f = 2.5, g = '"+dots+"'}]]\nd = {}\n", 50) + "[b]\n" + strings.Repeat("a.", 30) + "a = 1"
	if _, err := LoadFS(fstest.MapFS{"tools.toml": {Data: []byte(text)}}); err != nil {
		t.Errorf("dots and braces in texts and comments, and many tables side by side: %v", err)
	}
}
