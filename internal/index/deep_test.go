package index

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Folders of any depth that an init command left are replaced: their removal has no descriptor
// for each level.
func TestPlaceReplacesDeepFolders(t *testing.T) { //nolint:paralleltest // descriptors are the process's
	u := newUnpacked(t, placedFiles(true))
	u.place(t, "nothing there", false)
	one, two := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	err := os.Mkdir(one, 0o700)
	for range 1000 { // from the bottom up: paths are not as long
		err = errors.Join(err, os.Mkdir(two, 0o700), os.Rename(one, filepath.Join(two, "below")), os.Rename(two, one))
	}
	err = errors.Join(err, os.Rename(one, filepath.Join(u.dest, "made")), os.Remove(filepath.Join(u.dest, "t.py")))
	var limit syscall.Rlimit
	if err = errors.Join(err, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit), syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 300, Max: limit.Max})); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) }()
	u.place(t, "deep", true)
}
