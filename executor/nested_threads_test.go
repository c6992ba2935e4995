package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

const threadTools = `
import _thread, asyncio, os, threading, time
from concurrent.futures import ThreadPoolExecutor

from toolmesh import mesh

def leaf(n=0):
    return n

def pid():
    return os.getpid()

def tell(path, text):
    with open(path + ".new", "w") as file: file.write(text)
    os.rename(path + ".new", path)

def attempt(path):
    try:
        mesh.call("t.leaf", {})
        tell(path, "called")
    except mesh.MeshError as e:
        tell(path, e.code)

def after(path, go):
    while not os.path.exists(go): time.sleep(0.002)
    attempt(path)

def in_another(path, go):
    """The thread of a thread."""
    while not os.path.exists(go): time.sleep(0.002)
    threading.Thread(target=attempt, args=(path,)).start()

def in_pool_later(path, go):
    while not os.path.exists(go): time.sleep(0.002)
    pool.submit(attempt, path)

def in_pool_made_later(path, go):
    while not os.path.exists(go): time.sleep(0.002)
    ThreadPoolExecutor(1).submit(attempt, path)

pool = ThreadPoolExecutor(2)
kept = []

def leave(path, go, how):
    if how == "thread": threading.Thread(target=after, args=(path, go)).start()
    elif how == "timer": threading.Timer(0.01, after, (path, go)).start()
    elif how == "thread of a thread": threading.Thread(target=in_another, args=(path, go)).start()
    elif how == "pool": pool.submit(after, path, go)
    elif how == "from a thread into a pool": threading.Thread(target=in_pool_later, args=(path, go)).start()
    elif how == "from a thread into a new pool": threading.Thread(target=in_pool_made_later, args=(path, go)).start()
    elif how == "bare thread": _thread.start_new_thread(after, (path, go))
    elif how == "loop":
        async def wait():
            while not os.path.exists(go): await asyncio.sleep(0.002)
            try:
                await mesh.acall("t.leaf", {})
                tell(path, "called")
            except mesh.MeshError as e:
                tell(path, e.code)
        loop = asyncio.new_event_loop()
        kept.append((loop, loop.create_task(wait())))
        loop.run_until_complete(asyncio.sleep(0.01))
    return os.getpid()

async def aleave(path, go, how):
    return leave(path, go, how)

def busy(path, go):
    tell(go, "")
    for loop, task in kept: loop.run_until_complete(task)
    kept.clear()
    while not os.path.exists(path): time.sleep(0.002)
    with open(path) as file: return [os.getpid(), file.read(), mesh.call("t.leaf", {"n": 5})]

async def abusy(path, go):
    tell(go, "")
    while not os.path.exists(path): await asyncio.sleep(0.002)
    with open(path) as file: return [os.getpid(), file.read(), await mesh.acall("t.leaf", {"n": 5})]

def ways():
    found = []
    def work(n):
        found.append(mesh.call("t.leaf", {"n": n}))
    threads = [threading.Thread(target=work, args=(1,)), threading.Timer(0, work, (2,)),
               threading.Thread(target=lambda: [one.start() or one.join() for one in [threading.Thread(target=work, args=(3,))]])]
    for one in threads: one.start()
    for one in threads: one.join()
    for one in [pool.submit(work, 4), pool.submit(work, 5), pool.submit(work, 6)]: one.result()
    with ThreadPoolExecutor(1) as fresh: fresh.submit(lambda: pool.submit(work, 7).result()).result()
    return sorted(found)

async def aways():
    """Beside another call of the same worker."""
    return await asyncio.get_running_loop().run_in_executor(None, ways)

async def abeside(path):
    while not os.path.exists(path): await asyncio.sleep(0.002)
    return os.getpid()
`

// asked records nested calls with their callers.
type asked struct {
	executor.Nested
	mu    sync.Mutex
	calls []string
}

func (a *asked) Call(_ context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, tool+string(args))
	var given struct{ N int }
	_ = json.Unmarshal(args, &given)
	return json.Marshal(given.N)
}

func (a *asked) Stream(context.Context, string, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return nil
}

// A thread calls for the call that started it, while that runs, and for no other.
func TestThreadsCallForTheirOwnCall(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 })
	ix := openModule(t, x, threadTools, "leaf", "leave", "aleave", "busy", "abusy", "ways", "aways", "abeside")
	made := func(n executor.Nested, session, tool string, args map[string]any) string {
		t.Helper()
		body, _ := json.Marshal(args)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, err := ix.Call(ctx, executor.Call{Tool: tool, Args: body, Session: session, Nested: n}, nil)
		if err != nil {
			t.Fatalf("%s(%s): %v\n%s", tool, body, err, toolmesh.AsError(err).Stacktrace)
		}
		return string(got)
	}
	for _, kind := range []string{"", "a"} {
		for _, how := range []string{"thread", "timer", "thread of a thread", "pool", "from a thread into a pool",
			"from a thread into a new pool", "bare thread", "loop"} {
			if kind == "a" && how == "loop" {
				continue // it has one
			}
			dir := t.TempDir()
			args := map[string]any{"path": filepath.Join(dir, "said"), "go": filepath.Join(dir, "go")}
			alice, bob := &asked{}, &asked{}
			args["how"] = how
			left := made(alice, "alice", "t."+kind+"leave", args)
			delete(args, "how")
			want := fmt.Sprintf("[%s,%q,5]", left, "invalid_request")
			if got := made(bob, "bob", "t."+kind+"busy", args); got != want {
				t.Errorf("%s, %s: got %s, want %s", kind, how, got, want)
			}
			if len(alice.calls) != 0 || !slices.Equal(bob.calls, []string{`t.leaf{"n":5}`}) {
				t.Errorf("%s, %s: calls of alice %q, of bob %q", kind, how, alice.calls, bob.calls)
			}
		}
	}
	for range 3 { // with the threads of the calls before
		for _, kind := range []string{"", "a"} {
			if got := made(&asked{}, "carol", "t."+kind+"ways", map[string]any{}); got != "[1,2,3,4,5,6,7]" {
				t.Errorf("t.%sways: %s", kind, got)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "over")
	beside := make(chan string, 1)
	go func() {
		body, err := ix.Call(t.Context(), executor.Call{Tool: "t.abeside", Args: json.RawMessage(fmt.Sprintf(`{"path":%q}`, path))}, nil)
		beside <- fmt.Sprint(string(body), err)
	}()
	eventually(t, "it runs", func() bool { return ix.Stats().Busy == 1 })
	if got := made(&asked{}, "carol", "t.aways", map[string]any{}); got != "[1,2,3,4,5,6,7]" {
		t.Errorf("t.aways beside another: %s", got)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-beside
}
