package executor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
}

func TestAnEnvironmentFromEachKindOfDeclaration(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	const module = "import six, importlib.metadata as m\n" +
		"def tool(): return [six.PY3, m.version('six')]\n"
	for name, files := range map[string]map[string]string{
		"requirements": {"requirements.txt": "# pinned\nsix==1.16.0\n"},
		"pyproject": {
			"pyproject.toml":   "[project]\nname='x'\nversion='1'\nrequires-python='>=3.10'\ndependencies=['six==1.16.0']\n",
			"requirements.txt": "nothing-that-exists==1\n",
		},
		"setup": {"setup.py": "from setuptools import setup\nsetup(name='x', version='1', install_requires=['six==1.16.0'])\n"},
		"tools only": {
			"pyproject.toml":   "[tool.ruff]\nline-length = 100\n",
			"requirements.txt": "six==1.16.0\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files["t.py"] = module
			dir := writeFiles(t, files)
			var mu sync.Mutex
			var steps []string
			progress := func(s executor.Step) {
				mu.Lock()
				defer mu.Unlock()
				steps = append(steps, s.Name)
			}
			lock, err := x.Lock(t.Context(), dir, "", progress)
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			if text := string(lock.Requirements); !strings.Contains(text, "six==1.16.0") || !strings.Contains(text, "--hash=sha256:") {
				t.Errorf("the lock has no hashes:\n%s", text)
			}
			env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, progress)
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			if len(steps) == 0 {
				t.Error("no progress was reported")
			}
			ix, err := x.Open(t.Context(), executor.Spec{Name: name, SourceDir: dir, Env: env, Tools: []string{"t.tool"}})
			if err != nil {
				t.Fatal(err)
			}
			mustCall(t, ix, "t.tool", `{}`, `[true,"1.16.0"]`)
			eventually(t, "six has bytecode", func() bool {
				compiled, _ := filepath.Glob(filepath.Join(env.Dir, "lib/*/site-packages/__pycache__/six.*.pyc"))
				return len(compiled) == 1
			})
			if left, _ := filepath.Glob(filepath.Join(dir, "*.egg-info")); len(left) > 0 {
				t.Errorf("the lock left %v in the source", left)
			}
		})
	}
}

// A file that the package index has put in another's place since its author looked
// is not installed.
func TestHashesOfTheAuthorAreHeldTo(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	for name, hash := range map[string]string{
		"right": "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254",
		"wrong": "9abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254",
	} {
		dir := writeFiles(t, map[string]string{
			"requirements.txt": "-r more.txt\n", "more.txt": "six==1.16.0 --hash=sha256:" + hash + "\n",
		})
		lock, err := x.Lock(t.Context(), dir, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
		if name == "right" && err != nil {
			t.Error(err)
		}
		if name == "wrong" && (toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed || !strings.Contains(err.Error(), hash)) {
			t.Errorf("got %v", err)
		}
	}
}

func TestNothingDeclaredNeedsNothing(t *testing.T) {
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
		lock, err := x.Lock(t.Context(), dir, "", nil)
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

func TestEqualLocksShareOneEnvironmentAndBrokenOnesAreHealed(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	dir := t.TempDir()
	envs := make([]*executor.Env, 8)
	var wg sync.WaitGroup
	for i := range envs {
		wg.Go(func() {
			var err error
			if envs[i], err = x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, env := range envs {
		if env.Dir != envs[0].Dir {
			t.Errorf("%s and %s", env.Dir, envs[0].Dir)
		}
	}
	if all, _ := filepath.Glob(filepath.Join(filepath.Dir(envs[0].Dir), "*")); len(all) != 1 {
		t.Errorf("environments and leftovers: %v", all)
	}
	for name, harm := range map[string]func(dir string) error{
		"no marker":      func(dir string) error { return os.Remove(recordOf(&executor.Env{Dir: dir}, ".json")) },
		"no interpreter": func(dir string) error { return os.Remove(filepath.Join(dir, "bin", "python")) },
		"no packages":    func(dir string) error { return os.RemoveAll(filepath.Join(dir, "lib")) },
		"half a marker": func(dir string) error {
			return os.WriteFile(recordOf(&executor.Env{Dir: dir}, ".json"), []byte(`{"dig`), 0o600)
		},
	} {
		if err := harm(envs[0].Dir); err != nil {
			t.Fatal(err)
		}
		env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if out, err := exec.Command(env.Python, "-I", "-c", "import sys; print(sys.prefix)").Output(); err != nil ||
			strings.TrimSpace(string(out)) != env.Dir {
			t.Errorf("%s: got %s, %v", name, out, err)
		}
	}
}

func TestInstallFailuresSayWhatToDo(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.UV = "/nowhere/uv" })
	dir := writeFiles(t, map[string]string{"requirements.txt": "six\n"})
	for name, c := range map[string]struct {
		dir, python string
		part        string
	}{
		"no uv":           {dir, "", "/nowhere/uv"},
		"no interpreter":  {dir, ">=3.99", "interpreter not available: the index needs Python >=3.99 (found 3."},
		"nonsense":        {dir, "three", "is not understood"},
		"broken manifest": {writeFiles(t, map[string]string{"pyproject.toml": "[project"}), "", "pyproject.toml"},
	} {
		_, err := x.Lock(t.Context(), c.dir, c.python, nil)
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInstallFailed || !strings.Contains(e.Message, c.part) {
			t.Errorf("%s: got %v, want install_failed with %q", name, err, c.part)
		}
	}
	if _, err := x.Environment(t.Context(), dir, executor.Lock{Python: ">=3.99"}, executor.Making{}, nil); toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeResolvedIsSaidInUVsWords(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	dir := writeFiles(t, map[string]string{"requirements.txt": "six==1.16.0\nsix==1.15.0\n"})
	_, err := x.Lock(t.Context(), dir, "", nil)
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeInstallFailed || !strings.Contains(e.Message, "six==1.15.0") || e.Details["stderr"] == nil {
		t.Errorf("got %v, details %v", err, e.Details)
	}
}

func TestAStoppedBuildLeavesNothing(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Environment(ctx, t.TempDir(), executor.Lock{}, executor.Making{}, nil); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("got %v", err)
	}
	if _, err := x.Environment(t.Context(), t.TempDir(), executor.Lock{}, executor.Making{}, nil); err != nil {
		t.Error(err)
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
