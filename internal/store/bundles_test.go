package store_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Of a bundle's deletion and its simultaneous upload, one fails.
func TestABundleGoesOnlyAsItWasRead(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		ctx := t.Context()
		if there, err := b.RenewBundle(ctx, "one"); err != nil || there {
			t.Fatalf("renewing what is not there: %t %v", there, err)
		}
		if _, err := b.PutBundle(ctx, "one", strings.NewReader("bundle")); err != nil {
			t.Fatal(err)
		}
		first := look(t, b, "one")
		if _, err := b.PutBundle(ctx, "one", failingReader{}); err != nil {
			t.Fatal(err)
		}
		if err := b.DropBundle(ctx, first); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a bundle that was renewed is dropped: %v", err)
		}
		var second store.Object
		meshtest.Until(t, "the renewal is seen", func() bool {
			second = look(t, b, "one")
			return second.Stored.After(first.Stored)
		})
		if err := b.DropBundle(ctx, second); err != nil {
			t.Fatal(err)
		}
		if there, err := b.RenewBundle(ctx, "one"); err != nil || there {
			t.Errorf("renewing what was dropped: %t %v", there, err)
		}
		meshtest.Until(t, "nothing is left of it", func() bool { return messages(t, b) == 0 })
		if _, err := b.PutBundle(ctx, "one", strings.NewReader("bundle")); err != nil {
			t.Fatal(err)
		}
	})
}

// A store waits while its leader is away, or while the servers of a cluster have yet to hear from
// each other.
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
	if _, err := b.PutBundle(t.Context(), "one", strings.NewReader("bundle")); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"look":   func() error { _, err := b.Bundle(t.Context(), "one"); return err },
		"get":    func() error { _ = get(t, b, "one"); return nil },
		"renew":  func() error { _, err := b.RenewBundle(t.Context(), "one"); return err },
		"delete": func() error { return b.DeleteBundle(t.Context(), "none") },
	} {
		t.Run(name, func(t *testing.T) {
			servers[at].Stop()
			done := make(chan error, 1)
			go func() { done <- ask() }()
			servers[at].Start(t)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// A bundle is read from any replica: the leader, which may be about to be elected, is asked
// only where a replica knows of none. That there is no store is said at once.
func TestBundlesAreReadWithoutTheLeader(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	var missing *jetstream.APIError
	if _, err := b.Bundle(t.Context(), "one"); !errors.As(err, &missing) || missing.ErrorCode != jetstream.JSErrCodeStreamNotFound {
		t.Errorf("without a store: %v", err)
	}
	ensure(t, b, nil)
	if _, err := b.PutBundle(t.Context(), "one", strings.NewReader("bundle")); err != nil {
		t.Fatal(err)
	}
	var asked []*nats.Subscription
	for _, question := range []string{"INFO", "MSG.GET"} {
		s, err := b.Conn().SubscribeSync("$JS.API.STREAM." + question + ".OBJ_MESH_BUNDLES")
		if err != nil {
			t.Fatal(err)
		}
		asked = append(asked, s)
	}
	look(t, b, "one")
	get(t, b, "one")
	if there, err := b.RenewBundle(t.Context(), "one"); err != nil || !there {
		t.Errorf("renewed: %t %v", there, err)
	}
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	for _, s := range asked {
		if n, _, err := s.Pending(); err != nil || n > 0 {
			t.Errorf("%s was asked %d times, %v", s.Subject, n, err)
		}
	}
}

// A reader waits while a replica lacks a part of a bundle, and never takes a part for the whole.
func TestABundleOfWhichPartsAreMissing(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	js := b.JetStream()
	stream, err := js.Stream(t.Context(), "OBJ_MESH_BUNDLES")
	if err != nil {
		t.Fatal(err)
	}
	looks, err := b.Conn().SubscribeSync("$JS.API.DIRECT.GET.OBJ_MESH_BUNDLES")
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Repeat("0123456789abcdef", 20_000) // three parts
	for _, c := range []struct {
		name string
		gone uint64 // the part that is missing
		want string // "" for the whole
	}{{"the last", 3, ""}, {"all but the first", 2, ""}, {"another in its place", 3, "damaged"}} {
		if _, err := b.PutBundle(t.Context(), c.name, strings.NewReader(body)); err != nil {
			t.Fatal(err)
		}
		state := stream.CachedInfo().State.LastSeq
		var parts []*jetstream.RawStreamMsg
		for n := c.gone; n <= 3; n++ {
			m, err := stream.GetMsg(t.Context(), state+n)
			if err == nil {
				err = stream.DeleteMsg(t.Context(), state+n)
			}
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, m)
		}
		done := make(chan error, 1)
		var got []byte
		go func() {
			r, err := b.GetBundle(t.Context(), c.name)
			if err == nil {
				got, err = io.ReadAll(r)
				r.Close()
			}
			done <- err
		}()
		for range 5 { // more than it takes to find an existing one
			if _, err := looks.NextMsg(time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range parts {
			if c.want != "" {
				m.Data[0]++
			}
			if _, err := js.Publish(t.Context(), m.Subject, m.Data); err != nil {
				t.Fatal(err)
			}
		}
		err := <-done
		if c.want == "" && (err != nil || string(got) != body) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s missing: %d bytes of %d, %v", c.name, len(got), len(body), err)
		}
		if _, err := stream.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Only the parts that a killed process left of a bundle are removed.
func TestClearedBundles(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	ctx := t.Context()
	for _, digest := range []string{"kept", "deleted", "half"} {
		if _, err := b.PutBundle(ctx, digest, strings.NewReader(digest)); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := b.JetStream().ObjectStore(ctx, subjects.ObjectBundles)
	if err == nil {
		err = objects.Delete(ctx, "deleted") // leaves its mark
	}
	if err != nil {
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

// A message that cannot be removed, such as this mark, does not hold up the others.
func TestClearingBundlesGoesOn(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.Config(`authorization { users: [
  { user: all, password: all }
  { user: narrow, password: narrow, permissions: { publish: { deny: ["$JS.API.STREAM.MSG.DELETE.>"] } } }
] }`))
	ctx := t.Context()
	all := open(t, s.Connect(t, nats.UserInfo("all", "all")), nil)
	ensure(t, all, nil)
	if _, err := all.PutBundle(ctx, "deleted", strings.NewReader("deleted")); err != nil {
		t.Fatal(err)
	}
	objects, err := all.JetStream().ObjectStore(ctx, subjects.ObjectBundles)
	if err == nil {
		err = objects.Delete(ctx, "deleted") // leaves its mark
	}
	if err == nil {
		_, err = all.JetStream().Publish(ctx, "$O."+subjects.ObjectBundles+".C.unfinished", []byte("part"))
	}
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, s.Connect(t, nats.UserInfo("narrow", "narrow")), nil)
	meshtest.Until(t, "the mark alone is left", func() bool {
		err := b.ClearBundles(ctx, 0) // nil while it takes the mark for too young
		left := messages(t, all)
		if left == 0 {
			t.Fatal("the mark was removed")
		}
		return err != nil && left == 1
	})
}

const sweepsNothing = 1 << 62

func look(t *testing.T, b store.Store, digest string) store.Object {
	t.Helper()
	s, err := b.Bundle(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// messages counts the messages of the object store.
func messages(t *testing.T, b store.Store) uint64 {
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
