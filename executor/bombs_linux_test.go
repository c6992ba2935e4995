package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// Every process of these tools ends by itself within a minute.
const bombTools = `
import os, sys, threading, time

def wait():
    time.sleep(60)

def threads(n: int):
    for _ in range(n):
        threading.Thread(target=wait, daemon=True).start()
    wait()

def processes(n: int):
    for _ in range(n):
        if os.fork() == 0:
            os.setsid()
            wait()
            os._exit(0)
    wait()

def stubborn(n: int):
    for _ in range(n):
        try:
            if os.fork() == 0:
                wait()
                os._exit(0)
        except BaseException:
            time.sleep(0.01)
    wait()

async def aprocesses(n: int):
    processes(n)

def ok():
    return os.getpid()

if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]))
`

// tasksIn counts the processes and threads that have a working folder, as the machine
// sees them.
func tasksIn(folder string) (tasks int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		if at, err := os.Readlink(filepath.Join("/proc", entry.Name(), "cwd")); err != nil || at != folder {
			continue
		}
		data, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		_, rest, _ := strings.Cut(string(data), ") ")
		if fields := strings.Fields(rest); len(fields) > 17 && fields[0] != "Z" {
			n, _ := strconv.Atoi(fields[17])
			tasks += n
		}
	}
	return tasks
}

// peakOf is the most processes and threads in a folder while f runs, beyond those before. One count
// may contain processes that end during it together with those that replace them: two successive
// counts must agree.
func peakOf(folder string, f func()) int {
	before := tasksIn(folder)
	over, peak := make(chan struct{}), make(chan int)
	go func() {
		most, last := 0, 0
		look := time.NewTicker(20 * time.Millisecond) // a count reads all of /proc
		defer look.Stop()
		for {
			now := tasksIn(folder) - before
			most, last = max(most, min(now, last)), now
			select {
			case <-over:
				peak <- most
				return
			case <-look.C:
			}
		}
	}()
	f()
	close(over)
	return <-peak
}

// A call without declared limits never has more processes and threads than the node's default,
// even after another call exceeded it: with control groups at any moment, without them it is
// stopped before it has all that it wants. Its processes are gone when its error arrives, or
// soon after, and the next call is served.
func TestForkBombsWithoutDeclaredLimitsEnd(t *testing.T) {
	for _, guard := range []string{"groups", "watchdog"} {
		t.Run(guard, func(t *testing.T) {
			if guard == "watchdog" && !meshtest.Soak() && sharedExecutor(t).MemoryGuard() != "watchdog" {
				t.Skip("here there are control groups: make soak")
			}
			// A quarter of the default, which takes a quarter of the processor time.
			x := newExecutor(t, func(o *executor.Options) { o.Watched(guard == "watchdog").Limits.Pids = 64 })
			if guard == "groups" && x.MemoryGuard() == "watchdog" {
				t.Skip("no control groups can be made here")
			}
			limits, _ := x.Limits()
			tools := []string{"processes", "threads", "stubborn", "aprocesses"} // several breaches of one worker's group
			spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": bombTools}), "t.ok", "t.processes", "t.threads", "t.stubborn", "t.aprocesses")
			ix := open(t, x, spec)
			folder, err := filepath.EvalSymlinks(spec.SourceDir)
			if err != nil {
				t.Fatal(err)
			}
			check := func(name string, peak int, err error) {
				t.Helper()
				mustBreach(t, err, toolmesh.CodeToolError, map[string]any{"limit": "pids", "max": limits.Pids, "set_by": "node"})
				t.Logf("%s had %d processes and threads at most", name, peak)
				if guard == "groups" && peak > limits.Pids+2 { // a worker that replaces it, and the process above a command
					t.Errorf("%s had %d processes and threads, more than %d", name, peak, limits.Pids)
				}
			}
			for _, name := range tools {
				var err error
				peak := peakOf(folder, func() { _, err = call(t, ix, "t."+name, `{"n":2000}`) })
				check(name, peak, err)
				if _, err := call(t, ix, "t.ok", `{}`); err != nil {
					t.Fatalf("after %s: %v", name, err)
				}
				meshtest.Until(t, "what "+name+" started is gone", func() bool { return tasksIn(folder) < 16 })
			}
			c, err := x.OpenCommands(executor.Spec{Name: "test", SourceDir: spec.SourceDir, Env: spec.Env})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context()) //nolint:errcheck // tested elsewhere
			for _, name := range []string{"processes", "threads"} {
				var err error
				peak := peakOf(folder, func() {
					_, err = c.Call(t.Context(), program.Call{Tool: "t", Argv: []string{"python", "t.py", name, "2000"}, Text: true, Sandbox: tool.SandboxGuard}, nil)
				})
				check("command "+name, peak, err)
				meshtest.Until(t, "what "+name+" started is gone", func() bool { return tasksIn(folder) < 16 })
			}
		})
	}
}

// Where an index has a user of its own, the kernel limits all processes of that user: to as many
// as the index's workers may have together, for good.
func TestAnIndexHasABoundOfProcesses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only an agent that is root gives indexes users of their own")
	}
	const source = `
import os, resource, sys

def bound():
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (100_000, 100_000))
    except (OSError, ValueError):
        pass
    return [os.getuid() != 0, *resource.getrlimit(resource.RLIMIT_NPROC)]

if __name__ == "__main__":
    print(*bound())
`
	dir, err := os.MkdirTemp("/var/tmp", "toolmesh-test-") // other users pass it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // nothing is left that uses it
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	x, err := executor.New(dir, &executor.Options{Environ: os.Environ(), Logger: testLogger(t), Users: "each", MaxWorkers: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close() //nolint:errcheck // tested elsewhere
	if level, why := x.Sandbox(); level == tool.SandboxNone {
		t.Skip(why)
	}
	index := filepath.Join(dir, "index")
	if err := os.MkdirAll(index, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(index, "t.py"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, x, index, "t.bound")
	spec.Policies = map[string]executor.Policy{"t.bound": {Limits: tool.Limits{Pids: 300}}}
	mustCall(t, open(t, x, spec), "t.bound", `{}`, `[true,2700,2700]`)
	c, err := x.OpenCommands(executor.Spec{Name: spec.Name, SourceDir: spec.SourceDir, Env: spec.Env})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context()) //nolint:errcheck // tested elsewhere
	body, err := c.Call(t.Context(), program.Call{Tool: "t", Argv: []string{"python", "t.py"}, Text: true}, nil)
	if err != nil || string(body) != `"True 2304 2304"` {
		t.Errorf("a command: %s, %v", body, err)
	}
}

// An import is not a call, and has a limit of its own, enforced by the kernel.
func TestForkBombAtImportEnds(t *testing.T) {
	if !meshtest.Soak() {
		t.Skip("not run: it starts a thousand processes: make soak")
	}
	x := newExecutor(t, nil)
	if x.MemoryGuard() == "watchdog" {
		t.Skip("no control groups can be made here")
	}
	spec := specOf(t, x, writeFiles(t, map[string]string{"bomb.py": `
import os, time
for _ in range(20_000):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
def f(): pass
`}), "bomb.f")
	folder, err := filepath.EvalSymlinks(spec.SourceDir)
	if err != nil {
		t.Fatal(err)
	}
	var ix *executor.Index
	peak := peakOf(folder, func() { ix = open(t, x, spec) })
	if most := max(1024, 64*runtime.NumCPU()); peak > most+4 {
		t.Errorf("the import had %d processes, more than %d", peak, most)
	}
	// With all of them left there is no room for a worker.
	if unavailable := fmt.Sprint(ix.Unavailable()); !strings.Contains(unavailable, "temporarily unavailable") {
		t.Errorf("unavailable: %s", unavailable)
	}
}
