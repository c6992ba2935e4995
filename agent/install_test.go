package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// recordOf returns the value of an index in MESH_INDEXES, or "".
func recordOf(t *testing.T, nc *nats.Conn, key string) string {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subjects.BucketIndexes)
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(e.Value())
}

// processesOf lists the processes that were started with files of a folder.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(data), dir) {
			found = append(found, filepath.Base(filepath.Dir(f))+" "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return found
}

// parent is a process's, 0 when the process is gone.
func parent(pid string) int {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	id, _ := strconv.Atoi(fields[1])
	return id
}

// The process above an index's zygote is named after the base that it is a copy
// of: processesOf does not see it.
func TestUninstallEndsTheProcessAboveAll(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir := t.TempDir()
	startIn(t, s, "one", dir)
	nc := s.Connect(t)
	install(t, nc, map[string]any{
		"source": repository(t, "good", map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n"}), "name": "good",
	})
	roots := map[string]bool{}
	for _, line := range processesOf(t, dir) {
		pid, _, _ := strings.Cut(line, " ")
		above := strconv.Itoa(parent(pid))
		text, err := os.ReadFile(filepath.Join("/proc", above, "cmdline"))
		if err == nil && !strings.Contains(string(text), dir) && parent(above) == os.Getpid() {
			roots[above] = true
		}
	}
	if len(roots) == 0 {
		t.Fatal("no process is above the index's: there is nothing to look for")
	}
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "good"}); failure != nil {
		t.Fatalf("uninstall: %v", failure)
	}
	meshtest.Until(t, "the processes above are gone", func() bool {
		for pid := range roots {
			if parent(pid) == os.Getpid() {
				return false
			}
		}
		return true
	})
}

// halfDone lists the files of a failed install that are left in an agent's folder.
func halfDone(t *testing.T, dir string) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{"jobs/*", "indexes/*", "executor/envs/new-*", "executor/new-*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

// badInput is an install that is refused.
type badInput struct {
	name  string
	files map[string]string // of a repository; nil: body has a source
	body  map[string]any
	code  toolmesh.Code // install_failed unless set
	says  []string      // the reason, and how to mend it
}

const working = "[index]\ntools = [\"t.tool\"]\n"

var badInputs = []badInput{
	{name: "no-manifest", files: map[string]string{"t.py": ""}, says: []string{"no tools.toml", "write a tools.toml", `tools = ["module.function"]`}},
	{name: "no-index-table", files: map[string]string{"tools.toml": "[tools]\nx = 1\n"}, says: []string{"tools.toml", "[index]"}},
	{name: "another-format", files: map[string]string{"tools.toml": "tools:\n  - t.tool\n"}, says: []string{"tools.toml", "line 1"}},
	{name: "wrong-type", files: map[string]string{"tools.toml": "[index]\ntools = \"t.tool\"\n", "t.py": ""}, says: []string{"tools", "list"}},
	{name: "missing-function", files: map[string]string{"tools.toml": working, "t.py": "def tol(): pass\n"}, says: []string{"t.tool", "tol"}},
	{name: "missing-module", files: map[string]string{"tools.toml": working}, says: []string{"t.tool", "No module named"}},
	{name: "raising-import", files: map[string]string{"tools.toml": working, "t.py": "raise RuntimeError('the table is down')\n"}, says: []string{"RuntimeError", "the table is down"}},
	{name: "exiting-import", files: map[string]string{"tools.toml": working, "t.py": "import sys\nsys.exit(3)\n"}, says: []string{"t.tool", "exit"}},
	{name: "dying-import", files: map[string]string{"tools.toml": working, "t.py": "import os\nos._exit(3)\n"}, says: []string{"t.tool", "exit status 3"}},
	{name: "syntax-error", files: map[string]string{"tools.toml": working, "t.py": "def tool(:\n"}, says: []string{"SyntaxError", "t.py"}},
	{name: "not-callable", files: map[string]string{"tools.toml": working, "t.py": "tool = 3\n"}, says: []string{"t.tool", "not"}},
	{name: "unknown-revision", files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n"}, body: map[string]any{"rev": "v9"}, says: []string{"v9", "it has main"}},
	{name: "unreachable", body: map[string]any{"source": "file:///no/such/repository"}, says: []string{"/no/such/repository"}},
	{name: "no-server", body: map[string]any{"source": "http://127.0.0.1:1/owner/repo"}, says: []string{"127.0.0.1"}},
	{name: "not-a-source", body: map[string]any{"source": "what is this?"}, says: []string{"what is this?", "./"}},
	{name: "no-source", body: map[string]any{}, code: toolmesh.CodeInvalidRequest, says: []string{"source is missing"}},
	{
		name: "legacy", files: map[string]string{"TOOLS.yml": "tools: []\n"}, says: []string{"TOOLS.yml", "at least one tool"},
	},
	{
		name: "bad-name", files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n"}, body: map[string]any{"name": "a.b"},
		code: toolmesh.CodeInvalidRequest, says: []string{"a.b", "--name"},
	},
	{
		name:  "required-env",
		files: map[string]string{"tools.toml": working + "[[index.env]]\nname = \"API_URL\"\nrequired = true\n", "t.py": "def tool(): pass\n"},
		says:  []string{"API_URL", "--env API_URL"},
	},
	{
		name: "node-env", files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n"},
		body: map[string]any{"env": map[string]string{"PATH": "/x"}}, says: []string{"--env", "PATH is given to every tool by its node"},
	},
	{
		name: "no-env", files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n"},
		body: map[string]any{"env": map[string]string{"A B": "x"}}, says: []string{"--env", "must be the name of a variable", "A B"},
	},
	{ // a worker's variables are handed over with NULs between them
		name: "nul-env", files: map[string]string{"tools.toml": working, "t.py": "import os\ndef tool(): pass\nif os.environ.get('TOOL_PATH') != 'y': raise ImportError('the variable has not come')\n"},
		body: map[string]any{"env": map[string]string{"A": "x\x00TOOL_PATH=y"}}, says: []string{"--env", "A", "NUL"},
	},
	{
		name: "missing-env", files: map[string]string{"tools.toml": working, "t.py": "import os\nKEY = os.environ['API_KEY']\ndef tool(): pass\n"},
		says: []string{"needs the environment variable API_KEY", "install it again with --env API_KEY"},
	},
	{
		name:  "secret-literal",
		files: map[string]string{"tools.toml": working + "[[index.env]]\nname = \"API_KEY\"\nsecret = true\n", "t.py": "def tool(): pass\n"},
		body:  map[string]any{"env": map[string]string{"API_KEY": "hunter2"}, "literal": []string{"API_KEY"}}, says: []string{"API_KEY", "secret", "--env API_KEY"},
	},
	{
		name:  "python",
		files: map[string]string{"tools.toml": "[index]\ntools = [\"t.tool\"]\npython = \">=4.2\"\n", "t.py": "def tool(): pass\n"}, says: []string{">=4.2"},
	},
	{
		name:  "failing-init",
		files: map[string]string{"tools.toml": working + "init = [\"python\", \"-c\", \"import sys; sys.exit('no room for the index')\"]\n", "t.py": "def tool(): pass\n"},
		says:  []string{"init", "no room for the index"},
	},
	{
		name: "a-folder-of-the-agent", body: map[string]any{"source": "/etc"}, code: toolmesh.CodeInvalidRequest, says: []string{"as a bundle"},
	},
	{
		name: "a-bundle-of-somebody-else", body: map[string]any{"source": "owner/repo", "bundle": strings.Repeat("0", 64)},
		code: toolmesh.CodeInvalidRequest, says: []string{"github.com/owner/repo", "by the agent itself"},
	},
	{
		name: "no-bundle", body: map[string]any{"source": "/somewhere", "bundle": strings.Repeat("0", 64)}, says: []string{"not in the mesh"},
	},
}

func TestBadInputLeavesNothing(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir := t.TempDir()
	startIn(t, s, "one", dir)
	nc := s.Connect(t)
	good := repository(t, "good", map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n"})
	prepared(t, dir)
	for _, tc := range badInputs {
		t.Run(tc.name, func(t *testing.T) { // not parallel: files that are left are counted
			refused(t, nc, dir, tc)
		})
	}
	for _, name := range []string{"missing-module", "unknown-revision", "failing-init"} { // free for another source
		install(t, nc, map[string]any{"source": good, "name": name})
		if _, failure := admin(t, nc, "uninstall", map[string]any{"name": name}); failure != nil {
			t.Errorf("uninstall: %v", failure)
		}
	}
	meshtest.Until(t, "nothing is left of what was uninstalled", func() bool {
		return len(halfDone(t, dir)) == 0 && len(processesOf(t, dir)) == 0
	})
}

// prepared waits for the processes that prepare an agent at its start.
func prepared(t *testing.T, dir string) {
	t.Helper()
	meshtest.Until(t, "what an agent prepares at its start is there", func() bool {
		compiled, _ := filepath.Glob(filepath.Join(dir, "executor", "worker", "*", "__pycache__", "compiled.*"))
		return len(compiled) > 0 && len(processesOf(t, dir)) == 0
	})
}

// refused installs an invalid index and checks that nothing is left of it.
func refused(t *testing.T, nc *nats.Conn, dir string, tc badInput) {
	t.Helper()
	body := map[string]any{"name": tc.name}
	if tc.files != nil {
		body["source"] = repository(t, "bad", tc.files)
	}
	for k, v := range tc.body {
		body[k] = v
	}
	lines, failure := admin(t, nc, "install", body)
	if failure == nil {
		t.Fatalf("it was installed: %v", lines[len(lines)-1])
	}
	t.Logf("%s: %s", failure.Code, failure.Message)
	code := tc.code
	if code == "" {
		code = toolmesh.CodeInstallFailed
	}
	if failure.Code != code || failure.Started == toolmesh.StartedYes {
		t.Errorf("code %s, started %v; want %s, not started", failure.Code, failure.Started, code)
	}
	for _, text := range tc.says {
		if !strings.Contains(failure.Message, text) {
			t.Errorf("the message does not say %q: %s", text, failure.Message)
		}
	}
	if strings.Contains(failure.Message, dir) {
		t.Errorf("the message tells of the agent's own folders: %s", failure.Message)
	}
	if strings.Contains(fmt.Sprint(failure), "hunter2") {
		t.Errorf("the secret is in the error: %v", failure)
	}
	if r := recordOf(t, nc, tc.name); r != "" {
		t.Errorf("a record is left: %s", r)
	}
	if left := halfDone(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestOneBadToolLeavesTheOthersServed(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	url := repository(t, "mixed", map[string]string{
		"tools.toml": `[index]
tools = ["good.ok", "good.gone", "raises.f", "exits.f", "dies.f", "prints.f", "good.odd"]
colour = "blue"
[[index.env]]
name = "TOKEN"
required = true
tools = ["prints.f"]
`,
		"good.py":   "class Odd: pass\n\ndef ok(a: int) -> int:\n    return a\n\ndef odd(x: Odd) -> str:\n    return str(x)\n",
		"raises.py": "raise OSError('no table')\n\ndef f(): pass\n",
		"exits.py":  "import sys\nsys.exit('not today')\n\ndef f(): pass\n",
		"dies.py":   "import os\nos._exit(9)\n\ndef f(): pass\n",
		"prints.py": "print('hello from the import')\nimport os\nos.write(1, b'\\x00\\xff raw')\n\ndef f(): return 1\n",
	})
	last := install(t, nc, map[string]any{"source": url})
	reasons := map[string]string{}
	for _, u := range last["unavailable"].([]any) {
		u := u.(map[string]any)
		reasons[u["id"].(string)] = u["reason"].(string)
	}
	for id, want := range map[string]string{
		"mixed.good.gone": "gone", "mixed.raises.f": "no table", "mixed.exits.f": "not today", "mixed.dies.f": "9", "mixed.prints.f": "TOKEN",
	} {
		if !strings.Contains(reasons[id], want) {
			t.Errorf("%s is unavailable because %q, want %q", id, reasons[id], want)
		}
	}
	if len(reasons) != 5 {
		t.Errorf("unavailable: %v", reasons)
	}
	if text := fmt.Sprint(last["warnings"]); !strings.Contains(text, "colour") {
		t.Errorf("no warning of the unknown key: %v", last["warnings"])
	}
	c := newClient(t, nc, nil)
	r, err := c.Call(t.Context(), "mixed.good.ok", map[string]any{"a": 1})
	if err != nil || string(r.Value) != "1" {
		t.Errorf("ok: %v %v", r, err)
	}
	if _, err := c.Call(t.Context(), "mixed.good.ok", map[string]any{"a": "x", "b": 1}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
		t.Errorf("wrong arguments: %v", err)
	}
	// The schema of a parameter that cannot be described accepts any value.
	if r, err := c.Call(t.Context(), "mixed.good.odd", map[string]any{"x": map[string]any{"any": []int{1}}}); err != nil {
		t.Errorf("odd: %v %v", r, err)
	}
	if about, err := c.Describe(t.Context(), "mixed.good.odd"); err != nil || !strings.Contains(string(about), `"warnings":["`) {
		t.Errorf("what cannot be described has no warning: %s %v", about, err)
	}
	_, err = c.Call(t.Context(), "mixed.raises.f", nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || !strings.Contains(e.Message, "no table") {
		t.Errorf("a tool that is not served: %v", err)
	}
	_, err = c.Call(t.Context(), "mixed.good.okk", nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeToolNotFound || !strings.Contains(fmt.Sprint(e.Details["nearest"]), "mixed.good.ok") {
		t.Errorf("an unknown tool: %v %v", err, e.Details)
	}
	// With the variable the tool is served; printing at import did no harm.
	last = install(t, nc, map[string]any{"source": url, "env": map[string]string{"TOKEN": "x"}})
	if n := len(last["unavailable"].([]any)); n != 4 {
		t.Errorf("with the variable %d tools are unavailable, want 4", n)
	}
	if r, err := c.Call(t.Context(), "mixed.prints.f", nil); err != nil || string(r.Value) != "1" {
		t.Errorf("prints: %v %v", r, err)
	}
}

// Indexes that were written before variables could be declared read their
// environment all the same.
func TestAVariableThatIsNotDeclaredIsGivenToAllTools(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	body := map[string]any{
		"source": repository(t, "older", map[string]string{
			"tools.toml": "[index]\ntools = [\"t.imported\", \"t.called\"]\n" +
				"[[index.env]]\nname = \"PLACE\"\ntools = [\"t.called\"]\n" +
				"[tool.program]\ncommand = [\"sh\", \"-c\", \"echo $API_KEY\"]\nstdout = \"text\"\n",
			"t.py": "import os\nKEY = os.environ['API_KEY']\ndef imported(): return [KEY, os.environ.get('PLACE')]\n" +
				"def called(): return [os.environ['API_KEY'], os.environ.get('PLACE')]\n",
		}),
		"env": map[string]string{"API_KEY": "k", "PLACE": "Oslo"}, "literal": []string{"API_KEY", "PLACE"},
	}
	last := install(t, nc, body)
	if diff := cmp.Diff([]any{"the index does not declare API_KEY: it is given to all its tools"}, last["warnings"]); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	c := newClient(t, nc, nil)
	check := func(when string) {
		t.Helper()
		for id, want := range map[subjects.ToolID]string{
			"older.t.imported": `["k",null]`, "older.t.called": `["k","Oslo"]`, "older.program": `"k"`,
		} {
			if r, err := c.Call(t.Context(), id, nil); err != nil {
				t.Errorf("%s %s: %v, want %s", id, when, err, want)
			} else if string(r.Value) != want {
				t.Errorf("%s %s: got %s, want %s", id, when, r.Value, want)
			}
		}
	}
	check("as installed")
	delete(body, "env")
	delete(body, "literal")
	install(t, nc, body)
	check("installed again without values")
}

func TestTakenNameIsRefused(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir := t.TempDir()
	startIn(t, s, "one", dir)
	nc := s.Connect(t)
	files := map[string]string{"tools.toml": working, "t.py": "def tool(): return 'ours'\n"}
	ours := repository(t, "ours", files)
	install(t, nc, map[string]any{"source": ours, "name": "taken"})
	c := newClient(t, nc, nil)
	theirs := repository(t, "theirs", map[string]string{"tools.toml": working, "t.py": "def tool(): return 'theirs'\n"})
	for _, body := range []map[string]any{
		{"source": theirs, "name": "taken"},
		{"source": theirs, "name": "taken", "session": "s1"}, // a name is mesh-wide or private
	} {
		_, failure := admin(t, nc, "install", body)
		if failure == nil || failure.Code != toolmesh.CodeInvalidRequest || !strings.Contains(failure.Message, "--name") || !strings.Contains(failure.Message, ours[len("file://"):]) {
			t.Errorf("install %v: %v, want invalid_request that names the owner and --name", body, failure)
		}
	}
	if r, err := c.Call(t.Context(), "taken.t.tool", nil); err != nil || string(r.Value) != `"ours"` {
		t.Errorf("the first one's tool: %v %v", r, err)
	}
	if n := len(halfDone(t, dir)); n != 1 {
		t.Errorf("%v is on disk, want one index", halfDone(t, dir))
	}
}

func TestNameOfAServiceIsRefusedForAnIndex(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	h, err := host.New(s.Connect(t), &host.Options{Index: "billing", Node: "service"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Handle("refund", host.Func(refund)); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	t.Cleanup(func() { _ = h.Stop(t.Context()) })
	url := repository(t, "billing", map[string]string{"tools.toml": working, "t.py": "def tool(): return 1\n"})
	_, failure := admin(t, nc, "install", map[string]any{"source": url})
	if failure == nil || failure.Code != toolmesh.CodeInvalidRequest || !strings.Contains(failure.Message, "--name") || !strings.Contains(failure.Message, "service") {
		t.Errorf("installing under a service's name: %v", failure)
	}
	install(t, nc, map[string]any{"source": url, "name": "billing2"})
}

type refundIn struct {
	Amount int `json:"amount"`
}

func refund(_ context.Context, in refundIn) (int, error) { return in.Amount, nil }

func TestUnresolvableDependency(t *testing.T) {
	t.Parallel()
	uv := needsPackages(t)
	s := meshtest.Broker(t)
	dir := t.TempDir()
	startIn(t, s, "one", dir, func(o *agent.Options) { o.UV = uv })
	prepared(t, dir)
	nc := s.Connect(t)
	for _, tc := range []badInput{
		{
			name:  "no-such-version",
			files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n", "requirements.txt": "packaging==0.0.0.1\n"},
			says:  []string{"requirements.txt", "packaging==0.0.0.1"},
		},
		{
			name:  "conflict",
			files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n", "pyproject.toml": "[project]\nname = 'x'\nversion = '1'\nrequires-python='>=3.10'\ndependencies = ['packaging<21', 'packaging>22']\n"},
			says:  []string{"pyproject.toml", "packaging"},
		},
		{
			name:  "no-requirement",
			files: map[string]string{"tools.toml": working, "t.py": "def tool(): pass\n", "requirements.txt": "this is no requirement\n"},
			says:  []string{"requirements.txt"},
		},
	} {
		refused(t, nc, dir, tc)
	}
}
