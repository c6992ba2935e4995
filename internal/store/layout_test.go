package store_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
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

func ensure(t testing.TB, b store.Store, l *store.Layout) {
	t.Helper()
	if err := b.Ensure(t.Context(), l); err != nil {
		t.Fatal(err)
	}
}

func config(t testing.TB, b store.Store, stream string) jetstream.StreamConfig {
	t.Helper()
	s, err := b.JetStream().Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().Config
}

func TestEnsureMakesTheLayoutInEveryTopology(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		copies := 1
		if top.Name == "cluster3" {
			copies = 3
		}
		for _, want := range (store.Layout{}).Streams() {
			got := config(t, b, want.Name)
			if got.Replicas != copies {
				t.Errorf("%s has %d copies, want %d", want.Name, got.Replicas, copies)
			}
			if !reflect.DeepEqual(got.RePublish, want.RePublish) || got.MaxAge != want.MaxAge || !got.AllowDirect {
				t.Errorf("%s: republish %+v, direct %v", want.Name, got.RePublish, got.AllowDirect)
			}
		}
		chunks := config(t, b, subjects.StreamChunks)
		if chunks.MaxAge != 15*time.Minute || chunks.MaxBytes != store.DefaultChunksBytes || chunks.Discard != jetstream.DiscardNew || chunks.Storage != jetstream.FileStorage {
			t.Errorf("chunk stream: %+v", chunks)
		}
		// A second time nothing is changed.
		logs := meshtest.CaptureLogs(t)
		ensure(t, open(t, top.Serve(t), &bus.Options{Logger: logs.Logger}), nil)
		if n := logs.Count("stream changed"); n != 0 {
			t.Errorf("a second Ensure changed %d streams:\n%s", n, logs)
		}
	})
}

func TestEnsureAtOnceFromManyProcesses(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	results := make(chan error)
	for range 8 {
		b := open(t, s.Connect(t), nil)
		go func() { results <- b.Ensure(t.Context(), nil) }()
	}
	for range 8 {
		if err := receive(t, results, "Ensure"); err != nil {
			t.Error(err)
		}
	}
}

func TestEnsureRepairsSafeDifferences(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	bucket := subjects.KVStream(subjects.BucketTools)
	if _, err := b.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: bucket, Subjects: []string{subjects.KVAll(subjects.BucketTools)}, MaxMsgsPerSubject: 5, AllowRollup: true,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.JetStream().Publish(t.Context(), subjects.KVSubject(subjects.BucketTools, "kept"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	ensure(t, b, &store.Layout{ChunksMax: 1 << 20})
	got := config(t, b, bucket)
	if got.MaxMsgsPerSubject != 1 || got.AllowRollup || !got.AllowDirect || !got.AllowMsgTTL || got.RePublish == nil {
		t.Fatalf("not repaired: %+v", got)
	}
	if _, err := b.Get(t.Context(), store.Key{Bucket: subjects.BucketTools, Name: "kept"}); err != nil {
		t.Fatalf("the repair lost a key: %v", err)
	}
	// A size is set if given, else the existing one stays.
	if got := config(t, b, subjects.StreamChunks).MaxBytes; got != 1<<20 {
		t.Fatalf("chunk bytes %d", got)
	}
	ensure(t, b, nil)
	if got := config(t, b, subjects.StreamChunks).MaxBytes; got != 1<<20 {
		t.Fatalf("chunk bytes %d after an Ensure that asks for none", got)
	}
	ensure(t, b, &store.Layout{ChunksMax: 2 << 20})
	if got := config(t, b, subjects.StreamChunks).MaxBytes; got != 2<<20 {
		t.Fatalf("chunk bytes %d after they were raised", got)
	}
	// What is missing is made anew, and another process's change stays.
	if err := b.JetStream().DeleteStream(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	if err := b.Restore(t.Context(), &store.Layout{ChunksMax: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if got := config(t, b, subjects.StreamChunks).MaxBytes; got != 2<<20 {
		t.Fatalf("chunk bytes %d after a restore", got)
	}
	config(t, b, bucket)
}

func TestEnsureRefusesForeignStreams(t *testing.T) {
	t.Parallel()
	bucket := subjects.KVStream(subjects.BucketNodes)
	all := []string{subjects.KVAll(subjects.BucketNodes)}
	tests := map[string]struct {
		have   jetstream.StreamConfig
		layout *store.Layout
		says   string
	}{
		"other subjects":  {jetstream.StreamConfig{Name: bucket, Subjects: []string{"mine.>"}}, nil, "it is not the mesh's"},
		"a work queue":    {jetstream.StreamConfig{Name: bucket, Subjects: all, Retention: jetstream.WorkQueuePolicy}, nil, "is of another kind"},
		"no ack":          {jetstream.StreamConfig{Name: bucket, Subjects: all, NoAck: true}, nil, "is of another kind"},
		"other storage":   {jetstream.StreamConfig{Name: subjects.StreamChunks, Subjects: []string{subjects.AllChunks}, Storage: jetstream.MemoryStorage}, &store.Layout{ChunksStorage: "file"}, "kept in"},
		"covered by >":    {jetstream.StreamConfig{Name: "EVERYTHING", Subjects: []string{">"}, NoAck: true}, nil, "EVERYTHING"},
		"covers a tool":   {jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"tools.*.demo.echo"}}, nil, "AUDIT"},
		"covers tools":    {jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"ok", "tools.s1.>"}}, nil, "AUDIT"},
		"covers a node":   {jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"mesh.node.>"}}, nil, "AUDIT"},
		"covers registry": {jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"mesh.registry.s1.list"}}, nil, "AUDIT"},
		"bad layout":      {jetstream.StreamConfig{Name: "FINE", Subjects: []string{"fine"}}, &store.Layout{Replicas: 9}, "Layout.Replicas"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, meshtest.Broker(t).Connect(t), nil)
			if _, err := b.JetStream().CreateStream(t.Context(), tt.have); err != nil {
				t.Fatal(err)
			}
			err := b.Ensure(t.Context(), tt.layout)
			if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%v, want invalid_request that says %q", err, tt.says)
			}
		})
	}
}

func TestAuditOfEventsIsNotForeign(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	for name, subject := range map[string]string{"EVENTS": "mesh.evt.>", "BEATS": subjects.AllHeartbeats, "LIVE": subjects.LiveTransform} {
		if _, err := b.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	ensure(t, b, nil)
}

func TestEnsureWaitsForJetStream(t *testing.T) {
	t.Parallel()
	// An account without JetStream: the error says so, at once.
	s := meshtest.Broker(t, meshtest.Config(`accounts { A { users: [{user: a, password: a}] } }`))
	b := open(t, s.Connect(t, nats.UserInfo("a", "a")), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := b.Ensure(ctx, nil)
	if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || !strings.Contains(err.Error(), "JetStream") {
		t.Fatalf("%v, want unavailable that names JetStream", err)
	}
}

func TestRepublishReachesCoreSubscribers(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := open(t, s.Connect(t), nil)
	ensure(t, b, nil)
	chunk, err := subjects.Chunks("s1", "rpc_1")
	if err != nil {
		t.Fatal(err)
	}
	live, err := subjects.Live("s1", "rpc_1")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *nats.Msg, 1)
	if _, err := b.Conn().ChanSubscribe(live, got); err != nil {
		t.Fatal(err)
	}
	if _, err := b.JetStream().Publish(t.Context(), chunk, []byte("item")); err != nil {
		t.Fatal(err)
	}
	if m := receive(t, got, "live chunk"); string(m.Data) != "item" {
		t.Fatalf("live chunk %q", m.Data)
	}
}

func TestBundles(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		body := strings.Repeat("0123456789abcdef", 40_000)
		if stored, err := b.PutBundle(t.Context(), "sha256-1", strings.NewReader(body)); err != nil || !stored {
			t.Fatalf("%v, stored: %v", err, stored)
		}
		// Another process, on another server.
		other := open(t, top.ServeOn(t, 1), nil)
		if got := get(t, other, "sha256-1"); got != body {
			t.Fatalf("%d bytes came back, want %d", len(got), len(body))
		}
		if stored, err := b.PutBundle(t.Context(), "sha256-1", failingReader{}); err != nil || stored {
			t.Fatalf("a bundle that is there was read again: %v, stored: %v", err, stored)
		}
		if err := b.DeleteBundle(t.Context(), "sha256-1"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.GetBundle(t.Context(), "sha256-1"); !errors.Is(err, store.ErrNoKey) {
			t.Fatalf("a deleted bundle is still there: %v", err)
		}
	})
}

// get reads a bundle to its end.
func get(t *testing.T, b store.Store, digest string) string {
	t.Helper()
	r, err := b.GetBundle(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, context.Canceled }

func TestStreamsNameEveryBucket(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range (store.Layout{}).Streams() {
		names = append(names, s.Name)
	}
	for _, bucket := range subjects.RegistryBuckets() {
		if !slices.Contains(names, subjects.KVStream(bucket)) {
			t.Errorf("%s is not part of the layout", bucket)
		}
	}
}

// A server with a full disk takes a message and does not answer.
func TestABundleThatIsNotConfirmedIsUnavailable(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	silent := config(t, b, "OBJ_"+subjects.ObjectBundles)
	silent.NoAck = true
	if _, err := b.JetStream().UpdateStream(t.Context(), silent); err != nil {
		t.Fatal(err)
	}
	_, err := b.PutBundle(t.Context(), "sha256-1", strings.NewReader("bundle"))
	if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || !strings.Contains(err.Error(), "disk may be full") {
		t.Errorf("%s: %v", toolmesh.CodeOf(err), err)
	}
}
