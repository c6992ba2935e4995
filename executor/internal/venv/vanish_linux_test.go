package venv

import (
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Python writes bytecode during a check, under names that exist for a moment.
func TestFilesThatVanishAreNotListed(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"a": "text", "b/c": "text"})
	a, err := os.OpenFile(filepath.Join(dir, "a"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // a test
	opened := make(chan os.Signal, 1)
	signal.Notify(opened, unix.SIGIO)
	defer signal.Stop(opened)
	if _, err := unix.FcntlInt(a.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("others' opening of a file cannot be held up here: ", err)
	}
	var files listing
	done := make(chan struct{})
	go func() {
		defer close(done)
		files, err = list(dir, nil, true)
	}()
	<-opened
	removed := os.Remove(filepath.Join(dir, "b/c"))
	if _, held := unix.FcntlInt(a.Fd(), unix.F_SETLEASE, unix.F_UNLCK); removed != nil || held != nil {
		t.Fatal(removed, held)
	}
	<-done
	if _, there := files["b/c"]; err != nil || there || files["a"].Sum == "" {
		t.Errorf("%v, %v", files, err)
	}
}
