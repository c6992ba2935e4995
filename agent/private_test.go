package agent_test

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A declared variable is the login of a private dependency, on the node that is asked to
// install and on one that takes the bundle; neither keeps its value in a file.
func TestAPrivateDependencyOfADeclaredVariable(t *testing.T) {
	t.Parallel()
	uv := needsPackages(t)
	var wheel bytes.Buffer
	archive := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"acme.py":                   "VALUE = 'private'\n",
		"acme-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1\n",
		"acme-1.dist-info/WHEEL":    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"acme-1.dist-info/RECORD":   "",
	} {
		file, err := archive.Create(name)
		if err == nil {
			_, err = file.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	const token = "tok3n-of-the-lab"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(wheel.Bytes())
	}))
	t.Cleanup(server.Close)
	files := map[string]string{
		"tools.toml":       "[index]\ntools = [\"t.f\"]\n[[index.env]]\nname = \"LAB_TOKEN\"\nsecret = true\n",
		"t.py":             "from acme import VALUE\n\ndef f() -> str:\n    return VALUE\n",
		"requirements.txt": "acme @ " + strings.Replace(server.URL, "://", "://bob:${LAB_TOKEN}@", 1) + "/acme-1-py3-none-any.whl\n",
	}
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	one, two := t.TempDir(), t.TempDir()
	withUV := func(o *agent.Options) { o.UV = uv }
	first := startIn(t, s, "one", one, withUV)
	meshtest.Until(t, "the worker's files are compiled, which no index has to do with", func() bool {
		marks, _ := filepath.Glob(filepath.Join(one, "executor", "worker", "*", "__pycache__", "compiled.*"))
		return len(marks) > 0
	})
	refused(t, nc, one, badInput{name: "lab", files: files, says: []string{"requirements.txt", "--env LAB_TOKEN"}})
	refused(t, nc, one, badInput{name: "lab", files: files, says: []string{"401"}, body: map[string]any{"env": map[string]string{"LAB_TOKEN": "wrong"}}})
	install(t, nc, map[string]any{"source": repository(t, "lab", files), "env": map[string]string{"LAB_TOKEN": token}})
	second := startIn(t, s, "two", two, withUV)
	if err := second.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.End(t, first)
	if r, err := newClient(t, nc, nil).Call(t.Context(), "lab.t.f", nil); err != nil || string(r.Value) != `"private"` {
		t.Errorf("from the second node: %v, %v", r, err)
	}
	meshtest.End(t, second) // it makes and removes folders while it runs
	for _, dir := range []string{one, two} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, []byte(token)) {
				t.Errorf("%s has the value", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
