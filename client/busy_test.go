package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A call that every node refuses for want of a slot is sent again for as long as it has
// time: not a number of times.
func TestBusyIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"directed", "queue"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d := newTools()
			broker := meshtest.Broker(t)
			view := answerRegistry(t, broker.Connect(t))
			h := d.serve(t, broker.Connect(t), &host.Options{Slots: 1})
			known(t, view, "desk.note", 1)
			c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: way == "queue"})
			if way == "directed" {
				directCalls(t, broker, c)
			}
			holds := start(t, c, "desk.hold", toolArgs{Key: "slot"})
			wait(t, "start", d.gate("slot").started)
			const waiting = 4
			calls := make([]<-chan outcome, waiting)
			for i := range calls {
				calls[i] = start(t, c, "desk.note", toolArgs{Key: fmt.Sprint("waits ", i)}, client.WithTimeout(testTimeout))
			}
			meshtest.Until(t, "each was refused ten times", func() bool { return h.Figures().Busy >= 10*waiting })
			if _, err := c.Call(t.Context(), "desk.note", nil, client.NoWait()); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
				t.Errorf("a call that does not wait: %v", err)
			}
			d.gate("slot").release <- struct{}{}
			for i, call := range append(calls, holds) {
				if o := wait(t, "answer", call); o.err != nil {
					t.Errorf("call %d: %v", i, o.err)
				}
			}
		})
	}
}

// A batch that does not wait for room is sent once.
func TestBatchThatDoesNotWait(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	var asked atomic.Int64
	if _, err := nc.Subscribe("mesh.batch.default", func(m *nats.Msg) {
		asked.Add(1)
		header, body := codec.ErrorReply(toolmesh.Errorf(toolmesh.CodeBusy, "no room").WithStarted(toolmesh.StartedNo))
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header(header), Data: body})
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, broker.Connect(t), nil)
	_, err := c.Batch(t.Context(), []client.BatchCall{{Tool: "a.b"}}, client.NoWait())
	if toolmesh.CodeOf(err) != toolmesh.CodeBusy || asked.Load() != 1 {
		t.Errorf("%v after %d attempts", err, asked.Load())
	}
}

// A call whose node says that it was lost before it began, as one that loses its lane while it waits
// for a worker, is sent again, whatever its tool declares.
func TestCallThatWasLostBeforeItBegan(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "lane"})
	var asked atomic.Int64
	lose := func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		if asked.Add(1) > 1 {
			return sink.Send(ctx, json.RawMessage("1"))
		}
		return toolmesh.Errorf(toolmesh.CodeNodeLost, "the lane is lost").WithStarted(toolmesh.StartedNo)
	}
	if _, err := h.Handle("note", host.HandlerFunc(lose), host.Schema(json.RawMessage(`{"type":"object"}`), nil)); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	c := newClient(t, broker.Connect(t), nil)
	if _, err := c.Call(t.Context(), "lane.note", nil); err != nil {
		t.Error(err)
	}
}

// Calls that tools make do not wait for room for arguments, or for the results of keyed calls, which the calls above
// them hold.
func TestNestedCallsDoNotWaitForThoseAbove(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "full"})
	c := newClient(t, broker.Connect(t), nil)
	limits := []string{"arguments", "keys_max"}
	var asked [2]atomic.Int64
	for i, limit := range limits {
		refuse := func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			if asked[i].Add(1) > 2 {
				return sink.Send(ctx, json.RawMessage("1"))
			}
			return toolmesh.Errorf(toolmesh.CodeBusy, "no room").WithStarted(toolmesh.StartedNo).WithDetail("limit", limit).WithDetail("retry_after_ms", 5)
		}
		if _, err := h.Handle(limit, host.HandlerFunc(refuse), host.Schema(json.RawMessage(`{"type":"object"}`), nil)); err != nil {
			t.Fatal(err)
		}
	}
	testmesh.Start(t, h)
	for i, limit := range limits {
		id := subjects.ToolID("full." + limit)
		known(t, view, id, 1)
		_, err := c.Call(t.Context(), id, nil, client.WithLineage(client.Lineage{Depth: 1, Parent: "rpc_above"}))
		if toolmesh.CodeOf(err) != toolmesh.CodeBusy || asked[i].Load() != 1 {
			t.Errorf("a nested call, %s: %v after %d attempts", limit, err, asked[i].Load())
		}
		if _, err := c.Call(t.Context(), id, nil); err != nil {
			t.Errorf("a call, %s: %v", limit, err)
		}
	}
}

// A call that one node alone can run, as its session's worker is there, is not sent to others
// while that one has no room.
func TestTheOneNodeOfACallIsBusy(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	var asked atomic.Int64
	var full atomic.Bool
	for _, node := range []subjects.NodeID{"one", "two", "three"} {
		h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "home", Node: node})
		busy := func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			if !full.Load() {
				return sink.Send(ctx, json.RawMessage("1"))
			}
			asked.Add(1)
			return toolmesh.Errorf(toolmesh.CodeBusy, "no room").WithStarted(toolmesh.StartedNo).WithDetail("limit", toolmesh.LimitSlots).WithDetail("node", "one")
		}
		if _, err := h.Handle("work", host.HandlerFunc(busy), host.Schema(json.RawMessage(`{"type":"object"}`), nil)); err != nil {
			t.Fatal(err)
		}
		testmesh.Start(t, h)
	}
	known(t, view, "home.work", 3)
	c := newClient(t, broker.Connect(t), nil)
	spy, err := broker.Connect(t).SubscribeSync("mesh.node.*.tools.>")
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "calls are directed", func() bool {
		_, _ = c.Call(t.Context(), "home.work", nil)
		_, err := spy.NextMsg(time.Millisecond)
		return err == nil
	})
	full.Store(true)
	if _, err := c.Call(t.Context(), "home.work", nil, client.NoWait()); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
		t.Errorf("the call: %v", err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d nodes were asked, want one", n)
	}
}
