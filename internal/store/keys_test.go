package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func nodeKey(name string) store.Key { return store.Key{Bucket: subjects.BucketNodes, Name: name} }

func TestKeysAreComparedAndSet(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		key := nodeKey("n1")
		if _, err := b.Get(t.Context(), key); !errors.Is(err, store.ErrNoKey) {
			t.Fatalf("a missing key: %v", err)
		}
		if _, err := b.Latest(t.Context(), key); !errors.Is(err, store.ErrNoKey) {
			t.Fatalf("a missing key, asked of the leader: %v", err)
		}
		first, err := b.Create(t.Context(), key, []byte("one"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Create(t.Context(), key, []byte("again"), 0); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("created twice: %v", err)
		}
		second, err := b.Update(t.Context(), key, []byte("two"), first, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Update(t.Context(), key, []byte("three"), first, 0); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("updated an old revision: %v", err)
		}
		// The leader sees it at once, other servers soon.
		if e, err := b.Latest(t.Context(), key); err != nil || string(e.Value) != "two" || e.Revision != second || e.Time.IsZero() {
			t.Fatalf("the value, asked of the leader: %+v %v", e, err)
		}
		meshtest.Until(t, "the value is read", func() bool {
			e, err := b.Get(t.Context(), key)
			return err == nil && string(e.Value) == "two" && e.Revision == second
		})
		if err := b.Delete(t.Context(), key, first); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("deleted an old revision: %v", err)
		}
		if err := b.Delete(t.Context(), key, second); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Latest(t.Context(), key); !errors.Is(err, store.ErrNoKey) {
			t.Fatalf("a deleted key, asked of the leader: %v", err)
		}
		meshtest.Until(t, "the key is gone", func() bool {
			_, err := b.Get(t.Context(), key)
			return errors.Is(err, store.ErrNoKey)
		})
		if _, err := b.Create(t.Context(), key, []byte("new"), 0); err != nil {
			t.Fatalf("created after a delete: %v", err)
		}
	})
}

func TestLeaseExpiresAndIsMarked(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := open(t, s.Connect(t), nil)
	ensure(t, b, nil)
	changes := make(chan *nats.Msg, 16)
	if _, err := b.Conn().ChanSubscribe(subjects.RegistryChanges(subjects.BucketNodes), changes); err != nil {
		t.Fatal(err)
	}
	key := nodeKey("n1")
	revision, err := b.Create(t.Context(), key, []byte("lease"), time.Hour) // so that it is there to be renewed
	if err != nil {
		t.Fatal(err)
	}
	// A renewal gives a ttl again, else the key would live for ever.
	if _, err := b.Update(t.Context(), key, []byte("lease"), revision, time.Second); err != nil {
		t.Fatal(err)
	}
	writes := func(n int) {
		t.Helper()
		for range n {
			if m := receive(t, changes, "write"); store.Gone(m.Header) {
				t.Fatalf("a write is marked as gone: %v", m.Header)
			}
		}
	}
	expires := func() {
		t.Helper()
		m := receive(t, changes, "expiry")
		if !store.Gone(m.Header) || m.Header.Get(jetstream.MarkerReasonHeader) != "MaxAge" {
			t.Fatalf("expiry has headers %v", m.Header)
		}
	}
	writes(2)
	expires()
	if _, err := b.Get(t.Context(), key); !errors.Is(err, store.ErrNoKey) {
		t.Fatalf("after expiry: %v", err)
	}
	if _, err := b.Create(t.Context(), key, []byte("new"), time.Second); err != nil {
		t.Fatalf("created after expiry: %v", err)
	}
	writes(1)
	expires()
}

func TestWritesFailWithoutABroker(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := open(t, s.Connect(t), nil)
	ensure(t, b, nil)
	lost := make(chan bus.State, 4)
	defer b.OnState(func(s bus.State) { lost <- s })()
	s.Stop()
	receive(t, lost, "loss")
	_, err := b.Put(t.Context(), nodeKey("n1"), nil, 0)
	wantCode(t, err, toolmesh.CodeUnavailable, toolmesh.StartedNo)
	if !store.IsUnavailable(err) {
		t.Fatalf("IsUnavailable(%v) is false", err)
	}
}

// A server with a full disk takes a message and does not answer. The caller's time is not up then.
func TestWriteThatIsNotConfirmedIsUnavailable(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	silent := config(t, b, subjects.KVStream(subjects.BucketNodes))
	silent.NoAck = true
	if _, err := b.JetStream().UpdateStream(t.Context(), silent); err != nil {
		t.Fatal(err)
	}
	_, err := b.Put(t.Context(), nodeKey("n1"), nil, 0)
	wantCode(t, err, toolmesh.CodeUnavailable, toolmesh.StartedUnknown)
	if !strings.Contains(err.Error(), "MESH_NODES/n1") || !strings.Contains(err.Error(), "disk may be full") {
		t.Errorf("the error does not say what failed and what to do: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := b.Put(ctx, nodeKey("n1"), nil, 0); toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded {
		t.Errorf("the caller's time ended: %s: %v", toolmesh.CodeOf(err), err)
	}
}

func TestReadIsBatchedAndBounded(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		const n = 1500
		js, err := jetstream.New(b.Conn())
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			m := nats.NewMsg(subjects.KVSubject(subjects.BucketTools, fmt.Sprintf("n1.=.i.x%d", i)))
			m.Data = fmt.Append(nil, i)
			m.Header.Set("Mesh-Seq", fmt.Sprint(i))
			if _, err := js.PublishMsgAsync(m); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-t.Context().Done():
			t.Fatal("not stored")
		}
		stream := subjects.KVStream(subjects.BucketTools)
		// A replica may lag for a moment.
		meshtest.Until(t, "all is readable", func() bool {
			seen := 0
			for _, err := range b.Read(t.Context(), store.Query{Stream: stream, Subject: subjects.KVAll(subjects.BucketTools)}) {
				if err != nil {
					t.Fatal(err)
				}
				seen++
			}
			return seen == n
		})
		collect := func(q store.Query) (out []*store.Stored) {
			t.Helper()
			q.Stream = stream
			for s, err := range b.Read(t.Context(), q) {
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, s)
			}
			return out
		}
		all := subjects.KVAll(subjects.BucketTools)
		got := collect(store.Query{Subject: all})
		for i, s := range got {
			if s.Seq != uint64(i+1) || string(s.Data) != fmt.Sprint(i) || s.Header.Get("Mesh-Seq") != fmt.Sprint(i) {
				t.Fatalf("message %d: seq %d, %q, %v", i, s.Seq, s.Data, s.Header)
			}
		}
		if last := got[len(got)-1]; last.Pending != 0 || time.Since(last.Time).Abs() > time.Hour {
			t.Fatalf("last message: pending %d, time %v", last.Pending, last.Time)
		}
		if got := collect(store.Query{Subject: all, From: 700, UpTo: 1399}); len(got) != 700 || got[0].Seq != 700 || got[699].Seq != 1399 {
			t.Fatalf("700 to 1399: %d messages", len(got))
		}
		if got := collect(store.Query{Subject: all, From: n + 1}); len(got) != 0 {
			t.Fatalf("behind the end: %d messages", len(got))
		}
		last := collect(store.Query{Last: []string{subjects.KVSubject(subjects.BucketTools, "n1.=.i.x7"), subjects.KVSubject(subjects.BucketTools, "n1.=.i.x1400")}})
		if len(last) != 2 || string(last[0].Data) != "7" || string(last[1].Data) != "1400" {
			t.Fatalf("two last messages: %v", last)
		}
		var tooMany error
		for _, err := range b.Read(t.Context(), store.Query{Stream: stream, Last: []string{all}}) {
			tooMany = err
		}
		if toolmesh.CodeOf(tooMany) != toolmesh.CodePayloadTooLarge {
			t.Fatalf("1,500 last messages: %v, want payload_too_large", tooMany)
		}
	})
}

func TestReadFaults(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		ctx  context.Context
		q    store.Query
		code toolmesh.Code
	}{
		"no stream":       {t.Context(), store.Query{Stream: "MISSING", Subject: ">"}, toolmesh.CodeUnavailable},
		"context is over": {ctx, store.Query{Stream: subjects.StreamChunks, Subject: ">"}, toolmesh.CodeCancelled},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got error
			for _, err := range b.Read(tt.ctx, tt.q) {
				got = err
			}
			// An answer may be faster than the look at a context that is over.
			if code := toolmesh.CodeOf(got); code != tt.code && (tt.code != toolmesh.CodeCancelled || got != nil) {
				t.Fatalf("%v, want %s", got, tt.code)
			}
		})
	}
}
