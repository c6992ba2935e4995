package executor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Files that uv and a build of setup.py put into TMPDIR are removed with them: TMPDIR is not the
// machine's folder, and nothing is left in the executor's own.
func TestAResolvedSetupLeavesNoTemporaryFiles(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	tmp := t.TempDir()
	root := t.TempDir()
	x, err := executor.New(root, &executor.Options{Environ: append(os.Environ(), "TMPDIR="+tmp), Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	dir := writeFiles(t, map[string]string{
		"setup.py": "from setuptools import setup\nsetup(name='x', version='1', install_requires=['six==1.16.0'])\n", "t.py": "def tool(): pass\n",
	})
	lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in TMPDIR: %v %v", left, err)
	}
	meshtest.Until(t, "nothing is left in the executor's folder, once bytecode is made", func() bool {
		own, err := filepath.Glob(filepath.Join(root, "new-*"))
		return err == nil && len(own) == 0
	})
}
