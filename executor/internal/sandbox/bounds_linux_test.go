package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// greedy is a program of an installation that exceeds one of its bounds, and ends by itself
// within a minute.
const greedy = `
import os, sys, time

def processes():
    for _ in range(400):
        try:
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)
                os._exit(0)
        except OSError:
            time.sleep(0.01)
    time.sleep(60)

def memory(mb=100):
    held = [b"x" * (1 << 20) for _ in range(mb)]
    time.sleep(60)

def children():
    for _ in range(8):
        if os.fork() == 0:
            memory(30)
    time.sleep(60)

def waits():
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    time.sleep(60)

def prints():
    for _ in range(70):
        sys.stdout.write("x" * (1 << 20))

def complains():
    for _ in range(10):
        sys.stderr.write(("x" * 100 + "\n") * 10000)
    sys.stderr.write("x" * 90 + "the end...")

def file():
    with open(sys.argv[2], "wb") as f:
        f.write(bytes(2 << 20))

def fine():
    print("fine")

globals()[sys.argv[1]]()
`

// A program of an installation stays within its bounds, with and without control groups, and
// leaves no process. Its error names the exceeded bound.
func TestRunKeepsBounds(t *testing.T) {
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	files := t.TempDir()
	worker, err := fs.Sub(python.Worker, python.WorkerDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(files, "_the_worker"), worker); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	spawner := sandbox.NewSpawner(log)
	defer spawner.Close()
	tree := cgroup.Open(cgroup.NameOf(files), filepath.Join(files, "cgroup"), log)
	defer tree.Close()
	dir := t.TempDir()
	launch := sandbox.Command{
		Path: interpreter, Dir: dir, Env: []string{"LANG=C.UTF-8"},
		Args: []string{"-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv[1]); from _the_worker.startup import command; command.main(sys.argv[2])", files},
	}
	for _, row := range []struct {
		name   string
		bounds sandbox.Bounds
		want   string // of the error; empty for none
	}{
		{"processes", sandbox.Bounds{Tasks: 50}, "limit of 50 processes and threads"},
		{"memory", sandbox.Bounds{Memory: 64 << 20}, "limit of 67108864 bytes of memory"},
		{"children", sandbox.Bounds{Memory: 128 << 20}, "limit of 134217728 bytes of memory"},
		{"waits", sandbox.Bounds{Time: 300 * time.Millisecond}, "ran longer than 300ms"},
		{"prints", sandbox.Bounds{Time: time.Minute}, "wrote more than 67108864 bytes"},
		{"complains", sandbox.Bounds{}, ""},
		{"file", sandbox.Bounds{}, "exit status 1"},
		{"fine", sandbox.Bounds{Time: time.Minute, Memory: 64 << 20, Tasks: 50}, ""},
	} {
		for _, groups := range []*cgroup.Tree{nil, tree} {
			if groups != nil && (groups.Kind() == "" || row.bounds.Memory == 0 && row.bounds.Tasks == 0) {
				continue
			}
			row.bounds.Groups = groups
			argv := []string{interpreter, "-c", greedy, row.name, filepath.Join(dir, "file")}
			stdout, stderr, err := spawner.Run(t.Context(), launch, sandbox.Request{
				Level: tool.SandboxNone, FileSize: 1 << 20, Argv: argv, Env: []string{"PATH=" + os.Getenv("PATH")}, Bounds: row.bounds,
			})
			if said := fmt.Sprint(err); row.want == "" && err != nil || !strings.Contains(said, row.want) {
				t.Errorf("%s, groups: %t: got %v, want %q", row.name, groups != nil, err, row.want)
			}
			if row.name == "fine" && string(stdout) != "fine\n" {
				t.Errorf("stdout is %q", stdout)
			}
			cut := func(line string) bool { return len(line) != 100 }
			if row.name == "complains" && (!strings.HasSuffix(stderr, "the end...") || len(stderr) > 2<<20 || slices.ContainsFunc(strings.Split(stderr, "\n"), cut)) {
				t.Errorf("stderr has %d bytes and ends with %q", len(stderr), stderr[max(0, len(stderr)-10):])
			}
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "file")); err != nil || info.Size() > 1<<20 {
		t.Errorf("the file: %v, %v", info, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _, err = spawner.Run(ctx, launch, sandbox.Request{
		Level: tool.SandboxNone, Argv: []string{interpreter, "-c", greedy, "waits"}, Bounds: sandbox.Bounds{Time: time.Minute},
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a run that its caller ends: %v", err)
	}
}

// A group's memory is limited even if the first process cannot be moved into it.
func TestAGroupIsBoundedWithoutItsFirstProcess(t *testing.T) {
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	tree := cgroup.Open(cgroup.NameOf(dir), filepath.Join(dir, "cgroup"), log)
	defer tree.Close()
	group := tree.ForLimits(64<<20, 0)
	if group == nil {
		t.Skip("no control groups")
	}
	defer group.Close()
	sandbox.Enclose(log, group, 0, 64<<20) // 0 is not a process
	cmd := exec.Command(interpreter, "-c", "import sys; sys.stdin.read(); held = b'x' * (256 << 20)")
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	added := group.Add(cmd.Process.Pid)
	begin.Close()
	if err := cmd.Wait(); added != nil || err == nil || group.Kills() == 0 {
		t.Errorf("added: %v; it ended with %v, %d kills", added, err, group.Kills())
	}
}
