package executor_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/tool"
)

// catalogueOf reads the tools of a folder, without an environment.
func catalogueOf(t testing.TB, x *executor.Executor, dir string, tools ...string) map[string]executor.Tool {
	t.Helper()
	found, err := x.Catalogue(t.Context(), executor.CatalogueSpec{Name: "test", SourceDir: dir, Tools: tools})
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]executor.Tool{}
	for _, one := range found {
		named[one.Name] = one
	}
	return named
}

// Nothing that a source says when it is imported happens when it is read: no
// code of the index runs, none of its dependencies, none of its environment.
func TestCatalogueRunsNothing(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	mark := filepath.Join(t.TempDir(), "ran")
	touch := fmt.Sprintf("open(%q, 'w').close()\n", mark)
	dir := writeFiles(t, map[string]string{
		"raises.py":        touch + "import gone\nraise RuntimeError('no')\ndef f(x: int) -> str:\n    'Of a module that raises.'\n",
		"ends.py":          touch + "import os\nos._exit(3)\nasync def f(n: list[int]):\n    yield n\n",
		"hangs.py":         touch + "while True: pass\ndef f(*rest: int): ...\n",
		"needs.py":         "import os\nKEY = os.environ['KEY']\ndef f(key: str = KEY, *, n: int = 2): ...\n",
		"wrong.py":         "def f(x: int:\n",
		"pkg/__init__.py":  "from .inner import g\n",
		"pkg/inner.py":     "import numpy as np\ndef g(a: np.ndarray, b: float = 0.5): 'Re-exported.'\n",
		"src/far.py":       "import json\n" + touch + "def f(x: json.JSONDecoder): ...\n",
		"ast.py":           touch,
		"typing.py":        touch,
		"sitecustomize.py": touch,
		"usercustomize.py": touch,
	})
	env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// What site runs at each start of the environment's interpreter.
	site, err := filepath.Glob(filepath.Join(env.Dir, "lib", "python3.*", "site-packages"))
	if err != nil || len(site) != 1 {
		t.Fatalf("site-packages: %v, %v", site, err)
	}
	for name, text := range map[string]string{"run.pth": "import " + "sys; " + strings.TrimSpace(touch) + "\n", "sitecustomize.py": touch} {
		if err := os.WriteFile(filepath.Join(site[0], name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"raises.f", "ends.f", "hangs.f", "needs.f", "wrong.f", "pkg.g", "far.f", "raises.gone", "none.f", "f"}
	for _, spec := range []executor.CatalogueSpec{{SourceDir: dir, Tools: names}, {SourceDir: dir, Tools: names, Env: env}, {SourceDir: dir, Tools: names, Python: ">=3.99"}} {
		found, err := x.Catalogue(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range found {
			got = append(got, one.Name+" "+string(one.Kind)+" "+one.Description)
		}
		want := []string{"raises.f sync Of a module that raises.", "ends.f sync ", "hangs.f sync ", "needs.f sync ", "far.f sync "}
		if !slices.Equal(got, want) {
			t.Errorf("read %q, want %q", got, want)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("code of the index has run")
	}
	for name, one := range catalogueOf(t, x, dir, names...) {
		if string(one.InputSchema) != `{"type":"object"}` || len(one.Warnings) != 1 {
			t.Errorf("%s: %s, warnings %q", name, one.InputSchema, one.Warnings)
		}
	}
}

func TestCatalogueOfNothing(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	if found, err := x.Catalogue(t.Context(), executor.CatalogueSpec{SourceDir: t.TempDir()}); err != nil || len(found) != 0 {
		t.Errorf("of no tools: %v, %v", found, err)
	}
	if _, err := x.Catalogue(t.Context(), executor.CatalogueSpec{SourceDir: filepath.Join(t.TempDir(), "gone"), Tools: []string{"a.b"}}); err == nil {
		t.Error("of no folder: no error")
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// The source is read by its index's user, who sees nothing else of the agent's, and through
// no link that leads out of it; what stands where a file should is left out.
func TestCatalogueReadsTheSourceAlone(t *testing.T) {
	t.Parallel()
	for _, box := range []tool.Sandbox{tool.SandboxGuard, tool.SandboxNone} {
		data := t.TempDir()
		dir, other := filepath.Join(data, "indexes", "a"), filepath.Join(data, "other")
		planted(t, filepath.Join(dir, "t.py"), "def f(x: int): ...\n")
		planted(t, filepath.Join(dir, "inner", "real.py"), "def f(): ...\n")
		planted(t, filepath.Join(other, "secret.py"), "def f(x='secret'): ...\n")
		if err := errors.Join(
			os.Symlink(filepath.Join(other, "secret.py"), filepath.Join(dir, "out.py")),
			os.Symlink(other, filepath.Join(dir, "src")),
			os.Symlink("inner/real.py", filepath.Join(dir, "in.py")),
			os.Symlink("inner/real.py", filepath.Join(dir, "stays.py")),
			syscall.Mkfifo(filepath.Join(dir, "pipe.py"), 0o644),
			os.Chmod(filepath.Dir(data), 0o755), //nolint:gosec // others pass
		); err != nil {
			t.Fatal(err)
		}
		x, err := executor.New(filepath.Join(data, "executor"), &executor.Options{Environ: os.Environ(), Sandbox: box, Users: "each", Sealed: data})
		if err != nil {
			t.Fatal(err)
		}
		found := catalogueOf(t, x, dir, "t.f", "out.f", "secret.f", "stays.f", "pipe.f")
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		names := slices.Sorted(maps.Keys(found))
		if diff := cmp.Diff([]string{"stays.f", "t.f"}, names); diff != "" {
			t.Errorf("%s: described (-want +got):\n%s", box, diff)
		}
	}
}
