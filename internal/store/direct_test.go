package store_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// storeChunks stores so many messages of each of two calls, in turns: the first
// call has the odd sequences.
func storeChunks(t *testing.T, b store.Store, n int) {
	t.Helper()
	for i := range n {
		for _, call := range []string{"a", "b"} {
			m := nats.NewMsg("mesh.chunks.s." + call)
			m.Data = fmt.Append(nil, i)
			if err := b.Conn().PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := b.JetStream().Publish(t.Context(), "mesh.chunks.s.c", nil); err != nil {
		t.Fatal(err)
	}
}

// A reader that may stop early is sent little more than it takes.
func TestReadBeginsWithFew(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := open(t, s.Connect(t), nil)
	ensure(t, b, nil)
	storeChunks(t, b, 1000)
	watch := s.Connect(t)
	sub, err := watch.SubscribeSync("$JS.API.DIRECT.GET." + subjects.StreamChunks)
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ first, take, upTo int }{{10, 5, 0}, {10, 25, 0}, {10, 1000, 0}, {0, 5, 0}, {10, 1000, 51}} {
		taken := 0
		q := store.Query{Stream: subjects.StreamChunks, Subject: "mesh.chunks.s.a", First: c.first, UpTo: uint64(c.upTo)}
		for m, err := range b.Read(t.Context(), q) {
			if err != nil {
				t.Fatal(err)
			}
			if want := uint64(2*taken + 1); m.Seq != want {
				t.Fatalf("%+v: message %d has the sequence %d, want %d", c, taken, m.Seq, want)
			}
			if taken++; taken == c.take {
				break
			}
		}
		var want []int
		for left, next := c.take, c.first; left > 0; next = min(2*next, 512) {
			if next == 0 {
				next = 512
			}
			want, left = append(want, next), left-next
		}
		if c.upTo > 0 {
			want = []int{10, 20}
			if taken != 26 {
				t.Errorf("%+v: %d messages, want 26", c, taken)
			}
		}
		var got []int
		for range want {
			m, err := sub.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var asked struct{ Batch int }
			if err := json.Unmarshal(m.Data, &asked); err != nil {
				t.Fatal(err)
			}
			got = append(got, asked.Batch)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v: messages asked for (-want +got):\n%s", c, diff)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		storeChunks(t, b, 10)
		lookups := []store.Lookup{
			{Subject: "mesh.chunks.s.a"},
			{Subject: "mesh.chunks.s.a", From: 1, Pending: true},
			{Subject: "mesh.chunks.s.b", From: 5},
			{Subject: "mesh.chunks.s.a", From: 20},
			{Subject: "mesh.chunks.s.none"},
			{Subject: "mesh.chunks.s.none", From: 1, Pending: true},
			{Subject: "mesh.chunks.s.none", From: 1},
		}
		type place struct{ Seq, Pending uint64 }
		want := []place{{19, 0}, {1, 9}, {6, 0}, {}, {}, {}, {}}
		// A replica may lag for a moment.
		meshtest.Until(t, "all is found", func() bool {
			found, err := b.Find(t.Context(), subjects.StreamChunks, lookups...)
			if err != nil {
				t.Fatal(err)
			}
			var got []place
			for _, m := range found {
				if m == nil {
					got = append(got, place{})
					continue
				}
				got = append(got, place{m.Seq, m.Pending})
			}
			return cmp.Equal(want, got)
		})
		if _, err := b.Find(t.Context(), "MISSING", store.Lookup{Subject: "x"}); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
			t.Errorf("in a stream that is not there: %v, want unavailable", err)
		}
	})
}
