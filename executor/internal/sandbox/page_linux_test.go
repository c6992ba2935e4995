package sandbox_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// A worker may do more to the file of a page than cut it off. None of it makes the page larger, closes it to its reader,
// or ends the process that reads it.
func TestAPageIsKeptFromItsWorker(t *testing.T) {
	t.Parallel()
	page, err := sandbox.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	file := page.File()
	if err := file.Truncate(1 << 30); err == nil {
		t.Error("a worker can make the page as large as it likes")
	}
	if err := unix.Fallocate(int(file.Fd()), 0, 0, 1<<30); err == nil {
		t.Error("a worker can reserve memory behind the page")
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("a worker can seal the page")
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDWR|os.O_TRUNC, 0)
	if err == nil {
		_ = again.Close()
		t.Error("a worker can cut the page off as it opens it")
	}
	page.Store(sandbox.WordStarted, 7)
	err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
	if got := page.Load(sandbox.WordStarted); err != nil || got != 0 {
		t.Errorf("a page with a hole reads as %d, %v", got, err)
	}
	page.Store(sandbox.WordCancel, 8)
	if page.Load(sandbox.WordCancel) != 8 {
		t.Error("a page with a hole takes no word")
	}
}
