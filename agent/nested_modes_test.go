package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
)

const modesTools = `
import asyncio, os, time
from toolmesh import mesh

calls = 0
me = ""  # of this process: drawn at its first call, as pids are those of a namespace

def warm(chain=()):
    """Which processes a chain of calls runs in, and how often each has served."""
    global calls, me
    calls += 1
    me = me or os.urandom(8).hex()
    below = mesh.call("modes.t." + chain[0], {"chain": chain[1:]}) if chain else []
    return [{"process": me, "calls": calls}, *below]

def inside(chain=()):
    return warm(chain)

def forked(chain=()):
    return warm(chain)

def anew(chain=()):
    return warm(chain)

async def akept(n=0):
    return n if n == 0 else 1 + await mesh.acall("modes.t.akept", {"n": n - 1})

def asks(tool, args=None):
    try:
        return mesh.call(tool, args)
    except mesh.MeshError as e:
        return [e.code, e.details.get("reason") or e.details.get("limit"), e.started, e.retryable]

kept = asks

async def fan(n):
    return sum(await asyncio.gather(*(mesh.acall("modes.t.one", {"a": i}) for i in range(n))))

async def fan_streams(n):
    async def last(i):
        async for item in mesh.astream("modes.t.count", {"to": i + 1}):
            pass
        return item
    return sum(await asyncio.gather(*(last(i) for i in range(n))))

def one(a):
    return a

def count(to):
    yield from range(to)

def burn():
    while True:
        pass

def orders(n):
    return sum(mesh.call("modes.t.half", {}) for _ in range(n))

def half():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    return 1
`

const modesIndex = `
[index]
concurrency = 1
tools = ["t.warm", "t.inside", "t.forked", "t.anew", "t.akept", "t.asks", "t.kept", "t.fan", "t.fan_streams", "t.one", "t.count", "t.burn", "t.orders", "t.half"]

[tool."t.inside"]
isolation = "session"

[tool."t.kept"]
isolation = "session"

[tool."t.akept"]
isolation = "session"

[tool."t.forked"]
isolation = "fork"

[tool."t.anew"]
isolation = "fresh"

[tool."t.burn"]
limits = { cpu_time = "500ms" }

[tool."t.orders"]
limits = { cpu_time = "1s" }
`

// TestEveryIsolationCallsTools has tools of each isolation call those of each other.
func TestEveryIsolationCallsTools(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.Slots = 2 })
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "modes", map[string]string{"tools.toml": modesIndex, "t.py": modesTools})})
	c := newClient(t, nc, nil)
	call := func(c *client.Client, name string, args any) string {
		t.Helper()
		r, err := c.Call(t.Context(), toolID("modes", "t."+name), args, client.WithTimeout(3*time.Minute))
		if err != nil {
			t.Errorf("%s(%v): %v %v", name, args, err, toolmesh.AsError(err).Details)
			return ""
		}
		return string(r.Value)
	}

	// Each isolation above each other, and above itself.
	names := []string{"warm", "inside", "forked", "anew"}
	for _, above := range names {
		for _, below := range names {
			if above == "inside" && below == "inside" {
				continue // one worker: see kept
			}
			var ran []struct {
				Process string
				Calls   int
			}
			if err := json.Unmarshal([]byte(call(c.In("s"), above, map[string]any{"chain": []string{below, "warm"}})), &ran); err != nil || len(ran) != 3 {
				t.Fatalf("%s above %s: %v %v", above, below, ran, err)
			}
			if ran[0].Process == ran[1].Process || ran[1].Process == ran[2].Process || ran[0].Process == ran[2].Process {
				t.Errorf("%s above %s: calls on top of each other ran in one process: %v", above, below, ran)
			}
			for i, name := range []string{above, below} {
				if apart := name == "forked" || name == "anew"; apart && ran[i].Calls != 1 {
					t.Errorf("%s above %s: the worker of %s served %d calls", above, below, name, ran[i].Calls)
				}
			}
		}
	}

	// A session's one worker calls itself: a plain function is told, coroutines share it.
	started := time.Now()
	if got := call(c.In("s"), "kept", map[string]any{"tool": "modes.t.kept", "args": map[string]any{"tool": "modes.t.one"}}); got != `["busy","worker_waits",false,true]` {
		t.Errorf("a session's worker that calls itself: %s", got)
	}
	if got := call(c.In("s"), "kept", map[string]any{"tool": "modes.t.asks", "args": map[string]any{"tool": "modes.t.kept", "args": map[string]any{"tool": "modes.t.one"}}}); got != `["busy","worker_waits",false,true]` {
		t.Errorf("a session's worker that calls itself through another: %s", got)
	}
	if waited := time.Since(started); waited > time.Minute {
		t.Errorf("the answer took %v", waited)
	}
	if got := call(c.In("s"), "kept", map[string]any{"tool": "modes.t.one", "args": map[string]any{"a": 5}}); got != "5" {
		t.Errorf("afterwards: %s", got)
	}
	if got := call(c.In("s"), "akept", map[string]any{"n": 8}); got != "8" {
		t.Errorf("coroutines of a session: %s", got)
	}

	// More calls at once than there are slots, or workers.
	var wg sync.WaitGroup
	for _, name := range []string{"fan", "fan_streams"} {
		wg.Go(func() {
			if got := call(c, name, map[string]any{"n": 100}); got != "4950" {
				t.Errorf("%s: %s", name, got)
			}
		})
	}
	wg.Wait()

	// Time of the called tool is not that of the calling one.
	if got := call(c, "orders", map[string]any{"n": 4}); got != "4" {
		t.Errorf("orders: %s", got)
	}
	if got := call(c, "asks", map[string]any{"tool": "modes.t.burn"}); got != `["deadline_exceeded","cpu_time",true,false]` {
		t.Errorf("a limit that the called tool exceeds: %s", got)
	}
}

// A call that is refused because every slot is taken says so in a way that its
// caller can act on.
func TestNoSlotIsSaid(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.Slots = 1 })
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": circleIndex(t, "ping")})
	path := t.TempDir() + "/begun"
	c := newClient(t, nc, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, "ping.t.sleep", map[string]any{"path": path})
		done <- err
	}()
	meshtest.Until(t, "the slot is taken", func() bool { _, err := os.Stat(path); return err == nil })
	_, err := c.Call(t.Context(), "ping.t.one", map[string]any{"a": 1}, client.NoWait())
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeBusy || e.Details["limit"] != "slots" || fmt.Sprint(e.Details["max"]) != "1" {
		t.Errorf("got %v, want busy for want of a slot", err)
	}
	cancel()
	if err := <-done; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("the call that had the slot: %v", err)
	}
}
