package registry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

func open(t testing.TB, nc *nats.Conn) *bus.Bus {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	return b
}

// ready returns a Bus on a broker that has the mesh's buckets.
func ready(t testing.TB, nc *nats.Conn) *bus.Bus {
	t.Helper()
	b := open(t, nc)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func record(node, boot string) registry.NodeRecord {
	return registry.NodeRecord{
		Node: subjects.NodeID(node), Boot: subjects.BootID(boot), State: registry.StateServing, Slots: 4,
		Proto: [2]int{1, 1}, Started: time.Unix(1700000000, 0).UTC(),
	}
}

func acquire(t testing.TB, b *bus.Bus, r registry.NodeRecord) *registry.Lease {
	t.Helper()
	l, err := registry.Acquire(t.Context(), b, r, func(ctx context.Context) error { return store.Of(b).Ensure(ctx, nil) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = l.Release(ctx)
	})
	return l
}

// beat sends heartbeats for a node until stop is called, the first one before it
// returns.
func beat(t testing.TB, b *bus.Bus, node, boot string, inFlight int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	send := func() {
		subject, err := subjects.Heartbeat(subjects.NodeID(node))
		if err != nil {
			t.Error(err)
		}
		_ = b.Conn().Publish(subject, codec.Encode(codec.Heartbeat{Node: node, Boot: boot, State: "serving", Slots: 4, InFlight: inFlight, Calls: 9, Errors: 3, Relayed: 5}))
	}
	send()
	go func() {
		defer close(done)
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				send()
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// view opens a view that learns only from messages: its regular look at the store would hide missed
// ones.
func view(t testing.TB, b *bus.Bus) *registry.View {
	t.Helper()
	v := testmesh.View(t, b, registry.Checking(time.Hour, registry.ViewOptions{}))
	t.Cleanup(v.Close)
	return v
}

// publish stores a descriptor for each id and publishes them as one index.
func publish(t testing.TB, records *registry.Store, l *registry.Lease, index subjects.IndexName, revision string, ids ...string) {
	t.Helper()
	r := registry.ToolsRecord{Index: index, Revision: revision}
	for _, id := range ids {
		d := &tool.Descriptor{
			ID: subjects.ToolID(id), Name: subjects.ToolID(id).Local(), Description: "Does " + id,
			InputSchema: json.RawMessage(`{"type":"object","properties":{"x":{"type":"integer"}}}`), Source: tool.SourceGo,
		}
		digests, err := records.PutDescriptors(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		r.Tools = append(r.Tools, registry.ToolRoute{ID: d.ID, Digest: digests[0], Idempotent: true})
	}
	if err := l.Publish(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func nodesOf(v *registry.View, session, id string) string {
	r, ok := v.Route(subjects.SessionID(session), subjects.ToolID(id))
	if !ok {
		return "unknown"
	}
	text := ""
	for _, n := range r.Nodes {
		text += string(n.Node) + "/" + string(n.Boot) + " "
	}
	return text
}

func wantCode(t *testing.T, err error, code toolmesh.Code) {
	t.Helper()
	if got := toolmesh.CodeOf(err); got != code {
		t.Fatalf("code %q (%v), want %q", got, err, code)
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}

func nodeKey(node string) store.Key { return store.Key{Bucket: subjects.BucketNodes, Name: node} }

func toolsOf(t testing.TB, b *bus.Bus) map[string]string {
	t.Helper()
	out := make(map[string]string)
	q := store.Query{Stream: subjects.KVStream(subjects.BucketTools), Subject: subjects.KVAll(subjects.BucketTools)}
	for m, err := range store.Of(b).Read(t.Context(), q) {
		if err != nil {
			return nil
		}
		if key, _ := subjects.KVKey(subjects.BucketTools, m.Subject); !store.Gone(m.Header) {
			out[key] = string(m.Data)
		}
	}
	return out
}

func name(i int) string { return fmt.Sprintf("n%d", i) }
