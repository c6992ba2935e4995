package index

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// files makes a file system of names and texts.
func files(pairs ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fsys[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return fsys
}

const fullManifest = `
[index]
name = "sky"
description = "The weather."
tools = ["forecast.daily", "forecast.hourly", "maps.radar.image"]
python = ">=3.10"
init = ["python", "-m", "maps.warm"]
concurrency = 4
isolation = "fork"
sandbox = "guard"
timeout = "10s"
idempotent = true
limits = { memory = "200MB", pids = 40, temp_files = "2GB" }
metadata = { team = "sky", level = 1 }

[[index.env]]
name = "SKY_KEY"
required = true
secret = true
description = "The key of the service."
tools = ["forecast.daily"]

[[index.env]]
name = "SKY_URL"

[tool."forecast.daily"]
description = "Better words."
timeout = "2s"
idempotent = false
parallel_safe = true
resource_key = ["city", "{city}"]
read_only = true
lane_scope = "session"
cache_ttl = "300s"
cache_shared = true
collect = true
isolation = "session"
sandbox = "strict"
limits = { cpu_time = "1s", memory = "100MB", open_files = 128, output = "10KB" }
metadata = { level = 2, since = 2026-01-02, list = [1, 2.5, { a = "b" }] }

[tool.maps.radar.image]
resource_key = "dynamic"
`

func TestLoad(t *testing.T) {
	t.Parallel()
	m, err := LoadFS(files("tools.toml", fullManifest, "requirements.txt", "x\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Warnings) > 0 {
		t.Errorf("warnings %q, want none", m.Warnings)
	}
	want := Manifest{
		Convention: "tools.toml", Name: "sky", Description: "The weather.", Tools: []string{"forecast.daily", "forecast.hourly", "maps.radar.image"},
		Python: ">=3.10", Dependencies: "requirements.txt", Init: []string{"python", "-m", "maps.warm"}, Concurrency: 4,
		Env: []EnvVar{
			{Name: "SKY_KEY", Required: true, Secret: true, Description: "The key of the service.", Tools: []string{"forecast.daily"}},
			{Name: "SKY_URL"},
		},
	}
	sameManifest(t, want, m)
	if vars := m.EnvOf("forecast.hourly"); len(vars) != 1 || vars[0].Name != "SKY_URL" {
		t.Errorf("variables of forecast.hourly are %v, want SKY_URL", vars)
	}
	if vars := m.EnvOf("forecast.daily"); len(vars) != 2 {
		t.Errorf("variables of forecast.daily are %v, want both", vars)
	}
}

func TestManifestDescriptor(t *testing.T) {
	t.Parallel()
	m, err := LoadFS(files("tools.toml", fullManifest))
	if err != nil {
		t.Fatal(err)
	}
	ref := tool.IndexRef{Name: "weather", Revision: "r1"}
	schema := json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","pattern":"^(?!x)"}},"additionalProperties":false}`)
	d, err := m.Descriptor(ref, "forecast.daily", tool.Descriptor{Description: "Docstring.", InputSchema: schema, Positional: []string{"city"}, Warnings: []string{"w"}})
	if err != nil {
		t.Fatal(err)
	}
	want := &tool.Descriptor{
		ID: "weather.forecast.daily", Name: "forecast.daily", Description: "Better words.", InputSchema: schema, Positional: []string{"city"},
		Annotations: tool.Annotations{
			ParallelSafe: true, ReadOnly: true, Collect: true, ResourceKey: tool.ResourceKey{Parts: []string{"city", "{city}"}},
			LaneScope: tool.LaneSession, Timeout: 2 * time.Second, CacheTTL: 300 * time.Second, CacheShared: true, Isolation: toolmesh.IsolationSession, Sandbox: tool.SandboxStrict,
			Concurrency: 4, Limits: tool.Limits{CPUTime: time.Second, Memory: 100e6, Pids: 40, OpenFiles: 128, TempFiles: 2e9, Output: 10e3},
		},
		Metadata: json.RawMessage(`{"level":2,"list":[1,2.5,{"a":"b"}],"since":"2026-01-02","team":"sky"}`),
		Source:   tool.SourceImport, Index: &ref,
	}
	warnings := d.Warnings
	d.Warnings = nil
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("descriptor (-want +got):\n%s", diff)
	}
	if len(warnings) != 2 || warnings[0] != "w" || !strings.Contains(warnings[1], "(?!x)") {
		t.Errorf("warnings are %q, want the code's and that of the pattern", warnings)
	}
	// Streams are not cached, which is an error if a manifest declares it.
	if _, err := m.Descriptor(ref, "forecast.daily", tool.Descriptor{InputSchema: schema, Annotations: tool.Annotations{Streaming: true}}); toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed || !strings.Contains(err.Error(), "cache_ttl") {
		t.Errorf("a generator with a cache_ttl: %v", err)
	}
	all, err := LoadFS(files("tools.toml", "[index]\ntools = [\"a.b\", \"a.c\"]\ncache_ttl = \"1m\"\n[tool.a.b]\ntimeout = \"1s\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.b", "a.c"} {
		for streaming, want := range map[bool]time.Duration{true: 0, false: time.Minute} {
			if d, err := all.Descriptor(ref, name, tool.Descriptor{Annotations: tool.Annotations{Streaming: streaming}}); err != nil || d.Annotations.CacheTTL != want || d.Annotations.Streaming != streaming {
				t.Errorf("%s of an index with a cache_ttl, streaming %t: %v %+v", name, streaming, err, d)
			}
		}
	}
	d, err = m.Descriptor(ref, "maps.radar.image", tool.Descriptor{Description: "Docstring.", Source: tool.SourceStatic})
	if err != nil {
		t.Fatal(err)
	}
	if !d.Annotations.ResourceKey.Dynamic || !d.Annotations.Idempotent || d.Annotations.Timeout != 10*time.Second || d.Description != "Docstring." || d.Source != tool.SourceStatic {
		t.Errorf("descriptor is %+v, want the index's defaults and the code's description", d)
	}
	_, err = m.Descriptor(ref, "forecast.weekly", tool.Descriptor{})
	wantFailed(t, err, reasonManifest, "does not declare")
	_, err = m.Descriptor(ref, "forecast.daily", tool.Descriptor{InputSchema: json.RawMessage(`{"type":"object","properties":{"town":{}},"additionalProperties":false}`)})
	wantFailed(t, err, reasonManifest, "{city}", "town")
}

func TestLoadWarns(t *testing.T) {
	t.Parallel()
	m, err := LoadFS(files("tools.toml", `
title = "x"
[index]
tools = ["a.b"]
desciption = "x"
python = ">=3.9"
[tool."a.b"]
timout = "2s"
description = "d"
limits = { memori = "1GB" }
[[index.env]]
name = "A"
secert = true
`, "pyproject.toml", "[project]\nrequires-python = \">=3.11\"\n", "requirements.txt", ""))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`unknown key "secert" in [index.env 1]; did you mean "secret"?`,
		`unknown key "desciption" in [index]; did you mean "description"?`,
		`unknown key "memori" in [tool.a.b.limits]; did you mean "memory"?`,
		`unknown key "timout" in [tool.a.b]; did you mean "timeout"?`,
		`unknown key "title"`,
		`python = ">=3.9" is not used: pyproject.toml says requires-python = ">=3.11"`,
	}
	if diff := cmp.Diff(want, m.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if m.Python != ">=3.11" || m.Dependencies != "pyproject.toml" {
		t.Errorf("python %q, dependencies %q, want those of pyproject.toml", m.Python, m.Dependencies)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	valid := "[index]\ntools = [\"a.b\"]\n"
	for name, tt := range map[string]struct {
		fsys   fstest.MapFS
		reason string
		parts  []string
	}{
		"nothing":           {files("main.py", "x"), reasonConvention, []string{"tools.toml", "TOOLS.yml", "entry points", "PEP 723", "[index]"}},
		"another format":    {files("tools.toml", "[[tools]]\nname = \"x\"\n[tools.function]\n"), reasonManifest, []string{"no [index] table", "tools", "another program's format"}},
		"empty":             {files("tools.toml", ""), reasonManifest, []string{"no [index] table", "empty"}},
		"index no table":    {files("tools.toml", "index = 1"), reasonManifest, []string{"no [index] table"}},
		"malformed":         {files("tools.toml", "[index]\n\ntools = ["), reasonManifest, []string{"line 3"}},
		"bad pyproject":     {files("tools.toml", valid, "pyproject.toml", "[project\n"), reasonManifest, []string{"pyproject.toml"}},
		"too large":         {files("tools.toml", valid+strings.Repeat("#\n", 1<<20)), reasonTooLarge, []string{"1 MB"}},
		"no tools":          {files("tools.toml", "[index]\n"), reasonManifest, []string{"at least one tool"}},
		"empty tools":       {files("tools.toml", "[index]\ntools = []\n"), reasonManifest, []string{"at least one tool"}},
		"tools a text":      {files("tools.toml", "[index]\ntools = \"a.b\"\n"), reasonManifest, []string{"must be a list of texts, not a text"}},
		"many tools":        {files("tools.toml", "[index]\ntools = ["+strings.Repeat("\"a.b\",", 20_001)+"]\n"), reasonManifest, []string{"lists 20001 tools; at most 20000"}},
		"long metadata":     {files("tools.toml", "[index]\ntools = ["+numbered(1000, "'m.f%d', ")+"]\nmetadata = {a = '"+strings.Repeat("a", 20_000)+"'}\n"), reasonManifest, []string{"[index] metadata takes 20008 bytes in each of 1000 tools", "16 MB"}},
		"many limits":       {files("tools.toml", "[index]\ntools = ["+numbered(65, "'m.f%d', ")+"]\n"+numbered(65, "[tool.'m.f%[1]d']\nlimits = {memory = '2%[1]dMB'}\n")), reasonManifest, []string{"65 different combinations", "at most 64"}},
		"a long key":        {files("tools.toml", "[index]\ntools = ["+numbered(1000, "'m.f%d', ")+"]\nresource_key = ['"+strings.Repeat("a", 20_000)+"']\n"), reasonManifest, []string{"[index] resource_key takes"}},
		"tool a number":     {files("tools.toml", "[index]\ntools = [\"a.b\", 7]\n"), reasonManifest, []string{"item 2 is a whole number"}},
		"tool twice":        {files("tools.toml", "[index]\ntools = [\"a.b\", \"a.b\"]\n"), reasonManifest, []string{`"a.b" twice, as items 1 and 2`}},
		"no module":         {files("tools.toml", "[index]\ntools = [\"b\"]\n"), reasonManifest, []string{"no module"}},
		"no Python name":    {files("tools.toml", "[index]\ntools = [\"a-x.b\"]\n"), reasonManifest, []string{"not a Python name"}},
		"colon":             {files("tools.toml", "[index]\ntools = [\"a:b.c\"]\n"), reasonManifest, []string{"not a Python name"}},
		"empty part":        {files("tools.toml", "[index]\ntools = [\"a..b\"]\n"), reasonManifest, []string{"empty part"}},
		"undeclared tool":   {files("tools.toml", valid+"[tool.\"a.c\"]\ntimeout = \"2s\"\n"), reasonManifest, []string{"does not list", `did you mean "a.b"`}},
		"undeclared nested": {files("tools.toml", valid+"[tool.a.c]\ntimeout = \"2s\"\n"), reasonManifest, []string{"[tool.a.c]", "does not list"}},
		"tool both ways":    {files("tools.toml", valid+"[tool.a.b]\ncollect = true\n[tool.\"a.b\"]\ncollect = false\n"), reasonManifest, []string{"twice"}},
		"bad duration":      {files("tools.toml", valid+"timeout = \"2 apples\"\n"), reasonManifest, []string{"[index] timeout", "duration", "2 apples"}},
		"number duration":   {files("tools.toml", valid+"timeout = 2\n"), reasonManifest, []string{"not a whole number"}},
		"negative duration": {files("tools.toml", valid+"timeout = \"-2s\"\n"), reasonManifest, []string{"-2s"}},
		"bad isolation":     {files("tools.toml", valid+"isolation = \"cold\"\n"), reasonManifest, []string{"warm, session, fork, fresh"}},
		"bad sandbox":       {files("tools.toml", valid+"[tool.\"a.b\"]\nsandbox = \"\"\n"), reasonManifest, []string{"none, guard, strict, offline"}},
		"bad lane scope":    {files("tools.toml", valid+"[tool.\"a.b\"]\nlane_scope = \"x\"\n"), reasonManifest, []string{"batch, session, node, mesh"}},
		"bad size":          {files("tools.toml", valid+"limits = { memory = \"many\" }\n"), reasonManifest, []string{"memory", "200MB"}},
		"bad key":           {files("tools.toml", valid+"resource_key = [\"{a\"]\n"), reasonManifest, []string{"{name}"}},
		"empty key":         {files("tools.toml", valid+"resource_key = []\n"), reasonManifest, []string{"must not be empty"}},
		"zero concurrency":  {files("tools.toml", valid+"concurrency = 0\n"), reasonManifest, []string{"from 1 on"}},
		"text boolean":      {files("tools.toml", valid+"idempotent = \"yes\"\n"), reasonManifest, []string{"must be true or false, not a text"}},
		"metadata nan":      {files("tools.toml", valid+"metadata = { a = nan }\n"), reasonManifest, []string{"nan"}},
		"bad name":          {files("tools.toml", valid+"name = \"a b\"\n"), reasonManifest, []string{"[index] name"}},
		"empty init":        {files("tools.toml", valid+"init = []\n"), reasonManifest, []string{"name a command"}},
		"NUL in init":       {files("tools.toml", valid+"init = [\"sh\", \"-c\", \"true\\u0000A=b\"]\n"), reasonManifest, []string{"[index] init has a NUL"}},
		"env no list":       {files("tools.toml", valid+"[index.env]\nname = \"A\"\n"), reasonManifest, []string{"[[index.env]]"}},
		"env no name":       {files("tools.toml", valid+"[[index.env]]\nsecret = true\n"), reasonManifest, []string{"name of a variable"}},
		"env twice":         {files("tools.toml", valid+"[[index.env]]\nname = \"A\"\n[[index.env]]\nname = \"A\"\n"), reasonManifest, []string{"second time"}},
		"env of the node":   {files("tools.toml", valid+"[[index.env]]\nname = \"PATH\"\n"), reasonManifest, []string{"PATH"}},
		"env too many":      {files("tools.toml", valid+numbered(1001, "[[index.env]]\nname = \"V%d\"\n")), reasonManifest, []string{"declares 1001 variables; at most 1000"}},
		"env of a table":    {files("tools.toml", valid+"env = [{name = \"A\"}, 3]\n"), reasonManifest, []string{"item 2 is a whole number"}},
		"env unknown tool":  {files("tools.toml", valid+"[[index.env]]\nname = \"A\"\ntools = [\"a.c\"]\n"), reasonManifest, []string{"not in [index] tools"}},
		"long mistake":      {files("tools.toml", valid+"timeout = \""+strings.Repeat("ü", 100_000)+"\"\n"), reasonManifest, []string{"üü…"}},
		"long path":         {files("tools.toml", valid+"[[index.paths]]\npath = \"/"+strings.Repeat("p", 4096)+"\"\n"), reasonManifest, []string{"at most 4096 bytes"}},
		"several":           {files("tools.toml", valid+"timeout = 1\ncache_ttl = 2\ncollect = 3\n"), reasonManifest, []string{"and 2 more"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := LoadFS(tt.fsys)
			wantFailed(t, err, tt.reason, tt.parts...)
			if len(err.Error()) > 25_000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestLoadStaysInside(t *testing.T) {
	t.Parallel()
	outside, dir := t.TempDir(), t.TempDir()
	write(t, outside, map[string]string{"tools.toml": "[index]\ntools = [\"a.b\"]\n"})
	write(t, dir, map[string]string{"tools.toml": "-> " + filepath.Join(outside, "tools.toml")})
	if _, err := os.ReadFile(filepath.Join(dir, "tools.toml")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir)
	wantFailed(t, err, reasonConvention)
	_, err = Load(filepath.Join(dir, "none"))
	wantFailed(t, err, reasonFolder)
}

// TestExamples: every example index loads without a warning and declares
// functions that are there.
func TestExamples(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob(filepath.Join("..", "..", "examples", "indexes", "*", "tools.toml"))
	if err != nil || len(dirs) < 4 {
		t.Fatalf("found the examples %q, %v; want at least four", dirs, err)
	}
	for _, file := range dirs {
		m, err := Load(filepath.Dir(file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if len(m.Warnings) > 0 || m.Description == "" {
			t.Errorf("%s: warnings %q, description %q", file, m.Warnings, m.Description)
		}
		for _, name := range m.Tools {
			module, function := name[:strings.LastIndexByte(name, '.')], name[strings.LastIndexByte(name, '.')+1:]
			code, err := os.ReadFile(filepath.Join(filepath.Dir(file), strings.ReplaceAll(module, ".", "/")+".py"))
			if err != nil || !strings.Contains(string(code), "\ndef "+function+"(") && !strings.Contains(string(code), "\nasync def "+function+"(") {
				t.Errorf("%s declares %s, which is not there: %v", file, name, err)
			}
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(fullManifest)
	f.Add("[index]\ntools = [\"a.b\"]\n[tool.a.b]\nlimits = { memory = \"1.5GB\" }\n")
	f.Add("[[tools]]\nname = 1")
	f.Add("index.tools = ['a.b']\ntool.a.b.metadata.x = 07:32:00\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := LoadFS(files("tools.toml", text))
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
			d, err := m.Descriptor(tool.IndexRef{Name: "i", Revision: "r"}, name, tool.Descriptor{})
			if err != nil {
				t.Fatalf("descriptor of %q: %v", name, err)
			}
			if _, err := d.Digest(); err != nil {
				t.Fatalf("digest of %q: %v", name, err)
			}
		}
	})
}
