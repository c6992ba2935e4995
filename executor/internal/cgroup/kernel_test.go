package cgroup

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// With the machine's own kernel, as far as it lets us.

// real opens a tree of the machine's groups, or skips the test.
func realTree(t *testing.T) *Tree {
	t.Helper()
	tree := Open(NameOf(t.TempDir()), "", slog.New(slog.DiscardHandler))
	if tree.Kind() == "" {
		t.Skipf("no groups here: %s", tree.Why())
	}
	t.Cleanup(func() {
		tree.Close()
		if _, err := os.Stat(tree.dir); err == nil {
			t.Errorf("%s is still there", tree.dir)
		}
	})
	return tree
}

// start starts a shell that runs a script once its standard input has a line; it
// is killed when the test ends.
func start(t *testing.T, script string) (cmd *exec.Cmd, begin func()) {
	t.Helper()
	cmd = exec.Command("/bin/sh", "-c", "read line; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, func() { fmt.Fprintln(in) }
}

// The kernel limits the processes of a group, children included, and counts its kills. The
// killed process here fills a file in memory, at most 100 MB, that has no name any more.
func TestTheKernelBoundsAGroup(t *testing.T) {
	t.Parallel()
	tree := realTree(t)
	file, err := os.CreateTemp("/dev/shm", "toolmesh-test-")
	if err != nil {
		t.Skip(err)
	}
	defer file.Close() //nolint:errcheck // it has no name
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "read line; (head -c 100000000 /dev/zero >&3; exit $?); exit 7")
	cmd.ExtraFiles = []*os.File{file}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g, err := tree.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(20 << 20); err != nil {
		t.Fatal(err)
	}
	if g.Kills() != 0 {
		t.Errorf("%d killed before anything began", g.Kills())
	}
	fmt.Fprintln(in)
	_ = cmd.Wait()
	if g.Kills() < 1 || !g.Reached() {
		t.Errorf("%d killed, reached: %t, after %v", g.Kills(), g.Reached(), cmd.ProcessState)
	}
	if peak := g.Peak(); peak > 20<<20 || peak < 19<<20 {
		t.Errorf("peak %d", peak)
	}
	if info, err := file.Stat(); err != nil || info.Size() > 20<<20 {
		t.Errorf("%d bytes were written, %v", info.Size(), err)
	}
}

// The kernel refuses a group more processes than it may have, and counts that.
func TestTheKernelBoundsTheProcessesOfAGroup(t *testing.T) {
	t.Parallel()
	tree := realTree(t)
	g := tree.ForLimits(0, 5)
	if g == nil {
		t.Skip("no groups with a pids controller here")
	}
	cmd, begin := start(t, "for i in 1 2 3 4 5 6 7 8 9; do sleep 100 & done; wait")
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if n := g.Refused(); n != 0 {
		t.Errorf("%d processes were refused before any was started", n)
	}
	begin()
	for g.Refused() == 0 {
		time.Sleep(time.Millisecond)
	}
	data, err := os.ReadFile(filepath.Join(g.tasks, "cgroup.procs"))
	if n := len(strings.Fields(string(data))); err != nil || n > 5 {
		t.Errorf("the group has %d processes, %v", n, err)
	}
}

// Closing a group kills its processes, and no others.
func TestCloseKillsProcessesOfTheGroup(t *testing.T) {
	t.Parallel()
	tree := realTree(t)
	inside, _ := start(t, "read line")
	outside, begin := start(t, "exit 7")
	g, err := tree.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add(inside.Process.Pid); err != nil {
		t.Fatal(err)
	}
	members, err := os.ReadFile(g.file("cgroup.procs"))
	if err != nil || strings.TrimSpace(string(members)) != strconv.Itoa(inside.Process.Pid) {
		t.Fatalf("the group has %q, %v", members, err)
	}
	g.Close()
	_ = inside.Wait()
	if got := inside.ProcessState.String(); got != "signal: killed" {
		t.Errorf("what was inside ended with %s", got)
	}
	begin()
	_ = outside.Wait()
	if got := outside.ProcessState.ExitCode(); got != 7 {
		t.Errorf("what was outside ended with %s", outside.ProcessState)
	}
}

// Moving an ended process is not an error.
func TestAddOfAnEndedProcess(t *testing.T) {
	t.Parallel()
	tree := realTree(t)
	cmd, begin := start(t, "exit 0")
	begin()
	_ = cmd.Wait()
	g, err := tree.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
}

// With a real version 2, and another controller if memory is with version 1: a process alone in
// its group moves aside, one that is not stays. A controller for threads does not show
// this: the kernel lets it be turned on next to processes.
func TestVersion2OfThisKernel(t *testing.T) {
	t.Parallel()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Skip("no mounts are listed here")
	}
	point := ""
	for _, m := range mountsOf(string(mounts)) {
		if m.kind == V2 && m.root == "/" {
			point = m.point
		}
	}
	if point == "" {
		t.Skip("no version 2 is mounted here")
	}
	list, err := os.ReadFile(filepath.Join(point, "cgroup.controllers"))
	if err != nil {
		t.Skip(err)
	}
	controllers := slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool {
		return slices.Contains([]string{"cpu", "cpuset", "perf_event", "pids"}, name)
	})
	if len(controllers) == 0 {
		t.Skipf("version 2 has no controller here that goes with processes: %q", list)
	}
	controller := controllers[0]
	if slices.Contains(controllers, "memory") {
		controller = "memory"
	}
	enabled, _ := os.ReadFile(filepath.Join(point, "cgroup.subtree_control"))
	dir := filepath.Join(point, "toolmesh-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no group can be made here: %v", err)
	}
	k := system()
	cleaner := &Tree{kernel: k, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		cleaner.clear(dir)
		if !strings.Contains(string(enabled), controller) {
			_ = k.write(filepath.Join(point, "cgroup.subtree_control"), "-"+controller)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	})
	if err := k.write(filepath.Join(point, "cgroup.subtree_control"), "+"+controller); err != nil {
		t.Skipf("the controller %s cannot be turned on: %v", controller, err)
	}

	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "TOOLMESH_TEST_DELEGATED="+dir, "TOOLMESH_TEST_CONTROLLER="+controller)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()         //nolint:errcheck // ends with its input
	defer in.Close()         //nolint:errcheck // ends it
	other, _ := start(t, "") // waits in the group
	if err := k.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(other.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if err := k.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	ask := func() string {
		fmt.Fprintln(in)
		line, err := said.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	if got := ask(); !strings.HasPrefix(got, "none: ") || !strings.Contains(got, "other processes") {
		t.Errorf("beside another process: %s", got)
	}
	if members, err := k.read(filepath.Join(dir, "cgroup.procs")); err != nil || len(strings.Fields(members)) != 2 {
		t.Errorf("the group has %q, %v, want both processes", members, err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	if got := ask(); got != "made w1 in cgroup v2" {
		t.Errorf("alone: %s", got)
	}
	if members, err := k.read(filepath.Join(dir, leaf, "cgroup.procs")); err != nil || strings.TrimSpace(members) != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("the group beside has %q, %v, want the process", members, err)
	}
	if got := ask(); got != "made w1 in cgroup v2" {
		t.Errorf("once more: %s", got)
	}
}

// beDelegated opens a tree at each line of input, in a group into which it is put, and prints the
// outcome.
func beDelegated(dir string) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		tree := open(mine, "", slog.New(slog.DiscardHandler), system(), os.Getenv("TOOLMESH_TEST_CONTROLLER"))
		if tree.Kind() == "" {
			fmt.Println("none:", tree.Why())
			continue
		}
		// Without the memory controller only the folder of a group can be had.
		if err := tree.folder(tree.kind, tree.dir); err != nil {
			fmt.Println(err)
			continue
		}
		group := filepath.Join(tree.dir, "w1")
		if err := tree.kernel.mkdir(group); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("made", filepath.Base(group), "in", tree.Kind())
		tree.Close()
		if _, err := os.Stat(tree.dir); err == nil {
			fmt.Fprintln(os.Stderr, tree.dir, "is still there")
			os.Exit(1)
		}
	}
	_ = dir
}
