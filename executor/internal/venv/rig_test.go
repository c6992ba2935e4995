package venv

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// newStore makes a store that runs steps in no sandbox: that is the executor's.
func newStore(t *testing.T, dir string, change func(*Options)) *Store {
	t.Helper()
	if testing.Short() {
		t.Skip("makes environments")
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("MESH_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	o := Options{Logger: log, Environ: os.Environ(), UV: anyUV(), Confined: unconfined}
	if change != nil {
		change(&o)
	}
	s := NewStore(dir, o)
	t.Cleanup(s.Close)
	return s
}

// uvFolder has the uv of anyUV if that was installed.
var uvFolder string

// anyUV is one uv for all stores, as installing it takes longer than the rest of a test.
var anyUV = sync.OnceValue(func() string {
	if file, err := exec.LookPath("uv"); err == nil {
		return file
	}
	var err error
	if uvFolder, err = os.MkdirTemp("", "toolmesh-uv-"); err != nil {
		panic(err)
	}
	file, err := installedUV(uvFolder)
	if err != nil {
		panic(err)
	}
	return file
})

// installedUV is the uv that a store installs when it finds none.
func installedUV(dir string) (string, error) {
	log := slog.New(slog.DiscardHandler)
	environ := slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "PATH=") })
	var path []string
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		if !isExecutable(filepath.Join(folder, "uv")) {
			path = append(path, folder)
		}
	}
	s := NewStore(dir, Options{Logger: log, Environ: append(environ, "PATH="+strings.Join(path, ":")), Confined: unconfined})
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // all tests wait for it, and pip tries again for long
	defer cancel()
	return s.uv(ctx, nil)
}

// A store installs uv, once, where none is found.
func TestUVIsInstalled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("installs a package")
	}
	dir := t.TempDir()
	file, err := installedUV(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := installedUV(dir); err != nil || again != file || !strings.HasPrefix(file, dir) {
		t.Errorf("it is %s, then %s (%v)", file, again, err)
	}
}

func unconfined(ctx context.Context, _ Role, job Job) ([]byte, string, error) {
	if job.Keep != "" {
		if err := os.MkdirAll(job.Keep, 0o755); err != nil {
			return nil, "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // the longest step takes under 20 s
	defer cancel()
	s := spawner()
	stdout, said, err := s.Run(ctx, sandbox.Command{
		Path: job.Interpreter, Args: []string{"-I", "-S", "-c", python.Bootstrap("command", "main(sys.argv[2])"), workerFolder}, Env: append([]string{"LANG=C.UTF-8"}, job.Above...), Dir: cmp.Or(job.Dir, "/"),
	}, sandbox.Request{Level: tool.SandboxNone, Argv: job.Argv, Env: job.Env})
	if ctx.Err() != nil {
		said += fmt.Sprintf("\nerror: %q was ended: %v", job.Argv, ctx.Err())
	}
	return stdout, said, err
}

// workerFolder has the worker's files for spawner.
var workerFolder string

// spawner keeps what stores start together as an executor does: nothing outlives its step or
// this process.
var spawner = sync.OnceValue(func() *sandbox.Spawner {
	folder, err := os.MkdirTemp("", "toolmesh-worker-")
	if err != nil {
		panic(err)
	}
	worker, err := fs.Sub(python.Worker, python.WorkerDir)
	if err == nil {
		err = os.CopyFS(filepath.Join(folder, python.WorkerPackage), worker)
	}
	if err != nil {
		panic(err)
	}
	workerFolder = folder
	return sandbox.NewSpawner(slog.New(slog.DiscardHandler))
})

func locked(t *testing.T, s *Store, source string, o LockOptions) Lock {
	t.Helper()
	lock, err := s.Lock(t.Context(), source, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func made(t *testing.T, s *Store, source string, lock Lock, making Making) *Env {
	t.Helper()
	env, err := s.Environment(t.Context(), source, lock, making, nil)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// says checks the output of a program that the environment's interpreter runs.
func says(t *testing.T, env *Env, program, want string) {
	t.Helper()
	out, err := exec.Command(env.Python, "-I", "-B", "-c", program).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%s: got %s, %v, want %s", program, got, err, want)
	}
}

const sayValue = "import acme; print(acme.VALUE)"

// packageOf are the files of a package of one module in a folder; its build downloads nothing.
func packageOf(dir, name, more, code string) map[string]string {
	return map[string]string{
		dir + "/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n[project]\nname = '" + name + "'\nversion = '1'\n" + more,
		dir + "/backend.py": fmt.Sprintf(`
import os, zipfile
def build_wheel(folder, config=None, metadata=None):
    file = "%[1]s-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as wheel:
        wheel.writestr("%[1]s.py", %[2]q)
        wheel.writestr("%[1]s-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: %[1]s\nVersion: 1\n")
        wheel.writestr("%[1]s-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("%[1]s-1.dist-info/RECORD", "")
    return file
`, name, code),
	}
}

// together joins sets of files.
func together(parts ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

const wheelFile = "acme-1-py3-none-any.whl"

// wheelOf is a wheel of the package acme with these additional files.
func wheelOf(t *testing.T, files map[string]string) string {
	t.Helper()
	return wheelNamed(t, "acme", "1", files)
}

func wheelNamed(t *testing.T, name, version string, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	info := name + "-" + version + ".dist-info/"
	for name, text := range together(map[string]string{
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "",
	}, files) {
		f, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(f, text)
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

// sdistOf is a source distribution of a package of one module.
func sdistOf(t *testing.T, name, code string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	files := packageOf(name+"-1", name, "", code)
	files[name+"-1/PKG-INFO"] = "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1\n"
	for file, text := range files {
		err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// filesBelow finds files by their names.
func filesBelow(t *testing.T, dir, pattern string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if ok, _ := filepath.Match(pattern, filepath.Base(path)); ok {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s below %s: %v", pattern, dir, err)
	}
	return found
}
