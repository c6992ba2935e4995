package executor_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// backend builds the package: nothing is downloaded for it.
const backend = `
import os, zipfile

def build_wheel(folder, config=None, metadata=None, editable=False):
    name = "acme-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        if editable:
            wheel.writestr("acme.pth", os.getcwd())
        else:
            wheel.write("acme/__init__.py")
        wheel.writestr("acme-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
        wheel.writestr("acme-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("acme-1.dist-info/RECORD", "")
    return name

def build_editable(folder, config=None, metadata=None):
    return build_wheel(folder, editable=True)
`

// localPackage are the files of an index with a package in the folder lib, declared as given; its
// tool returns the package's value.
func localPackage(declares map[string]string, value string) map[string]string {
	files := map[string]string{
		"t.py": "from acme import VALUE\ndef tool(): return VALUE\n",
		"lib/pyproject.toml": "[project]\nname = 'acme'\nversion = '1'\n" +
			"[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
		"lib/backend.py":       backend,
		"lib/acme/__init__.py": fmt.Sprintf("VALUE = %q\n", value),
	}
	for name, text := range declares {
		files[name] = text
	}
	return files
}

// The build of a package runs a stranger's code: of the agent's environment it sees only the
// variables that a build needs.
func TestBuildSeesItsOwnFilesOnly(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, func(o *executor.Options) {
		o.Environ = append(os.Environ(), "AWS_SECRET_ACCESS_KEY=secret", "MESH_NATS_CREDS=/secret", "TOOLMESH_TEST_SECRET=secret", "no_proxy=example.org", "CFLAGS=-O1")
	})
	files := localPackage(map[string]string{"requirements.txt": "./lib\n"}, "")
	files["lib/backend.py"] = strings.Replace(backend, `wheel.write("acme/__init__.py")`,
		`wheel.writestr("acme/__init__.py", "VALUE = " + repr(sorted(name for name, value in os.environ.items() if name in ("no_proxy", "CFLAGS") or "secret" in value)))`, 1)
	dir := writeFiles(t, files)
	lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `["CFLAGS","no_proxy"]`)
}

// The build of a package can write its own sources, and cannot read files of the agent's user
// or other processes of the machine.
func TestBuildsWriteOnlyBesideTheirSources(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	for _, c := range []struct {
		name, users, done string
		levels            []sandbox.Level
	}{
		{"a user of its own", "each", `["write beside its sources"]`, nil},
		{"the executor's user", "", `["write beside its sources"]`, nil},
		{"no namespaces", "", `["write beside its sources","see other processes"]`, []sandbox.Level{sandbox.LevelReaper}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			users := c.users
			if users == "each" && os.Geteuid() != 0 {
				t.Skip("not root")
			}
			dir := t.TempDir()
			outside, err := os.MkdirTemp("", "outside-") // writable for all users
			if err == nil {
				err = os.Chmod(outside, 0o777) //nolint:gosec // see above
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(outside) })
			x := newExecutor(t, func(o *executor.Options) {
				o.Users, o.Sealed, o.Shown = users, filepath.Dir(dir), []string{dir}
				o.SetLevels(c.levels...)
				o.Environ = append(os.Environ(), "UV_FIND_LINKS="+outside) // which it therefore sees
			})
			if level, why := x.Sandbox(); level == tool.SandboxNone && (c.levels == nil || !landlocked()) {
				t.Skip(why)
			}
			home, _ := os.UserHomeDir()
			files := localPackage(map[string]string{"requirements.txt": "./lib\n"}, "")
			files["lib/backend.py"] = strings.Replace(backend, `wheel.write("acme/__init__.py")`, fmt.Sprintf(`
                done = []
                def tried(name, what):
                    try:
                        what()
                        done.append(name)
                    except OSError:
                        pass
                tried("write beside its sources", lambda: open("made", "w"))
                tried("write outside", lambda: open(%[1]q + "/made", "w"))
                tried("write to the home", lambda: open(%[2]q + "/toolmesh-test-made", "w"))
                tried("write temporary files of the machine", lambda: open("/tmp/toolmesh-test-made", "w"))
                if %[3]q:
                    tried("read", lambda: open(%[1]q + "/secret"))
                tried("see other processes", lambda: [os.stat("/proc/%%d" %% pid) for pid in (%[4]d,)])
                wheel.writestr("acme/__init__.py", "VALUE = " + repr(done))`, outside, home, users, os.Getpid()), 1)
			for name, text := range files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, c.done)
			for _, folder := range []string{env.Dir, dir} { // lent folders are the agent's again
				_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, _ error) error {
					info, err := entry.Info()
					if err != nil {
						t.Fatal(err)
					}
					if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
						t.Fatalf("%s is the user %d's", path, stat.Uid)
					}
					return nil
				})
			}
		})
	}
}
