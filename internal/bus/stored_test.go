package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Who deletes a bundle that nobody needs, and who stores it again at the same
// time, are never both successful.
func TestABundleGoesOnlyAsItWasRead(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		ctx := t.Context()
		if there, err := b.RenewBundle(ctx, "one"); err != nil || there {
			t.Fatalf("renewing what is not there: %t %v", there, err)
		}
		if err := b.PutBundle(ctx, "one", strings.NewReader("bundle")); err != nil {
			t.Fatal(err)
		}
		first := await(t, b, "one")
		if err := b.PutBundle(ctx, "one", failingReader{}); err != nil {
			t.Fatal(err)
		}
		if err := b.DropBundle(ctx, first); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("a bundle that was renewed is dropped: %v", err)
		}
		var second bus.StoredBundle
		meshtest.Until(t, "the renewal is seen", func() bool {
			second = await(t, b, "one")
			return second.Stored.After(first.Stored)
		})
		if err := b.DropBundle(ctx, second); err != nil {
			t.Fatal(err)
		}
		if there, err := b.RenewBundle(ctx, "one"); err != nil || there {
			t.Errorf("renewing what was dropped: %t %v", there, err)
		}
		meshtest.Until(t, "nothing is left of it", func() bool { return messages(t, b) == 0 })
		if err := b.PutBundle(ctx, "one", strings.NewReader("bundle")); err != nil {
			t.Fatal(err)
		}
		await(t, b, "one")
	})
}

// A store whose leader is away for a moment, or of which the servers of a cluster
// have yet to hear from each other, is waited for.
func TestBundlesOfAStoreWithoutALeader(t *testing.T) {
	t.Parallel()
	servers := meshtest.Cluster(t, 2)
	nc := servers[0].Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "OBJ_MESH_BUNDLES", Subjects: []string{"$O.MESH_BUNDLES.C.>", "$O.MESH_BUNDLES.M.>"}, AllowDirect: true,
		AllowRollup: true, Discard: jetstream.DiscardNew, Replicas: 1,
		Storage: jetstream.FileStorage,
	})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "OBJ_MESH_BUNDLES")
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	if stream.CachedInfo().Cluster.Leader == "test-2" {
		at = 1
	}
	b := open(t, servers[1-at].Connect(t), nil)
	if err := b.PutBundle(t.Context(), "one", strings.NewReader("bundle")); err != nil {
		t.Fatal(err)
	}
	await(t, b, "one")
	servers[at].Stop()
	found := make(chan error, 1)
	go func() {
		_, err := b.Bundle(t.Context(), "one")
		found <- err
	}()
	servers[at].Start(t)
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// What a process left that was killed while it stored or deleted a bundle goes,
// and nothing else.
func TestClearedBundles(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	ctx := t.Context()
	for _, digest := range []string{"kept", "deleted", "half"} {
		if err := b.PutBundle(ctx, digest, strings.NewReader(digest)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DeleteBundle(ctx, "deleted"); err != nil { // leaves its mark
		t.Fatal(err)
	}
	if _, err := b.JetStream().Publish(ctx, "$O."+subjects.ObjectBundles+".C.unfinished", []byte("part")); err != nil {
		t.Fatal(err)
	}
	if err := b.ClearBundles(ctx, sweepsNothing); err != nil {
		t.Fatal(err)
	}
	if got := messages(t, b); got != 6 {
		t.Errorf("%d messages are stored, want those of two bundles, a mark and a part", got)
	}
	meshtest.Until(t, "two bundles of two messages are left", func() bool {
		if err := b.ClearBundles(ctx, 0); err != nil {
			t.Fatal(err)
		}
		return messages(t, b) == 4
	})
	all, err := b.Bundles(ctx)
	if err != nil || len(all) != 2 {
		t.Errorf("bundles: %v %v", all, err)
	}
}

const sweepsNothing = 1 << 62

func await(t *testing.T, b *bus.Bus, digest string) (s bus.StoredBundle) {
	t.Helper()
	meshtest.Until(t, "bundle "+digest+" is seen", func() bool {
		var err error
		s, err = b.Bundle(t.Context(), digest)
		return err == nil
	})
	return s
}

// messages counts what the object store holds.
func messages(t *testing.T, b *bus.Bus) uint64 {
	t.Helper()
	stream, err := b.JetStream().Stream(context.WithoutCancel(t.Context()), "OBJ_"+subjects.ObjectBundles)
	if err != nil {
		t.Fatal(err)
	}
	var info *jetstream.StreamInfo
	if info, err = stream.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}
