package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/tool"
)

// fillDisk uses up the free space of a file system.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, "fill"+strconv.Itoa(i)), make([]byte, 64<<10), 0o600)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if err := os.WriteFile(filepath.Join(dir, "empty"+strconv.Itoa(i)), nil, 0o600); err != nil {
			return
		}
	}
}

// Where the disk of the temporary files is full, a call that writes any fails, with
// the system's own words. Others are served, workers start, and an index opens as far
// as it needs no folder there.
func TestAFullDiskIsTheCallsError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m,nr_inodes=2000,mode=755"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	shared := filepath.Join(dir, "shared") // the machine's, for workers that find no place for one of their own
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	x, err := executor.New(filepath.Join(dir, "executor"), &executor.Options{Environ: append(os.Environ(), "TMPDIR="+shared), Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	levels := []tool.Sandbox{tool.SandboxNone, tool.SandboxGuard, tool.SandboxStrict}
	isolations := []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationFork}
	source := writeFiles(t, map[string]string{"t.py": boundTools})
	spec := specOf(t, x, source, "t.ok", "t.spills")
	var before []*executor.Index
	policies := func(level tool.Sandbox, isolation toolmesh.Isolation) map[string]executor.Policy {
		p := executor.Policy{Sandbox: level, Isolation: isolation}
		return map[string]executor.Policy{"t.ok": p, "t.spills": p}
	}
	for _, level := range levels {
		if x.Lacks(level) != "" {
			continue
		}
		for _, isolation := range isolations {
			spec.Policies = policies(level, isolation)
			before = append(before, open(t, x, spec))
		}
	}
	fillDisk(t, dir)
	for _, ix := range before {
		for range 2 {
			e := mustFail(t, ix, "t.spills", `{}`, toolmesh.CodeToolError)
			if e.Type != "OSError" || !strings.Contains(e.Message, "No space left on device") {
				t.Errorf("got %v of type %s", e, e.Type)
			}
			mustCall(t, ix, "t.ok", `{}`, `"ok"`)
		}
	}
	spec.Policies = policies(tool.SandboxNone, toolmesh.IsolationFresh)
	mustCall(t, open(t, x, spec), "t.ok", `{}`, `"ok"`)
	c, err := x.OpenCommands(executor.Spec{Name: "test", SourceDir: spec.SourceDir, Env: spec.Env})
	if err != nil {
		t.Fatal(err)
	}
	body, err := c.Call(t.Context(), program.Call{Tool: "t", Argv: []string{"echo", "ok"}, Text: true}, nil)
	if err != nil || string(body) != `"ok"` {
		t.Errorf("a command: %s, %v", body, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
