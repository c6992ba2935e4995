package executor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// Each of these tools takes at most 200 MB, in files of memory that end with the process.
const memoryTools = `
import os, subprocess, sys

def fill(mb):
    held = os.memfd_create("held")
    for _ in range(mb):
        os.write(held, b"x" * (1 << 20))
    os.close(held)

def in_a_file(mb: int):
    fill(mb)
    return "done"

async def ain_a_file(mb: int):
    fill(mb)
    return "done"

def item_by_item(mb: int):
    yield 1
    fill(mb)
    yield 2

def by_an_orphan(mb: int):
    r, w = os.pipe()
    if os.fork() == 0:
        os.close(r)
        os.setsid()
        if os.fork() == 0:
            with open("/proc/self/oom_score_adj", "w") as f:
                f.write("1000")  # the kernel is to take this one, not the worker
            fill(mb)
        os._exit(0)
    os.close(w)
    os.read(r, 1)
    return "it has ended"

async def aby_an_orphan(mb: int):
    return by_an_orphan(mb)

def small():
    return "small"

async def asmall():
    return "small"
`

// memoryGuarded makes an executor with control groups for memory, and returns their folder; it
// skips the test without them.
func memoryGuarded(t *testing.T) (x *executor.Executor, groups string) {
	t.Helper()
	dir := t.TempDir()
	x, err := executor.New(dir, &executor.Options{Environ: os.Environ(), Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(groups); err == nil && groups != "" {
			t.Errorf("%s is left", groups)
		}
	})
	if x.MemoryGuard() == "watchdog" {
		t.Skip("no control groups with memory can be made here")
	}
	record, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	groups, _, _ = strings.Cut(string(record), "\n") // of version 1, those of processes are elsewhere
	return x, groups
}

// members are the processes of each group.
func members(t *testing.T, groups string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(groups + "/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			found[filepath.Dir(file)] = strings.Fields(string(data))
		}
	}
	return found
}

const memoryLimit = 40 << 20

func outOfGroup(t *testing.T, err error) {
	t.Helper()
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeWorkerOutOfMemory {
		t.Errorf("got %v, want %s", err, toolmesh.CodeWorkerOutOfMemory)
		return
	}
	peak, _ := strconv.ParseInt(fmt.Sprint(e.Details["peak"]), 10, 64)
	if e.Details["source"] != "cgroup" || fmt.Sprint(e.Details["limit"]) != strconv.Itoa(memoryLimit) || peak < memoryLimit || peak > 200<<20 ||
		e.Started != toolmesh.StartedYes || !strings.Contains(e.Message, "more than its limit") {
		t.Errorf("got %v, started %v, details %v", e, e.Started, e.Details)
	}
}

// Neither files in memory nor processes that left their parent are seen by the
// watchdog: the kernel's bound stops them, in every isolation, and the next call
// is served.
func TestMemoryThatOnlyTheKernelSees(t *testing.T) {
	t.Parallel()
	x, groups := memoryGuarded(t)
	names := []string{"in_a_file", "ain_a_file", "item_by_item", "by_an_orphan", "aby_an_orphan"}
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationSession, toolmesh.IsolationFork, toolmesh.IsolationFresh} {
		dir := writeFiles(t, map[string]string{"t.py": memoryTools})
		policy := executor.Policy{Isolation: isolation, Limits: tool.Limits{Memory: memoryLimit}}
		policies := map[string]executor.Policy{"t.small": policy, "t.asmall": policy}
		var tools []string
		for _, name := range names {
			tools, policies["t."+name] = append(tools, "t."+name), policy
		}
		spec := specOf(t, x, dir, append(tools, "t.small", "t.asmall")...)
		spec.Policies = policies
		spec.Quarantined = func(tool, reason string) { t.Errorf("%s: %s", tool, reason) }
		ix := open(t, x, spec)
		for _, name := range names {
			if isolation == toolmesh.IsolationSession && name != "in_a_file" && name != "ain_a_file" {
				continue // its workers are those of warm ones
			}
			sink := &collector{}
			call := executor.Call{Tool: "t." + name, Args: json.RawMessage(`{"mb":200}`), Session: "s", Stream: name == "item_by_item"}
			_, err := ix.Call(t.Context(), call, sink)
			outOfGroup(t, err)
			if t.Failed() {
				t.Fatalf("by %s in isolation %s", name, isolation)
			}
			call.Args = json.RawMessage(`{"mb":5}`)
			if body, err := ix.Call(t.Context(), call, sink); err != nil {
				t.Errorf("%s in isolation %s, once more: %s, %v", name, isolation, body, err)
			}
			for _, other := range []string{"t.small", "t.asmall"} {
				if body, err := ix.Call(t.Context(), executor.Call{Tool: other, Session: "s"}, nil); err != nil || string(body) != `"small"` {
					t.Errorf("%s after %s in isolation %s: %s, %v", other, name, isolation, body, err)
				}
			}
		}
		if err := ix.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	meshtest.Until(t, "the groups are removed", func() bool { return len(members(t, groups)) == 0 })
}

// Where a group above runs out of memory, or the machine, the call has not taken
// more than its limit: the error says so, and the next call is served.
func TestMemoryThatTheMachineLacks(t *testing.T) {
	t.Parallel()
	x, groups := memoryGuarded(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": memoryTools}), "t.in_a_file", "t.small")
	policy := executor.Policy{Limits: tool.Limits{Memory: 4 * memoryLimit}}
	spec.Policies = map[string]executor.Policy{"t.in_a_file": policy, "t.small": policy}
	ix := open(t, x, spec)
	mustCall(t, ix, "t.in_a_file", `{"mb":100}`, `"done"`)
	for _, name := range []string{"memory.limit_in_bytes", "memory.max"} {
		file := filepath.Join(groups, name)
		if _, err := os.Stat(file); err == nil {
			if err := os.WriteFile(file, []byte(strconv.Itoa(memoryLimit)), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := mustFail(t, ix, "t.in_a_file", `{"mb":100}`, toolmesh.CodeWorkerOutOfMemory)
	if !strings.Contains(e.Message, "machine ran out of memory") || e.Details["source"] != "cgroup" ||
		fmt.Sprint(e.Details["limit"]) != strconv.Itoa(4*memoryLimit) {
		t.Errorf("got %v, details %v", e, e.Details)
	}
	mustCall(t, ix, "t.small", `{}`, `"small"`)
}

// A call is not blamed for processes that the kernel killed before it began.
func TestEarlierKillsOfTheKernelDoNotCount(t *testing.T) {
	t.Parallel()
	x, groups := memoryGuarded(t)
	dir := writeFiles(t, map[string]string{"t.py": memoryTools + `
import threading

def later(fifo: str):
    def leave():
        open(fifo).close()  # the test's sign
        # Killed by the kernel, alone: others are not worth it.
        subprocess.run([sys.executable, "-I", "-c", "import mmap\nm = mmap.mmap(-1, 200 << 20)\nwhile m.write(b'x' * (1 << 20)): pass"])
    threading.Thread(target=leave, daemon=True).start()
`})
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, x, dir, "t.later", "t.small")
	policy := executor.Policy{Isolation: toolmesh.IsolationSession, Limits: tool.Limits{Memory: memoryLimit}}
	spec.Policies = map[string]executor.Policy{"t.later": policy, "t.small": policy}
	ix := open(t, x, spec)
	in := func(name, args string) (string, error) {
		body, err := ix.Call(t.Context(), executor.Call{Tool: name, Session: "s", Args: json.RawMessage(args)}, nil)
		return string(body), err
	}
	args, _ := json.Marshal(map[string]string{"fifo": fifo})
	if _, err := in("t.later", string(args)); err != nil {
		t.Fatal(err)
	}
	sign, err := os.OpenFile(fifo, os.O_WRONLY, 0) // once its thread reads
	if err != nil {
		t.Fatal(err)
	}
	_ = sign.Close()
	killed := func() bool {
		for group := range members(t, groups) {
			for _, file := range []string{"memory.oom_control", "memory.events"} {
				data, err := os.ReadFile(filepath.Join(group, file))
				if err == nil && strings.Contains(string(data), "oom_kill ") && !strings.Contains(string(data), "oom_kill 0") {
					return true
				}
			}
		}
		return len(members(t, groups)) == 0 // all of it, with the group
	}
	meshtest.Until(t, "the kernel has killed it", killed)
	meshtest.Until(t, "what was killed has gone", func() bool { // until then its memory is there
		for _, pids := range members(t, groups) {
			for _, pid := range pids {
				if line, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.Contains(string(line), "200 << 20") {
					return false
				}
			}
		}
		return true
	})
	// The session's worker may be gone with it; then that is said once.
	if _, err := in("t.small", `{}`); err != nil && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("the next call: %v", err)
	}
	if body, err := in("t.small", `{}`); err != nil || body != `"small"` {
		t.Errorf("the call after: %s, %v", body, err)
	}
}

// Memory outside of the limit's meaning does not count: pages that a worker shares with its
// zygote until it writes to them, and the kernel's cache of files that it read.
func TestSharedAndCachedMemoryDoesNotCount(t *testing.T) {
	t.Parallel()
	x, _ := memoryGuarded(t)
	dir := writeFiles(t, map[string]string{"t.py": `
import os

held = [bytearray(4096) for _ in range(30000)]

def copies():
    for page in held:
        page[0] = 1
    return len(held)

def reads(name: str):
    size = 0
    with open(name, "rb") as f:
        while data := f.read(1 << 20):
            size += len(data)
    return size
`})
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 200<<20); err != nil {
		t.Fatal(err)
	}
	args, _ := json.Marshal(map[string]string{"name": file})
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationFork, toolmesh.IsolationFresh} {
		spec := specOf(t, x, dir, "t.copies", "t.reads")
		policy := executor.Policy{Isolation: isolation, Limits: tool.Limits{Memory: memoryLimit}}
		spec.Policies = map[string]executor.Policy{"t.copies": policy, "t.reads": policy}
		ix := open(t, x, spec)
		for range 2 {
			mustCall(t, ix, "t.copies", `{}`, `30000`)
			mustCall(t, ix, "t.reads", string(args), strconv.Itoa(200<<20))
		}
	}
}

// A worker is in its group before its first call, with the processes of the index's own
// handlers, and is limited by its own limits or the node's.
func TestWorkersAreInTheirGroups(t *testing.T) {
	t.Parallel()
	x, groups := memoryGuarded(t)
	dir := writeFiles(t, map[string]string{"t.py": `
import os, subprocess

def start():
    subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

os.register_at_fork(after_in_child=start)

def limited():
    return 1

def free():
    return 2
`})
	spec := specOf(t, x, dir, "t.limited", "t.free")
	spec.Policies = map[string]executor.Policy{"t.limited": {Limits: tool.Limits{Memory: memoryLimit}}}
	ix := open(t, x, spec)
	all := members(t, groups)
	if len(all) != 3 {
		t.Fatalf("the groups have %v, want those of two workers and of their zygote with processes", all)
	}
	zygotes, limited := 0, 0
	for group, pids := range all {
		if !slices.ContainsFunc(ix.Stats().Pids, func(pid int) bool { return slices.Contains(pids, strconv.Itoa(pid)) }) {
			zygotes++
			continue
		}
		if len(pids) != 2 {
			t.Errorf("%s has processes %v, want the worker and the one that it started", group, pids)
		}
		workers := 0
		for _, pid := range ix.Stats().Pids {
			if slices.Contains(pids, strconv.Itoa(pid)) {
				workers++
			}
		}
		if workers != 1 {
			t.Errorf("%s has processes %v of the workers %v, want one", group, pids, ix.Stats().Pids)
		}
		bound := ""
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			if data, err := os.ReadFile(filepath.Join(group, file)); err == nil {
				bound = strings.TrimSpace(string(data))
			}
		}
		switch n, err := strconv.ParseInt(bound, 10, 64); {
		case err != nil || n < memoryLimit || n > 1<<50:
			t.Errorf("the bound is %s", bound)
		case n < 3*memoryLimit:
			limited++
		}
	}
	if limited != 1 || zygotes != 1 {
		t.Errorf("%d groups have the bound of the tool that declares one, %d are of zygotes", limited, zygotes)
	}
}

// Commands are limited, too, with all their processes.
func TestMemoryOfCommandsThatOnlyTheKernelSees(t *testing.T) {
	t.Parallel()
	x, groups := memoryGuarded(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"fill.py": memoryTools + "\nfill(int(sys.argv[1]))\nprint('done')"}))
	c, err := x.OpenCommands(executor.Spec{Name: "test", SourceDir: spec.SourceDir, Env: spec.Env})
	if err != nil {
		t.Fatal(err)
	}
	run := func(argv ...string) (string, error) {
		body, err := c.Call(t.Context(), program.Call{
			Tool: "t", Argv: argv, Text: true, Limits: tool.Limits{Memory: memoryLimit},
		}, nil)
		return string(body), err
	}
	for range 2 {
		_, err = run("python", "fill.py", "200")
		outOfGroup(t, err)
		_, err = run("sh", "-c", "python fill.py 200; echo survived")
		outOfGroup(t, err)
		_, err = run("sh", "-c", "(setsid python fill.py 200 &) ; sleep 100")
		outOfGroup(t, err)
		if body, err := run("python", "fill.py", "5"); err != nil || body != `"done"` {
			t.Errorf("within its limit: %s, %v", body, err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	meshtest.Until(t, "the groups are removed", func() bool { return len(members(t, groups)) == 0 })
}

// An executor that is not to use groups makes none.
func TestWithoutControlGroups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x, err := executor.New(dir, (&executor.Options{Environ: os.Environ()}).Watched(true))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close() //nolint:errcheck // tested elsewhere
	if got := x.MemoryGuard(); got != "watchdog" {
		t.Errorf("memory is guarded by %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup")); err == nil {
		t.Error("it noted where its groups are")
	}
}

// beGrouped is an executor with a busy worker in a group, until it is killed.
func beGrouped(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	x, err := executor.New(filepath.Join(dir, "data"), &executor.Options{Environ: os.Environ()})
	if err != nil {
		fail(err)
	}
	fmt.Println(x.MemoryGuard())
	ctx := context.Background()
	env, err := x.Environment(ctx, dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		fail(err)
	}
	ix, err := x.Open(ctx, executor.Spec{
		Name: "grouped", SourceDir: dir, Env: env, Tools: []string{"t.wait"},
		Policies: map[string]executor.Policy{"t.wait": {Limits: tool.Limits{Memory: memoryLimit}}},
	})
	if err != nil {
		fail(err)
	}
	sink := &collector{logged: make(chan struct{}, 1)}
	go func() {
		_, err := ix.Call(ctx, executor.Call{Tool: "t.wait"}, sink)
		fail(fmt.Errorf("the call ended: %w", err))
	}()
	<-sink.logged
	fmt.Println("busy")
	select {}
}

// A killed agent leaves its groups. The next one in its folder removes these, and no others.
func TestGroupsOfAKilledAgentAreRemoved(t *testing.T) {
	t.Parallel()
	other, others := memoryGuarded(t) // an agent that lives
	cmd, dir := beside(t, "root", map[string]string{"t.py": "import time\ndef wait():\n    print('here', flush=True)\n    time.sleep(1000)"})
	cmd.Env = append(cmd.Env, "TOOLMESH_TEST_GROUPED="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var said []string
	for len(said) < 2 && lines.Scan() {
		said = append(said, lines.Text())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(said) != 2 {
		t.Fatalf("it said %q", said)
	}
	ix := open(t, other, limitedSpec(t, other))
	record, err := os.ReadFile(filepath.Join(dir, "data", "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	places := strings.Fields(string(record)) // of version 1 there are two
	left := places[0]
	for _, place := range places {
		if len(members(t, place)) == 0 {
			t.Fatalf("%s holds no groups of the killed agent", place)
		}
	}
	x, err := executor.New(filepath.Join(dir, "data"), &executor.Options{Environ: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	if got := members(t, left); len(got) != 0 {
		t.Errorf("groups of the killed agent are left: %v", got)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	for _, place := range places {
		if _, err := os.Stat(place); err == nil {
			t.Errorf("%s is left", place)
		}
	}
	if got := members(t, others); len(got) != 2 { // the worker's, and the zygote's
		t.Errorf("the other agent's groups: %v", got)
	}
	mustCall(t, ix, "t.a", `{}`, `1`)
}

func limitedSpec(t *testing.T, x *executor.Executor) executor.Spec {
	t.Helper()
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": "def a(): return 1"}), "t.a")
	spec.Policies = map[string]executor.Policy{"t.a": {Limits: tool.Limits{Memory: memoryLimit}}}
	return spec
}

// In a sandbox level that keeps a tool to itself it cannot change the bounds of
// groups, nor leave its own, though its user may.
func TestToolsCannotChangeGroups(t *testing.T) {
	t.Parallel()
	x, groups := memoryGuarded(t)
	if level, reasons := x.Sandbox(); level != tool.SandboxGuard {
		t.Skipf("the sandbox level is %s: %v", level, reasons)
	}
	dir := writeFiles(t, map[string]string{"t.py": `
import errno, glob, os

def write(path, text):
    try:
        with open(path, "w") as f:
            f.write(text)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]

def escapes(groups: str):
    found = [write(os.path.dirname(groups) + "/cgroup.procs", "0")]
    for name in ("memory.max", "memory.limit_in_bytes", "cgroup.kill"):
        for path in glob.glob(groups + "/*/" + name):
            found.append(write(path, "1000000000"))
    try:
        os.mkdir(groups + "/mine")
        found.append("ok")
    except OSError as e:
        found.append(errno.errorcode[e.errno])
    return sorted(set(found))
`})
	args, _ := json.Marshal(map[string]string{"groups": groups})
	for _, level := range []tool.Sandbox{tool.SandboxGuard, tool.SandboxStrict, tool.SandboxOffline} {
		if x.Lacks(level) != "" {
			continue
		}
		spec := specOf(t, x, dir, "t.escapes")
		spec.Policies = map[string]executor.Policy{"t.escapes": {Sandbox: level, Limits: tool.Limits{Memory: memoryLimit}}}
		ix := open(t, x, spec)
		before := members(t, groups)
		got, err := call(t, ix, "t.escapes", string(args))
		if err != nil || (got != `["EROFS"]` && got != `["EACCES","EROFS"]` && got != `["EACCES"]`) {
			t.Errorf("in %s: %s, %v, want every attempt refused", level, got, err)
		}
		if after := members(t, groups); len(before) != 2 || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("in %s the groups had %v before, %v after", level, before, after)
		}
		if err := ix.Close(t.Context()); err != nil {
			t.Error(err)
		}
		meshtest.Until(t, "the groups are removed", func() bool { return len(members(t, groups)) == 0 })
	}
}
