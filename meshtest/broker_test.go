package meshtest_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/meshtest"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

func TestBrokerRestartsWithItsFiles(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "kept", []byte("x")); err != nil {
		t.Fatal(err)
	}
	url := s.URL
	back := nc.StatusChanged(nats.CONNECTED)
	s.Restart(t)
	if s.URL != url {
		t.Fatalf("the URL changed from %s to %s", url, s.URL)
	}
	select {
	case <-back:
	case <-t.Context().Done():
		t.Fatal("the connection did not come back")
	}
	stream, err := js.Stream(t.Context(), "KEPT")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Fatalf("the stream holds %d messages after a restart, want 1", n)
	}
}

func TestTopologiesCarryRequests(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		start := time.Now()
		server, caller := top.Serve(t), top.Call(t)
		sub, err := server.QueueSubscribe("tools.*.demo.echo", "mesh", func(m *nats.Msg) {
			if err := m.Respond(m.Data); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Flush(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sub.Unsubscribe() }()
		meshtest.Until(t, "the request is answered", func() bool {
			m, err := caller.Request("tools.s1.demo.echo", []byte("hi"), 5*time.Second)
			return err == nil && string(m.Data) == "hi"
		})
		if _, err := caller.Request("tools.s1.demo.none", nil, 5*time.Second); err != nats.ErrNoResponders {
			t.Errorf("a tool that nobody serves: %v, want no responders", err)
		}
		t.Logf("%s: %v", top.Name, time.Since(start))
	})
}
