package executor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// rootOf is the process above all workers of an index; 0 without workers.
func rootOf(ix *executor.Index) (root int) {
	for _, pid := range ix.Stats().Pids {
		for pid > 0 && pid != os.Getpid() {
			root = pid
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, parent, _ := strings.Cut(string(status), "\nPPid:\t")
			pid = 0 // unless it has a parent
			_, _ = fmt.Sscan(parent, &pid)
		}
		if pid > 0 {
			return root
		}
	}
	return 0
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z")
}

const orphanTools = `
import ctypes, os, subprocess, time

# What these start carries a marker in its command line: ids are others outside.
# The calls never end: what a call starts would die with it.

def plain(marker: str):
    subprocess.Popen(["sleep", "1000." + marker])
    print("started", flush=True)
    time.sleep(1000)

def setsid(marker: str):
    subprocess.Popen(["sleep", "1000." + marker], start_new_session=True)
    print("started", flush=True)
    time.sleep(1000)

def daemon(marker: str):
    # Of the old school: its own session, its parent gone.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000." + marker])
        os._exit(0)
    os.wait()
    print("started", flush=True)
    time.sleep(1000)

def busy(marker: str):
    print("busy", flush=True)
    while True:
        pass

def holds_the_lock(marker: str):
    print("holding", flush=True)
    ctypes.PyDLL(None).sleep(1000)

async def asleep(marker: str):
    print("asleep", flush=True)
    time.sleep(1000)
`

// leaves is a script that leaves a process and a daemon.
const leaves = "sleep 1000.$MARKER & setsid sleep 1000.$MARKER & "

var orphanCalls = []string{"t.plain", "t.setsid", "t.daemon", "t.busy", "t.holds_the_lock", "t.asleep"}

// beAgent is the process that the orphan test kills: an agent with busy workers
// and daemons below it. It prints its processes' ids and waits for its end.
func beAgent(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv("TOOLMESH_TEST_REFUSED") != "" {
		if err := refuseNamespaces(); err != nil {
			fmt.Println("skip:", err)
			return
		}
	}
	log := &logged{}
	environ := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH")) // with a uv that hangs
	o := &executor.Options{Environ: environ, Logger: log.logger(), Sandbox: tool.Sandbox(os.Getenv("TOOLMESH_TEST_SANDBOX")), MaxWorkers: 12}
	if level := os.Getenv("TOOLMESH_TEST_LEVEL"); level != "" {
		o.SetLevels(sandbox.Level(level))
	}
	x, err := executor.New(filepath.Join(dir, "data"), o)
	if err != nil {
		fail(err)
	}
	ctx := context.Background()
	env, err := x.Environment(ctx, dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		fail(err)
	}
	spec := executor.Spec{Name: "orphans", SourceDir: dir, Env: env, Tools: orphanCalls}
	if os.Getenv("TOOLMESH_TEST_OWN") != "" {
		spec.Vars = map[string]string{ownInterpreter: "1"}
	}
	ix, err := x.Open(ctx, spec)
	if err != nil {
		fail(err)
	}
	bases := log.bases()
	if os.Getenv("TOOLMESH_TEST_BASELESS") != "" {
		bases = nil
		for _, pid := range log.bases() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				fail(err)
			}
			for alive(pid) {
				runtime.Gosched()
			}
		}
	}
	marker := os.Getenv("TOOLMESH_TEST_MARKER")
	fetches, err := os.MkdirTemp(x.Fetches(), "")
	if err != nil {
		fail(err)
	}
	go func() {
		_, err := x.Fetch(ctx, fetches, []string{"/bin/sh", "-c", leaves + "wait"}, []string{"MARKER=" + marker}, io.Discard)
		fail(fmt.Errorf("a fetch ended: %w", err))
	}()
	go func() {
		_, err := x.Lock(ctx, filepath.Join(dir, "packages"), executor.LockOptions{}, nil)
		fail(fmt.Errorf("a lock was made: %w", err))
	}()
	args, _ := json.Marshal(map[string]string{"marker": marker})
	for _, name := range orphanCalls {
		sink := &collector{logged: make(chan struct{}, 1)}
		go func() {
			_, err := ix.Call(ctx, executor.Call{Tool: name, Args: args}, sink)
			fail(fmt.Errorf("%s ended: %w", name, err))
		}()
		<-sink.logged
	}
	s := ix.Stats()
	effective, _ := x.Sandbox()
	fmt.Println(x.Level(), effective, rootOf(ix), strings.Trim(fmt.Sprint(append(s.Pids, bases...)), "[]"))
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

// orphanCase is one row of the matrix.
type orphanCase struct {
	user    string // root or ordinary; "refused" is root where the system refuses namespaces
	level   sandbox.Level
	sandbox tool.Sandbox
	how     string // "baseless": its base is killed before; "own": the index is no copy of it
}

// The agent is killed without a chance to clean up. No worker may survive it, and no process of a
// tool or of an installation, however it tries: as root, as an ordinary user, and where the system refuses
// namespaces.
func TestNothingSurvivesTheAgent(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("needs /proc")
	}
	cases := []orphanCase{
		{"ordinary", sandbox.LevelUser, tool.SandboxGuard, ""},
		{"ordinary", sandbox.LevelReaper, tool.SandboxGuard, ""},
		{"root", sandbox.LevelPID, tool.SandboxNone, ""},
		{"root", sandbox.LevelPID, tool.SandboxStrict, ""},
		{"root", sandbox.LevelUser, tool.SandboxGuard, ""},
		{"refused", sandbox.LevelReaper, tool.SandboxGuard, ""},
		{"ordinary", sandbox.LevelReaper, tool.SandboxGuard, "baseless"},
		{"root", sandbox.LevelPID, tool.SandboxGuard, "baseless"},
		{"ordinary", sandbox.LevelUser, tool.SandboxGuard, "own"},
	}
	turns := make(chan struct{}, 2) // each is an agent with six busy workers
	for i, c := range cases {
		t.Run(fmt.Sprintf("%s %s %s %s", c.user, c.level, c.sandbox, c.how), func(t *testing.T) {
			t.Parallel()
			if c.user == "root" && os.Geteuid() != 0 {
				t.Skip("not root")
			}
			turns <- struct{}{}
			defer func() { <-turns }()
			nothingSurvives(t, c, fmt.Sprintf("%d%02d", os.Getpid(), i)) // none begins as another does
		})
	}
}

func nothingSurvives(t *testing.T, c orphanCase, marker string) {
	cmd, dir := beside(t, c.user, map[string]string{
		"t.py": orphanTools, "packages/requirements.txt": "acme\n", "uv": "#!/bin/sh\nMARKER=" + marker + "\n" + leaves + "wait\n",
	})
	if err := os.Chmod(filepath.Join(dir, "uv"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "TOOLMESH_TEST_AGENT="+dir,
		"TOOLMESH_TEST_SANDBOX="+string(c.sandbox), "TOOLMESH_TEST_MARKER="+marker)
	switch c.how {
	case "baseless":
		cmd.Env = append(cmd.Env, "TOOLMESH_TEST_BASELESS=1")
	case "own":
		cmd.Env = append(cmd.Env, "TOOLMESH_TEST_OWN=1")
	}
	if c.user == "refused" {
		cmd.Env = append(cmd.Env, "TOOLMESH_TEST_REFUSED=1") // it finds the way by itself
	} else {
		cmd.Env = append(cmd.Env, "TOOLMESH_TEST_LEVEL="+string(c.level))
	}
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
	if strings.HasPrefix(line, "skip: ") {
		_ = cmd.Wait()
		t.Skip(line)
	}
	words := strings.Fields(line)
	var pids []int
	for _, word := range words[2:] {
		pid, err := strconv.Atoi(word)
		if err != nil || !alive(pid) {
			t.Errorf("process %s is not alive before the kill", word)
		}
		pids = append(pids, pid)
	}
	want := 1 + len(orphanCalls)
	if c.how != "baseless" {
		want++ // the base
	}
	if len(pids) != want {
		t.Errorf("got processes %q, want the root, %d workers and the base", words, len(orphanCalls))
	}
	var started []int
	meshtest.Until(t, "what the tools and programs of installations start runs", func() bool {
		started = processes(t, "1000."+marker)
		return len(started) == 3+2+2
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	switch {
	case words[0] != string(c.level) && c.user == "refused":
		t.Errorf("processes are kept together by %s, where namespaces are refused", words[0])
	case words[0] != string(c.level):
		t.Skipf("processes cannot be kept together by %s here", c.level)
	case c.level != sandbox.LevelReaper && words[1] != string(c.sandbox):
		t.Skipf("the sandbox level %s is not available here", c.sandbox)
	}
	meshtest.Until(t, "all processes are gone", func() bool {
		for _, pid := range append(pids, started...) {
			if alive(pid) {
				return false
			}
		}
		return len(processes(t, "1000."+marker))+len(processes(t, dir)) == 0 // one that ends the others ends last
	})
}
