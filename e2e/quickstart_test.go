package e2e_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/meshtest"
)

// fenced is one block of code of a page.
type fenced struct{ language, text string }

// fencedBlocks returns the blocks of code of a page, in order; language "" is a
// block without one.
func fencedBlocks(t *testing.T, page string) []fenced {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []fenced
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(string(data), -1) {
		blocks = append(blocks, fenced{m[1], m[2]})
	}
	return blocks
}

// README works in its order in a folder like a fresh clone: its commands are pasted into a shell, its programs
// run, and their output is compared with the page.
func TestREADME(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	u := newUser(t)
	venv := filepath.Join(u.home, "venv")
	if err := run("python3", "-m", "venv", venv); err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(u.home, "toolmesh")
	if err := os.CopyFS(filepath.Join(clone, "examples", "indexes"), os.DirFS(filepath.Join(root, "examples", "indexes"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = finish(u.command(context.WithoutCancel(t.Context()), "mesh", "down")) }) // if it still runs
	shell := func(script string) result {
		t.Helper()
		cmd := u.command(t.Context(), "sh", "-e", "-c", "PATH="+filepath.Join(venv, "bin")+":$PATH\n"+script)
		cmd.Dir = clone
		r, err := finish(cmd)
		if err != nil || r.status != 0 {
			t.Fatalf("%v\n%s\n%v", err, script, r)
		}
		return r
	}
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range regexp.MustCompile("`(pip install [^`]+)`").FindAllStringSubmatch(string(page), -1) {
		shell(command[1])
	}
	var last result
	var url, gateway string
	ran := make(map[string]int)
	for _, block := range fencedBlocks(t, "README.md") {
		text := block.text
		switch block.language {
		case "":
			if strings.HasPrefix(text, "make demo") || strings.HasPrefix(text, "make help") {
				continue // TestDemo, and the command that runs this test
			}
			// The binaries are built and on the PATH, and the port may be in use.
			text = regexp.MustCompile(`(?m)^make build.*$`).ReplaceAllString(text, "")
			text = strings.Replace(text, "mesh up -d", "mesh up -d --nats-listen 127.0.0.1:0", 1)
			last = shell(strings.ReplaceAll(text, "http://127.0.0.1:8420", gateway))
			if up := regexp.MustCompile(`(?m)^ready nats=(nats://127\.0\.0\.1:\d+) http=(\S+)`).FindStringSubmatch(last.stdout); up != nil {
				url, gateway = up[1], up[2]
			}
		case "json":
			_, printed, found := strings.Cut(last.stdout, "{")
			if !found {
				t.Fatalf("no result: %v", last)
			}
			equalJSON(t, "the result", []byte("{"+printed), text)
		case "python":
			script := filepath.Join(u.home, "snippet.py")
			if err := os.WriteFile(script, []byte(strings.ReplaceAll(text, "nats://127.0.0.1:4222", url)), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := shell("python " + script); !strings.Contains(r.stdout, `"Oslo: `) {
				t.Errorf("the Python program prints %v", r)
			}
		case "go":
			name := regexp.MustCompile(`^// Command (\w+) `).FindStringSubmatch(text)
			if name == nil {
				t.Fatalf("a Go program without its name:\n%s", text)
			}
			source, err := os.ReadFile(filepath.Join(root, "examples", name[1], "main.go"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(source), text); diff != "" {
				t.Errorf("examples/%s (-file +page):\n%s", name[1], diff)
			}
			if err := run("go", "build", "-C", root, "-buildvcs=false", "-o", filepath.Join(clone, name[1]), "./examples/"+name[1]); err != nil {
				t.Fatal(err)
			}
			if name[1] == "call" {
				if r := shell("./call"); !strings.Contains(r.stdout, `"Oslo: `) {
					t.Errorf("the Go program prints %v", r)
				}
				break
			}
			u.start(t, clone, filepath.Join(clone, name[1]))
			meshtest.Until(t, "the Go function is served", func() bool {
				return u.do(t, "mesh", "info", "billing.refund").status == 0
			})
		}
		ran[block.language]++
		for command, want := range map[string]string{
			"mesh stream": `"hour":23`, "mesh ls": "weather.forecast.hours", "mesh call billing": "refunded order A7", "curl": `"city":"Oslo"`,
		} {
			if strings.Contains(text, command) && !strings.Contains(last.stdout, want) {
				t.Errorf("%q is not among what the block with %q prints: %v", want, command, last)
			}
		}
	}
	if want := map[string]int{"": 5, "json": 1, "python": 1, "go": 2, "toml": 1}; !maps.Equal(ran, want) {
		t.Errorf("the page has these blocks: %v, want %v", ran, want)
	}
	if r := u.do(t, "mesh", "ls"); r.status != 3 || !strings.Contains(r.stderr, "mesh up") {
		t.Errorf("after mesh down: %v", r)
	}
}

// The commands of docs/quickstart.md that need no network work likewise.
func TestQuickStartPage(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clone := filepath.Join(u.home, "toolmesh")
	if err := os.CopyFS(filepath.Join(clone, "examples", "indexes"), os.DirFS(filepath.Join(root, "examples", "indexes"))); err != nil {
		t.Fatal(err)
	}
	u.up(t, filepath.Join(u.home, "the-mesh"))
	skip := regexp.MustCompile(`^(make|export|mesh up|mesh down|mesh-agent|mesh install (https|owner)|echo \$\?)`)
	ran := 0
	for _, block := range fencedBlocks(t, filepath.Join("docs", "quickstart.md")) {
		if block.language != "" {
			continue
		}
		for line := range strings.Lines(block.text) {
			line = strings.TrimSpace(line)
			if !strings.Contains(line, "mesh ") || skip.MatchString(line) || strings.HasPrefix(line, "ready") {
				continue
			}
			cmd := u.command(t.Context(), "sh", "-c", line)
			cmd.Dir = clone
			r, err := finish(cmd)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			if strings.Contains(line, "Atlantis") {
				want = 1 // the page explains its status
				if !strings.Contains(r.stderr, "Atlantis") || !strings.Contains(r.stderr, "UnknownCity") {
					t.Errorf("%s: %v", line, r)
				}
			}
			if r.status != want {
				t.Errorf("%s: %v, want status %d", line, r, want)
			}
			ran++
		}
	}
	if ran < 8 {
		t.Errorf("only %d commands of the page were run", ran)
	}
}

// The output of --json has the shapes on which scripts rely.
func TestJSON(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.up(t, filepath.Join(u.home, "the-mesh"))
	lab := example(t, "lab")
	keys := func(what string, text string, want ...string) map[string]any {
		t.Helper()
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Errorf("%s: %v: %s", what, err, text)
			return nil
		}
		got := make([]string, 0, len(object))
		for k := range object {
			got = append(got, k)
		}
		sort.Strings(got)
		sort.Strings(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", what, got, want)
		}
		return object
	}
	element := func(object map[string]any, name string) string {
		t.Helper()
		list, ok := object[name].([]any)
		if !ok || len(list) == 0 {
			t.Errorf("%s is %v, want a list that is not empty", name, object[name])
			return "{}"
		}
		data, err := json.Marshal(list[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	r := u.mesh(t, 0, "install", "file://"+lab, "--json")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		keys("a step of install", line, "job", "step", "state", "percent")
	}
	keys("the end of install", lines[len(lines)-1], "index", "revision", "tools", "unavailable")
	if r.stderr != "" {
		t.Errorf("install --json in a pipe says %q on stderr", r.stderr)
	}

	tool := keys("ls", u.mesh(t, 0, "ls", "--json").stdout, "tools")
	keys("a tool of ls", element(tool, "tools"), "id", "index", "session", "description", "state", "reason", "streaming", "nodes")

	info := keys("info", u.mesh(t, 0, "info", "lab.bank.withdraw", "--json").stdout,
		"id", "name", "description", "input_schema", "output_schema", "annotations", "metadata", "source", "warnings", "digest", "index", "nodes", "limits", "users",
		"positional") // for the envelope form, where there are positional parameters
	if data, err := json.Marshal(info["index"]); err != nil {
		t.Error(err)
	} else {
		keys("the index of info", string(data), "name", "revision")
	}
	keys("call", u.mesh(t, 0, "call", "lab.timing.nap", "seconds=0", "--json").stdout, "rpc_id", "status", "result", "node", "duration_ms")
	failed := keys("a failed call", u.mesh(t, 1, "call", "lab.bank.withdraw", "account=bob", "amount=20", "--json").stdout, "rpc_id", "status", "error")
	if e, ok := failed["error"].(map[string]any); !ok || e["code"] != "tool_error" || failed["status"] != "error" {
		t.Errorf("the failed call prints %v", failed)
	}

	lines = strings.Split(strings.TrimSpace(u.mesh(t, 0, "stream", "lab.streams.countdown", "start=1", "pause=0", "--json").stdout), "\n")
	if len(lines) != 3 {
		t.Errorf("stream prints %q", lines)
	} else {
		keys("an item of stream", lines[0], "seq", "data")
		equalJSON(t, "the end of stream", []byte(lines[2]), `{"complete":true,"count":2}`)
	}
	lines = strings.Split(strings.TrimSpace(u.mesh(t, 1, "stream", "lab.streams.breaks", "after=1", "--json").stdout), "\n")
	keys("the end of a stream that breaks", lines[len(lines)-1], "error")

	nodes := keys("nodes", u.mesh(t, 0, "nodes", "--json").stdout, "nodes")
	one := keys("a node", element(nodes, "nodes"), "id", "boot", "version", "state", "labels", "slots", "in_flight", "queued", "waiting", "calls", "errors", "relayed", "indexes", "sandbox", "limits", "users", "reasons")
	version := keys("version", u.mesh(t, 0, "version", "--json").stdout, "version", "commit", "proto", "nats_server")
	if one["version"] != version["version"] || version["version"] == "" || one["state"] != "serving" {
		t.Errorf("the node is %v, and version prints %v", one, version)
	}
	if exec.Command("git", "rev-parse", "HEAD").Run() == nil && os.Getenv("MESH_TEST_BIN") != "" && (version["version"] == "dev" || version["commit"] == "unknown") {
		t.Errorf("a program of make build prints the version %v", version)
	}
	keys("indexes", u.mesh(t, 0, "indexes", "--json").stdout, "indexes")
	var session struct{ ID string }
	u.json(t, &session, "session", "create", "mine", "--json")
	if session.ID != "mine" {
		t.Errorf("session create prints the id %q", session.ID)
	}

	for _, tc := range []struct {
		status int
		code   string
		args   []string
	}{
		{1, "invalid_arguments", []string{"call", "lab.bank.withdraw", `{"account":1}`}},
		{1, "deadline_exceeded", []string{"call", "lab.timing.slow", "seconds=60", "--timeout=200ms"}},
		{1, "install_failed", []string{"install", "file:///no/such/repository"}},
		{2, "invalid_request", []string{"call", "lab.bank.withdraw", "account=bob", "amount=much"}},
		{2, "invalid_request", []string{"call", "lab.bank.withdraw", "{not json"}},
		{2, "invalid_request", []string{"call"}},
		{2, "invalid_request", []string{"cal", "lab.bank.withdraw"}},
		{3, "tool_not_found", []string{"call", "lab.bank.withdrw"}},
		{3, "invalid_request", []string{"install", "file://" + example(t, "weather"), "--name=lab"}},
		{3, "unavailable", []string{"ls", "--server=nats://127.0.0.1:1"}},
	} {
		r := u.mesh(t, tc.status, append(tc.args, "--json")...)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		var answer struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &answer); err != nil || answer.Error.Code != tc.code || answer.Error.Message == "" {
			t.Errorf("mesh %v: want the code %s: %v", tc.args, tc.code, r)
		}
		// Without --json the same is on stderr, for a person.
		r = u.mesh(t, tc.status, tc.args...)
		if r.stdout != "" || r.stderr == "" {
			t.Errorf("mesh %v without --json: %v", tc.args, r)
		}
	}
}

// make demo shows all of its steps and leaves nothing behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	u := newUser(t, "MESH_SLOTS=1", "NATS_URL=nats://127.0.0.1:1") // the demo ignores the settings
	r := u.mesh(t, 0, "demo")
	for _, want := range []string{`"20.9"`, `"24.1"`, "InvalidVersion", "Oslo", "callers", "InsufficientFunds", "from Go", "Clean again"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the demo does not show %q:\n%v", want, r)
		}
	}
	if r.stderr != "" {
		t.Errorf("the demo says on stderr: %s", r.stderr)
	}
	for _, dir := range []string{"tmp", "data", "state", "config"} {
		left, err := filepath.Glob(filepath.Join(u.home, dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("the demo leaves %v", left)
		}
	}
	if left := processesWith(t, u.home); len(left) > 0 {
		t.Errorf("processes of the demo are left: %v", left)
	}
}

// processesWith lists processes that have a text in their command line or
// environment.
func processesWith(t *testing.T, text string) []string {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range folders {
		for _, file := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join(f, file))
			if err == nil && strings.Contains(string(data), text) {
				line, _ := os.ReadFile(filepath.Join(f, "cmdline"))
				found = append(found, filepath.Base(f)+" "+strings.ReplaceAll(string(line), "\x00", " "))
				break
			}
		}
	}
	return found
}
