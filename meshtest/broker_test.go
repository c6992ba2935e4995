package meshtest_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
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

func TestCallersGetStreamsInEveryTopology(t *testing.T) {
	t.Parallel()
	live, err := subjects.Live("s1", "rpc_1")
	if err != nil {
		t.Fatal(err)
	}
	heartbeat, err := subjects.Heartbeat("n1")
	if err != nil {
		t.Fatal(err)
	}
	directed, err := subjects.NodeTool("n1", "s1", "demo.count")
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		server, caller := top.Serve(t), top.Call(t)
		got := make(chan string, 4096)
		for _, subject := range []string{live, heartbeat} {
			if _, err := caller.Subscribe(subject, func(m *nats.Msg) { got <- m.Subject }); err != nil {
				t.Fatal(err)
			}
		}
		for _, subject := range []string{live, heartbeat} {
			meshtest.Until(t, subject+" arrives", func() bool {
				if err := server.Publish(subject, []byte("x")); err != nil {
					t.Fatal(err)
				}
				for {
					select {
					case s := <-got:
						if s == subject {
							return true
						}
					default:
						return false
					}
				}
			})
		}
		// A directed request may be answered by many messages, one of them empty.
		if _, err := server.Subscribe(directed, func(m *nats.Msg) {
			for i := range 10 {
				out := nats.NewMsg(m.Reply)
				out.Header.Set("Mesh-Seq", strconv.Itoa(i+1))
				_ = server.PublishMsg(out)
			}
		}); err != nil {
			t.Fatal(err)
		}
		inbox := caller.NewInbox()
		replies := make(chan *nats.Msg, 64)
		if _, err := caller.ChanSubscribe(inbox, replies); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the request arrives", func() bool {
			if err := caller.PublishRequest(directed, inbox, nil); err != nil {
				t.Fatal(err)
			}
			if err := caller.Flush(); err != nil {
				t.Fatal(err)
			}
			m := <-replies
			return m.Header.Get("Status") != "503"
		})
		for i := 2; i <= 10; i++ {
			if m := <-replies; m.Header.Get("Mesh-Seq") != strconv.Itoa(i) {
				t.Fatalf("reply %d is %v", i, m.Header)
			}
		}
	})
}

func TestProxy(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	p := meshtest.NewProxy(t, s)
	nc := p.Connect(t)
	events := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING)
	next := func() nats.Status {
		select {
		case e := <-events:
			return e
		case <-t.Context().Done():
			t.Fatal("no event")
			return 0
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	p.Blackhole()
	if err := nc.FlushTimeout(200 * time.Millisecond); err == nil {
		t.Fatal("a ping came back out of a black hole")
	}
	p.Heal()
	if err := nc.Flush(); err != nil {
		t.Fatalf("after healing: %v", err)
	}
	p.Cut(true)
	if e := next(); e != nats.RECONNECTING {
		t.Fatalf("after a cut: %v", e)
	}
	p.Heal()
	if e := next(); e != nats.CONNECTED {
		t.Fatalf("after healing: %v", e)
	}
}

func TestCaptureLogs(t *testing.T) {
	t.Parallel()
	l := meshtest.CaptureLogs(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Wait(t, "second line")
	}()
	l.Logger.Info("first line")
	l.Logger.Debug("second line")
	<-done
	if n := l.Count("line"); n != 2 {
		t.Fatalf("%d lines, want 2", n)
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
