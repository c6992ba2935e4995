package executor_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// Files of dependencies that name what is outside of the index send nothing and read nothing:
// a word of another file is a requirement, for which the author's server was asked.
func TestDependenciesOfAnAuthorAskNobody(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "", http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	x := newExecutor(t, nil)
	all := writeFiles(t, map[string]string{"keys/admin.nk": "SUASEEDOFTHEADMINISTRATOR\n"})
	for name, files := range map[string]map[string]string{
		"index and file":  {"requirements.txt": "--index-url " + server.URL + "/simple\n-r ../../keys/admin.nk\n"},
		"index":           {"requirements.txt": "--extra-index-url " + server.URL + "/simple\nsome-package\n"},
		"links":           {"requirements.txt": "-f " + server.URL + "\nsome-package\n"},
		"file":            {"requirements.txt": "-r ../../keys/admin.nk\n"},
		"constraints":     {"requirements.txt": "-c ../../keys/admin.nk\nsix\n"},
		"link":            {"requirements.txt": "-r link\n"},
		"settings":        {"requirements.txt": "some-package\n", "uv.toml": "index-url = '" + server.URL + "/simple'\n"},
		"project":         {"requirements.txt": "some-package\n", "pyproject.toml": "[tool.uv]\nextra-index-url = ['" + server.URL + "/simple']\n"},
		"source":          {"pyproject.toml": "[project]\nname = 'x'\nversion = '1'\ndependencies = ['y']\n[tool.uv.sources]\ny = { url = '" + server.URL + "/y-1-py3-none-any.whl' }\n"},
		"variable":        {"requirements.txt": "a @ " + server.URL + "/${HOME}/a-1-py3-none-any.whl\n"},
		"nested settings": {"requirements.txt": "./lib\n", "lib/pyproject.toml": "[project]\nname = 'lib'\nversion = '1'\ndependencies = ['y']\n[tool.uv.sources]\ny = { url = '" + server.URL + "/y-1-py3-none-any.whl' }\n"},
	} {
		dir := filepath.Join(all, "sources", strings.ReplaceAll(name, " ", "-"))
		for file, text := range files {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("../../keys/admin.nk", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		_, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != "dependency" {
			t.Errorf("%s: got %v", name, err)
		}
		if text := fmt.Sprint(err, toolmesh.AsError(err)); strings.Contains(text, "SUASEED") {
			t.Errorf("%s: the error shows the key: %s", name, text)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the author's server was asked %d times", n)
	}
}

// A package that an index brings along names others in its metadata, which uv reads: they
// get into no lock from outside of the index.
func TestWhatAPackageRequires(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	outside := writeFiles(t, packageOf("secret", "secret", "", "VALUE = 1"))
	for name, requires := range map[string]string{"a folder": "secret @ file://" + outside + "/secret", "a repository": "secret @ git+file://" + outside + "/secret"} {
		source := writeFiles(t, packageOf("lib", "acme", "dynamic = ['dependencies']\n", ""))
		backend := wheelBackend("acme", "")
		files := map[string]string{
			"requirements.txt": "./lib\n",
			"lib/backend.py":   strings.Replace(backend, `Version: 1\n")`, `Version: 1\nRequires-Dist: `+requires+`\n")`, 1),
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(source, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		lock, err := x.Lock(t.Context(), source, executor.LockOptions{}, nil)
		if toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed {
			t.Errorf("%s: got %v\n%s", name, err, lock.Requirements)
		}
	}
}

// What a package that an index brings along has by an address is fetched for that index alone.
func TestAddressesOfPackagesHaveNoSharedCache(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	other := strings.ReplaceAll(wheelOf(t, nil), "acme", "othr") // of the same length
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.ServeContent(w, r, "othr.whl", time.Time{}, strings.NewReader(other))
	}))
	defer server.Close()
	x := newExecutor(t, nil)
	source := writeFiles(t, map[string]string{
		"requirements.txt": "./acme-1-py3-none-any.whl\n",
		"acme-1-py3-none-any.whl": wheelOf(t, map[string]string{
			"acme-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1\nRequires-Dist: othr @ " + server.URL + "/othr-1-py3-none-any.whl\n",
		}),
	})
	lock, err := x.Lock(t.Context(), source, executor.LockOptions{}, nil)
	if err != nil || asked.Load() == 0 || !strings.Contains(string(lock.Requirements), server.URL) {
		t.Fatalf("%v, asked %d times\n%s", err, asked.Load(), lock.Requirements)
	}
	env, err := x.Environment(t.Context(), source, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(filepath.Dir(filepath.Dir(env.Dir)), "packages"), func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(filepath.Base(path), "othr") {
			t.Errorf("all indexes share %s", path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}

// wheelBackend builds a package of one module, whose name and code it is told.
func wheelBackend(name, code string) string {
	return fmt.Sprintf(`
import os, zipfile
def build_wheel(folder, config=None, metadata=None):
    file = "%[1]s-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as wheel:
        wheel.writestr("%[1]s.py", %[2]q)
        wheel.writestr("%[1]s-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: %[1]s\nVersion: 1\n")
        wheel.writestr("%[1]s-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("%[1]s-1.dist-info/RECORD", "")
    return file
`, name, code)
}

// packageOf are the files of a package in a folder.
func packageOf(dir, name, more, code string) map[string]string {
	return map[string]string{
		dir + "/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n[project]\nname = '" + name + "'\nversion = '1'\n" + more,
		dir + "/backend.py":     wheelBackend(name, code),
	}
}

// What an index brings along is installed from there, however deep it is required, and
// never looked for in a package index.
func TestDependenciesInTheTree(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	a := packageOf("libs/a", "acme_a", "dependencies = ['acme_b', 'six']\n[tool.uv.sources]\nacme_b = { path = '../b' }\n", "from acme_b import VALUE")
	b := packageOf("libs/b", "acme_b", "", "VALUE = 'b'")
	member := packageOf("libs/a", "acme_a", "dependencies = ['acme_b']\n[tool.uv.sources]\nacme_b = { workspace = true }\n", "from acme_b import VALUE")
	for name, c := range map[string]struct {
		declares map[string]string
		a        map[string]string
	}{
		"nested":    {map[string]string{"requirements.txt": "./libs/a\n"}, a},
		"editable":  {map[string]string{"requirements.txt": "-e libs/a/\n"}, a},
		"included":  {map[string]string{"requirements.txt": "-r more/r.txt\n-c c.txt\n", "more/r.txt": "acme_a @ file:libs/a\n", "c.txt": "six==1.16.0\n"}, a},
		"project":   {map[string]string{"pyproject.toml": "[project]\nname = 'x'\nversion = '1'\ndependencies = ['acme_a[]']\n[tool.uv.sources]\nacme-a = { path = 'libs/a', editable = true }\n"}, a},
		"workspace": {map[string]string{"pyproject.toml": "[project]\nname = 'x'\nversion = '1'\ndependencies = ['acme_a']\n[tool.uv.sources]\nacme-a = { workspace = true }\n[tool.uv.workspace]\nmembers = ['libs/*']\n"}, member},
		"dynamic": {map[string]string{
			"pyproject.toml": "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n[project]\nname = 'x'\nversion = '1'\ndynamic = ['dependencies']\n" +
				"[tool.setuptools]\npy-modules = []\n[tool.setuptools.dynamic]\ndependencies = { file = ['r.txt'] }\n[tool.uv.sources]\nacme-a = { path = 'libs/a' }\n",
			"r.txt": "acme_a\n",
		}, a},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := maps.Clone(c.declares)
			maps.Copy(files, c.a)
			maps.Copy(files, b)
			files["t.py"] = "from acme_a import VALUE\ndef tool(): return VALUE\n"
			dir := writeFiles(t, files)
			lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			if text := string(lock.Requirements); !strings.Contains(text, "@ ./libs/b\n") || name == "included" && !strings.Contains(text, "six==1.16.0") {
				t.Errorf("the lock is\n%s", text)
			}
			env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `"b"`)
		})
	}
}

// Without builds a lock says what would have to be built, and runs no code of it.
func TestALockWithoutBuilds(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"a wheel":   {map[string]string{"requirements.txt": "six\n"}, ""},
		"no wheel":  {map[string]string{"requirements.txt": "docopt==0.6.2\n"}, "docopt"},
		"in tree":   {packageOf("lib", "acme", "", "import nothing"), "acme"},
		"a backend": {map[string]string{"setup.py": "raise SystemExit(1)\n"}, "setup.py"},
	} {
		if name == "in tree" {
			c.files["requirements.txt"] = "./lib\n"
			c.files["lib/backend.py"] = "raise SystemExit('it was run')\n"
		}
		_, err := x.Lock(t.Context(), writeFiles(t, c.files), executor.LockOptions{NoBuild: true}, nil)
		e := toolmesh.AsError(err)
		if c.says == "" && err == nil {
			continue
		}
		if e == nil || e.Details["reason"] != "builds" || !strings.Contains(e.Message, ": "+c.says) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// What has no wheel is built, where it may be.
	dir := writeFiles(t, map[string]string{"requirements.txt": "docopt==0.6.2\n", "t.py": "import docopt\ndef tool(): return docopt.__version__\n"})
	lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `"0.6.2"`)
}

// privateServer serves a git repository of a package and a wheel to those that log in.
func privateServer(t *testing.T, user, password string, wheel []byte) string {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	dir := writeFiles(t, packageOf("lib", "acme", "", "VALUE = 'private'"))
	for _, args := range [][]string{{"init", "-q", "lib"}, {"-C", "lib", "add", "-A"}, {"-C", "lib", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"}, {"-C", "lib", "tag", "v1"}} {
		cmd := exec.Command(git, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	handler := &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Dir: dir,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		if strings.HasSuffix(r.URL.Path, ".whl") {
			_, _ = w.Write(wheel)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A login of a declared variable fetches a private dependency, on this node and on the next,
// and stands in nothing that others see.
func TestPrivateDependencies(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	const token = `hun"ter2 \x#%`
	wheelFile := filepath.Join(t.TempDir(), "acme-1-py3-none-any.whl")
	script := wheelBackend("acme", "VALUE = 'private'") + fmt.Sprintf("build_wheel(%q)\n", filepath.Dir(wheelFile))
	if out, err := exec.Command("python3", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wheel, err := os.ReadFile(wheelFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ login, place, user, password string }{
		"git, a token":     {"${LAB_TOKEN}", "git+%s/lib/.git@v1", token, ""},
		"git, a password":  {"oauth2:${LAB_TOKEN}", "git+%s/lib/.git@v1", "oauth2", token},
		"file, a token":    {"${LAB_TOKEN}", "%s/acme-1-py3-none-any.whl", token, ""},
		"file, a password": {"bob:${LAB_TOKEN}", "%s/acme-1-py3-none-any.whl", "bob", token},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := privateServer(t, c.user, c.password, wheel)
			// What git is run with is written down.
			real, err := exec.LookPath("git")
			if err != nil {
				t.Skip("git is not installed")
			}
			bin := t.TempDir()
			if err := os.Chmod(bin, 0o777); err != nil { //nolint:gosec // builds write the record as another user
				t.Fatal(err)
			}
			record := filepath.Join(bin, "record")
			wrapper := fmt.Sprintf("#!/bin/sh\n{ printf '%%s\\n' \"$@\"; env; tr '\\0' '\\n' < /proc/$PPID/cmdline; tr '\\0' '\\n' < /proc/$PPID/environ; } >> %[1]s 2>/dev/null\nexec %[2]s \"$@\"\n", record, real)
			if err := os.WriteFile(filepath.Join(bin, "git"), []byte(wrapper), 0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			fresh := func() *executor.Executor { // another node: it has nothing in a cache
				return newExecutor(t, func(o *executor.Options) {
					o.Environ = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
					o.Sandbox = "none"
				})
			}
			files := map[string]string{
				"t.py":             "from acme import VALUE\ndef tool(): return VALUE\n",
				"requirements.txt": "acme @ " + strings.Replace(fmt.Sprintf(c.place, server), "://", "://"+c.login+"@", 1) + "\n",
			}
			vars := map[string]string{"LAB_TOKEN": token}
			dir := writeFiles(t, files)
			lock, err := fresh().Lock(t.Context(), dir, executor.LockOptions{Vars: vars}, nil)
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			if text := string(lock.Requirements); !strings.Contains(text, "${LAB_TOKEN}") || strings.Contains(text, "hun") {
				t.Errorf("the lock is\n%s", text)
			}
			x := fresh()
			_, err = x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
			if e := toolmesh.AsError(err); e == nil || !strings.Contains(e.Message, "--env LAB_TOKEN") {
				t.Errorf("without a value: got %v", err)
			}
			for _, wrong := range []string{"wrong1234", ""} { // no token, and none of another index's packages
				given := vars
				if wrong != "" {
					given = map[string]string{"LAB_TOKEN": wrong}
				}
				env, err := x.Environment(t.Context(), dir, lock, executor.Making{Account: "a", Vars: given}, nil)
				if wrong != "" {
					if e := toolmesh.AsError(err); e == nil || strings.Contains(fmt.Sprint(e.Message, e.Details), wrong) {
						t.Errorf("with a wrong value: got %v", err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
				}
				mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `"private"`)
			}
			if _, err := x.Lock(t.Context(), dir, executor.LockOptions{Vars: map[string]string{"LAB_TOKEN": "wrong1234"}}, nil); err == nil ||
				strings.Contains(fmt.Sprint(err, toolmesh.AsError(err).Details), "wrong1234") {
				t.Errorf("with a wrong value: got %v", err)
			}
			if data, _ := os.ReadFile(record); strings.Contains(string(data), "hun") || strings.HasPrefix(name, "git") && !strings.Contains(string(data), "fetch") {
				t.Errorf("git was run with\n%s", data)
			}
		})
	}
}

// A hash at a file by its path or address is held to.
func TestHashesOfFilesAreHeldTo(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	x := newExecutor(t, nil)
	dir := t.TempDir()
	if out, err := exec.Command("python3", "-c", wheelBackend("acme", "VALUE = 1")+fmt.Sprintf("build_wheel(%q)\n", dir)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const file = "acme-1-py3-none-any.whl"
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	wheel, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	right := fmt.Sprintf("sha256:%x", sha256.Sum256(wheel))
	wrong := "sha256:" + strings.Repeat("0", 64)
	for _, place := range []string{"./" + file, "acme @ file:" + file, server.URL + "/" + file, "acme @ " + server.URL + "/" + file} {
		for _, mode := range []string{"", "--require-hashes\n"} {
			for _, hash := range []string{right, wrong} {
				source := writeFiles(t, map[string]string{"requirements.txt": mode + place + " --hash=" + hash + "\n", file: string(wheel), "t.py": "from acme import VALUE\ndef tool(): return VALUE\n"})
				lock, err := x.Lock(t.Context(), source, executor.LockOptions{}, nil)
				var env *executor.Env
				if err == nil {
					env, err = x.Environment(t.Context(), source, lock, executor.Making{}, nil)
				}
				if hash == wrong {
					if toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed || !strings.Contains(strings.ToLower(err.Error()), "hash") {
						t.Errorf("%s%s: got %v", mode, place, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s%s: %v", mode, place, err)
					continue
				}
				mustCall(t, open(t, x, executor.Spec{SourceDir: source, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `1`)
			}
		}
	}
	_, err = x.Lock(t.Context(), writeFiles(t, map[string]string{"requirements.txt": "--require-hashes\nsix==1.16.0\n"}), executor.LockOptions{}, nil)
	if e := toolmesh.AsError(err); e == nil || !strings.Contains(e.Message, "six==1.16.0") || e.Details["reason"] != "dependency" {
		t.Errorf("got %v", err)
	}
}
