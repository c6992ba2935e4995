package client_test

import (
	"context"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// The broker goes away and comes back in the middle of a stream.
func TestStreamOverARestart(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	const n = 3000
	s := countItems(t, c, t.Context(), toolArgs{N: n}, func(i int) {
		if i == n/3 {
			broker.Restart(t)
		}
	})
	if s.err != nil || s.items != n {
		t.Errorf("%d items, then %v", s.items, s.err)
	}
}

// Either side loses its connection, again and again.
func TestStreamOverCuts(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"caller", "node"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			d := newTools()
			broker := meshtest.Broker(t)
			proxy := meshtest.NewProxy(t, broker)
			node, caller := broker.Connect(t), broker.Connect(t)
			if side == "node" {
				node = proxy.Connect(t)
			} else {
				caller = proxy.Connect(t)
			}
			d.serve(t, node, nil)
			c := newClient(t, caller, nil)
			const n = 4000
			s := countItems(t, c, t.Context(), toolArgs{N: n}, func(i int) {
				if i%1000 == 500 {
					proxy.Cut(false)
				}
			})
			if s.err != nil || s.items != n {
				t.Errorf("%d items, then %v", s.items, s.err)
			}
		})
	}
}

// Live delivery may miss anything. A reader that gets none of it has the store.
func TestStreamWithoutLiveDelivery(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t, meshtest.Config(`
authorization { users: [
  { user: node, password: node }
  { user: blind, password: blind, permissions: { subscribe: { deny: "mesh.live.>" } } }
] }`))
	d := newTools()
	d.serve(t, broker.Connect(t, nats.UserInfo("node", "node")), nil)
	c := newClient(t, broker.Connect(t, nats.UserInfo("blind", "blind")), nil)
	for _, n := range []int{0, 1, 1000} {
		if s := countItems(t, c, t.Context(), toolArgs{N: n}, nil); s.err != nil || s.items != n {
			t.Errorf("of %d: %d items, then %v", n, s.items, s.err)
		}
	}
	if s := countItems(t, c, t.Context(), toolArgs{N: 600, Fail: true}, nil); s.items != 600 || toolmesh.CodeOf(s.err) != toolmesh.CodeToolError {
		t.Errorf("of a failing one: %d items, then %v", s.items, s.err)
	}
}

// 64 MB and a reader that does not keep up: the tool is held back, nothing grows.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	const n, size = 1024, 64 << 10
	g := d.gate("slow")
	sent, most := 0, 0
	s := countItems(t, c, t.Context(), toolArgs{Key: "slow", N: n, Size: size}, func(i int) {
		if i == 1 { // as slow as can be: until the tool waits for credit
			for sent < 128 {
				sent = wait(t, "item", g.sent)
			}
		}
		for more := true; more; {
			select {
			case sent = <-g.sent:
			default:
				more = false
			}
		}
		most = max(most, sent-i)
	})
	if s.err != nil || s.items != n {
		t.Fatalf("%d items, then %v", s.items, s.err)
	}
	// In flight are 128 items until their size is known, then about 4 MB.
	if most > 130 {
		t.Errorf("the tool was %d items ahead: %d MB wait somewhere", most, most*size>>20)
	}
}

// A tool that is slower than keepalives and heartbeats is not lost, and not asked
// for again.
func TestSlowTool(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	g := d.gate("slow")
	done := make(chan counted, 1)
	go func() { done <- countItems(t, c, t.Context(), toolArgs{Key: "slow", N: 2, Gate: true}, nil) }()
	call := start(t, c, "desk.hold", toolArgs{Key: "held"})
	for range 2 {
		pause := time.NewTimer(4 * time.Second)
		<-pause.C
		g.release <- struct{}{}
	}
	if s := wait(t, "stream", done); s.err != nil || s.items != 2 || d.ran("slow") != 1 {
		t.Errorf("%d items, then %v, ran %d times", s.items, s.err, d.ran("slow"))
	}
	d.gate("held").release <- struct{}{}
	if o := wait(t, "call", call); o.err != nil || d.ran("held") != 1 {
		t.Errorf("call: %v, ran %d times", o.err, d.ran("held"))
	}
}

func TestStreamEndsWithItsReader(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	cancelled := func(key string) {
		t.Helper()
		if cause := wait(t, "end of "+key, d.gate(key).ended); toolmesh.CodeOf(cause) != toolmesh.CodeCancelled {
			t.Errorf("%s: the tool ends with %v, want cancelled", key, cause)
		}
	}
	for range c.Stream(t.Context(), "desk.gen", toolArgs{Key: "broken", N: 1_000_000}) {
		break
	}
	cancelled("broken")

	ctx, cancel := context.WithCancel(t.Context())
	s := countItems(t, c, ctx, toolArgs{Key: "cancelled", N: 1_000_000}, func(i int) {
		if i == 3 {
			cancel()
		}
	})
	if s.items != 3 || toolmesh.CodeOf(s.err) != toolmesh.CodeCancelled {
		t.Errorf("%d items, then %v", s.items, s.err)
	}
	cancelled("cancelled")

	func() {
		defer func() { _ = recover() }()
		for range c.Stream(t.Context(), "desk.gen", toolArgs{Key: "panicked", N: 1_000_000}) {
			panic("the reader's own")
		}
	}()
	cancelled("panicked")

	if s := countItems(t, c, t.Context(), toolArgs{Key: "late", N: 5, Gate: true}, nil, client.WithTimeout(100*time.Millisecond)); s.items != 0 || toolmesh.CodeOf(s.err) != toolmesh.CodeDeadlineExceeded {
		t.Errorf("over its time: %d items, then %v", s.items, s.err)
	}
	if s := countItems(t, c, t.Context(), toolArgs{N: 2, Fail: true}, nil); s.items != 2 || toolmesh.CodeOf(s.err) != toolmesh.CodeToolError {
		t.Errorf("a failing one: %d items, then %v", s.items, s.err)
	}
	if s := countItems(t, c, t.Context(), toolArgs{Fail: true}, nil); s.items != 0 || toolmesh.CodeOf(s.err) != toolmesh.CodeToolError {
		t.Errorf("one that fails at once: %d items, then %v", s.items, s.err)
	}
}

// A loop that is left by a panic or by the end of its goroutine, as t.Fatal ends
// it, cancels the call like any other way out: at once, not when the node misses
// its reader.
func TestStreamEndsWithTheLoopsGoroutine(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	for key, leave := range map[string]func(){"panic": func() { panic("the reader's own") }, "exit": runtime.Goexit} {
		var gone sync.WaitGroup
		gone.Go(func() {
			defer func() { _ = recover() }()
			for range c.Stream(t.Context(), "desk.gen", toolArgs{Key: key, N: 1_000_000}) {
				leave()
			}
		})
		gone.Wait()
		cause := toolmesh.AsError(wait(t, "end after "+key, d.gate(key).ended))
		if cause.Code != toolmesh.CodeCancelled || cause.Details["reason"] != nil {
			t.Errorf("%s: the tool ends with %v %v, want that its caller cancelled it", key, cause, cause.Details)
		}
	}
}

// A full store ends the stream for its reader as well, after the items that fitted.
func TestStreamIntoAFullStore(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), &host.Options{StoreOptions: host.StoreOptions{ChunksMax: 100_000}})
	c := newClient(t, broker.Connect(t), nil)
	s := countItems(t, c, t.Context(), toolArgs{N: 1000, Size: 10_000}, nil)
	e := toolmesh.AsError(s.err)
	if e == nil || e.Code != toolmesh.CodeUnavailable || e.Details["limit"] != "chunks_max" || s.items < 5 || s.items > 10 {
		t.Errorf("%d items, then %v", s.items, s.err)
	}
	if n := d.ran(""); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// The store refuses the end of a stream, too, when it is full. A reader that joined the stream gets
// none from the node, so that it learns of the end by asking.
func TestFollowersOfAStreamWhoseEndIsNotStored(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), &host.Options{StoreOptions: host.StoreOptions{ChunksMax: 100_000}})
	c, other := newClient(t, broker.Connect(t), nil), newClient(t, broker.Connect(t), nil)
	follow := func(first func()) (s counted) {
		ctx, stop := context.WithTimeout(t.Context(), testTimeout)
		defer stop()
		for _, err := range other.Follow(ctx, "full", 1) {
			if s.err = err; err != nil {
				continue
			}
			if s.items++; s.items == 1 {
				first()
			}
		}
		return s
	}
	ended := func(when string, s counted, items int) {
		t.Helper()
		if s.items != items || toolmesh.CodeOf(s.err) != toolmesh.CodeStreamExpired {
			t.Errorf("a follower %s the end: %d items, then %v; want %d and stream_expired", when, s.items, s.err, items)
		}
	}
	before, began, joined := make(chan counted, 1), make(chan struct{}), make(chan struct{})
	g := d.gate("full")
	g.release <- struct{}{}
	all := make(chan counted, 1)
	go func() {
		all <- countItems(t, c, t.Context(), toolArgs{Key: "full", N: 1000, Size: 10_000, Gate: true}, func(i int) {
			if i == 1 {
				close(began)
			}
		}, client.WithRPCID("full"))
	}()
	wait(t, "first item", began)
	go func() { before <- follow(func() { close(joined) }) }()
	wait(t, "first item of the follower", joined)
	for range 100 {
		g.release <- struct{}{}
	}
	s := wait(t, "stream", all)
	if toolmesh.CodeOf(s.err) != toolmesh.CodeUnavailable {
		t.Fatalf("the stream ends with %v, want that the store is full", s.err)
	}
	ended("before", wait(t, "follower that joined before the end", before), s.items)
	ended("after", follow(func() {}), s.items)
}

// A tool that yields nothing for longer than the two looks at which a joined stream without an end
// would be given up keeps its follower.
func TestFollowersOfASlowStreamWait(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	node := broker.Connect(t)
	d.serve(t, node, nil)
	c, other := newClient(t, broker.Connect(t), nil), newClient(t, broker.Connect(t), nil)
	g := d.gate("slow")
	g.release <- struct{}{}
	began, joined, all, followed := make(chan struct{}), make(chan struct{}), make(chan counted, 1), make(chan counted, 1)
	go func() {
		all <- countItems(t, c, t.Context(), toolArgs{Key: "slow", N: 3, Size: 1, Gate: true}, func(i int) {
			if i == 1 {
				close(began)
			}
		}, client.WithRPCID("slow"))
	}()
	wait(t, "first item", began)
	asked := make(chan struct{}, 100)
	if _, err := node.Subscribe("mesh.node.*.ctl.>", func(m *nats.Msg) {
		if strings.Contains(string(m.Data), `"where"`) {
			asked <- struct{}{}
		}
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		var s counted
		for _, err := range other.Follow(t.Context(), "slow", 1) {
			if s.err = err; err == nil {
				if s.items++; s.items == 1 {
					close(joined)
				}
			}
		}
		followed <- s
	}()
	wait(t, "first item of the follower", joined)
	for range 3 {
		wait(t, "question about the stream's end", asked)
	}
	g.release <- struct{}{}
	g.release <- struct{}{}
	for _, s := range []counted{wait(t, "stream", all), wait(t, "follower", followed)} {
		if s.items != 3 || s.err != nil {
			t.Errorf("%d items, then %v; want 3", s.items, s.err)
		}
	}
}

// While the store does not answer, as after a restart, a reader that joined a stream does not take
// it for one whose end is not stored. The reader gets nothing live here.
func TestFollowersOfAStreamWaitForTheStore(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t, meshtest.Config(`
authorization { users: [
  { user: node, password: node }
  { user: blind, password: blind, permissions: { subscribe: { deny: "mesh.live.>" } } }
] }`))
	d := newTools()
	node := broker.Connect(t, nats.UserInfo("node", "node"))
	d.serve(t, node, nil)
	asked := make(chan struct{}, 100)
	if _, err := node.Subscribe("mesh.node.*.ctl.>", func(m *nats.Msg) {
		if strings.Contains(string(m.Data), `"where"`) {
			asked <- struct{}{}
		}
	}); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, broker.Connect(t, nats.UserInfo("node", "node")), nil)
	other := newClient(t, broker.Connect(t, nats.UserInfo("blind", "blind")), nil)
	g := d.gate("silent")
	g.release <- struct{}{}
	all, began := make(chan counted, 1), make(chan struct{})
	go func() {
		all <- countItems(t, c, t.Context(), toolArgs{Key: "silent", N: 3, Gate: true}, func(i int) {
			if i == 1 {
				close(began)
			}
		}, client.WithRPCID("silent"))
	}()
	wait(t, "first item", began)
	followed, joined, ended := make(chan counted, 1), make(chan struct{}), make(chan struct{})
	go func() {
		var s counted
		for _, err := range other.Follow(t.Context(), "silent", 1) {
			if s.err = err; err != nil {
				continue
			}
			if s.items++; s.items == 1 {
				close(joined)
				<-ended
			}
		}
		followed <- s
	}()
	wait(t, "first item of the follower", joined)
	g.release <- struct{}{}
	g.release <- struct{}{}
	if s := wait(t, "stream", all); s.err != nil {
		t.Fatal(s.err)
	}
	config := broker.Server().JetStreamConfig()
	config.StoreDir = filepath.Dir(config.StoreDir) // its folder of JetStream is added
	if err := broker.Server().ShutdownJetStream(); err != nil {
		t.Fatal(err)
	}
	close(ended)
	for range 2 { // the first answer of the node, that the stream has ended, ends nothing
		select {
		case <-asked:
		case s := <-followed:
			t.Fatalf("the store is silent: %d items, then %v", s.items, s.err)
		}
	}
	if err := broker.Server().EnableJetStream(config); err != nil {
		t.Fatal(err)
	}
	if s := wait(t, "follower", followed); s.items != 3 || s.err != nil {
		t.Errorf("%d items, then %v", s.items, s.err)
	}
}

// A store that needs a second for its answer, as on a busy machine, is waited for: its stream has
// ended, so that nothing else is late by that.
func TestFollowersOfAnEndedStreamWaitForASlowStore(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	c, nc := newClient(t, broker.Connect(t), nil), broker.Connect(t)
	if _, err := nc.Subscribe("mesh.replay.default.>", func(m *nats.Msg) {
		time.AfterFunc(time.Second, func() { _ = m.RespondMsg(&nats.Msg{Header: nats.Header(codec.ReplayEnd(codec.High{}))}) })
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, err := range c.Follow(t.Context(), "ended", 1) {
		if toolmesh.CodeOf(err) != toolmesh.CodeNotFound {
			t.Errorf("the store has nothing: %v, want not_found", err)
		}
	}
}

// Chunks that expired while their reader was away are an error, not a wait
// without end.
func TestStreamThatExpired(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	proxy := meshtest.NewProxy(t, broker)
	c := newClient(t, proxy.Connect(t), nil)
	js := chunkStore(t, broker.Connect(t))
	g := d.gate("x")
	g.release <- struct{}{}
	s := countItems(t, c, t.Context(), toolArgs{Key: "x", N: 20, Gate: true}, func(i int) {
		if i != 1 {
			return
		}
		proxy.Cut(true)
		for range 19 {
			g.release <- struct{}{}
		}
		wait(t, "end", g.ended)
		meshtest.Until(t, "the stream is stored", func() bool { return stored(t, js, "mesh.chunks.default.>") == 21 })
		purge(t, js, 10) // as age does it, the oldest first
		proxy.Heal()
	}, client.WithRPCID("x"))
	e := toolmesh.AsError(s.err)
	if s.items != 1 || e == nil || e.Code != toolmesh.CodeStreamExpired {
		t.Errorf("%d items, then %v", s.items, s.err)
	}
	if e != nil && !strings.Contains(e.Message, "no longer kept") {
		t.Errorf("message = %q", e.Message)
	}
}
