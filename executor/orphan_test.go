package executor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/sandbox"
)

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z")
}

const orphanTools = `
import ctypes, os, time

def daemon(marker: str):
    # A daemon of the old school: its own session, its parent gone. Its command
    # line carries a marker, since its id here is not its id outside.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000." + marker])
        os._exit(0)
    return os.getpid()

def busy():
    print("busy", flush=True)
    while True:
        pass

def holds_the_lock():
    print("holding", flush=True)
    ctypes.PyDLL(None).sleep(1000)

async def asleep():
    print("asleep", flush=True)
    time.sleep(1000)
`

// beAgent is the process that the orphan test kills: an agent with busy workers
// and daemons below it. It prints its processes' ids and waits for its end.
func beAgent(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	o := &executor.Options{Environ: os.Environ()}
	if level := os.Getenv("TOOLMESH_TEST_LEVEL"); level != "" {
		o.Levels = []sandbox.Level{sandbox.Level(level)}
	}
	x, err := executor.New(filepath.Join(dir, "data"), o)
	if err != nil {
		fail(err)
	}
	ctx := context.Background()
	env, err := x.Environment(ctx, dir, executor.Lock{}, nil)
	if err != nil {
		fail(err)
	}
	ix, err := x.Open(ctx, executor.Spec{
		Name: "orphans", SourceDir: dir, Env: env, Tools: []string{"t.daemon", "t.busy", "t.holds_the_lock", "t.asleep"},
	})
	if err != nil {
		fail(err)
	}
	args, _ := json.Marshal(map[string]string{"marker": os.Getenv("TOOLMESH_TEST_MARKER")})
	if _, err := ix.Call(ctx, executor.Call{Tool: "t.daemon", Args: args}, nil); err != nil {
		fail(err)
	}
	for _, tool := range []string{"t.busy", "t.holds_the_lock", "t.asleep"} {
		sink := &collector{logged: make(chan struct{}, 1)}
		go func() { _, _ = ix.Call(ctx, executor.Call{Tool: tool}, sink) }()
		<-sink.logged
	}
	s := ix.Stats()
	fmt.Println(x.Level(), s.Root, strings.Trim(fmt.Sprint(s.Pids), "[]"))
	select {}
}

// processes gives the ids of all processes whose command line holds a marker.
func processes(t *testing.T, marker string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(data), marker) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if pid != os.Getpid() && alive(pid) {
				found = append(found, pid)
			}
		}
	}
	return found
}

// The agent is killed without a chance to clean up. No worker may survive it,
// and no daemon that a tool started, whichever way processes are kept together.
func TestNothingSurvivesTheAgent(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("needs /proc")
	}
	levels := []sandbox.Level{"", sandbox.LevelReaper}
	if os.Geteuid() == 0 {
		levels = append(levels, sandbox.LevelUser)
	}
	for _, level := range levels {
		t.Run("level "+string(level), func(t *testing.T) {
			t.Parallel()
			dir := writeFiles(t, map[string]string{"t.py": orphanTools})
			marker := fmt.Sprintf("%d%d", os.Getpid(), len(level)+1)
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), "TOOLMESH_TEST_AGENT="+dir, "TOOLMESH_TEST_LEVEL="+string(level),
				"TOOLMESH_TEST_MARKER="+marker)
			cmd.Stderr = t.Output()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				t.Fatalf("the agent said nothing: %v", err)
			}
			words := strings.Fields(line)
			if level != "" && words[0] != string(level) {
				t.Skipf("level %s is not available here", level)
			}
			var pids []int
			for _, word := range words[1:] {
				pid, err := strconv.Atoi(word)
				if err != nil || !alive(pid) {
					t.Errorf("process %s is not alive before the kill", word)
				}
				pids = append(pids, pid)
			}
			if len(pids) < 4 {
				t.Errorf("got processes %q, want the root and three workers", words)
			}
			var daemons []int
			eventually(t, "the daemon runs", func() bool {
				daemons = processes(t, "1000."+marker)
				return len(daemons) == 1
			})
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, "all processes are gone", func() bool {
				for _, pid := range append(pids, daemons...) {
					if alive(pid) {
						return false
					}
				}
				return true
			})
			if left := processes(t, "1000."+marker); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if left := processes(t, dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
