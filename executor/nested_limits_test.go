package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// Tools that wait for calls that they made, under the limits of calls.
const waitingTools = `
import os, time
from toolmesh import mesh

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return seconds

async def aburn(seconds):
    return burn(seconds)

def orders(tool, n, seconds):
    return sum(mesh.call(tool, {"seconds": seconds}) for _ in range(n))

async def aorders(tool, n, seconds):
    return sum([await mesh.acall(tool, {"seconds": seconds}) for _ in range(n)])

async def greedy(seconds):
    """Computes while it has a call open."""
    import asyncio
    waits = asyncio.ensure_future(mesh.acall("t.rest", {"seconds": 60}))
    await asyncio.sleep(0.01)
    while True:
        pass

async def rest(seconds):
    import asyncio
    await asyncio.sleep(seconds)
    return seconds

def nap(seconds):
    time.sleep(seconds)
    return seconds

def send(size):
    return mesh.call("t.size", {"text": "x" * size})

def size(text):
    return len(text)

def answer(size):
    return "x" * size

def ask(size):
    return len(mesh.call("t.answer", {"size": size}))
`

func openWaiting(t testing.TB, policies map[string]executor.Policy, options func(*executor.Options)) *executor.Index {
	t.Helper()
	x := newExecutor(t, options)
	dir := writeFiles(t, map[string]string{"t.py": waitingTools})
	spec := specOf(t, x, dir, "t.burn", "t.aburn", "t.orders", "t.aorders", "t.greedy", "t.rest", "t.nap", "t.send", "t.size", "t.answer", "t.ask")
	spec.Policies = policies
	return open(t, x, spec)
}

// Processor time is that of the call itself, not of those it waits for, also
// where both run on one event loop.
func TestNestedCallsSpendTheirOwnTime(t *testing.T) {
	t.Parallel()
	limited := executor.Policy{Limits: tool.Limits{CPUTime: 400 * time.Millisecond}}
	ix := openWaiting(t, map[string]executor.Policy{
		"t.orders": limited, "t.aorders": limited, "t.aburn": limited, "t.greedy": limited, "t.burn": limited, "t.rest": limited,
	}, nil)
	for _, c := range []struct{ tool, called string }{
		{"t.orders", "t.burn"}, {"t.orders", "t.aburn"}, {"t.aorders", "t.burn"}, {"t.aorders", "t.aburn"},
	} {
		// Five times a fifth of a second is more than twice the limit, and a half of it, which
		// is the share of one of two, is more than the limit.
		mustCallNested(t, ix, c.tool, fmt.Sprintf(`{"tool":%q,"n":5,"seconds":0.2}`, c.called), "1.0")
	}
	for _, c := range []struct{ tool, args string }{
		{"t.greedy", `{"seconds":1}`}, // has a call open, and computes
		{"t.burn", `{"seconds":60}`},
	} {
		_, err := callNested(t, ix, c.tool, c.args)
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeDeadlineExceeded || e.Details["limit"] != "cpu_time" {
			t.Errorf("%s: got %v, want its processor time exceeded", c.tool, err)
		}
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d workers had to be killed", s.Restarts)
	}
	_, err := callNested(t, ix, "t.orders", `{"tool":"t.burn","n":1,"seconds":60}`)
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeToolError {
		t.Fatalf("got %v, want the failure of the tool that called", err)
	}
	nested, _ := e.Details["nested"].(map[string]any)
	details, _ := nested["details"].(map[string]any)
	if nested["code"] != string(toolmesh.CodeDeadlineExceeded) || details["limit"] != "cpu_time" {
		t.Errorf("details.nested is %v, want the called tool's processor time exceeded", nested)
	}
}

// A coroutine that computes uses up its own time, not that of simultaneous ones.
func TestNeighboursKeepTheirTime(t *testing.T) {
	t.Parallel()
	limited := executor.Policy{Limits: tool.Limits{CPUTime: time.Second}}
	ix := openWaiting(t, map[string]executor.Policy{"t.rest": limited, "t.greedy": limited, "t.aburn": limited}, nil)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { mustCallNestedIn(t, ix, "t.rest", `{"seconds":2}`, "2") })
	}
	for _, tool := range []string{"t.greedy", "t.aburn"} {
		_, err := callNested(t, ix, tool, `{"seconds":60}`)
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeDeadlineExceeded || e.Details["limit"] != "cpu_time" {
			t.Errorf("%s: got %v, want its processor time exceeded", tool, err)
		}
	}
	wg.Wait()
}

// The limit of a tool's own result does not apply to its nested calls.
func TestOutputLimitIsNoneOfArguments(t *testing.T) {
	t.Parallel()
	small := executor.Policy{Limits: tool.Limits{Output: 1000}}
	ix := openWaiting(t, map[string]executor.Policy{"t.send": small, "t.ask": small}, nil)
	mustCallNested(t, ix, "t.send", `{"size":100000}`, "100000")
	mustCallNested(t, ix, "t.ask", `{"size":100000}`, "100000")
}

// A worker that waits for a nested call is neither idle, nor stuck, nor old.
func TestWaitingWorkersAreLeftAlone(t *testing.T) {
	t.Parallel()
	var said logLines
	ix := openWaiting(t, nil, func(o *executor.Options) {
		o.Logger = slog.New(slog.NewTextHandler(&said, nil))
		o.IdleAfter = 20 * time.Millisecond
		o.Recycle.Calls = 1
		o.Recycle.Age = 50 * time.Millisecond
	})
	var wg sync.WaitGroup
	for _, caller := range []string{"t.orders", "t.aorders"} {
		for _, called := range []string{"t.nap", "t.rest"} {
			wg.Go(func() {
				// Each longer than an event loop may keep silent.
				mustCallNestedIn(t, ix, caller, fmt.Sprintf(`{"tool":%q,"n":3,"seconds":1.5}`, called), "4.5")
			})
		}
	}
	wg.Wait()
	if s := ix.Stats(); s.Restarts != 0 || s.Recycled == 0 {
		t.Errorf("%d workers had to be killed, %d were replaced: want none, and some", s.Restarts, s.Recycled)
	}
	if text := said.String(); strings.Contains(text, "blocks its event loop") {
		t.Errorf("a loop that waits is taken for a blocked one:\n%s", text)
	}
}

// logLines keeps log lines.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A session's one worker is held by a call that waits for a place which another
// call has, and that one waits for the session's worker: one of them must yield.
func TestSessionWorkerAndPlacesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	// Two indexes would do; one with a warm pool of one place and a session pool is
	// the same. held is at depth 1 when kept, at depth 0, waits for it.
	dir := writeFiles(t, map[string]string{"t.py": `
import os, time
from toolmesh import mesh

def until(path):
    while not os.path.exists(path):
        time.sleep(0.002)

def touch(path):
    open(path, "w").close()

def kept(d):
    "Of the session's worker, at depth 0."
    touch(d + "/kept")
    until(d + "/held")
    return mesh.call("t.place", {"d": d})

def place(d):
    return "placed"

def outer(d):
    "Puts held at depth 1, where it has the one place there is."
    return mesh.call("t.held", {"d": d})

def held(d):
    until(d + "/kept")
    touch(d + "/held")
    try:
        return mesh.call("t.inner", {})
    except mesh.MeshError as e:
        return [e.code, e.details.get("reason"), e.started]

def inner():
    return "inner"
`})
	spec := specOf(t, x, dir, "t.kept", "t.place", "t.outer", "t.held", "t.inner")
	spec.Concurrency = 1
	spec.Policies = map[string]executor.Policy{
		"t.kept": {Isolation: toolmesh.IsolationSession}, "t.inner": {Isolation: toolmesh.IsolationSession},
	}
	ix := open(t, x, spec)
	for range 5 {
		args := fmt.Sprintf(`{"d":%q}`, t.TempDir())
		var wg sync.WaitGroup
		wg.Go(func() { mustCallNestedIn(t, ix, "t.kept", args, `"placed"`) })
		wg.Go(func() {
			got, err := callNested(t, ix, "t.outer", args)
			// Which of the two comes first is chance; waiting until the time is up is neither.
			if err != nil || got != `["busy","worker_waits",false]` && got != `"inner"` {
				t.Errorf("t.outer = %s, %v; want it to end well or busy", got, err)
			}
		})
		wg.Wait()
	}
	if s := ix.Stats(); s.Busy != 0 || s.Waiting != 0 {
		t.Errorf("afterwards %d busy, %d waiting", s.Busy, s.Waiting)
	}
}

// A call that is cancelled in the queue of a session's worker leaves the queue.
func TestCancelOfANestedCallInTheQueue(t *testing.T) {
	t.Parallel()
	ix := openNested(t, func(s *executor.Spec) {
		s.Policies = map[string]executor.Policy{"t.sleep": {Isolation: toolmesh.IsolationSession}}
	}, nil)
	path := filepath.Join(t.TempDir(), "first")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := make(chan error, 1)
	go func() {
		args, _ := json.Marshal(map[string]string{"path": path})
		_, err := ix.Call(ctx, executor.Call{Tool: "t.sleep", Args: args, Session: "s"}, nil)
		first <- err
	}()
	meshtest.Until(t, "the session's worker is busy", exists(path))
	second, stop := context.WithCancel(t.Context())
	below := newLoopback(ix)
	done := make(chan error, 1)
	go func() {
		_, err := ix.Call(second, executor.Call{Tool: "t.waits", Args: json.RawMessage(`{}`), Nested: below, Session: "s"}, nil)
		done <- err
	}()
	meshtest.Until(t, "the nested call waits", func() bool { return ix.Stats().Waiting == 1 })
	stop()
	if err := <-done; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("got %v, want cancelled", err)
	}
	if s := ix.Stats(); s.Waiting != 0 {
		t.Errorf("%d calls wait still", s.Waiting)
	}
	cancel()
	if err := <-first; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("the first call: got %v, want cancelled", err)
	}
}

// A tool that has no network calls others all the same, and they have their own level.
func TestConfinedToolsCallOthers(t *testing.T) {
	t.Parallel()
	for _, level := range []tool.Sandbox{tool.SandboxNone, tool.SandboxStrict, tool.SandboxOffline} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			x := newExecutor(t, func(o *executor.Options) { o.Sandbox = level })
			if effective, reasons := x.Sandbox(); effective != level {
				t.Skipf("not to be had here: %v", reasons)
			}
			ix := openNested(t, func(s *executor.Spec) {
				s.Policies = map[string]executor.Policy{
					"t.one": {Sandbox: level}, "t.fan_sync": {Sandbox: level}, "t.fan": {Sandbox: level},
					"t.in_thread": {Sandbox: level}, "t.relay": {Sandbox: level, Isolation: toolmesh.IsolationFork},
				}
			}, nil)
			mustCallNested(t, ix, "t.one", `{"a":1}`, `2`)
			mustCallNested(t, ix, "t.fan_sync", `{"n":10}`, `55`)
			mustCallNested(t, ix, "t.fan", `{"n":10}`, `55`)
			mustCallNested(t, ix, "t.in_thread", `{"n":2}`, `[1,2]`)
			mustCallNested(t, ix, "t.relay", `{"n":3}`, `2`)
		})
	}
}

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
	meshtest.Until(t, "it runs", func() bool { return ix.Stats().Busy == 1 })
	if got := made(&asked{}, "carol", "t.aways", map[string]any{}); got != "[1,2,3,4,5,6,7]" {
		t.Errorf("t.aways beside another: %s", got)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-beside
}

// Tools that write frames about nested calls themselves.
const forgingTools = `
import json, time
from _toolmesh_worker.calls import channel
from _toolmesh_worker.wire.frames import HEADER, NESTED_CALL, NESTED_CANCEL, NESTED_CREDIT, write_all
from toolmesh import mesh

def send(kind, number, body=b"", flags=0):
    with channel.current._outlet.lock:
        write_all(channel.current._outlet.fd, HEADER.pack(len(body), kind, flags, 0, number) + body)

def about(call=None, **more):
    head = json.dumps({"call": channel.current.caller() if call is None else call, "tool": "t.slow", **more}).encode()
    return len(head).to_bytes(4, "little") + head

def forge(how):
    if how == "no body":
        send(NESTED_CALL, 90)
    elif how == "cut off":
        send(NESTED_CALL, 90, b"\xff\xff\xff\x7f{}")
    elif how == "no JSON":
        send(NESTED_CALL, 90, b"\2\0\0\0[}")
    elif how == "twice":
        send(NESTED_CALL, 90, about())
        send(NESTED_CALL, 90, about())
    elif how == "credit":
        send(NESTED_CALL, 90, about())
        send(NESTED_CREDIT, 90, b"\1")
    elif how == "unknown call":
        send(NESTED_CALL, 90, about(call=12345678))
        return mesh.call("t.one")
    elif how == "unknown cancel":
        send(NESTED_CANCEL, 91)
        send(NESTED_CREDIT, 92, b"\1\0\0\0")
        return mesh.call("t.one")
    elif how == "left open":
        send(NESTED_CALL, 90, about())
        return mesh.call("t.one")
    elif how == "past times":
        send(NESTED_CALL, 90, about(timeout_ms=-5))
        send(NESTED_CALL, 93, about(timeout_ms=1 << 62))
        return mesh.call("t.one")
    elif how == "no tool":
        try:
            return mesh.call("")
        except mesh.MeshError as e:
            return e.code
    time.sleep(60)

async def aforge(how):
    import asyncio
    try:
        return forge(how)
    except mesh.MeshError:  # it would block the loop
        return await mesh.acall("t.one")

def slow():
    time.sleep(60)

def one():
    return 1
`

// Forged frames of a tool cost at most its own worker: the agent goes on, no call is left behind,
// and the next one is served.
func TestForgedNestedCalls(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.CrashLimit = 100 }) // no quarantine here
	ix := openModule(t, x, forgingTools, "forge", "aforge", "slow", "one")
	for _, c := range []struct{ how, plain, coroutine string }{
		{"no body", "worker_crashed", "worker_crashed"},
		{"cut off", "worker_crashed", "worker_crashed"},
		{"no JSON", "worker_crashed", "worker_crashed"},
		{"twice", "worker_crashed", "worker_crashed"},
		{"credit", "worker_crashed", "worker_crashed"},
		{"unknown call", "1", "1"},
		{"unknown cancel", "1", "1"},
		{"left open", "1", "1"},
		{"past times", "1", "1"},
		{"no tool", `"tool_not_found"`, `"invalid_request"`}, // the latter for blocking the loop,
	} {
		for tool, want := range map[string]string{"t.forge": c.plain, "t.aforge": c.coroutine} {
			got, err := callNested(t, ix, tool, fmt.Sprintf(`{"how":%q}`, c.how))
			if err != nil {
				got = string(toolmesh.CodeOf(err))
			}
			if got != want {
				t.Errorf("%s, %s: got %s (%v), want %s", tool, c.how, got, err, want)
			}
			if want == "worker_crashed" && (err == nil || !strings.Contains(err.Error(), "t.")) {
				t.Errorf("%s, %s: the error %v does not name the tool", tool, c.how, err)
			}
		}
		meshtest.Until(t, "no call is left", func() bool { s := ix.Stats(); return s.Busy == 0 && s.Waiting == 0 })
	}
}
