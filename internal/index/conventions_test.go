package index

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// sameManifest compares the content of a manifest.
func sameManifest(t *testing.T, want Manifest, got *Manifest) {
	t.Helper()
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreUnexported(Manifest{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
}

func load(t *testing.T, pairs ...string) *Manifest {
	t.Helper()
	m, err := LoadFS(files(pairs...))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const (
	someTOML   = "[index]\ntools = [\"toml.f\"]\n"
	someLegacy = "tools: [yml.f]\n"
	someEntry  = "[project.entry-points.\"toolmesh.tools\"]\nentry = \"a:f\"\n"
	someScript = "# /// script\n# dependencies = []\n# ///\ndef f(): pass\n"
)

func TestOrderOfConventions(t *testing.T) {
	t.Parallel()
	all := []string{"tools.toml", someTOML, "TOOLS.yml", someLegacy, "pyproject.toml", someEntry, "t.py", someScript}
	for i, want := range []string{"toml.f", "yml.f", "entry", "t.f"} {
		m := load(t, all[2*i:]...)
		if m.Tools[0] != want || m.Convention != all[2*i] {
			t.Errorf("with %v the tools are %v of %s, want %s", all[2*i:], m.Tools, m.Convention, want)
		}
	}
	_, err := LoadFS(files("tools.toml", "[other]\nx = 1\n", "TOOLS.yml", someLegacy))
	wantFailed(t, err, reasonManifest, "no [index] table")
}

func TestLegacy(t *testing.T) {
	t.Parallel()
	m := load(t, "TOOLS.yml", `description: A tool that sends plain text mail.

tools:
- mail.send
- 'mail.read'
- "pkg.sub.count"

env_vars:
- MAIL_ADDRESS:
  - mail.send
- MAIL_PASSWORD:
  - mail.send
  - 'mail.read'
- MAIL_URL
`, "requirements.txt", "rich\n")
	sameManifest(t, Manifest{
		Convention: "TOOLS.yml", Description: "A tool that sends plain text mail.", Dependencies: "requirements.txt",
		Tools: []string{"mail.send", "mail.read", "pkg.sub.count"},
		Env: []EnvVar{
			{Name: "MAIL_ADDRESS", Tools: []string{"mail.send"}},
			{Name: "MAIL_PASSWORD", Tools: []string{"mail.read", "mail.send"}},
			{Name: "MAIL_URL"},
		},
	}, m)
	if d, err := m.Descriptor(tool.IndexRef{Name: "mail", Revision: "r"}, "mail.send", tool.Descriptor{Description: "Send."}); err != nil || d.ID != "mail.mail.send" {
		t.Errorf("descriptor %v, %v", d, err)
	}

	short := load(t, "TOOLS.yml", "tools:\n- file_ops.create_file\n")
	sameManifest(t, Manifest{Convention: "TOOLS.yml", Tools: []string{"file_ops.create_file"}}, short)

	odd := load(t, "TOOLS.yml", "\ufeff%YAML 1.1\n---\n# a comment\ntools: &t [a.b, a.c]\ndescription:\nenv_vars:\n  A: a.b\n  B: *t\n  C:\n")
	sameManifest(t, Manifest{Convention: "TOOLS.yml", Tools: []string{"a.b", "a.c"}, Env: []EnvVar{
		{Name: "A", Tools: []string{"a.b"}}, {Name: "B", Tools: []string{"a.b", "a.c"}}, {Name: "C"},
	}}, odd)

	warned := load(t, "TOOLS.yml", "tools: [a.b]\nenv_var: [X]\nenv_vars: [{X: [a.bb]}]\nversion: 1\n")
	want := []string{`env_vars X names "a.bb", which is not in tools; did you mean "a.b"?`, `unknown key "env_var"; did you mean "env_vars"?`, `unknown key "version"`}
	if diff := cmp.Diff(want, warned.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// bomb is a YAML file whose aliases double n times.
func bomb(n int) string {
	var b strings.Builder
	b.WriteString("tools: [a.b]\nx0: &x0 [a, a]\n")
	for i := range n {
		fmt.Fprintf(&b, "x%d: &x%d [*x%d, *x%d]\n", i+1, i+1, i, i)
	}
	fmt.Fprintf(&b, "env_vars: *x%d\n", n)
	return b.String()
}

// squareBomb names a long list very often.
func squareBomb() string {
	var b strings.Builder
	b.WriteString("tools: [a.b]\nlist: &list [" + strings.Repeat("a.b,", 20_000) + "]\nenv_vars:\n")
	for i := range 20_000 {
		fmt.Fprintf(&b, "- V%d: *list\n", i)
	}
	return b.String()
}

func TestConventionsRefuse(t *testing.T) {
	t.Parallel()
	script := func(block string) fstest.MapFS {
		return files("t.py", "# /// script\n"+block+"# ///\ndef f(): pass\n")
	}
	entries := func(lines string) fstest.MapFS {
		return files("pyproject.toml", "[project.entry-points.\"toolmesh.tools\"]\n"+lines)
	}
	for name, tt := range map[string]struct {
		fsys   fstest.MapFS
		reason string
		parts  []string
	}{
		"yaml malformed":     {files("TOOLS.yml", "tools:\n- a.b\n  - c: [\n"), reasonManifest, []string{"TOOLS.yml", "line"}},
		"yaml tab":           {files("TOOLS.yml", "tools:\n\t- a.b\n"), reasonManifest, []string{"TOOLS.yml", "line"}},
		"yaml binary":        {files("TOOLS.yml", "tools: [\x00\xff]"), reasonManifest, []string{"TOOLS.yml"}},
		"yaml empty":         {files("TOOLS.yml", "# nothing\n"), reasonManifest, []string{"tools must list at least one tool"}},
		"yaml a list":        {files("TOOLS.yml", "- a.b\n"), reasonManifest, []string{"line 1", "!!seq", "tools:"}},
		"yaml two documents": {files("TOOLS.yml", "tools: [a.b]\n---\ntools: [a.c]\n"), reasonManifest, []string{"several documents"}},
		"yaml twice":         {files("TOOLS.yml", "tools: [a.b]\ntools: [a.c]\n"), reasonManifest, []string{"tools"}},
		"yaml no tools":      {files("TOOLS.yml", "description: x\n"), reasonManifest, []string{"at least one tool"}},
		"yaml empty tools":   {files("TOOLS.yml", "tools: []\n"), reasonManifest, []string{"at least one tool"}},
		"yaml tool mapping":  {files("TOOLS.yml", "tools: [{name: a.b}]\n"), reasonManifest, []string{"item 1 is a table"}},
		"yaml tool name":     {files("TOOLS.yml", "tools: [b]\n"), reasonManifest, []string{"module.function"}},
		"yaml tool twice":    {files("TOOLS.yml", "tools: [a.b, a.b]\n"), reasonManifest, []string{`"a.b" twice, as items 1 and 2`}},
		"yaml env of node":   {files("TOOLS.yml", "tools: [a.b]\nenv_vars: [PATH]\n"), reasonManifest, []string{"PATH"}},
		"yaml env name":      {files("TOOLS.yml", "tools: [a.b]\nenv_vars: [{a b: [a.b]}]\n"), reasonManifest, []string{"a b"}},
		"yaml description":   {files("TOOLS.yml", "tools: [a.b]\ndescription: [x]\n"), reasonManifest, []string{"description must be a text"}},
		"yaml deep":          {files("TOOLS.yml", strings.Repeat("[", 500_000)), reasonManifest, []string{"depth"}},
		"yaml too large":     {files("TOOLS.yml", "tools: [a.b]\n"+strings.Repeat("#\n", 1<<20)), reasonTooLarge, []string{"1 MB"}},
		"yaml square bomb":   {files("TOOLS.yml", squareBomb()), reasonManifest, []string{"excessive aliasing"}},
		"yaml bomb":          {files("TOOLS.yml", bomb(60)), reasonManifest, []string{"excessive aliasing"}},
		"yaml alias to self": {files("TOOLS.yml", "tools: &t [*t]\n"), reasonManifest, []string{"TOOLS.yml"}},

		"entry no table":    {files("pyproject.toml", "[project.entry-points]\n\"toolmesh.tools\" = 3\n"), reasonManifest, []string{"must be a table"}},
		"entry no quotes":   {files("pyproject.toml", "[project.entry-points.toolmesh.tools]\nf = \"a:f\"\n"), reasonManifest, []string{"quotes"}},
		"entry none":        {entries(""), reasonManifest, []string{"names no tool"}},
		"entry number":      {entries("f = 1\n"), reasonManifest, []string{"whole number", "module:function"}},
		"entry no function": {entries("f = \"a.f\"\n"), reasonManifest, []string{"names no function", "module:function"}},
		"entry nothing":     {entries("f = \"\"\n"), reasonManifest, []string{"names no function"}},
		"entry method":      {entries("f = \"a:C.f\"\n"), reasonManifest, []string{"not a function of its module"}},
		"entry extras":      {entries("f = \"a:f [x]\"\n"), reasonManifest, []string{"extras"}},
		"entry name":        {entries("\"f g\" = \"a:f\"\n"), reasonManifest, []string{"cannot be a tool's"}},
		"entry module":      {entries("f = \"a-b:f\"\n"), reasonManifest, []string{"Python name"}},
		"entry own table":   {files("pyproject.toml", someEntry+"[tool]\ntoolmesh = 1\n"), reasonManifest, []string{"toolmesh must be a table"}},
		"entry other tool":  {files("pyproject.toml", someEntry+"[tool.toolmesh.tool.entri]\ntimeout = \"2s\"\n"), reasonManifest, []string{`did you mean "entry"`}},

		"script twice":         {files("t.py", someScript+"\n"+someScript), reasonManifest, []string{"t.py", "2 script blocks"}},
		"script unclosed":      {files("t.py", "# /// script\n# dependencies = []\ndef f(): pass\n"), reasonManifest, []string{"never closed"}},
		"script TOML":          {script("# dependencies = [\n# oops\n"), reasonManifest, []string{"t.py", "line 2"}},
		"script dependencies":  {script("# dependencies = \"rich\"\n"), reasonManifest, []string{"dependencies", "list of texts"}},
		"script dependency":    {script("# dependencies = [1]\n"), reasonManifest, []string{"item 1"}},
		"script option":        {script("# dependencies = [\"--index-url http://x\"]\n"), reasonManifest, []string{"not a requirement"}},
		"script second line":   {script("# dependencies = [\"rich\\n-r x\"]\n"), reasonManifest, []string{"not a requirement"}},
		"script python":        {script("# requires-python = 3\n"), reasonManifest, []string{"requires-python"}},
		"script tools type":    {script("# dependencies = []\n# [tool.toolmesh]\n# tools = \"f\"\n"), reasonManifest, []string{"[tool.toolmesh] tools", "list"}},
		"script no tools":      {script("# dependencies = []\n# [tool.toolmesh]\n# tools = []\n"), reasonManifest, []string{"at least one tool"}},
		"script tool twice":    {script("# dependencies = []\n# [tool.toolmesh]\n# tools = [\"f\", \"t.f\"]\n"), reasonManifest, []string{`"f" twice, as items 1 and 2`}},
		"script other module":  {script("# dependencies = []\n# [tool.toolmesh]\n# tools = [\"os.getcwd\"]\n"), reasonManifest, []string{"not a function of the file"}},
		"script other tool":    {script("# dependencies = []\n# [tool.toolmesh.tool.g]\n# timeout = \"2s\"\n"), reasonManifest, []string{"[tool.toolmesh.tool.g]", "does not list"}},
		"script table":         {script("# dependencies = []\n# [tool]\n# toolmesh = 1\n"), reasonManifest, []string{"must be a table"}},
		"script no function":   {files("t.py", "# /// script\n# dependencies = []\n# ///\nfrom os import getcwd\ndef _f(): pass\n"), reasonManifest, []string{"defines no function"}},
		"script name":          {files("a b.py", someScript), reasonManifest, []string{"a b.py", "cannot be imported"}},
		"script main":          {files("__main__.py", someScript), reasonManifest, []string{"cannot be imported"}},
		"script not UTF-8":     {files("t.py", someScript+"# \xff\n"), reasonManifest, []string{"UTF-8"}},
		"two files":            {files("t.py", someScript, "u.py", ""), reasonConvention, []string{"single .py file"}},
		"script without block": {files("t.py", "def f(): pass\n"), reasonConvention, []string{"# /// script"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := LoadFS(tt.fsys)
			wantFailed(t, err, tt.reason, tt.parts...)
		})
	}
}

func TestEntryPoints(t *testing.T) {
	t.Parallel()
	m := load(t, "pyproject.toml", `
[project]
name = "sky"
description = "The weather."
requires-python = ">=3.11"
[project.entry-points."toolmesh.tools"]
today = "sky.forecast:today"
"radar.image" = "sky.maps : radar"
again = "sky.forecast:today"
[project.entry-points.console_scripts]
sky = "sky:main"
[tool.ruff]
line-length = 100
[tool.toolmesh]
name = "clouds"
timeut = "2s"
[[tool.toolmesh.env]]
name = "SKY_KEY"
tools = ["today"]
[tool.toolmesh.tool.today]
timeout = "2s"
[tool.toolmesh.tool.radar.image]
idempotent = true
`)
	sameManifest(t, Manifest{
		Convention: "pyproject.toml", Name: "clouds", Description: "The weather.", Tools: []string{"again", "radar.image", "today"},
		Python: ">=3.11", Dependencies: "pyproject.toml", Env: []EnvVar{{Name: "SKY_KEY", Tools: []string{"today"}}},
		Warnings: []string{`unknown key "timeut" in [tool.toolmesh]; did you mean "timeout"?`},
	}, m)
	for name, want := range map[string]string{"today": "sky.forecast.today", "again": "sky.forecast.today", "radar.image": "sky.maps.radar"} {
		if got := m.Tool(name).Function; got != want {
			t.Errorf("the function of %s is %s, want %s", name, got, want)
		}
	}
	d, err := m.Descriptor(tool.IndexRef{Name: "sky", Revision: "r"}, "today", tool.Descriptor{})
	if err != nil || d.ID != "sky.today" || d.Annotations.Timeout != 2*time.Second {
		t.Errorf("descriptor %+v, %v; want the id sky.today and two seconds", d, err)
	}
	if d, err = m.Descriptor(tool.IndexRef{Name: "sky", Revision: "r"}, "radar.image", tool.Descriptor{}); err != nil || !d.Annotations.Idempotent {
		t.Errorf("descriptor %+v, %v; want an idempotent tool", d, err)
	}
}

func TestScript(t *testing.T) {
	t.Parallel()
	m := load(t, "tool.py", `#!/usr/bin/env -S uv run --script
# /// other
# x = 1
# ///

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "rich>=13",
#   "requests[socks]<3; python_version < '4'",
# ]
# dependncies = ["x"]
#
# [tool.uv]
# exclude-newer = "2026-01-01T00:00:00Z"
#
# [tool.toolmesh]
# description = "Words."
# colour = "blue"
# [[tool.toolmesh.env]]
# name = "WORDS_KEY"
# secret = true
# tools = ["count"]
# [tool.toolmesh.tool.count]
# timeout = "3s"
# [tool.toolmesh.tool.tool.shout]
# idempotent = true
# ///
import os
from os.path import join

def count(text: str) -> int:
    def inner(): pass
    return len(text.split())

async def shout(text): return text.upper()

def _hidden(): pass

class Thing:
    def method(self): pass

if __name__ == "__main__":
    def main(): pass
    count("x")
`, "README.md", "x", "requirements.txt", "not-this")
	sameManifest(t, Manifest{
		Convention: "tool.py", Description: "Words.", Tools: []string{"tool.count", "tool.shout"}, Python: ">=3.11", Dependencies: "tool.py",
		Requirements: []string{"rich>=13", "requests[socks]<3; python_version < '4'"},
		Env:          []EnvVar{{Name: "WORDS_KEY", Secret: true, Tools: []string{"tool.count"}}},
		Warnings:     []string{`unknown key "dependncies"; did you mean "dependencies"?`, `unknown key "colour" in [tool.toolmesh]`},
	}, m)
	if !m.IsScript() {
		t.Error("it is no script")
	}
	d, err := m.Descriptor(tool.IndexRef{Name: "words", Revision: "r"}, "tool.count", tool.Descriptor{})
	if err != nil || d.ID != "words.tool.count" || d.Annotations.Timeout != 3*time.Second {
		t.Errorf("descriptor %+v, %v", d, err)
	}
	if d, err := m.Descriptor(tool.IndexRef{Name: "words", Revision: "r"}, "tool.shout", tool.Descriptor{}); err != nil || !d.Annotations.Idempotent {
		t.Errorf("descriptor %+v, %v", d, err)
	}
	listed := load(t, "my-tool.py", "\ufeff# /// script\r\n# [tool.toolmesh]\r\n# tools = [\"made\", \"my-tool.f\"]\r\n# ///\r\nmade = 1\r\n")
	if diff := cmp.Diff([]string{"my-tool.made", "my-tool.f"}, listed.Tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	// The last line of the comment that can close the block does.
	if m := load(t, "t.py", "# /// script\n# dependencies = []\n# [tool.x]\n# text = \"\"\"\n# ///\n# \"\"\"\n# ///\ndef f(): pass\n"); m.Tools[0] != "t.f" {
		t.Errorf("tools %v", m.Tools)
	}
}

func TestFunctionsOf(t *testing.T) {
	t.Parallel()
	got := functionsOf(`"""A module.

def in_text(): pass
"""
import typing
TEXT = '''
def in_other_text(): pass
'''
SHORT = 'it\'s' "def x"
LIST = [
def_, # def not_this
]
def first(a, b=(1,
2)):
    '''def nested_text(): pass'''
    if a:
        def inner(): pass
    return \
def_line
@decorator
async   def second() -> "None": ...
class C:
    def method(self): pass
    class D:
        def method(self): pass
if typing.TYPE_CHECKING:
    def only_typed(): ...
else:
    def not_typed(): ...
try:
    import fast
except ImportError:
    def fallback(): pass
for i in range(3):
	with open(i):
		def deep(): pass
def first(): pass
def generic[T](x: T) -> T: return x
def _private(): pass
def __dunder__(): pass
if (__name__ ==
    "__main__"):
    pass
if __name__ == "__main__":
    def main(): pass
lambda_ = lambda: 0
x = f"{'}'}"
def größe(): pass
def last(): pass`)
	want := []string{"first", "second", "not_typed", "fallback", "deep", "generic", "größe", "last"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
}

func FuzzScript(f *testing.F) {
	f.Add(someScript)
	f.Add("# /// script\n# dependencies = [\"x\"]\n# [tool.toolmesh.tool.a]\n# timeout=\"2s\"\n# ///\ndef a():\n\t'''\n")
	f.Add("# /// script\n#\n# ///\nif (\n\\\n\"\"\"")
	f.Fuzz(func(t *testing.T, text string) { fuzzed(t, "t.py", text) })
}

func FuzzLegacy(f *testing.F) {
	f.Add(someLegacy)
	f.Add("tools: &a [a.b]\nenv_vars: [{X: *a}, Y, {Z: }]\n")
	f.Add("? tools\n: - a.b\n<<: {x: 1}\n")
	f.Fuzz(func(t *testing.T, text string) { fuzzed(t, "TOOLS.yml", text) })
}

func FuzzEntryPoints(f *testing.F) {
	f.Add(someEntry)
	f.Fuzz(func(t *testing.T, text string) { fuzzed(t, "pyproject.toml", text) })
}

// fuzzed loads a manifest: an accepted one can be described.
func fuzzed(t *testing.T, file, text string) {
	m, err := LoadFS(files(file, text))
	if err != nil {
		if code := toolmesh.CodeOf(err); code != toolmesh.CodeInstallFailed {
			t.Fatalf("error %v has code %s, want install_failed", err, code)
		}
		return
	}
	if len(m.Tools) == 0 {
		t.Fatal("a manifest without tools was accepted")
	}
	for _, name := range m.Tools {
		if _, err := m.Descriptor(tool.IndexRef{Name: "i", Revision: "r"}, name, tool.Descriptor{}); err != nil {
			t.Fatalf("descriptor of %q: %v", name, err)
		}
	}
}
