package once

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// node makes the keys of a node that has no lease.
func node(t *testing.T, broker *meshtest.Server, id subjects.NodeID) *Keys {
	t.Helper()
	return nodeOn(t, broker.Connect(t), id)
}

func nodeOn(t *testing.T, nc *nats.Conn, id subjects.NodeID) *Keys {
	t.Helper()
	b, err := bus.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	p := presence.New(b, "mesh.hb."+string(id), "boot", &presence.Options{Logger: slog.New(slog.DiscardHandler)})
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
	// What the call did whose record is damaged is unknown.
	if _, err := nodes[0].Bus.Put(t.Context(), store.Key{Bucket: subjects.BucketIdem, Name: "default.d"}, []byte("damaged"), 0); err != nil {
		t.Fatal(err)
	}
	if got := nodes[1].Do(t.Context(), request("d", `{}`), run); toolmesh.CodeOf(got.Err) != toolmesh.CodeInternal || got.Err.Started != toolmesh.StartedUnknown {
		t.Errorf("a damaged record: %s %v", got.Result, got.Err)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("run %d times", n)
	}
}

// After a node is lost, the key of its call is taken over only for an idempotent tool.
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

// Two nodes that reserve room at the same moment admit calls whose results together are too
// large. Each caller still has its result, both nodes know that each key's call has run, with the
// result if it found room, and no call is sent again.
func TestNodesReserveAtOnce(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nodes := []*Keys{node(t, broker, "a"), node(t, broker, "b")}
	js := nodes[0].Bus.JetStream()
	stream, err := js.Stream(t.Context(), subjects.KVStream(subjects.BucketIdem))
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxBytes = 4 << 20
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	result := json.RawMessage(`"` + strings.Repeat("x", 100<<10) + `"`)
	const each = 30 // of both together 6 MB
	var calls, began sync.WaitGroup
	began.Add(len(nodes) * each)
	for n, k := range nodes {
		for i := range each {
			calls.Go(func() {
				got := k.Do(t.Context(), request(fmt.Sprint(n, ".", i), `{}`), func() admit.Record {
					began.Done()
					began.Wait()
					return admit.Record{Result: result}
				})
				if got.Err != nil || len(got.Result) != len(result) {
					t.Errorf("call %d of node %d: %d bytes, %v", i, n, len(got.Result), got.Err)
				}
			})
		}
	}
	calls.Wait()
	kept := 0
	for n := range nodes {
		for i := range each {
			got := nodes[1-n].Do(t.Context(), request(fmt.Sprint(n, ".", i), `{}`), nil)
			switch {
			case got.Err == nil && len(got.Result) == len(result):
				kept++
			case toolmesh.CodeOf(got.Err) != toolmesh.CodePayloadTooLarge || got.Err.Started != toolmesh.StartedYes:
				t.Errorf("call %d of node %d, at the other: %v", i, n, got.Err)
			}
		}
	}
	if kept == 0 || kept == len(nodes)*each {
		t.Errorf("%d of %d results found room", kept, len(nodes)*each)
	}
	for _, k := range nodes {
		if k.mu.Lock(); len(k.held) > 0 || len(k.reserved) > 0 {
			t.Errorf("node %s holds %d keys and %v bytes", k.Node, len(k.held), k.reserved)
		}
		k.mu.Unlock()
	}
}

// Calls that end while the store is silent may leave their keys there, which are freed later. With too many of
// these, calls are refused before they take a key; a session leaves half of the places to others.
func TestSilentStoreLeavesNoEndlessWork(t *testing.T) {
	t.Parallel()
	proxy := meshtest.NewProxy(t, meshtest.Broker(t))
	k := nodeOn(t, proxy.Connect(t), "a")
	var left atomic.Int64
	begin := k.Go
	k.Go = func(f func()) {
		left.Add(1)
		begin(func() {
			defer left.Add(-1)
			f()
		})
	}
	of := func(session subjects.SessionID, key string) Request {
		q := request(key, `{}`)
		q.Session, q.Epoch = session, "1"
		return q
	}
	proxy.Blackhole()
	flood := func(session subjects.SessionID) {
		var calls sync.WaitGroup
		for i := range maxPending {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if got := k.Do(ctx, of(session, fmt.Sprint(i)), nil); got.Err == nil || got.Err.Started != toolmesh.StartedNo {
					t.Errorf("call %d: %v", i, got.Err)
				}
			})
			if i%16 == 15 {
				calls.Wait()
			}
		}
	}
	refused := func(session subjects.SessionID) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		return toolmesh.CodeOf(k.Do(ctx, of(session, "full"), nil).Err) == toolmesh.CodeUnavailable
	}
	flood("greedy")
	if n := left.Load(); n > maxPending/2+16 || !refused("greedy") {
		t.Errorf("one session leaves %d goroutines", n)
	}
	if refused("modest") {
		t.Error("another session is refused because of it")
	}
	flood("third")
	if n := left.Load(); n > maxPending+16 || !refused("fourth") {
		t.Errorf("%d goroutines are left", n)
	}
	proxy.Heal()
	meshtest.Until(t, "the keys are free", func() bool { return left.Load() == 0 })
	if got := k.Do(t.Context(), of("greedy", "0"), func() admit.Record { return admit.Record{Result: json.RawMessage("1")} }); got.Err != nil {
		t.Errorf("afterwards: %v", got.Err)
	}
}

// The store is as silent for other nodes: clients do not send a call again that has waited for it.
func TestASilentStoreIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	proxy := meshtest.NewProxy(t, meshtest.Broker(t))
	k := nodeOn(t, proxy.Connect(t), "a")
	proxy.Blackhole()
	got := k.Do(t.Context(), request("a", `{}`), nil).Err
	if got == nil || got.Code != toolmesh.CodeUnavailable || got.Started != toolmesh.StartedNo || got.Details["waited_ms"] == nil {
		t.Errorf("got %v with details %v", got, got.Details)
	}
}

// The time in which a call waits for another one of its key is none that the store was silent.
func TestAWaitForAKeyIsNoSilenceOfTheStore(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	k := nodeOn(t, nc, "a")
	other := nodeOn(t, nc, "b")
	lease, err := registry.Acquire(t.Context(), other.Bus.Bus, registry.NodeRecord{
		Node: "b", Boot: "boot", State: registry.StateServing, Slots: 1, Proto: [2]int{1, 1}, Started: time.Now(),
	}, func(context.Context) error { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(context.WithoutCancel(t.Context())) }()
	begun, over := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		other.Do(t.Context(), request("a", `{}`), func() admit.Record { close(begun); <-over; return admit.Record{} })
	})
	t.Cleanup(first.Wait) // its result is not stored any more
	defer close(over)
	<-begun
	time.AfterFunc(keyWait+keyWait/10, func() {
		if err := k.Bus.JetStream().DeleteStream(t.Context(), subjects.KVStream(subjects.BucketIdem)); err != nil {
			t.Error(err)
		}
	})
	got := k.Do(t.Context(), request("a", `{}`), nil).Err
	if got == nil || got.Code != toolmesh.CodeUnavailable || got.Details["waited_ms"] != nil {
		t.Errorf("got %v with details %v", got, got.Details)
	}
}

// A session is charged for its records with their keys and headers, which are most of the bytes of
// small results.
func TestKeysAreChargedWithStoredBytes(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	k := node(t, broker, "a")
	for i := range 20 {
		if got := k.Do(t.Context(), request(fmt.Sprint(i, strings.Repeat("k", 40)), `{}`), func() admit.Record { return admit.Record{Result: json.RawMessage("1")} }); got.Err != nil {
			t.Fatal(got.Err)
		}
	}
	info, err := k.Bus.Info(t.Context(), subjects.KVStream(subjects.BucketIdem), ">")
	if err != nil {
		t.Fatal(err)
	}
	if used, _ := k.stored.Take(subjects.Account("default", ""), 0); used < int64(info.State.Bytes) {
		t.Errorf("the session is charged for %d of %d bytes", used, info.State.Bytes)
	}
}

// The calls of one session that run, or wait for a lane, do not take all room of the bucket.
func TestRunningCallsLeaveOthersRoom(t *testing.T) {
	t.Parallel()
	k := node(t, meshtest.Broker(t), "a")
	end := make(chan struct{})
	var calls sync.WaitGroup
	begun := make(chan bool, 1)
	for n := 0; ; n++ {
		calls.Go(func() {
			got := k.Do(t.Context(), request(fmt.Sprint(n), `{}`), func() admit.Record {
				begun <- true
				<-end
				return admit.Record{Result: json.RawMessage("1")}
			})
			if got.Err != nil {
				if got.Err.Code != toolmesh.CodeBusy || got.Err.RetryAfter() == 0 {
					t.Errorf("one call more: %v", got.Err)
				}
				begun <- false
			}
		})
		if !<-begun {
			if n < 100 {
				t.Errorf("one session alone runs %d calls", n)
			}
			break
		}
	}
	other := request("k", `{}`)
	other.Session = "other"
	other.Epoch = "1"
	if got := k.Do(t.Context(), other, func() admit.Record { return admit.Record{Result: json.RawMessage("2")} }); string(got.Result) != "2" {
		t.Errorf("another session: %s %v", got.Result, got.Err)
	}
	close(end)
	calls.Wait()
}
