package index

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

const commandManifest = `
[index]
tools = ["text.count", "sort"]

[tool.grep]
description = "Lines that match."
command = ["grep", "--line-number", ["--max-count", "{most}"], ["--ignore-case", "{ignore_case?}"], "--", "{pattern}", "{files}"]
stdout = "text"
timeout = "5s"
read_only = true
[tool.grep.input]
pattern = { type = "string", description = "a regular expression" }
files = { type = "array", items = { type = "string" }, default = ["."] }
most = "integer"
ignore_case = { type = "boolean", default = false }

[tool.sort]
command = ["sort", "--key={key}", "{order}", "{file}"]
input = { key = "integer", order = { enum = ["-r", "-n"], required = false }, file = "string" }

[tool.git.log]
command = ["git", "log", "--format={{\"id\": \"%H\", \"by\": {by}}}", "{ x }"]
streaming = true
output = { type = "object" }

[tool.whole]
command = ["./run", "{a}"]
input = { type = "object", properties = { a = { type = ["integer", "null"], default = 3 } } }

[tool."text.count"]
idempotent = true
`

// decoded is the value of a JSON text.
func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Error(err)
	}
	return v
}

func TestCommands(t *testing.T) {
	t.Parallel()
	m := load(t, "tools.toml", commandManifest)
	if diff := cmp.Diff([]string{"text.count", "sort", "git.log", "grep", "whole"}, m.Tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if len(m.Warnings) > 0 {
		t.Errorf("warnings %q", m.Warnings)
	}
	if m.Tool("text.count").Command != nil || m.Tool("text.count").Function != "text.count" || m.Tool("grep").Function != "" {
		t.Error("a function is not told from a command")
	}
	for name, want := range map[string]string{
		"grep": `{"type":"object","properties":{"most":{"type":"integer"},"ignore_case":{"default":false,"type":"boolean"},` +
			`"pattern":{"description":"a regular expression","type":"string"},"files":{"default":["."],"items":{"type":"string"},"type":"array"}},` +
			`"required":["pattern"],"additionalProperties":false}`,
		"sort": `{"type":"object","properties":{"key":{"type":"integer"},"order":{"enum":["-r","-n"]},"file":{"type":"string"}},` +
			`"required":["key","file"],"additionalProperties":false}`,
		"git.log": `{"type":"object","properties":{"by":{"type":"string"}},"required":["by"],"additionalProperties":false}`,
		"whole":   `{"additionalProperties":false,"properties":{"a":{"default":3,"type":["integer","null"]}},"type":"object"}`,
	} {
		c := m.Tool(name).Command
		if diff := cmp.Diff(decoded(t, want), decoded(t, string(c.Input))); diff != "" {
			t.Errorf("input of %s (-want +got):\n%s", name, diff)
		}
		d, err := m.Descriptor(tool.IndexRef{Name: "i", Revision: "r"}, name, tool.Descriptor{InputSchema: c.Input, OutputSchema: c.Output, Positional: c.Parameters, Annotations: tool.Annotations{Streaming: c.Streaming}})
		if err != nil {
			t.Errorf("descriptor of %s: %v", name, err)
		} else if name == "grep" && (d.Description != "Lines that match." || !d.Annotations.ReadOnly || string(d.OutputSchema) != `{"type":"string"}`) {
			t.Errorf("descriptor of %s: %+v", name, d)
		}
	}
	if c := m.Tool("git.log").Command; !c.Streaming || c.Text || string(c.Output) != `{"type":"object"}` {
		t.Errorf("git.log is %+v", c)
	}
	only := load(t, "tools.toml", "[index]\n[tool.date]\ncommand = [\"date\"]\n")
	if diff := cmp.Diff([]string{"date"}, only.Tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

func TestArgv(t *testing.T) {
	t.Parallel()
	m := load(t, "tools.toml", commandManifest)
	for _, tt := range []struct {
		tool, args string
		want       []string
	}{
		{"grep", `{"pattern":"x"}`, []string{"grep", "--line-number", "--", "x", "."}},
		{"grep", `{"pattern":"-x; rm -rf $(pwd) 'a' \"b\"\n*","files":["a b","-c",""],"most":3,"ignore_case":true}`,
			[]string{"grep", "--line-number", "--max-count", "3", "--ignore-case", "--", "-x; rm -rf $(pwd) 'a' \"b\"\n*", "a b", "-c", ""}},
		{"grep", `{"pattern":"x","files":[],"most":null,"ignore_case":false}`, []string{"grep", "--line-number", "--", "x"}},
		{"sort", `{"key":-2,"order":"-r","file":"f"}`, []string{"sort", "--key=-2", "-r", "f"}},
		{"sort", `{"key":12345678901234567890,"file":"größe"}`, []string{"sort", "--key=12345678901234567890", "größe"}},
		{"git.log", `{"by":"{me}"}`, []string{"git", "log", `--format={"id": "%H", "by": {me}}`, "{ x }"}},
		{"whole", ``, []string{"./run", "3"}},
		{"whole", `{"a":null}`, []string{"./run"}},
		{"whole", `{"a":{"b":[1, 2]}}`, []string{"./run", `{"b":[1,2]}`}},
	} {
		got, err := m.Tool(tt.tool).Command.Argv(json.RawMessage(tt.args))
		if err != nil {
			t.Errorf("%s %s: %v", tt.tool, tt.args, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.tool, tt.args, diff)
		}
	}
	for _, tt := range []struct{ tool, args, pointer string }{
		{"sort", `{"key":1,"file":"-o/etc/passwd"}`, "/file"},
		{"sort", `{"key":1,"file":"--"}`, "/file"},
		{"sort", `{"key":1,"order":"-o","file":"f"}`, "/order"},
		{"whole", `{"a":-1}`, "/a"},
		{"whole", `{"a":["b","-c"]}`, "/a/1"},
		{"grep", `{"pattern":"a\u0000b"}`, "/pattern"},
		{"grep", `{"pattern":"` + strings.Repeat("x", 200_000) + `"}`, "/pattern"},
		{"git.log", `{"by":"\u0000"}`, ""},
	} {
		got, err := m.Tool(tt.tool).Command.Argv(json.RawMessage(tt.args))
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeInvalidArguments || e.Started != toolmesh.StartedNo {
			t.Errorf("%s %.80s: %.80q, %v; want invalid_arguments, not started", tt.tool, tt.args, got, err)
			continue
		}
		errs, _ := e.Details["errors"].([]map[string]string)
		if len(errs) != 1 || errs[0]["pointer"] != tt.pointer || errs[0]["message"] == "" {
			t.Errorf("%s %.80s: details %v, want the pointer %s", tt.tool, tt.args, e.Details, tt.pointer)
		}
	}
}

func TestCommandsRefuse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text  string
		parts []string
	}{
		"a text":             {`command = "ls -l"`, []string{"command", "list of texts"}},
		"empty":              {`command = []`, []string{"must name a program"}},
		"no text":            {`command = ["ls", 1]`, []string{"item 2", "whole number"}},
		"program a param":    {`command = ["{program}"]`, []string{"must begin with the program"}},
		"program a group":    {`command = [["ls", "{a}"]]`, []string{"must begin with the program"}},
		"empty program":      {`command = [""]`, []string{"must begin with the program"}},
		"NUL":                {`command = ["ls", "a\u0000"]`, []string{"NUL"}},
		"group no text":      {`command = ["ls", ["-l", 1]]`, []string{"item 2"}},
		"group no param":     {`command = ["ls", ["-l"]]`, []string{"never be left out"}},
		"gate alone":         {`command = ["ls", "{long?}"]`, []string{"outside of a group"}},
		"undeclared":         {"command = [\"ls\", \"{pth}\"]\ninput = { path = \"string\" }", []string{`has {pth}`, `did you mean "path"`}},
		"unused":             {"command = [\"ls\"]\ninput = { path = \"string\" }", []string{`"path"`, "does not use"}},
		"whole undeclared":   {"command = [\"ls\", \"{b}\"]\ninput = { type = \"object\", properties = { a = {} } }", []string{"has {b}"}},
		"input a list":       {"command = [\"ls\", \"{a}\"]\ninput = [\"a\"]", []string{"input", "table of parameters"}},
		"type":               {"command = [\"ls\", \"{a}\"]\ninput = { a = \"int\" }", []string{`a = "int"`, "integer"}},
		"no schema":          {"command = [\"ls\", \"{a}\"]\ninput = { a = { type = \"int\" } }", []string{"input is not a JSON Schema"}},
		"no type":            {"command = [\"ls\", \"{a}\"]\ninput = { a = 3 }", []string{"whole number"}},
		"parameter name":     {"command = [\"ls\"]\ninput = { \"a b\" = \"string\" }", []string{`"a b"`}},
		"stdout":             {"command = [\"ls\"]\nstdout = \"xml\"", []string{`"json" or "text"`}},
		"streaming":          {"command = [\"ls\"]\nstreaming = \"yes\"", []string{"streaming", "true or false"}},
		"output":             {"command = [\"ls\"]\noutput = { type = \"thing\" }", []string{"output is not a JSON Schema"}},
		"too many":           {"command = [\"ls\"" + strings.Repeat(`, "x"`, 2000) + "]", []string{"elements"}},
		"unknown lane scope": {"command = [\"ls\"]\nlane_scope = \"x\"", []string{"lane_scope"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := LoadFS(files("tools.toml", "[index]\n[tool.c]\n"+tt.text+"\n"))
			wantFailed(t, err, reasonManifest, append(tt.parts, "tools.toml")...)
		})
	}
	_, err := LoadFS(files("tools.toml", "[index]\n[tool.\"a b\"]\ncommand = [\"ls\"]\n"))
	wantFailed(t, err, reasonManifest, "a b", "cannot name a command")
	m := load(t, "tools.toml", "[index]\n[tool.c]\ncommand = [\"ls\"]\nstreming = true\n")
	if len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], `did you mean "streaming"`) {
		t.Errorf("warnings %q", m.Warnings)
	}
}

func FuzzArgv(f *testing.F) {
	f.Add(`["a", "x{p}y", ["-f", "{q}"], "--", "{r}"]`, `{"p":"1","q":[1,"2"],"r":{"a":null}}`)
	f.Add(`["a", "{{{p}}}", ["{p?}", "-x"]]`, `{"p":true}`)
	f.Fuzz(func(t *testing.T, command, args string) {
		if !utf8.ValidString(command) {
			return
		}
		m, err := LoadFS(files("tools.toml", "[index]\n[tool.c]\ncommand = "+command+"\n"))
		if err != nil || m.Tool("c").Command == nil {
			return
		}
		argv, err := m.Tool("c").Command.Argv(json.RawMessage(args))
		if err != nil {
			if code := toolmesh.CodeOf(err); code != toolmesh.CodeInvalidArguments {
				t.Fatalf("%v: want invalid_arguments", err)
			}
			return
		}
		if len(argv) == 0 || argv[0] != m.Tool("c").Command.Program {
			t.Fatalf("%q does not begin with the program", argv)
		}
		for _, one := range argv {
			if strings.ContainsRune(one, 0) {
				t.Fatalf("%q has a NUL", argv)
			}
		}
	})
}
