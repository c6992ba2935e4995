package executor_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

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
