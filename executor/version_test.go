package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
)

// Files of the worker that speak another version of the protocol serve nothing, and the error says which two
// versions met.
func TestAWorkerOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x, err := executor.New(dir, &executor.Options{Environ: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	files, err := filepath.Glob(filepath.Join(dir, "worker", "_toolmesh_worker", "wire", "frames.py"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the worker's files: %v, %v", files, err)
	}
	text := string(readFile(t, files[0]))
	changed := strings.Replace(text, "\nVERSION = ", "\nVERSION = 40", 1)
	if changed == text {
		t.Fatal("frames.py says no version")
	}
	if err := os.WriteFile(files[0], []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	source := writeFiles(t, map[string]string{"t.py": "def f(): pass\n"})
	_, err = x.Open(t.Context(), specOf(t, x, source, "t.f"))
	var version *frame.VersionError
	if !errors.As(err, &version) || version.Worker != 400+frame.Version || version.Agent != frame.Version {
		t.Fatalf("got %v, want the two versions", err)
	}
	if e := toolmesh.AsError(err); e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("got %+v", e)
	}
}
