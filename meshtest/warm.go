package meshtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing/fstest"
)

// bytecode is the worker's files with the bytecode that an executor has made of them; nil until one
// has. Packages that are tested with the programs of `make build` share it in the folder of these.
var bytecode struct {
	sync.Mutex
	files fs.FS
}

// Warm copies the worker's files and their bytecode into the new folder of an executor from the
// folder of an earlier test, as compiling them takes half a second of a processor. The executor
// compares them with its own, and writes missing and different ones. A folder that was used
// before stays as it is. cleanup is the test's Cleanup.
func Warm(executor string, cleanup func(func())) {
	worker := filepath.Join(executor, "worker")
	if _, err := os.Stat(worker); err == nil {
		return
	}
	files := learned()
	if files == nil {
		cleanup(func() { learn(worker) })
		return
	}
	// As agents and executors make them.
	_ = os.MkdirAll(filepath.Dir(executor), 0o700)
	_ = os.Mkdir(executor, 0o755) //nolint:gosec // tools of other users read it
	_ = os.CopyFS(worker, files)
}

// shared is the folder of what the packages share, or empty. make build removes it with a new program.
func shared() string {
	if built := os.Getenv("MESH_TEST_BIN"); built != "" {
		return filepath.Join(built, "worker")
	}
	return ""
}

// learned is what another test has left, in this package or in another one.
func learned() fs.FS {
	bytecode.Lock()
	defer bytecode.Unlock()
	if dir := shared(); bytecode.files == nil && dir != "" {
		if _, err := os.Stat(dir); err == nil {
			bytecode.files = os.DirFS(dir)
		}
	}
	return bytecode.files
}

// learn keeps the files of a worker's folder, if all of them are compiled.
func learn(worker string) {
	bytecode.Lock()
	defer bytecode.Unlock()
	// The mark is written last.
	if marks, _ := filepath.Glob(filepath.Join(worker, "*", "__pycache__", "compiled.*")); len(marks) == 0 || bytecode.files != nil {
		return
	}
	files := fstest.MapFS{}
	err := fs.WalkDir(os.DirFS(worker), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Dir(name) == "." { // a file that each executor writes
			return err
		}
		data, err := os.ReadFile(filepath.Join(worker, name)) //nolint:gosec // below the folder of a test
		files[name] = &fstest.MapFile{Data: data, Mode: 0o644}
		return err
	})
	if err != nil {
		return
	}
	bytecode.files = files
	dir := shared()
	if dir == "" {
		return
	}
	made, err := os.MkdirTemp(filepath.Dir(dir), "worker-") // a folder that others see is whole
	if err == nil && os.CopyFS(made, files) == nil {
		_ = os.Chmod(made, 0o755) //nolint:gosec // as above
		_ = os.Rename(made, dir)
	}
	_ = os.RemoveAll(made) // another package was faster
}
