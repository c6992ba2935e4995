package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Calls that are nested deeper than this are refused, as a node does it.
const deepest = 8

// loopback makes the calls of tools: of the same index, one deeper.
type loopback struct {
	executor.Nested
	ix    *executor.Index
	depth int
	calls *atomic.Int64 // made in all
}

func newLoopback(ix *executor.Index) *loopback { return &loopback{ix: ix, calls: &atomic.Int64{}} }

func (l *loopback) below(tool string, args json.RawMessage, stream bool) (executor.Call, error) {
	l.calls.Add(1)
	if l.depth == deepest {
		return executor.Call{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "calls are nested %d deep", deepest).
			WithStarted(toolmesh.StartedNo).WithDetail("limit", "depth")
	}
	return executor.Call{
		Tool: tool, Args: args, Stream: stream, Depth: l.depth + 1, Session: "s",
		Nested: &loopback{ix: l.ix, depth: l.depth + 1, calls: l.calls},
	}, nil
}

func (l *loopback) Call(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	call, err := l.below(tool, args, false)
	if err != nil {
		return nil, err
	}
	return l.ix.Call(ctx, call, nil)
}

func (l *loopback) Stream(ctx context.Context, tool string, args json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		call, err := l.below(tool, args, true)
		if err != nil {
			yield(nil, err)
			return
		}
		stopped := false // the reader wants no more; the call may end with any error
		_, err = l.ix.Call(ctx, call, &collector{onItem: func(_ context.Context, data json.RawMessage) error {
			if !yield(data, nil) {
				stopped = true
				return errors.New("the reader stopped")
			}
			return nil
		}})
		if err != nil && !stopped {
			yield(nil, err)
		}
	}
}

func (l *loopback) Batch(ctx context.Context, calls json.RawMessage) (json.RawMessage, error) {
	var asked []struct {
		Tool string          `json:"tool_id"`
		Args json.RawMessage `json:"kwargs"`
	}
	if err := json.Unmarshal(calls, &asked); err != nil {
		return nil, err
	}
	ends := []any{}
	for _, c := range asked {
		result, err := l.Call(ctx, c.Tool, c.Args)
		if err != nil {
			ends = append(ends, map[string]any{"status": "error", "error": toolmesh.AsError(err)})
			continue
		}
		ends = append(ends, map[string]any{"status": "ok", "result": result})
	}
	return json.Marshal(ends)
}

func (l *loopback) Describe(_ context.Context, tool string) (json.RawMessage, error) {
	if tool == "t.none" {
		return nil, toolmesh.Errorf(toolmesh.CodeToolNotFound, "no tool %q", tool)
	}
	return json.Marshal(map[string]string{"id": tool})
}

// callNested calls a tool whose own calls go to its own index.
func callNested(t testing.TB, ix *executor.Index, tool, args string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, err := ix.Call(ctx, executor.Call{Tool: tool, Args: json.RawMessage(args), Nested: newLoopback(ix), Session: "s"}, nil)
	return string(body), err
}

func mustCallNested(t testing.TB, ix *executor.Index, tool, args, want string) {
	t.Helper()
	got, err := callNested(t, ix, tool, args)
	if err != nil {
		t.Fatalf("%s(%s): %v\n%s", tool, args, err, toolmesh.AsError(err).Stacktrace)
	}
	if got != want {
		t.Fatalf("%s(%s) = %s, want %s", tool, args, got, want)
	}
}

const nestedTools = `
import asyncio, contextlib, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

from toolmesh import mesh

def add(a, b=1):
    return a + b

def count(to, size=0):
    for i in range(to):
        yield "x" * size if size else i

def boom():
    raise ValueError("no such luck")

def echo(value=None):
    return value

async def aadd(a, b=1):
    await asyncio.sleep(0)
    return a + b

async def acount(to):
    for i in range(to):
        yield i

def one(a):
    return mesh.call("t.add", {"a": a})

def none_given():
    return mesh.call("t.echo")

def loop(n):
    return sum(mesh.call("t.add", {"a": i}) for i in range(n))

def threads(n):
    found = [None] * n
    def work(i):
        found[i] = mesh.call("t.add", {"a": i})
    all = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for one in all: one.start()
    mine = mesh.call("t.add", {"a": 1000})
    for one in all: one.join()
    return [mine, found]

pool = ThreadPoolExecutor(4)

def pooled(n):
    return list(pool.map(lambda i: mesh.call("t.add", {"a": i}), range(n)))

def between(n):
    for i in range(n):
        yield mesh.call("t.add", {"a": i})

def items(n):
    return list(mesh.stream("t.count", {"to": n}))

def relay(n, size=0):
    for item in mesh.stream("t.count", {"to": n, "size": size}):
        yield item

def few():
    for item in mesh.stream("t.count", {"to": 10**9}):
        if item == 3:
            return "enough"

def two_streams(n):
    return [a + b for a, b in zip(mesh.stream("t.count", {"to": n}), mesh.stream("t.count", {"to": n}))]

def failing():
    return mesh.call("t.boom")

def caught():
    try:
        mesh.call("t.boom")
    except mesh.MeshError as e:
        return [e.code, e.message, e.type, e.started, e.retryable, e.tool, str(e)]

def refused(args=None, timeout=None, tool="t.add"):
    try:
        return mesh.call(tool, args, timeout=timeout)
    except mesh.MeshError as e:
        return [e.code, e.started, e.details.get("limit") or e.details.get("errors", [{}])[0].get("pointer")]

def bad_args(kind):
    try:
        return mesh.call("t.add", {"list": [1], "object": {"a": object()}, "nan": {"a": [float("nan")]}}[kind])
    except mesh.MeshError as e:
        return [e.code, e.message, e.started]

def deep(n):
    """n calls on top of each other, each of itself."""
    return 0 if n == 0 else 1 + mesh.call("t.deep", {"n": n - 1})

async def adeep(n):
    return 0 if n == 0 else 1 + await mesh.acall("t.adeep", {"n": n - 1})

def bottomless(n=0):
    try:
        return mesh.call("t.bottomless", {"n": n + 1})
    except mesh.MeshError as e:
        return [n, e.code, e.details["limit"], e.started]

async def fan(n):
    return sum(await asyncio.gather(*(mesh.acall("t.aadd", {"a": i}) for i in range(n))))

async def fan_plain(n):
    return sum(await asyncio.gather(*(mesh.acall("t.add", {"a": i}) for i in range(n))))

def fan_sync(n):
    """A plain function that runs a loop of its own."""
    async def main():
        return sum(await asyncio.gather(*(mesh.acall("t.add", {"a": i}) for i in range(n))))
    return asyncio.run(main()) + mesh.call("t.add", {"a": 0, "b": 0})

async def arelay(n):
    async for item in mesh.astream("t.acount", {"to": n}):
        yield item

async def afew():
    async with contextlib.aclosing(mesh.astream("t.count", {"to": 10**9})) as items:
        async for item in items:
            if item == 3:
                return "enough"

def sync_astream(n):
    async def main():
        return [item async for item in mesh.astream("t.count", {"to": n})]
    return asyncio.run(main())

async def blocked_loop():
    try:
        return mesh.call("t.add", {"a": 1})
    except mesh.MeshError as e:
        return [e.code, "acall" in e.message]

async def in_thread(n):
    return await asyncio.gather(*(asyncio.to_thread(mesh.call, "t.add", {"a": i}) for i in range(n)))

async def thread_stream(n):
    return await asyncio.to_thread(lambda: list(mesh.stream("t.count", {"to": n})))

async def atimeout():
    try:
        await asyncio.wait_for(mesh.acall("t.asleep"), 0.05)
    except asyncio.TimeoutError:
        return await mesh.acall("t.aadd", {"a": 1})

async def asleep(n=60):
    await asyncio.sleep(n)

def sleep(path=None):
    try:
        if path:
            open(path, "w").close()
        time.sleep(60)
    finally:
        if path:
            open(path + ".over", "w").close()

def waits(path=None):
    mesh.call("t.sleep", {"path": path})

async def awaits(path=None):
    await mesh.acall("t.sleep", {"path": path})

def waits_in_thread(path=None):
    one = threading.Thread(target=lambda: mesh.call("t.sleep", {"path": path}))
    one.start()
    one.join()

def waits_in_stream(path=None):
    for item in mesh.stream("t.sleep", {"path": path}):
        pass

def stubborn_wait(path=None):
    while True:
        try:
            mesh.call("t.sleep", {"path": path})
        except Exception:
            pass

def alarmed():
    """A tool with a clock of its own, which raises in the midst of a wait."""
    def ring(*_):
        raise TimeoutError("too slow")
    signal.signal(signal.SIGALRM, ring)
    late = 0
    for _ in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            mesh.call("t.sleep", {})
        except TimeoutError:
            late += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    return [late, mesh.call("t.add", {"a": late})]

def leaves_thread(path):
    def work():
        try:
            mesh.call("t.sleep", {"path": path})
        except mesh.MeshError as e:
            with open(path + ".new", "w") as file: file.write(e.code)
            os.rename(path + ".new", path + ".code")
    threading.Thread(target=work).start()
    while not os.path.exists(path):
        time.sleep(0.001)
    return "left"

late_go = threading.Event()

def leaves_late(path):
    def work():
        late_go.wait()
        try:
            mesh.call("t.add", {"a": 1})
            said = "called"
        except mesh.MeshError as e:
            said = e.code
        with open(path + ".new", "w") as file: file.write(said)
        os.rename(path + ".new", path)
    threading.Thread(target=work).start()

def go_late():
    late_go.set()

def forks():
    pid = os.fork()
    if pid == 0:
        try:
            mesh.call("t.add", {"a": 1})
            os._exit(1)
        except mesh.MeshError as e:
            os._exit(0 if e.code == "invalid_request" else 2)
        finally:
            os._exit(3)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), mesh.call("t.add", {"a": 1})]

async def flood(n):
    made = [asyncio.create_task(mesh.acall("t.asleep")) for _ in range(n)]
    done, _ = await asyncio.wait(made, return_when=asyncio.FIRST_EXCEPTION)
    for one in made: one.cancel()
    return [[e.code, e.retryable, e.details["limit"]] for e in (one.exception() for one in done)]

def tells():
    mesh.progress(0.25, "a quarter")
    mesh.progress(7, "more than all")
    mesh.progress(text="on")
    return True

def knows(name):
    try:
        return mesh.secret(name)
    except KeyError as e:
        return [type(e).__name__, e.code, name in str(e) and "--env" in str(e)]

def batched():
    got = mesh.batch([("t.add", {"a": 1}), ("t.boom",), "t.echo", ("t.add", {"a": 2}, 10)], return_exceptions=True)
    failed = type(got[1]).__name__, got[1].tool
    try:
        mesh.batch([("t.add", {"a": 1}), ("t.boom", {})])
    except mesh.MeshError as e:
        return [got[0], *failed, got[2], got[3], e.message]

async def abatched():
    return await mesh.abatch([("t.aadd", {"a": i}) for i in range(3)]) + [(await mesh.adescribe("t.add"))["id"]]

def described():
    try:
        mesh.describe("t.none")
    except KeyError as e:
        return [mesh.describe("t.add")["id"], e.code]
    except mesh.MeshError as e:
        return [mesh.describe("t.add")["id"], e.code]

def imports():
    import toolmesh, toolmesh.mesh
    from toolmesh import MeshError
    try:
        import toolmesh.other
    except ModuleNotFoundError:
        return toolmesh.mesh is mesh and MeshError is mesh.MeshError
`

// openNested serves nestedTools.
func openNested(t testing.TB, change func(*executor.Spec), options func(*executor.Options)) *executor.Index {
	t.Helper()
	x := newExecutor(t, options)
	dir := writeFiles(t, map[string]string{"t.py": nestedTools})
	var tools []string
	for line := range strings.SplitSeq(nestedTools, "\n") {
		text, found := strings.CutPrefix(strings.TrimPrefix(line, "async "), "def ")
		if name, _, isDef := strings.Cut(text, "("); found && isDef {
			tools = append(tools, "t."+name)
		}
	}
	spec := specOf(t, x, dir, tools...)
	if change != nil {
		change(&spec)
	}
	return open(t, x, spec)
}

func TestNestedCalls(t *testing.T) {
	t.Parallel()
	ix := openNested(t, func(s *executor.Spec) { s.Vars = map[string]string{"KNOWN": "yes"} }, nil)
	for _, c := range []struct{ tool, args, want string }{
		{"t.one", `{"a":2}`, `3`},
		{"t.none_given", ``, `null`},
		{"t.loop", `{"n":50}`, `1275`},
		{"t.threads", `{"n":8}`, `[1001,[1,2,3,4,5,6,7,8]]`},
		{"t.pooled", `{"n":20}`, `[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]`},
		{"t.pooled", `{"n":3}`, `[1,2,3]`}, // with the threads of the call before
		{"t.between", `{"n":5}`, `5`},
		{"t.items", `{"n":5}`, `[0,1,2,3,4]`},
		{"t.items", `{"n":0}`, `[]`},
		{"t.few", `{}`, `"enough"`},
		{"t.two_streams", `{"n":4}`, `[0,2,4,6]`},
		{"t.caught", `{}`, `["tool_error","no such luck","ValueError",true,false,"t.boom","t.boom: tool_error: ValueError: no such luck"]`},
		{"t.refused", `{"args":{"a":1,"z":2}}`, `["invalid_arguments",false,"/z"]`},
		{"t.refused", `{"tool":"t.nothing"}`, `["tool_not_found",false,null]`},
		{"t.refused", `{"tool":"t.sleep","timeout":0.05}`, `["deadline_exceeded",true,null]`},
		{"t.bad_args", `{"kind":"list"}`, `["invalid_arguments","the arguments are of type list: they are an object, by parameter name",false]`},
		{"t.bad_args", `{"kind":"nan"}`, `["invalid_arguments","arguments.a[0] is NaN: JSON has no NaN; use None or a string",false]`},
		{"t.deep", `{"n":8}`, `8`},
		{"t.adeep", `{"n":8}`, `8`},
		{"t.bottomless", `{}`, `[8,"invalid_request","depth",false]`},
		{"t.fan", `{"n":100}`, `5050`},
		{"t.fan_plain", `{"n":100}`, `5050`},
		{"t.fan_sync", `{"n":100}`, `5050`},
		{"t.afew", `{}`, `"enough"`},
		{"t.sync_astream", `{"n":5}`, `[0,1,2,3,4]`},
		{"t.blocked_loop", `{}`, `["invalid_request",true]`},
		{"t.in_thread", `{"n":5}`, `[1,2,3,4,5]`},
		{"t.thread_stream", `{"n":3}`, `[0,1,2]`},
		{"t.atimeout", `{}`, `2`},
		{"t.alarmed", `{}`, `[20,21]`},
		{"t.forks", `{}`, `[0,2]`},
		{"t.flood", `{"n":1025}`, `[["busy",true,"nested"]]`},
		{"t.knows", `{"name":"KNOWN"}`, `"yes"`},
		{"t.knows", `{"name":"OTHER"}`, `["MissingSecret","invalid_request",true]`},
		{"t.batched", `{}`, `[2,"ToolExecutionError","t.boom",null,3,"no such luck"]`},
		{"t.abatched", `{}`, `[1,2,3,"t.add"]`},
		{"t.described", `{}`, `["t.add","tool_not_found"]`},
		{"t.imports", `{}`, `true`},
	} {
		mustCallNested(t, ix, c.tool, c.args, c.want)
	}
	if s := ix.Stats(); s.Restarts != 0 || s.Busy != 0 || s.Waiting != 0 {
		t.Errorf("afterwards %d restarts, %d busy, %d waiting, want none", s.Restarts, s.Busy, s.Waiting)
	}
}

// An error that a tool does not handle is its own failure, and names the nested call.
func TestNestedFailureIsTheToolsOwn(t *testing.T) {
	t.Parallel()
	ix := openNested(t, nil, nil)
	_, err := callNested(t, ix, "t.failing", `{}`)
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeToolError || e.Type != "ToolExecutionError" || e.Started != toolmesh.StartedYes {
		t.Fatalf("got %+v, want the tool's own error of the nested one's type", e)
	}
	if !strings.Contains(e.Message, "t.boom") || !strings.Contains(e.Message, "no such luck") {
		t.Errorf("the message %q does not say what failed", e.Message)
	}
	nested, _ := e.Details["nested"].(map[string]any)
	if nested["tool"] != "t.boom" || nested["code"] != "tool_error" || nested["type"] != "ValueError" {
		t.Errorf("details.nested is %v, want the nested call's failure", e.Details["nested"])
	}
	if strings.Contains(e.Stacktrace, "channel.py") {
		t.Errorf("the stack trace shows the worker's own frames:\n%s", e.Stacktrace)
	}
	mustFail(t, ix, "t.one", `{"a":1}`, toolmesh.CodeToolError) // no Nested was given
}

func streamNested(ctx context.Context, ix *executor.Index, tool, args string, sink output.Sink) error {
	_, err := ix.Call(ctx, executor.Call{Tool: tool, Args: json.RawMessage(args), Stream: true, Nested: newLoopback(ix)}, sink)
	return err
}

// Credit for the outer stream and frames of the nested one share a pipe.
func TestNestedStreams(t *testing.T) {
	t.Parallel()
	ix := openNested(t, nil, nil)
	for _, c := range []struct {
		tool, args string
		items      int
	}{
		{"t.between", `{"n":200}`, 200},
		{"t.relay", `{"n":3000}`, 3000},
		{"t.relay", `{"n":300,"size":20000}`, 300}, // many times the credit
		{"t.arelay", `{"n":3000}`, 3000},
	} {
		var got collector
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := streamNested(ctx, ix, c.tool, c.args, &got)
		cancel()
		if err != nil {
			t.Fatalf("%s(%s): %v", c.tool, c.args, err)
		}
		if len(got.items) != c.items {
			t.Errorf("%s(%s): got %d items, want %d", c.tool, c.args, len(got.items), c.items)
		}
		if c.tool == "t.arelay" || c.args == `{"n":3000}` {
			for i, item := range got.items {
				if item != fmt.Sprint(i) {
					t.Fatalf("%s: item %d is %s", c.tool, i, item)
				}
			}
		}
	}
}

// mustCallNestedIn is mustCallNested for goroutines of a test.
func mustCallNestedIn(t testing.TB, ix *executor.Index, tool, args, want string) {
	got, err := callNested(t, ix, tool, args)
	if err != nil || got != want {
		t.Errorf("%s(%s) = %s, %v; want %s", tool, args, got, err, want)
	}
}

// Nested calls work in each isolation, except in a session's only worker.
func TestNestedCallsInEveryIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationFork, toolmesh.IsolationFresh, toolmesh.IsolationSession} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			ix := openNested(t, func(s *executor.Spec) {
				s.Concurrency = 1
				s.Policies = map[string]executor.Policy{}
				for _, name := range s.Tools {
					s.Policies[name] = executor.Policy{Isolation: isolation}
				}
			}, nil)
			depth := 3
			if isolation == toolmesh.IsolationFork {
				depth = deepest
			}
			mustCallNested(t, ix, "t.adeep", fmt.Sprintf(`{"n":%d}`, depth), fmt.Sprint(depth))
			if isolation != toolmesh.IsolationSession {
				mustCallNested(t, ix, "t.deep", fmt.Sprintf(`{"n":%d}`, depth), fmt.Sprint(depth))
				return
			}
			_, err := callNested(t, ix, "t.one", `{"a":1}`)
			nested, _ := toolmesh.AsError(err).Details["nested"].(map[string]any)
			if nested["code"] != string(toolmesh.CodeBusy) {
				t.Errorf("got %v (%v), want a nested call that is busy", err, nested)
			}
			mustCallNested(t, ix, "t.add", `{"a":1}`, `2`)
		})
	}
}

func TestCancelReachesNestedCalls(t *testing.T) {
	t.Parallel()
	ix := openNested(t, nil, nil)
	for _, tool := range []string{"t.waits", "t.awaits", "t.waits_in_thread", "t.waits_in_stream", "t.stubborn_wait"} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "begun")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				args, _ := json.Marshal(map[string]string{"path": path})
				_, err := ix.Call(ctx, executor.Call{Tool: tool, Args: args, Nested: newLoopback(ix)}, nil)
				done <- err
			}()
			meshtest.Until(t, "the nested call has begun", exists(path))
			cancel()
			select {
			case err := <-done:
				if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeCancelled || e.Started != toolmesh.StartedYes {
					t.Errorf("got %v, want cancelled, started", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the call did not end after its cancellation")
			}
			meshtest.Until(t, "the nested call was stopped", exists(path+".over"))
		})
	}
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

// A cancelled call leaves a worker that serves the next one, in any wait.
func TestCancelInNestedCallKeepsTheWorker(t *testing.T) {
	t.Parallel()
	ix := openNested(t, func(s *executor.Spec) { s.Concurrency = 1 }, nil)
	before := ix.Stats()
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		sink := &collector{logged: make(chan struct{}, 1)}
		below := newLoopback(ix)
		stop := make(chan struct{})
		go func() { // cancelled at any time, before or after the nested call has begun
			defer close(stop)
			for below.calls.Load() == 0 && i%4 != 0 {
				if ctx.Err() != nil {
					return
				}
			}
			cancel()
		}()
		_, err := ix.Call(ctx, executor.Call{Tool: "t.waits", Args: json.RawMessage(`{}`), Nested: below}, sink)
		cancel()
		<-stop
		if toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Fatalf("got %v, want cancelled", err)
		}
		mustCallNested(t, ix, "t.one", `{"a":1}`, `2`)
	}
	after := ix.Stats()
	if after.Restarts != 0 {
		t.Errorf("%d workers had to be killed", after.Restarts)
	}
	for _, pid := range before.Pids {
		if !slices.Contains(after.Pids, pid) {
			t.Errorf("worker %d is gone", pid)
		}
	}
}

// A thread that outlives its call affects no other call.
func TestThreadOutlivesItsCall(t *testing.T) {
	t.Parallel()
	ix := openNested(t, func(s *executor.Spec) { s.Concurrency = 1 }, nil)
	path := filepath.Join(t.TempDir(), "begun")
	mustCallNested(t, ix, "t.leaves_thread", fmt.Sprintf(`{"path":%q}`, path), `"left"`)
	meshtest.Until(t, "the thread's call has failed", exists(path+".code"))
	if said, _ := os.ReadFile(path + ".code"); string(said) != "cancelled" {
		t.Errorf("the thread that outlived its call got %q, want cancelled", said)
	}
	meshtest.Until(t, "the nested call was stopped", exists(path+".over"))
	for range 3 {
		mustCallNested(t, ix, "t.one", `{"a":1}`, `2`)
	}
	// One that begins to call only when no call runs any more.
	late := filepath.Join(t.TempDir(), "late")
	mustCallNested(t, ix, "t.leaves_late", fmt.Sprintf(`{"path":%q}`, late), `null`)
	mustCallNested(t, ix, "t.go_late", `{}`, `null`)
	meshtest.Until(t, "the late thread has said something", exists(late))
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d workers had to be killed", s.Restarts)
	}
	mustCallNested(t, ix, "t.one", `{"a":1}`, `2`)
}

// The nested call has no more time than the call that makes it.
func TestNestedCallHasTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	ix := openNested(t, nil, nil)
	until := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(t.Context(), until)
	defer cancel()
	for _, c := range []struct {
		args string
		want func(time.Time) bool
	}{
		{`{"args":{"a":1}}`, func(d time.Time) bool { return d.Equal(until) }},
		{`{"args":{"a":1},"timeout":7200}`, func(d time.Time) bool { return d.Equal(until) }},
		{`{"args":{"a":1},"timeout":60}`, func(d time.Time) bool { return time.Until(d) < time.Minute }},
	} {
		n := &deadlines{}
		if _, err := ix.Call(ctx, executor.Call{Tool: "t.refused", Args: json.RawMessage(c.args), Nested: n}, nil); err != nil {
			t.Fatal(err)
		}
		if len(n.seen) != 1 || !c.want(n.seen[0]) {
			t.Errorf("%s: the nested call's deadline is %v, the call's own %v", c.args, n.seen, until)
		}
	}
}

// deadlines remembers until when calls may take.
type deadlines struct {
	executor.Nested
	seen []time.Time
}

func (d *deadlines) Call(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
	at, _ := ctx.Deadline()
	d.seen = append(d.seen, at)
	return json.RawMessage("1"), nil
}

func (d *deadlines) Stream(context.Context, string, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(func(json.RawMessage, error) bool) {}
}

func TestProgressIsARecord(t *testing.T) {
	t.Parallel()
	ix := openNested(t, nil, nil)
	var got collector
	if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.tells", Args: json.RawMessage(`{}`)}, &got); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, r := range got.records {
		if r.Stream == output.StreamProgress {
			said = append(said, r.Message+" "+string(r.Fields))
		}
	}
	want := []string{`a quarter {"fraction": 0.25}`, `more than all {"fraction": 1.0}`, `on `}
	if !slices.Equal(said, want) {
		t.Errorf("got %q, want %q", said, want)
	}
}

// A package that is installed under our name comes first, and finds the channel.
func TestInstalledPackageComesFirst(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	dir := writeFiles(t, map[string]string{
		"toolmesh/__init__.py": "from _toolmesh_worker import mesh\ninstalled = True\n",
		"t.py": "import toolmesh\nfrom toolmesh import mesh\ndef add(a): return a + 1\n" +
			"def one(a): return [toolmesh.installed, mesh.call('t.add', {'a': a})]\n",
	})
	ix := open(t, x, specOf(t, x, dir, "t.add", "t.one"))
	mustCallNested(t, ix, "t.one", `{"a":1}`, `[true,2]`)
}

// A module that calls a tool during its import gets an error.
func TestNoCallsAtImport(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), "from toolmesh import mesh\nmesh.call('t.ok')\ndef ok(): pass\n", "ok")
	if u := ix.Unavailable(); len(u) != 1 || !strings.Contains(u[0].Reason, "from inside a tool") {
		t.Errorf("got %+v, want the tool unavailable with a reason that helps", u)
	}
}

func (*loopback) File(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (*loopback) ReadFile(context.Context, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(func(json.RawMessage, error) bool) {}
}
