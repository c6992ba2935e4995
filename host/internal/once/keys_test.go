package once

import (
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// node makes the keys of a node that has no lease.
func node(t *testing.T, broker *meshtest.Server, id subjects.NodeID) *Keys {
	t.Helper()
	b, err := bus.New(broker.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	p, err := presence.New(b, id, "boot", &presence.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	return New(Options{
		Node: id, Boot: "boot", Bus: store.Of(b), Presence: p, Base: t.Context(), Log: slog.New(slog.DiscardHandler), Go: running.Go,
		Replies: reply.New(reply.Options{Bus: b}),
	})
}

func request(key, args string) Request {
	return Request{Request: &codec.Request{Call: codec.Call{Session: "default", Tool: "desk.note", RPCID: "r", IdempotencyKey: key}}, Args: json.RawMessage(args)}
}

// Calls of one key on two nodes run once and have one result; other arguments are refused,
// and a call that never began leaves its key free.
func TestOneRunOnTwoNodes(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nodes := []*Keys{node(t, broker, "a"), node(t, broker, "b")}
	var runs atomic.Int64
	run := func() admit.Record { return admit.Record{Result: json.RawMessage(strconv.FormatInt(runs.Add(1), 10))} }
	refuse := func() admit.Record {
		return admit.Record{Err: toolmesh.Errorf(toolmesh.CodeBusy, "full").WithStarted(toolmesh.StartedNo)}
	}
	if got := nodes[0].Do(t.Context(), request("k", `{"a":1}`), refuse); toolmesh.CodeOf(got.Err) != toolmesh.CodeBusy {
		t.Errorf("a call that is refused: %v", got.Err)
	}
	var calls sync.WaitGroup
	for i := range 10 {
		calls.Go(func() {
			if got := nodes[0].Do(t.Context(), request("k", ` {"a": 1}`), run); got.Err != nil || string(got.Result) != "1" {
				t.Errorf("call %d: %s %v", i, got.Result, got.Err)
			}
		})
	}
	calls.Wait()
	if got := nodes[1].Do(t.Context(), request("k", `{"a":1}`), run); string(got.Result) != "1" {
		t.Errorf("another node, afterwards: %s %v", got.Result, got.Err)
	}
	if got := nodes[1].Do(t.Context(), request("k", `{"a":2}`), run); toolmesh.CodeOf(got.Err) != toolmesh.CodeInvalidRequest {
		t.Errorf("other arguments: %s %v", got.Result, got.Err)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("run %d times", n)
	}
}

// The key of a call whose node is lost is taken over only for a tool that is idempotent.
func TestKeyOfALostNode(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	lost, other := node(t, broker, "lost"), node(t, broker, "other")
	again := request("k", `{}`)
	lost.Do(t.Context(), request("k", `{}`), func() admit.Record {
		run := func() admit.Record { return admit.Record{Result: json.RawMessage("2")} }
		if got := other.Do(t.Context(), again, run); toolmesh.CodeOf(got.Err) != toolmesh.CodeNodeLost || got.Err.Started != toolmesh.StartedUnknown {
			t.Errorf("while it runs on a node without a lease: %s %v", got.Result, got.Err)
		}
		again.Idempotent = true
		if got := other.Do(t.Context(), again, run); string(got.Result) != "2" {
			t.Errorf("of an idempotent tool: %s %v", got.Result, got.Err)
		}
		return admit.Record{Result: json.RawMessage("1")}
	})
	if got := lost.Do(t.Context(), again, nil); string(got.Result) != "2" {
		t.Errorf("afterwards: %s %v", got.Result, got.Err)
	}
}
