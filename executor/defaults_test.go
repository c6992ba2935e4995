package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/tool"
)

// Every bomb ends by itself, should its limit not hold.
const boundTools = `
import mmap, os, sys, tempfile, threading, time

def wait():
    time.sleep(60)

def ok():
    return "ok"

def reads(fifo: str):
    return open(fifo).read()

def hoard(mb: int):
    held = [b"x" * (1 << 20) for _ in range(mb)]
    wait()

async def ahoard(mb: int):
    hoard(mb)

def threads(n: int):
    for _ in range(n):
        threading.Thread(target=wait, daemon=True).start()
    wait()

def processes(n: int):
    for _ in range(n):
        if os.fork() == 0:
            wait()
            os._exit(0)
    wait()

def opens(n: int):
    return len([open(os.devnull) for _ in range(n)])

def fill(mb: int):
    for _ in range(mb):
        with tempfile.NamedTemporaryFile(delete=False) as f:
            f.write(b"x" * (1 << 20))
    wait()

def fill_unnamed(mb: int):
    with tempfile.TemporaryFile() as f:
        for _ in range(mb):
            f.write(b"x" * (1 << 20))
        f.flush()
        wait()

def maps(path: str):
    with open(path, "rb") as f:
        held = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    size = sum(held[at] == 0 for at in range(0, len(held), mmap.PAGESIZE))
    time.sleep(0.5)
    return size

def spills():
    with open(os.path.join(os.environ["TMPDIR"], "spilt"), "wb") as f:
        f.write(b"x" * (1 << 20))

if __name__ == "__main__":
    globals()[sys.argv[1]](*map(int, sys.argv[2:]))
`

// small are limits of a node that a test exceeds at little cost.
var small = tool.Limits{Memory: 64 << 20, Pids: 20, OpenFiles: 256, TempFiles: 4 << 20}

// breaches are calls that exceed the limits of small.
var breaches = []struct {
	tool, args  string
	code        toolmesh.Code
	limit, most any // details
	text        string
}{
	{"hoard", `{"mb":200}`, toolmesh.CodeWorkerOutOfMemory, int64(64 << 20), nil, "64MiB"},
	{"ahoard", `{"mb":200}`, toolmesh.CodeWorkerOutOfMemory, int64(64 << 20), nil, "64MiB"},
	{"threads", `{"n":30}`, toolmesh.CodeToolError, "pids", 20, "20"},
	{"processes", `{"n":30}`, toolmesh.CodeToolError, "pids", 20, "20"},
	{"opens", `{"n":300}`, toolmesh.CodeToolError, "open_files", 256, "256"},
	{"fill", `{"mb":8}`, toolmesh.CodeToolError, "temp_files", 4 << 20, "4MiB"},
	{"fill_unnamed", `{"mb":8}`, toolmesh.CodeToolError, "temp_files", 4 << 20, "4MiB"},
}

// boundIndex serves boundTools, with limits of the node and of the tools.
func boundIndex(t *testing.T, x *executor.Executor, policy executor.Policy) *executor.Index {
	t.Helper()
	names := []string{"t.ok", "t.reads"}
	for _, b := range breaches {
		names = append(names, "t."+b.tool)
	}
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": boundTools}), names...)
	spec.Policies = map[string]executor.Policy{}
	for _, name := range names {
		spec.Policies[name] = policy
	}
	return open(t, x, spec)
}

// mustBreach checks the error of a call that exceeded a limit.
func mustBreach(t *testing.T, err error, code toolmesh.Code, details map[string]any, texts ...string) {
	t.Helper()
	e := toolmesh.AsError(err)
	if e == nil || e.Code != code || e.Started != toolmesh.StartedYes {
		t.Errorf("got %v, want %s of a call that had begun", err, code)
		return
	}
	for name, want := range details {
		if got := e.Details[name]; want != nil && fmt.Sprint(got) != jsonText(want) && got != want && jsonText(got) != jsonText(want) {
			t.Errorf("details.%s is %v, want %v", name, got, want)
		}
	}
	for _, text := range texts {
		if !strings.Contains(e.Message, text) {
			t.Errorf("%q does not say %q", e.Message, text)
		}
	}
}

// Tools without declared limits are limited at every level and isolation: the error names the limit
// and its source, calls of other workers go on, and the next call is served.
func TestLimitsOfTheNodeHoldWithoutAsking(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	for _, row := range []struct {
		level     tool.Sandbox
		isolation toolmesh.Isolation
	}{
		{tool.SandboxNone, toolmesh.IsolationWarm},
		{tool.SandboxGuard, toolmesh.IsolationWarm},
		{tool.SandboxGuard, toolmesh.IsolationSession},
		{tool.SandboxGuard, toolmesh.IsolationFork},
		{tool.SandboxGuard, toolmesh.IsolationFresh},
		{tool.SandboxStrict, toolmesh.IsolationFork},
		{tool.SandboxOffline, toolmesh.IsolationWarm},
	} {
		t.Run(string(row.level)+" "+string(row.isolation), func(t *testing.T) {
			t.Parallel()
			x := newExecutor(t, func(o *executor.Options) { o.Limits = small })
			if why := x.Lacks(row.level); why != "" {
				t.Skip(why)
			}
			ix := boundIndex(t, x, executor.Policy{Sandbox: row.level, Isolation: row.isolation})
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			var other sync.WaitGroup
			other.Go(func() {
				args, _ := json.Marshal(map[string]string{"fifo": fifo})
				body, err := ix.Call(t.Context(), executor.Call{Tool: "t.reads", Session: "other", Args: args}, nil)
				if err != nil || string(body) != `"gone on"` {
					t.Errorf("the call of another worker: %s, %v", body, err)
				}
			})
			out, err := os.OpenFile(fifo, os.O_WRONLY, 0) // when it reads
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range breaches {
				_, err := ix.Call(t.Context(), executor.Call{Tool: "t." + b.tool, Session: "s", Args: json.RawMessage(b.args)}, nil)
				mustBreach(t, err, b.code, map[string]any{"limit": b.limit, "max": b.most, "set_by": "node", "tool": "t." + b.tool},
					b.text+" is the default of this node")
				if t.Failed() {
					t.Fatalf("by %s", b.tool)
				}
				if body, err := ix.Call(t.Context(), executor.Call{Tool: "t.ok", Session: "s"}, nil); err != nil || string(body) != `"ok"` {
					t.Fatalf("after %s: %s, %v", b.tool, body, err)
				}
			}
			_, _ = out.WriteString("gone on")
			_ = out.Close()
			other.Wait()
		})
	}
}

// A tool's own limits replace the node's, up or down, as far as the node grants.
func TestDeclaredLimitsReplaceThoseOfTheNode(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) {
		o.Limits = small
		o.MaxLimits = tool.Limits{Memory: 256 << 20, Pids: 100, OpenFiles: 400, TempFiles: 16 << 20}
	})
	dir := writeFiles(t, map[string]string{"t.py": boundTools + "\ndef wait():\n    time.sleep(0.3)\n"})
	names := []string{"t.hoard", "t.threads", "t.opens", "t.fill"}
	spec := specOf(t, x, dir, names...)
	spec.Policies = map[string]executor.Policy{
		"t.hoard": {Limits: tool.Limits{Memory: 1 << 30}}, "t.threads": {Limits: tool.Limits{Pids: 90}},
		"t.opens": {Limits: tool.Limits{OpenFiles: 4096}}, "t.fill": {Limits: tool.Limits{TempFiles: 1 << 30}},
	}
	ix := open(t, x, spec)
	// Below the limit.
	mustCall(t, ix, "t.hoard", `{"mb":120}`, `null`)
	mustCall(t, ix, "t.threads", `{"n":60}`, `null`)
	mustCall(t, ix, "t.opens", `{"n":380}`, `380`)
	mustCall(t, ix, "t.fill", `{"mb":8}`, `null`)
	// Beyond.
	_, err := call(t, ix, "t.opens", `{"n":500}`)
	mustBreach(t, err, toolmesh.CodeToolError, map[string]any{"limit": "open_files", "max": 400, "set_by": "node"},
		"400 is the most that this node grants; the tool declares 4096")
	_, err = call(t, ix, "t.hoard", `{"mb":600}`)
	mustBreach(t, err, toolmesh.CodeWorkerOutOfMemory, map[string]any{"limit": 256 << 20, "set_by": "node"},
		"256MiB is the most that this node grants; the tool declares 1GiB")
}

// Programs have the same limits, and folders for temporary files of their own.
func TestLimitsOfTheNodeHoldForCommands(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.Limits = small })
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": boundTools}))
	c, err := x.OpenCommands(executor.Spec{Name: "test", SourceDir: spec.SourceDir, Env: spec.Env})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context()) //nolint:errcheck // tested elsewhere
	for _, level := range []tool.Sandbox{tool.SandboxNone, tool.SandboxGuard, tool.SandboxStrict} {
		if why := x.Lacks(level); why != "" {
			t.Logf("not in %s: %s", level, why)
			continue
		}
		run := func(argv ...string) (string, error) {
			body, err := c.Call(t.Context(), program.Call{Tool: "t", Argv: argv, Text: true, Sandbox: level}, nil)
			return string(body), err
		}
		for _, b := range breaches {
			number := strings.Trim(b.args, `{}"mbn:`)
			_, err := run("python", "t.py", b.tool, number)
			if b.tool == "ahoard" {
				continue
			}
			if b.tool == "opens" { // the tool may handle it
				mustBreach(t, err, toolmesh.CodeToolError, map[string]any{"exit_status": 1}, "Too many open files")
				continue
			}
			mustBreach(t, err, b.code, map[string]any{"limit": b.limit, "max": b.most, "set_by": "node"}, b.text+" is the default of this node")
			if t.Failed() {
				t.Fatalf("by %s in %s", b.tool, level)
			}
		}
		folder, err := run("sh", "-c", "file=$(mktemp) && dirname $file")
		folder = strings.Trim(folder, `"`)
		if _, left := os.Stat(folder); err != nil || folder == "/tmp" || left == nil {
			t.Errorf("in %s: the folder for temporary files was %s (%v), and %v", level, folder, err, left)
		}
	}
}

// Pages of a file that is mapped are the disk's: the system takes them back.
func TestMappedFilesAreNoMemory(t *testing.T) {
	t.Parallel()
	if data, err := os.ReadFile("/proc/self/smaps_rollup"); err != nil || !strings.Contains(string(data), "Pss_Anon") {
		t.Skip("this kernel does not tell them apart")
	}
	folder, err := os.MkdirTemp(".", "maps-test-") // a folder for temporary files may be memory itself
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	file, err := filepath.Abs(filepath.Join(folder, "large"))
	if err == nil {
		err = os.WriteFile(file, make([]byte, 100<<20), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.Limits = small }), boundTools, "maps")
	args, _ := json.Marshal(map[string]string{"path": file})
	mustCall(t, ix, "t.maps", string(args), strconv.Itoa((100<<20)/os.Getpagesize()))
}
