package executor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// needsPackages skips a test where the package index cannot be reached.
func needsPackages(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("installs packages")
	}
	uvOnPath()
}

// uvOnPath has uv found by all executors to come: to install one takes longer than most tests.
var uvOnPath = sync.OnceFunc(func() {
	if _, err := exec.LookPath("uv"); err == nil {
		return
	}
	if _, err := one().LockRequirements(context.Background(), "test", []string{"six==1.16.0"}, executor.LockOptions{}, nil); err != nil {
		panic(err)
	}
	found, _ := filepath.Glob(filepath.Join(shared, "uv-*", "bin"))
	_ = os.Setenv("PATH", found[0]+":"+os.Getenv("PATH"))
})

func TestIndexWithoutDependencies(t *testing.T) {
	t.Parallel()
	// No uv, no pip, no package index: only an interpreter.
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	x := newExecutor(t, func(o *executor.Options) { o.UV = "/nowhere/uv" })
	for _, files := range []map[string]string{
		{},
		{"requirements.txt": "# nothing\n\n"},
		{"pyproject.toml": "[project]\nname='x'\nversion='1'\ndependencies=[]\n"},
	} {
		files["t.py"] = "import sys\ndef tool(): return sys.prefix != sys.base_prefix\n"
		dir := writeFiles(t, files)
		lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
		if err != nil || len(lock.Requirements) > 0 {
			t.Fatalf("got %+v, %v", lock, err)
		}
		env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `true`)
	}
}

// Many packages ask for their own version when they are imported. That of the index
// is not installed, and is not written into the environment, which others share.
func TestAnIndexFindsItsOwnVersion(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	dir := writeFiles(t, map[string]string{
		"pyproject.toml":       "[project]\nname = 'acme-tools'\nversion = '1.2'\n",
		"src/acme/__init__.py": "from importlib.metadata import version\n__version__ = version('acme-tools')\n",
		"src/acme/core.py":     "from . import __version__\ndef tool() -> str: return __version__\n",
	})
	env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ix := open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"acme.core.tool"}})
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationFork, toolmesh.IsolationFresh} {
		got, err := ix.Call(t.Context(), executor.Call{Tool: "acme.core.tool", Isolation: isolation}, nil)
		if err != nil || string(got) != `"1.2"` {
			t.Errorf("%s: got %s, %v", isolation, got, err)
		}
	}
}

// Every supported interpreter of this machine serves an index.
func TestEveryInterpreterOfThisMachineServes(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	dir := writeFiles(t, map[string]string{"t.py": `
import sys
from typing import Optional
def version(x: Optional[int] = None) -> str: return "%d.%d" % sys.version_info[:2]
async def aversion(): return version()
def stream():
    yield version()
`})
	served := 0
	for minor := 10; minor < 20; minor++ {
		env, err := x.Environment(t.Context(), dir, executor.Lock{Python: fmt.Sprintf("==3.%d.*", minor)}, executor.Making{}, nil)
		if toolmesh.CodeOf(err) == toolmesh.CodeInstallFailed {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		ix, err := x.Open(t.Context(), executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.version", "t.aversion", "t.stream"}})
		if err != nil {
			t.Errorf("3.%d: %v", minor, err)
			continue
		}
		served++
		for _, tool := range []string{"t.version", "t.aversion", "t.stream"} {
			mustCall(t, ix, tool, `{}`, fmt.Sprintf(`"3.%d"`, minor))
		}
		mustFail(t, ix, "t.version", `{"y":1}`, toolmesh.CodeInvalidArguments)
		if err := ix.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if served == 0 {
		t.Error("no interpreter was found")
	}
	t.Logf("%d interpreters", served)
}
