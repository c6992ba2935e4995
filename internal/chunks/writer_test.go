package chunks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func data(seq int64, body string) codec.Chunk {
	return codec.Chunk{Type: codec.ChunkData, Seq: seq, Data: []byte(body)}
}

func complete(count int64) codec.Chunk {
	return codec.Chunk{Type: codec.ChunkComplete, Seq: count + 1, Count: count}
}

func newWriter(t *testing.T, b *bus.Bus, rpc string, opts chunks.WriterOptions) *chunks.Writer {
	t.Helper()
	w, err := chunks.NewWriter(b, "s", subjects.RPCID(rpc), "boot-1", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestWriter(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := newStore(t, broker)
	live, err := s.nc.SubscribeSync("mesh.live.s.w")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var told []int64
	var size uint64
	b := newBus(t, broker.Connect(t))
	w := newWriter(t, b, "w", chunks.WriterOptions{Epoch: "2", Stored: func(c codec.Chunk, n int) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, c.Seq)
		size += uint64(n)
	}})
	const n = 2000 // more than the window
	for i := int64(1); i <= n; i++ {
		if err := w.Write(soon(t), data(i, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if i == 1 && w.High() != 1 {
			t.Fatal("Write of the first chunk returns before it is stored")
		}
	}
	if err := w.Write(soon(t), complete(n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(soon(t)); err != nil {
		t.Fatal(err)
	}
	if w.High() != n+1 {
		t.Errorf("high = %d, want %d", w.High(), n+1)
	}
	mu.Lock()
	if len(told) != n+1 || !slices.IsSorted(told) {
		t.Errorf("told of %d chunks, in order: %v", len(told), slices.IsSorted(told))
	}
	stream, err := s.js.Stream(t.Context(), subjects.StreamChunks)
	if err != nil {
		t.Fatal(err)
	}
	// The store of a test is in memory, where a chunk has 18 bytes less.
	if got := stream.CachedInfo().State.Bytes; size < got || size > got+20*(n+1) {
		t.Errorf("told of %d bytes, the store has %d", size, got)
	}
	mu.Unlock()
	for i := 1; i <= n+1; i++ {
		m, err := live.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("live chunk %d: %v", i, err)
		}
		want := map[string]string{"Mesh-Seq": fmt.Sprint(i), "Mesh-Chunk": "data", "Mesh-Rpc-Id": "w", "Mesh-Epoch": "2", "Mesh-Count": ""}
		if i == n+1 {
			want["Mesh-Chunk"], want["Mesh-Count"] = "complete", fmt.Sprint(n)
		}
		for name, value := range want {
			if got := m.Header.Get(name); got != value {
				t.Fatalf("live chunk %d: %s = %q, want %q", i, name, got, value)
			}
		}
	}
}

// A second execution under one rpc_id stops at its first chunk, wherever it runs.
func TestSecondExecutionIsRefused(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := newStore(t, broker)
	for name, c := range map[string]codec.Chunk{"item": data(1, `"other"`), "terminal": complete(0)} {
		first := newWriter(t, newBus(t, broker.Connect(t)), name, chunks.WriterOptions{})
		if err := first.Write(soon(t), data(1, item("1"))); err != nil {
			t.Fatal(err)
		}
		second := newWriter(t, newBus(t, broker.Connect(t)), name, chunks.WriterOptions{})
		for range 2 {
			if err := second.Write(soon(t), c); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
				t.Errorf("second %s: %v, want invalid_request", name, err)
			}
		}
		if err := first.Write(soon(t), complete(1)); err != nil {
			t.Fatal(err)
		}
		if err := first.Flush(soon(t)); err != nil {
			t.Fatal(err)
		}
		if got, high, _, _ := s.replay("s", name, `{"from_seq":1}`); high != "1;terminal" || len(got) != 2 {
			t.Errorf("after a second execution the store has %v, %s", got, high)
		}
	}
}

// When the acknowledgement of a first chunk is lost, the chunk is sent again and the store refuses
// it. The writer must recognize its own chunk, and no other writer's.
func TestFirstChunkSentAgain(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := newStore(t, broker)
	for _, c := range []struct {
		rpc  string
		ours bool
	}{{"ours", true}, {"theirs", false}} {
		t.Run(c.rpc, func(t *testing.T) {
			t.Parallel()
			// The test acknowledges in the store's place: by silence at first.
			nc := broker.Connect(t)
			silent := meshtest.Broker(t)
			back := silent.Connect(t)
			asked, err := back.SubscribeSync("mesh.chunks.s." + c.rpc)
			if err != nil {
				t.Fatal(err)
			}
			// The writer's other requests to the store reach the real one.
			forward(t, back, nc, "$JS.API.>")
			if err := back.Flush(); err != nil {
				t.Fatal(err)
			}
			w := newWriter(t, newBus(t, silent.Connect(t)), c.rpc, chunks.WriterOptions{})
			done := make(chan error, 1)
			go func() { done <- w.Write(soon(t), data(1, item("1"))) }()
			first, err := asked.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if got := first.Header.Get("Nats-Expected-Last-Subject-Sequence"); got != "0" {
				t.Errorf("the first chunk expects the sequence %q, want 0", got)
			}
			if c.ours {
				relay(t, nc, first) // stored; its acknowledgement is lost
			} else {
				s.put("s", c.rpc, "1", item("1"))
			}
			second, err := asked.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if err := second.Respond(relay(t, nc, second)); err != nil {
				t.Fatal(err)
			}
			err = <-done
			if c.ours && err != nil || !c.ours && toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
				t.Errorf("write: %v", err)
			}
			if got, high, _, _ := s.replay("s", c.rpc, `{"from_seq":1}`); len(got) != 1 || high != "1" {
				t.Errorf("the store has %v, %s", got, high)
			}
		})
	}
}

// relay gives a message of one broker to another one and returns the answer.
func relay(t *testing.T, to *nats.Conn, m *nats.Msg) []byte {
	t.Helper()
	answer, err := to.RequestMsg(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Data
}

// forward has requests of one broker answered by another one.
func forward(t *testing.T, from, to *nats.Conn, subject string) {
	t.Helper()
	sub, err := from.Subscribe(subject, func(m *nats.Msg) {
		in := to.NewInbox()
		answers, err := to.Subscribe(in, func(a *nats.Msg) {
			a.Subject, a.Reply = m.Reply, ""
			if err := from.PublishMsg(a); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = answers.Unsubscribe() })
		if err := to.PublishMsg(&nats.Msg{Subject: m.Subject, Reply: in, Header: m.Header, Data: m.Data}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
}

func TestWriterGoesOnAfterTheStoreWasGone(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := newStore(t, broker)
	w := newWriter(t, newBus(t, broker.Connect(t)), "r", chunks.WriterOptions{})
	const n = 3000
	reached, back := make(chan struct{}), make(chan struct{})
	go func() {
		<-reached
		broker.Restart(t)
		close(back)
	}()
	for i := int64(1); i <= n; i++ {
		if i == n/3 {
			close(reached)
		}
		if err := w.Write(soon(t), data(i, item(fmt.Sprint(i)))); err != nil {
			t.Fatalf("item %d: %v", i, err)
		}
	}
	if err := w.Write(soon(t), complete(n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(soon(t)); err != nil {
		t.Fatal(err)
	}
	<-back
	meshtest.Until(t, "the reader is connected", s.nc.IsConnected)
	var got []string
	for page := 0; len(got) < n+1 && page < n; page++ {
		more, high, code, _ := s.replay("s", "r", fmt.Sprintf(`{"from_seq":%d}`, len(got)+1))
		if code != "" || high != fmt.Sprint(n, ";terminal") {
			t.Fatalf("high %q, code %q", high, code)
		}
		got = append(got, more...)
	}
	if diff := cmp.Diff(append(numbers(1, n), fmt.Sprint("T", n)), got); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
}

// Chunks in flight when the connection breaks are sent again on reconnection, without a Tick:
// nothing calls Tick here.
func TestWriterGoesBackOnANewConnection(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	newStore(t, broker)
	proxy := meshtest.NewProxy(t, broker)
	nc := proxy.Connect(t)
	b := newBus(t, nc)
	w := newWriter(t, b, "w", chunks.WriterOptions{})
	if err := w.Write(soon(t), data(1, "1")); err != nil {
		t.Fatal(err)
	}
	generation := b.State().Generation
	proxy.Blackhole()
	for i := int64(2); i <= 10; i++ {
		if err := w.Write(soon(t), data(i, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	proxy.Cut(true) // held messages are lost
	proxy.Heal()
	meshtest.Until(t, "the connection is back", func() bool { return b.State().Generation > generation })
	if high := w.High(); high != 1 {
		t.Fatalf("%d items came through a black hole", high)
	}
	if err := w.Write(soon(t), complete(10)); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "all is stored", func() bool { return w.High() == 11 })
}

// A cluster that elects a leader of the store is waited for, also by the first
// chunk: the tool has begun, and its caller may not send again.
func TestFirstChunkWaitsForALeader(t *testing.T) {
	t.Parallel()
	b := newBus(t, meshtest.Broker(t).Connect(t))
	w := newWriter(t, b, "e", chunks.WriterOptions{})
	made := make(chan error, 1)
	timer := time.AfterFunc(time.Second, func() { made <- store.Of(b).Ensure(t.Context(), nil) })
	defer timer.Stop()
	if err := w.Write(soon(t), data(1, "1")); err != nil {
		t.Errorf("first item: %v", err)
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
}

func TestWriterWithoutAStore(t *testing.T) {
	t.Parallel()
	w := newWriter(t, newBus(t, meshtest.Broker(t).Connect(t)), "n", chunks.WriterOptions{})
	if err := w.Write(soon(t), data(1, "1")); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("first item: %v, want unavailable", err)
	}
}

// A store that is full says so; it is not asked again and again.
func TestWriterOfAFullStore(t *testing.T) {
	t.Parallel()
	b := newBus(t, meshtest.Broker(t).Connect(t))
	if err := store.Of(b).Ensure(t.Context(), &store.Layout{ChunksMax: 100_000}); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, b, "full", chunks.WriterOptions{})
	body := `"` + strings.Repeat("x", 10_000) + `"`
	var err error
	for i := int64(1); i < 100 && err == nil; i++ {
		err = w.Write(soon(t), data(i, body))
	}
	if err == nil {
		err = w.Flush(soon(t))
	}
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeUnavailable || e.Details["limit"] != "chunks_max" {
		t.Errorf("error = %v, want unavailable with the limit chunks_max", err)
	}
}

func TestChunkThatIsTooLarge(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t, meshtest.MaxPayload(64<<10))
	newStore(t, broker)
	rpc := strings.Repeat("r", 60)
	w := newWriter(t, newBus(t, broker.Connect(t)), rpc, chunks.WriterOptions{})
	for _, size := range []int{64<<10 + 1, 64 << 10, 64<<10 - 200} {
		err := w.Write(soon(t), data(1, strings.Repeat("1", size)))
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodePayloadTooLarge || e.Details["size"] != size {
			t.Errorf("an item of %d bytes: %v, want payload_too_large with its size", size, err)
		}
	}
	if err := w.Write(soon(t), data(1, strings.Repeat("1", 63<<10))); err != nil {
		t.Errorf("an item that fits, with its headers: %v", err)
	}
}

// The chunks without an acknowledgement are bounded, by number and by bytes.
func TestWindowIsBounded(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"many": "1", "large": `"` + strings.Repeat("x", 500<<10) + `"`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			newStore(t, broker)
			proxy := meshtest.NewProxy(t, broker)
			w := newWriter(t, newBus(t, proxy.Connect(t)), "b", chunks.WriterOptions{})
			if err := w.Write(soon(t), data(1, body)); err != nil {
				t.Fatal(err)
			}
			proxy.Blackhole()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			sent := int64(1)
			var err error
			for ; err == nil; sent++ {
				err = w.Write(ctx, data(sent+1, body))
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("after %d items: %v, want to wait", sent, err)
			}
			if sent > 520 || sent*int64(len(body)) > 5<<20 {
				t.Errorf("%d items of %d bytes wait to be stored", sent, len(body))
			}
			proxy.Heal()
			if err := w.Flush(soon(t)); err != nil {
				t.Errorf("with the store back: %v", err)
			}
		})
	}
}

func TestClosedWriter(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	newStore(t, broker)
	w := newWriter(t, newBus(t, broker.Connect(t)), "c", chunks.WriterOptions{})
	if err := w.Write(soon(t), data(1, "1")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	w.Close()
	if err := w.Write(soon(t), data(2, "2")); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("write: %v, want cancelled", err)
	}
	if err := w.Flush(soon(t)); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("flush: %v, want cancelled", err)
	}
}
