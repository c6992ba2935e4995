package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// circleTools call each other, their own index and any tool that is named to them.
const circleTools = `
import asyncio, os, time
from toolmesh import mesh

def down(n, other):
    """n calls on top of each other, by turns in this index and in the other."""
    return [] if n == 0 else [os.getpid()] + mesh.call(other + ".t.down", {"n": n - 1, "other": mesh_name})

def deepest(n=0):
    try:
        return mesh.call(mesh_name + ".t.deepest", {"n": n + 1})
    except mesh.MeshError as e:
        return [n, e.code, e.details.get("limit"), e.started]

def via(tool, args=None, timeout=None):
    try:
        return mesh.call(tool, args, timeout=timeout)
    except mesh.MeshError as e:
        return {"code": e.code, "message": e.message, "started": e.started, "retryable": e.retryable}

def lets_through(tool, args=None):
    return mesh.call(tool, args)

def one(a):
    return a + 1

def count(to):
    yield from range(to)

def relay(tool, args):
    for item in mesh.stream(tool, args):
        yield item

async def fan(n):
    return sum(await asyncio.gather(*(mesh.acall(mesh_name + ".t.one", {"a": i}) for i in range(n))))

def sleep(path):
    try:
        open(path, "w").close()
        time.sleep(120)
    finally:
        open(path + ".over", "w").close()
`

func circleIndex(t *testing.T, name string) string {
	t.Helper()
	return repository(t, name, map[string]string{
		"tools.toml": "[index]\nconcurrency = 1\ntools = [\"t.down\", \"t.deepest\", \"t.via\", \"t.lets_through\", \"t.one\", \"t.count\", \"t.relay\", \"t.fan\", \"t.sleep\"]\n",
		"t.py":       circleTools + fmt.Sprintf("\nmesh_name = %q\n", name),
	})
}

// seen is a call as a service in Go received it.
type seen struct {
	Depth   int    `json:"depth"`
	Parent  string `json:"parent"`
	Session string `json:"session"`
	Left    int64  `json:"left_ms"`
}

// serveNested runs a service "svc" in Go; its tools return the request they received, and make
// calls.
func serveNested(t *testing.T, s *meshtest.Server) {
	t.Helper()
	nc := s.Connect(t)
	h, err := host.New(nc, &host.Options{Index: "svc", Node: "service", Service: "-"})
	if err != nil {
		t.Fatal(err)
	}
	mesh := newClient(t, nc, nil)
	handle := func(name string, f host.HandlerFunc) {
		if _, err := h.Handle(name, f); err != nil {
			t.Fatal(err)
		}
	}
	handle("show", func(ctx context.Context, call *host.Call, sink host.Sink) error {
		data, err := json.Marshal(seen{
			Depth: call.Depth, Parent: string(call.Parent), Session: string(call.Session), Left: time.Until(call.Deadline).Milliseconds(),
		})
		if err != nil {
			return err
		}
		return sink.Send(ctx, data)
	})
	// Calls the tool that its arguments name, as any Go code would: under its ctx.
	handle("forward", func(ctx context.Context, call *host.Call, sink host.Sink) error {
		var to struct {
			Tool subjects.ToolID
			Args json.RawMessage
		}
		if err := json.Unmarshal(call.Args, &to); err != nil {
			return err
		}
		r, err := mesh.Call(ctx, to.Tool, to.Args)
		if err != nil {
			return toolmesh.AsError(err).WithStarted(toolmesh.StartedYes)
		}
		return sink.Send(ctx, r.Value)
	})
	testmesh.Start(t, h)
	t.Cleanup(func() { meshtest.End(t, h) })
}

// On two nodes and indexes with one slot each no nested call waits for its own
// caller.
func TestToolsCallTools(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	for _, node := range []subjects.NodeID{"one", "two"} {
		startIn(t, s, node, t.TempDir(), func(o *agent.Options) { o.Slots = 1 })
	}
	nc := s.Connect(t)
	c := newClient(t, nc, nil)
	for _, name := range []string{"ping", "pong"} {
		install(t, nc, map[string]any{"source": circleIndex(t, name)})
	}
	install(t, nc, map[string]any{"source": repository(t, "mine", map[string]string{
		"tools.toml": working, "t.py": "def tool(): return 'private'\n",
	}), "session": "s1"})
	serveNested(t, s)
	for _, id := range []subjects.ToolID{"ping.t.one", "pong.t.one"} {
		meshtest.Until(t, "both agents serve "+string(id), func() bool { return len(servedBy(t, c, id)) == 2 })
	}
	call := func(c *client.Client, id subjects.ToolID, args any, opts ...client.CallOption) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var r *client.Result
		var err error
		for ctx.Err() == nil { // the nodes have one slot each: a refused call is sent again
			if r, err = c.Call(ctx, id, args, opts...); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
				break
			}
		}
		if err != nil {
			t.Errorf("%s(%v): %v %v", id, args, err, toolmesh.AsError(err).Details)
			return ""
		}
		return string(r.Value)
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}

	// Round in circles, many at once.
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			var pids []int
			if err := json.Unmarshal([]byte(call(c, "ping.t.down", map[string]any{"n": 8, "other": "pong"})), &pids); err != nil || len(pids) != 8 {
				t.Errorf("8 calls deep: %v %v", pids, err)
			}
		})
	}
	wg.Wait()
	expect(call(c, "ping.t.deepest", nil), `[8,"invalid_request","depth",false]`)
	expect(call(c, "ping.t.fan", map[string]any{"n": 100}), "5050")

	// Through Go, and back onto the same index.
	expect(call(c, "ping.t.via", map[string]any{"tool": "svc.forward", "args": map[string]any{
		"Tool": "ping.t.via", "Args": map[string]any{"tool": "svc.forward", "args": map[string]any{
			"Tool": "ping.t.one", "Args": map[string]any{"a": 1},
		}},
	}}), "2")

	// The request of the called tool.
	var got seen
	if err := json.Unmarshal([]byte(call(c.In("s1"), "ping.t.via", map[string]any{"tool": "svc.show"},
		client.WithRPCID("rpc_above"), client.WithTimeout(20*time.Second))), &got); err != nil {
		t.Fatal(err)
	}
	if got.Depth != 1 || got.Parent != "rpc_above" || got.Session != "s1" || got.Left <= 0 || got.Left > 20_000 {
		t.Errorf("the nested call came as %+v", got)
	}

	// Tools of the session are there, those of another are not.
	expect(call(c.In("s1"), "ping.t.via", map[string]any{"tool": "mine.t.tool"}), `"private"`)
	if said := call(c, "ping.t.via", map[string]any{"tool": "mine.t.tool"}); !strings.Contains(said, `"code":"tool_not_found"`) {
		t.Errorf("in another session: %s", said)
	}
	if said := call(c, "ping.t.via", map[string]any{"tool": "ping.t.one", "args": map[string]any{"a": "1"}}); said != `"11"` && !strings.Contains(said, "tool_error") {
		t.Errorf("a nested failure: %s", said)
	}
	_, err := c.Call(t.Context(), "ping.t.lets_through", map[string]any{"tool": "pong.t.nothing"})
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeToolError || e.Started != toolmesh.StartedYes ||
		!strings.Contains(fmt.Sprint(e.Details["nested"]), "tool_not_found") {
		t.Errorf("a failure that the tool lets through: %v %+v", err, e)
	}

	// Streams within streams.
	n := 0
	for chunk, err := range c.Stream(t.Context(), "ping.t.relay", map[string]any{
		"tool": "pong.t.relay", "args": map[string]any{"tool": "ping.t.count", "args": map[string]any{"to": 1000}},
	}) {
		if err != nil {
			t.Fatalf("after %d items: %v", n, err)
		}
		if string(chunk.Data) != fmt.Sprint(n) {
			t.Fatalf("item %d is %s", n, chunk.Data)
		}
		n++
	}
	if n != 1000 {
		t.Errorf("%d items came through, want 1000", n)
	}

	// The end of a call is the end of those that it made, wherever they run.
	for how, via := range map[string]string{
		"cancel":  "via",
		"timeout": "lets_through", // one that catches the end of its nested call may return in time
	} {
		path := filepath.Join(t.TempDir(), how)
		ctx, cancel := context.WithCancel(t.Context())
		var opts []client.CallOption
		if how == "timeout" {
			opts = append(opts, client.WithTimeout(2*time.Second))
		}
		done := make(chan error, 1)
		go func() {
			_, err := c.Call(ctx, subjects.ToolID("ping.t."+via), map[string]any{
				"tool": "pong.t." + via, "args": map[string]any{"tool": "ping.t.sleep", "args": map[string]any{"path": path}},
			}, opts...)
			done <- err
		}()
		if how == "cancel" {
			meshtest.Until(t, "the innermost call has begun", func() bool { _, err := os.Stat(path); return err == nil })
			cancel()
		}
		if err := <-done; err == nil {
			t.Errorf("%s: the call returned well", how)
		}
		cancel()
		if _, err := os.Stat(path); err == nil { // with little time it may not have got so far
			meshtest.Until(t, "the innermost call is stopped by the "+how, func() bool { _, err := os.Stat(path + ".over"); return err == nil })
		}
	}
	expect(call(c, "ping.t.one", map[string]any{"a": 1}), "2")
}

// The node of a nested call vanishes: the tool gets the error long before its own deadline.
func TestNestedCallLosesItsNode(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	c := newClient(t, nc, nil)
	install(t, nc, map[string]any{"source": circleIndex(t, "ping")})
	proxy := meshtest.NewProxy(t, s)
	hangs := make(chan struct{}, 1)
	far := proxy.Connect(t)
	h, err := host.New(far, &host.Options{Index: "svc", Node: "service", Service: "-"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Handle("hang", host.HandlerFunc(func(ctx context.Context, _ *host.Call, _ host.Sink) error {
		hangs <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	stopped := make(chan struct{})
	t.Cleanup(func() { <-stopped })
	done := make(chan struct {
		r   *client.Result
		err error
	}, 1)
	go func() {
		r, err := c.Call(t.Context(), "ping.t.via", map[string]any{"tool": "svc.hang"}, client.WithTimeout(10*time.Minute))
		done <- struct {
			r   *client.Result
			err error
		}{r, err}
	}()
	<-hangs
	proxy.Cut(true)
	select {
	case d := <-done:
		if d.err != nil || !strings.Contains(string(d.r.Value), `"code":"node_lost"`) {
			t.Errorf("got %v %v, want node_lost seen by the tool", d.r, d.err)
		}
	case <-time.After(time.Minute):
		t.Error("the tool did not hear that the node is gone")
	}
	far.Close()
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = h.Stop(ctx) // it has no connection, and nothing to give up
	}()
}

// The error of a call for which every slot is taken names the limit.
func TestBusyNodeNamesItsLimit(t *testing.T) {
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
