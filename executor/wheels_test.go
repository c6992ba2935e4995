package executor_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// wheelOf is a wheel of the package acme with these additional files.
func wheelOf(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	all := map[string]string{
		"acme-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1\n",
		"acme-1.dist-info/WHEEL":    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"acme-1.dist-info/RECORD":   "",
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func locked(t *testing.T, x *executor.Executor, dir string) executor.Lock {
	t.Helper()
	lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
	if err != nil {
		t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
	}
	return lock
}

// A wheel has files for any place in an environment, and code that an interpreter runs at
// its start. Nothing of it runs while it is installed, and the frame of the environment is ours.
func TestWheelsDoNotReplaceFilesOfTheEnvironment(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	ran := filepath.Join(t.TempDir(), "ran")
	if err := os.Mkdir(ran, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(ran, 0o777); err != nil { //nolint:gosec // any user runs it
		t.Fatal(err)
	}
	trace := fmt.Sprintf("import os, sys; open(os.path.join(%q, str(os.getpid())), 'w').write(sys.executable)\n", ran)
	dir := writeFiles(t, map[string]string{
		"requirements.txt": "./acme-1-py3-none-any.whl\n",
		"t.py":             "import acme, sys\ndef tool(): return [acme.VALUE, sys.prefix == sys.base_prefix, 'start' in vars(sys)]\n",
		"acme-1-py3-none-any.whl": wheelOf(t, map[string]string{
			"acme.py":                           "VALUE = 1\n",
			"acme.pth":                          "import sys; sys.start = 1; " + trace,
			"sitecustomize.py":                  trace,
			"acme-1.data/data/pyvenv.cfg":       "home = /evil\n",
			"acme-1.data/data/share/acme/notes": "data\n",
			"acme-1.data/scripts/acme-run":      "#!python\nimport acme; print(acme.VALUE)\n",
		}),
	})
	lock := locked(t, x, dir)
	env, err := x.Environment(t.Context(), dir, lock, executor.Making{Account: "a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "its bytecode is made", func() bool {
		marker, err := os.ReadFile(recordOf(env, ".json"))
		return err == nil && strings.Contains(string(marker), `"compiled":true`)
	})
	if traces, _ := os.ReadDir(ran); len(traces) > 0 {
		t.Errorf("code of the wheel ran %d times", len(traces))
	}
	for _, name := range []string{"python", "python3"} {
		if to, err := os.Readlink(filepath.Join(env.Dir, "bin", name)); err != nil || to != env.Base {
			t.Errorf("bin/%s leads to %q, %v, not to %s", name, to, err, env.Base)
		}
	}
	if text, err := os.ReadFile(filepath.Join(env.Dir, "pyvenv.cfg")); err != nil || !strings.HasPrefix(string(text), "home = "+filepath.Dir(env.Base)+"\n") {
		t.Errorf("pyvenv.cfg is %q, %v", text, err)
	}
	for _, name := range []string{"share/acme/notes", "bin/acme-run"} {
		if _, err := os.Stat(filepath.Join(env.Dir, name)); err != nil {
			t.Errorf("what the wheel may have: %v", err)
		}
	}
	mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `[1,false,true]`)
}

// A backend runs apart: its result is a wheel; its other changes are neither in the environment,
// nor in the index's folder, nor visible to other indexes.
func TestBuildGivesOnlyAWheel(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	files := localPackage(map[string]string{"requirements.txt": "./lib\nsix==1.16.0\n"}, "built")
	files["lib/backend.py"] = strings.Replace(backend, "def build_wheel(folder, config=None, metadata=None, editable=False):", `
def build_wheel(folder, config=None, metadata=None, editable=False):
    import glob, sys
    places = [os.path.dirname(os.getcwd()), sys.prefix, os.environ.get("UV_CACHE_DIR", "/none"), os.environ.get("TMPDIR", "/none")]
    places += glob.glob(os.path.dirname(os.path.dirname(os.path.dirname(os.getcwd()))) + "/*")
    for place in places:
        for name in ("evil.py", "t.py", "bin/python", "pyvenv.cfg", "lib/python3.11/site-packages/evil.py", "evil.pth"):
            try:
                path = os.path.join(place, name)
                if os.path.islink(path):
                    os.unlink(path)
                with open(path, "w") as file:
                    file.write("raise SystemExit('evil')")
            except OSError:
                pass
    os.umask(0o077)
    for found, _, names in os.walk(os.environ.get("UV_CACHE_DIR", "/none")):
        for name in names:
            if name == "six.py":
                with open(os.path.join(found, name), "w") as file:
                    file.write("evil = 1")`, 1)
	files["t.py"] = "from acme import VALUE\nimport six\ndef tool(): return [VALUE, six.__version__]\n"
	dir := writeFiles(t, files)
	lock := locked(t, x, dir)
	env, err := x.Environment(t.Context(), dir, lock, executor.Making{Account: "a"}, nil)
	if err != nil {
		t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
	}
	for _, folder := range []string{env.Dir, dir} {
		err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
			if strings.HasPrefix(filepath.Base(path), "evil") {
				t.Errorf("the build has left %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `["built","1.16.0"]`)
	if to, err := os.Readlink(filepath.Join(env.Dir, "bin", "python")); err != nil || to != env.Base {
		t.Errorf("bin/python leads to %q, %v", to, err)
	}

	_, err = x.Environment(t.Context(), dir, lock, executor.Making{Account: "b", NoBuild: true}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != "builds" || !strings.Contains(e.Message, "acme") {
		t.Errorf("where nothing may be built: %v", err)
	}
}

// An environment that an init command has made too large to be read is refused, not read.
func TestAnInitCommandMakesHugeFiles(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	dir := writeFiles(t, map[string]string{"init.py": "import sys\nfor n in range(8):\n    open(f'{sys.argv[1]}/huge{n}', 'wb').truncate(15 << 30)\n"})
	env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{Account: "a", Own: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = x.Command(t.Context(), env, "a", dir, []string{"python", "init.py", env.Dir}, nil, nil, executor.Given{})
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInstallFailed || !strings.Contains(e.Message, "larger than") {
		t.Errorf("got %v", err)
	}
}

// An init command is a stranger's code: its changes to its environment run only confined, and
// nothing is written through its links.
func TestInitCommandIsConfined(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil { //nolint:gosec // it is read only
		t.Fatal(err)
	}
	dir := writeFiles(t, map[string]string{
		"requirements.txt": "six==1.16.0\n",
		"init.py": fmt.Sprintf(`
import os, shutil, sys, glob
env = sys.argv[1]
packages = glob.glob(env + "/lib/python3*/site-packages")[0]
shutil.rmtree(packages + "/__pycache__", ignore_errors=True)
os.symlink(os.path.dirname(%[1]q), packages + "/__pycache__")
open(packages + "/victim.py", "w").write("x = 1")
os.unlink(env + "/bin/python")
os.symlink("/bin/false", env + "/bin/python")
open(env + "/pyvenv.cfg", "w").write("home = /nowhere")
open(packages + "/added.py", "w").write("VALUE = 'added'")
open("data.txt", "w").write("data")
`, victim),
		"t.py": "import added, six\ndef tool(): return [added.VALUE, six.__version__, open('data.txt').read()]\n",
	})
	lock := locked(t, x, dir)
	env, err := x.Environment(t.Context(), dir, lock, executor.Making{Account: "a", Own: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Command(t.Context(), env, "a", dir, []string{"python", "init.py", env.Dir}, nil, nil, executor.Given{}); err != nil {
		t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
	}
	if to, err := os.Readlink(filepath.Join(env.Dir, "bin", "python")); err != nil || to != env.Base {
		t.Errorf("bin/python leads to %q, %v", to, err)
	}
	meshtest.Until(t, "its bytecode is made", func() bool {
		marker, err := os.ReadFile(recordOf(env, ".json"))
		return err == nil && strings.Contains(string(marker), `"compiled":true`)
	})
	others, err := os.ReadDir(filepath.Dir(victim))
	if text, _ := os.ReadFile(victim); err != nil || string(text) != "mine" || len(others) != 1 {
		names := make([]string, len(others))
		for i, one := range others {
			names[i] = one.Name()
		}
		slices.Sort(names)
		t.Errorf("the agent has written through a link of the index: %q, %v", text, names)
	}
	mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `["added","1.16.0","data"]`)
}

// uv resolves and installs as a user of its own that sees only the step's part of the agent's
// folder, and of its environment only the settings for packages.
func TestUVIsConfined(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	machine := t.TempDir()
	key := filepath.Join(machine, "admin.nk")
	if err := os.WriteFile(key, []byte("a seed"), 0o644); err != nil { //nolint:gosec // its mode does not hide it
		t.Fatal(err)
	}
	uv, itself := filepath.Join(t.TempDir(), "uv"), filepath.Join(t.TempDir(), "uv") // often there is a link on PATH
	script := "#!/bin/sh\n{ echo user $(id -u); cat " + key + "; env; } >&2\nexit 3\n"
	if err := os.WriteFile(itself, []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := os.Symlink(itself, uv); err != nil {
		t.Fatal(err)
	}
	meshtest.Warm(filepath.Join(machine, "executor"), t.Cleanup)
	x, err := executor.New(filepath.Join(machine, "executor"), &executor.Options{
		Environ: append(os.Environ(), "MESH_SECRET=of the agent", "SSH_AUTH_SOCK=/of/the/agent"), Logger: testLogger(t), Users: "each", Sealed: machine, UV: uv,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	if level, why := x.Sandbox(); level == tool.SandboxNone {
		t.Skip(why)
	}
	source := writeFiles(t, map[string]string{"requirements.txt": "six==1.16.0\n"})
	_, ofLock := x.Lock(t.Context(), source, executor.LockOptions{}, nil)
	_, ofEnvironment := x.Environment(t.Context(), source, executor.Lock{Requirements: []byte("six==1.16.0\n")}, executor.Making{}, nil)
	for what, err := range map[string]error{"a lock": ofLock, "an environment": ofEnvironment} {
		said, _ := toolmesh.AsError(err).Details["stderr"].(string)
		if strings.Contains(said, "user 0\n") || !strings.Contains(said, "user ") || !strings.Contains(said, "UV_CACHE_DIR") {
			t.Errorf("%s: uv runs as another user: %s", what, said)
		}
		for _, secret := range []string{"a seed", "of the agent", "/of/the/agent"} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: uv sees %q", what, secret)
			}
		}
	}
}

// recordOf is the record file of an environment.
func recordOf(env *executor.Env, name string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(env.Dir)), "records", filepath.Base(env.Dir)+name)
}
