package venv

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
)

func TestAnEnvironmentFromEachKindOfDeclaration(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"pyproject": {
			"pyproject.toml":   "[project]\nname='x'\nversion='1'\nrequires-python='>=3.10'\ndependencies=['six==1.16.0']\n",
			"requirements.txt": "nothing-that-exists==1\n",
		},
		"setup": {"setup.py": "from setuptools import setup\nsetup(name='x', version='1', install_requires=['six==1.16.0'])\n"},
		"poetry": {
			"pyproject.toml": "[tool.poetry]\nname='x'\nversion='1'\ndescription=''\nauthors=[]\npackages=[{include='x.py'}]\n[tool.poetry.dependencies]\npython='^3.10'\nsix='1.16.0'\n" +
				"[build-system]\nrequires=['poetry-core']\nbuild-backend='poetry.core.masonry.api'\n",
			"x.py": "",
		},
		"tools only": {
			"pyproject.toml":   "[tool.ruff]\nline-length = 100\n",
			"requirements.txt": "six==1.16.0\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, source := newStore(t, t.TempDir(), nil), tree(t, files)
			locking, building := 0, 0
			lock, err := s.Lock(t.Context(), source, LockOptions{}, func(Step) { locking++ })
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			if text := string(lock.Requirements); !strings.Contains(text, "six==1.16.0") || !strings.Contains(text, "--hash=sha256:") {
				t.Errorf("the lock has no hashes:\n%s", text)
			}
			env, err := s.Environment(t.Context(), source, lock, Making{}, func(Step) { building++ })
			if err != nil {
				t.Fatalf("%v\n%v", err, toolmesh.AsError(err).Details)
			}
			if locking == 0 || building == 0 {
				t.Errorf("%d steps of the lock and %d of the environment were reported", locking, building)
			}
			says(t, env, "import six, importlib.metadata as m; print(six.PY3, m.version('six'))", "True 1.16.0")
			s.running.Wait() // its bytecode is made
			if compiled, _ := filepath.Glob(filepath.Join(env.Dir, "lib/*/site-packages/__pycache__/six.*.pyc")); len(compiled) != 1 {
				t.Errorf("the bytecode of six is %v", compiled)
			}
			if left, _ := filepath.Glob(filepath.Join(source, "*.egg-info")); len(left) > 0 {
				t.Errorf("the lock left %v in the source", left)
			}
		})
	}
}

// A package that an index brings along names others in its metadata, which uv reads: they
// get into no lock from outside of the index.
func TestRequirementsOfAPackageAreChecked(t *testing.T) {
	t.Parallel()
	s, outside := newStore(t, t.TempDir(), nil), tree(t, packageOf("secret", "secret", "", "VALUE = 1"))
	for name, requires := range map[string]string{"a folder": "secret @ file://" + outside + "/secret", "a repository": "secret @ git+file://" + outside + "/secret"} {
		files := together(packageOf("lib", "acme", "dynamic = ['dependencies']\n", ""), map[string]string{"requirements.txt": "./lib\n"})
		files["lib/backend.py"] = strings.Replace(files["lib/backend.py"], `Version: 1\n")`, `Version: 1\nRequires-Dist: `+requires+`\n")`, 1)
		lock, err := s.Lock(t.Context(), tree(t, files), LockOptions{}, nil)
		if toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed {
			t.Errorf("%s: got %v\n%s", name, err, lock.Requirements)
		}
	}
}

// Packages of the index's folder are installed from there, however deep they are required, and
// never looked up in a package index. The content behind a path is part of an environment's
// name: two indexes, or revisions, may declare the same paths.
func TestDependenciesInTheTree(t *testing.T) {
	t.Parallel()
	s := newStore(t, t.TempDir(), func(o *Options) { o.Environ = append(os.Environ(), "UV_NO_INDEX=1") })
	a := packageOf("libs/a", "acme", "dependencies = ['acme_b']\n[tool.uv.sources]\nacme_b = { path = '../b' }\n", "from acme_b import VALUE")
	member := packageOf("libs/a", "acme", "dependencies = ['acme_b']\n[tool.uv.sources]\nacme_b = { workspace = true }\n", "from acme_b import VALUE")
	project := "[project]\nname = 'x'\nversion = '1'\ndependencies = ['acme[]']\n[tool.uv.sources]\n"
	for name, files := range map[string]map[string]string{
		"nested":    together(a, map[string]string{"requirements.txt": "./libs/a\n"}),
		"included":  together(a, map[string]string{"requirements.txt": "-r more/r.txt\n-c c.txt\n", "more/r.txt": "-e libs/a\n", "c.txt": "acme==1\n"}),
		"project":   together(a, map[string]string{"pyproject.toml": project + "acme = { path = 'libs/a', editable = true }\n"}),
		"workspace": together(member, map[string]string{"pyproject.toml": project + "acme = { workspace = true }\n[tool.uv.workspace]\nmembers = ['libs/*']\n"}),
		"dynamic": together(a, map[string]string{
			"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'b'\nbackend-path = ['.']\n[project]\nname = 'x'\nversion = '1'\ndynamic = ['dependencies']\n[tool.uv.sources]\nacme = { path = 'libs/a' }\n",
			"b.py": `import os
def prepare_metadata_for_build_wheel(folder, config=None):
    os.mkdir(folder + "/x-1.dist-info")
    with open(folder + "/x-1.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: acme\n")
    return "x-1.dist-info"
`,
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var digests []string
			values := []string{"one"}
			if name == "nested" { // the locks of all are alike, and name the same folder
				values = append(values, "two")
			}
			for _, value := range values {
				all := together(files, packageOf("libs/b", "acme_b", "", "VALUE = '"+value+"'"))
				fetched := tree(t, all)
				lock := locked(t, s, fetched, LockOptions{})
				if text := string(lock.Requirements); !strings.Contains(text, "@ ./libs/b\n") || strings.Contains(text, filepath.Dir(fetched)) {
					t.Errorf("the lock is\n%s", text)
				}
				// A lock is used in the unpacked bundle, on any node.
				env := made(t, s, tree(t, all), lock, Making{Account: name})
				says(t, env, sayValue, value)
				digests = append(digests, env.Digest)
				if value == "two" {
					same, other := made(t, s, tree(t, all), lock, Making{Account: name}), made(t, s, tree(t, all), lock, Making{Account: "another"})
					if same.Digest != env.Digest || other.Digest == env.Digest {
						t.Errorf("an index, the same index and another have %s, %s, %s", env.Digest, same.Digest, other.Digest)
					}
				}
			}
			if len(digests) > 1 && digests[0] == digests[1] {
				t.Error("two packages have one environment")
			}
		})
	}
}

// Failures name the packages that would have to be built, that cannot be resolved or that the
// machine lacks, and tell what to do.
func TestFailuresOfLocksSayWhatToDo(t *testing.T) {
	t.Parallel()
	requirement := map[string]string{"requirements.txt": "acme\n"}
	for name, c := range map[string]struct {
		files  map[string]string
		o      LockOptions
		uv     string
		reason any
		says   []string
	}{
		"in the tree":     {together(packageOf("lib", "acme", "", "import nothing"), map[string]string{"requirements.txt": "./lib\n"}), LockOptions{NoBuild: true}, "", reasonBuilds, []string{": acme"}},
		"a backend":       {map[string]string{"setup.py": "raise SystemExit(1)\n"}, LockOptions{NoBuild: true}, "", reasonBuilds, []string{": setup.py"}},
		"two versions":    {map[string]string{"requirements.txt": "acme==1\nacme==2\n"}, LockOptions{}, "", nil, []string{"acme==2"}},
		"no uv":           {requirement, LockOptions{}, "/nowhere/uv", nil, []string{"/nowhere/uv"}},
		"no interpreter":  {requirement, LockOptions{Python: ">=3.99"}, "", nil, []string{"interpreter not available: the index needs Python >=3.99 (found 3."}},
		"nonsense":        {requirement, LockOptions{Python: "three"}, "", nil, []string{"cannot be parsed"}},
		"broken manifest": {map[string]string{"pyproject.toml": "[project"}, LockOptions{}, "", reasonDependency, []string{"pyproject.toml"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, t.TempDir(), func(o *Options) { o.Environ = append(os.Environ(), "UV_NO_INDEX=1"); o.UV = cmp.Or(c.uv, o.UV) })
			_, err := s.Lock(t.Context(), tree(t, c.files), c.o, nil)
			e := toolmesh.AsError(err)
			if e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != c.reason {
				t.Fatalf("got %v, details %v", err, e.Details)
			}
			for _, text := range c.says {
				if !strings.Contains(e.Message, text) {
					t.Errorf("%q is not in %s", text, e.Message)
				}
			}
		})
	}
}

// The author's hashes are enforced: for a file by its path or address, and for a release that
// the package index has replaced since.
func TestHashesAreHeldTo(t *testing.T) {
	t.Parallel()
	wheel := wheelOf(t, map[string]string{"acme.py": "VALUE = 1\n"})
	packages := tree(t, map[string]string{wheelFile: wheel})
	server := httptest.NewServer(http.FileServer(http.Dir(packages)))
	t.Cleanup(server.Close)
	s := newStore(t, t.TempDir(), func(o *Options) { o.Environ = append(os.Environ(), "UV_NO_INDEX=1", "UV_FIND_LINKS="+packages) })
	right, wrong := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(wheel))), "sha256:"+strings.Repeat("0", 64)
	for _, place := range []string{"./" + wheelFile, "--require-hashes\nacme @ file:" + wheelFile, "acme @ " + server.URL + "/" + wheelFile, "--require-hashes\n" + server.URL + "/" + wheelFile, "acme==1"} {
		for _, hash := range []string{right, wrong} {
			source := tree(t, map[string]string{"requirements.txt": "-r more.txt\n", "more.txt": place + " --hash=" + hash + "\n", wheelFile: wheel})
			lock, err := s.Lock(t.Context(), source, LockOptions{}, nil)
			if err == nil {
				_, err = s.Environment(t.Context(), source, lock, Making{}, nil)
			}
			if hash == right && err != nil || hash == wrong && (toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed || !strings.Contains(strings.ToLower(err.Error()), "hash")) {
				t.Errorf("%s --hash=%s: got %v", place, hash, err)
			}
		}
	}
	_, err := s.Lock(t.Context(), tree(t, map[string]string{"requirements.txt": "--require-hashes\nacme==1\n"}), LockOptions{}, nil)
	if e := toolmesh.AsError(err); e == nil || !strings.Contains(e.Message, "acme==1") || e.Details["reason"] != reasonDependency {
		t.Errorf("got %v", err)
	}
}

// privateServer serves a git repository of a package, and a wheel, with a login.
func privateServer(t *testing.T, git, user, password string) string {
	t.Helper()
	dir := tree(t, packageOf("lib", "acme", "", "VALUE = 'private'"))
	for _, args := range [][]string{{"init", "-q", "lib"}, {"-C", "lib", "add", "-A"}, {"-C", "lib", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"}, {"-C", "lib", "tag", "v1"}} {
		cmd := exec.Command(git, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	wheel := wheelOf(t, map[string]string{"acme.py": "VALUE = 'private'"})
	handler := &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Dir: dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		if strings.HasSuffix(r.URL.Path, ".whl") {
			_, _ = w.Write([]byte(wheel))
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A login from a declared variable fetches a private dependency, on this node and the next,
// and appears nowhere that others can read.
func TestPrivateDependencies(t *testing.T) {
	t.Parallel()
	const token = `hun"ter2 \x#%`
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	for name, c := range map[string]struct{ login, place, user, password string }{
		"git, a token":     {"${LAB_TOKEN}", "git+%s/lib/.git@v1", token, ""},
		"git, a password":  {"oauth2:${LAB_TOKEN}", "git+%s/lib/.git@v1", "oauth2", token},
		"file, a password": {"bob:${LAB_TOKEN}", "%s/" + wheelFile, "bob", token},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := privateServer(t, git, c.user, c.password)
			// The wrapper records git's arguments and environment.
			bin := t.TempDir()
			record := filepath.Join(bin, "record")
			wrapper := fmt.Sprintf("#!/bin/sh\n{ printf '%%s\\n' \"$@\"; env; tr '\\0' '\\n' < /proc/$PPID/cmdline; tr '\\0' '\\n' < /proc/$PPID/environ; } >> %[1]s 2>/dev/null\nexec %[2]s \"$@\"\n", record, git)
			if err := os.WriteFile(filepath.Join(bin, "git"), []byte(wrapper), 0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			fresh := func() *Store { // another node: it has nothing in a cache
				return newStore(t, t.TempDir(), func(o *Options) { o.Environ = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")) })
			}
			vars, wrong := map[string]string{"LAB_TOKEN": token}, map[string]string{"LAB_TOKEN": "wrong1234"}
			source := tree(t, map[string]string{"requirements.txt": "acme @ " + strings.Replace(fmt.Sprintf(c.place, server), "://", "://"+c.login+"@", 1) + "\n"})
			lock := locked(t, fresh(), source, LockOptions{Vars: vars})
			if text := string(lock.Requirements); !strings.Contains(text, "${LAB_TOKEN}") || strings.Contains(text, "hun") {
				t.Errorf("the lock is\n%s", text)
			}
			s := fresh()
			_, err := s.Environment(t.Context(), source, lock, Making{}, nil)
			if e := toolmesh.AsError(err); e == nil || !strings.Contains(e.Message, "--env LAB_TOKEN") {
				t.Errorf("without a value: got %v", err)
			}
			_, ofLock := s.Lock(t.Context(), source, LockOptions{Vars: wrong}, nil)
			_, ofEnv := s.Environment(t.Context(), source, lock, Making{Account: "a", Vars: wrong}, nil)
			for _, err := range []error{ofLock, ofEnv} {
				if e := toolmesh.AsError(err); e == nil || strings.Contains(fmt.Sprint(e.Message, e.Details), "wrong1234") {
					t.Errorf("with a wrong value: got %v", err)
				}
			}
			says(t, made(t, s, source, lock, Making{Account: "a", Vars: vars}), sayValue, "private")
			if data, _ := os.ReadFile(record); strings.Contains(string(data), "hun") || strings.HasPrefix(name, "git") && !strings.Contains(string(data), "fetch") {
				t.Errorf("git was run with\n%s", data)
			}
		})
	}
}
