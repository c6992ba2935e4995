package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
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
	eventually(t, "the session's worker is busy", exists(path))
	second, stop := context.WithCancel(t.Context())
	below := newLoopback(ix)
	done := make(chan error, 1)
	go func() {
		_, err := ix.Call(second, executor.Call{Tool: "t.waits", Args: json.RawMessage(`{}`), Nested: below, Session: "s"}, nil)
		done <- err
	}()
	eventually(t, "the nested call waits", func() bool { return ix.Stats().Waiting == 1 })
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
