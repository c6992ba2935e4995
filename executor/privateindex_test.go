package executor_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
)

// oddBackend builds a wheel that reports the build variables with the index's credentials, and the
// index's answer to a request for a foreign file.
const oddBackend = `
import os, urllib.request, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    seen = sorted(name for name, value in os.environ.items() if "hush" in value or "bob" in value)
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        at = os.environ.get(name, "")
        if at:
            try:
                urllib.request.urlopen(at.replace("/team/simple", "/secret"))
                seen.append("the secret of " + name)
            except OSError:
                pass
    with zipfile.ZipFile(folder + "/odd-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("odd.py", "VALUE = " + repr(seen))
        wheel.writestr("odd-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
        wheel.writestr("odd-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("odd-1.0.dist-info/RECORD", "odd.py,,\nodd-1.0.dist-info/METADATA,,\nodd-1.0.dist-info/WHEEL,,\nodd-1.0.dist-info/RECORD,,\n")
    return "odd-1.0-py3-none-any.whl"
`

// oddSource is the source distribution of a package without a wheel.
func oddSource(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	packed := gzip.NewWriter(&buf)
	archive := tar.NewWriter(packed)
	for name, text := range map[string]string{
		"PKG-INFO":       "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n",
		"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n[project]\nname = \"odd\"\nversion = \"1.0\"\n",
		"backend.py":     oddBackend,
	} {
		err := archive.WriteHeader(&tar.Header{Name: "odd-1.0/" + name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = io.WriteString(archive, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// The build of a private index's package reaches that index, and does not see its credentials.
func TestABuildSeesNoCredentialsOfAnIndex(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	source := oddSource(t)
	var secret atomic.Bool
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "bob" || password != "hush" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/team/simple/odd/":
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprint(w, `<html><a href="/team/files/odd-1.0.tar.gz">odd-1.0.tar.gz</a></html>`)
		case "/team/files/odd-1.0.tar.gz":
			_, _ = w.Write(source)
		case "/secret":
			secret.Store(true)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(index.Close)
	x := newExecutor(t, func(o *executor.Options) {
		o.Environ = append(os.Environ(), "UV_DEFAULT_INDEX="+strings.Replace(index.URL, "://", "://bob:hush@", 1)+"/team/simple", "UV_PUBLISH_TOKEN=hush")
	})
	dir := writeFiles(t, map[string]string{"requirements.txt": "odd\n", "t.py": "import odd\n\ndef tool():\n    return odd.VALUE\n"})
	lock, err := x.Lock(t.Context(), dir, executor.LockOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	env, err := x.Environment(t.Context(), dir, lock, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustCall(t, open(t, x, executor.Spec{SourceDir: dir, Env: env, Tools: []string{"t.tool"}}), "t.tool", `{}`, `[]`)
	if secret.Load() {
		t.Error("a build read what is not of the index with the agent's credentials")
	}
}
