package executor_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

const sweptTools = `
import ctypes, sys, threading

c = ctypes.CDLL(None)
over, spawned = threading.Event(), threading.Event()

def start(marker):
    # Past Python, which notices nothing.
    words = [b"sleep", b"1000." + marker.encode(), None]
    pid = ctypes.c_int()
    environ = ctypes.c_void_p.in_dll(c, "environ")
    failed = c.posix_spawnp(ctypes.byref(pid), words[0], None, None, (ctypes.c_char_p * 3)(*words), environ)
    spawned.set()
    return failed

def now(marker: str):
    return start(marker)

def later(marker: str):
    def run():
        over.wait()
        start(marker)
    over.clear()
    spawned.clear()
    threading.Thread(target=run).start()

def all_are_swift():
    # From here on no call counts as long: only the time since the last look does.
    next(one for name, one in sys.modules.items() if name.endswith("_worker.state.orphans")).SHORTEST = 1e9

def brief() -> bool:
    over.set()
    return spawned.is_set()
`

// A worker looks for processes left by a call only after calls long enough to start one, and
// otherwise at intervals.
func TestNoOrphanStaysAmongShortCalls(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("there is no /proc to find processes in")
	}
	x := newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 })
	ix := openModule(t, x, sweptTools, "now", "later", "all_are_swift", "brief")
	brief := func() bool {
		got, err := ix.Call(t.Context(), executor.Call{Tool: "t.brief"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(got) == "true"
	}
	for n := range 5 {
		marker := fmt.Sprintf("%d%d", os.Getpid(), n)
		for range 100 {
			brief()
		}
		mustCall(t, ix, "t.now", fmt.Sprintf(`{"marker":%q}`, "7"+marker), `0`)
		if left := processes(t, "1000.7"+marker); len(left) > 0 {
			t.Errorf("what C code has started is alive after the call: %v", left)
		}
	}
	mustCall(t, ix, "t.all_are_swift", `{}`, `null`)
	for n := range 5 {
		marker := fmt.Sprintf("%d%d", os.Getpid(), n)
		mustCall(t, ix, "t.later", fmt.Sprintf(`{"marker":%q}`, "8"+marker), `null`)
		for !brief() { //nolint:revive // until the thread has started it
		}
		meshtest.Until(t, "what a thread has started is ended", func() bool {
			return !brief() || len(processes(t, "1000.8"+marker)) == 0
		})
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d restarts", s.Restarts)
	}
}

const serverTools = `
import multiprocessing, os, warnings
from toolmesh import mesh

server = multiprocessing.get_context("forkserver")

def work(x):
    return x * x

def pooled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # about a resource tracker that has died
        with server.Pool(1) as pool:
            return [os.getpid(), *pool.map(work, [3])]
`

// The fork server of multiprocessing, which Python 3.14 starts processes through,
// ends with the call that made it. The next call gets another one.
func TestTheForkServerOfACallIsMissedByNoOther(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 })
	ix := openModule(t, x, serverTools, "pooled")
	var first string
	for n := range 3 {
		got, err := ix.Call(t.Context(), executor.Call{Tool: "t.pooled"}, nil)
		if err != nil {
			t.Fatalf("call %d: %v", n+1, err)
		}
		if n == 0 {
			first = string(got)
		} else if string(got) != first {
			t.Errorf("call %d: got %s, before %s", n+1, got, first)
		}
	}
}
