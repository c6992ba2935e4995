package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// A package that an index brings along names others in its metadata, which uv reads: they
// get into no lock from outside of the index.
func TestRequirementsOfAPackageAreChecked(t *testing.T) {
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

// wheelBackend builds a package with one module of the given name and code.
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
