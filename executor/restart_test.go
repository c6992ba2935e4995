package executor_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
)

// Forks of this module die while a file is there, and note when.
const dyingTools = `
import os, time

def _born():
    if os.path.exists("dying"):
        fd = os.open("started", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, b"%d\n" % time.monotonic_ns())
        os._exit(9)

os.register_at_fork(after_in_child=_born)

def good() -> int:
    return 1
`

// Starts that fail become rare, whether calls wait or not: with calls, one each
// second at most; without, one each half a minute in the end.
func TestStartsThatFailBecomeRare(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	dir := writeFiles(t, map[string]string{"t.py": dyingTools})
	ix := open(t, x, specOf(t, x, dir, "t.good"))
	mustCall(t, ix, "t.good", `{}`, "1")
	dying := filepath.Join(dir, "dying")
	if err := os.WriteFile(dying, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pid := range ix.Stats().Pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// The end of the idle worker is the first crash. Each start is one more.
	started := func() []time.Duration {
		data, err := os.ReadFile(filepath.Join(dir, "started"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		var all []time.Duration
		for line := range strings.FieldsSeq(string(data)) {
			at, err := strconv.ParseInt(line, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Duration(at))
		}
		return all
	}
	const starts = 9
	eventually(t, "starts that fail", func() bool { return len(started()) >= starts })
	all := started()
	// Of the third start and those that follow: half of what they wait is sure.
	for n, least := 3, 25*time.Millisecond; n < starts; n, least = n+1, 2*least {
		if gap := all[n] - all[n-1]; gap < least*9/10 {
			t.Errorf("start %d came %v after the one before, want at least %v", n+1, gap, least)
		}
	}
	e := mustFail(t, ix, "t.good", `{}`, toolmesh.CodeUnavailable)
	if e.Started != toolmesh.StartedNo || !strings.Contains(e.Message, "no worker of") {
		t.Errorf("a call while nothing starts: got %+v", e)
	}
	if err := os.Remove(dying); err != nil {
		t.Fatal(err)
	}
	mustCall(t, ix, "t.good", `{}`, "1") // waits for the next try, which is soon because of it
}
