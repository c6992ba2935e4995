package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestRequestIsAnsweredInEveryTopology(t *testing.T) {
	t.Parallel()
	subject, err := subjects.Tool("s1", "demo.echo")
	if err != nil {
		t.Fatal(err)
	}
	none, err := subjects.Tool("s1", "demo.none")
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		serve(t, top.Serve(t), subject)
		b := open(t, top.Call(t), nil)
		request := func(subject, body string) (string, error) {
			m := nats.NewMsg(subject)
			m.Data = []byte(body)
			r, err := b.Request(t.Context(), m)
			if err != nil {
				return "", err
			}
			return string(r.Data), nil
		}
		meshtest.Until(t, "the interest has travelled", func() bool { _, err := request(subject, ""); return err == nil })
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				body := fmt.Sprint(i)
				if got, err := request(subject, body); err != nil || got != body {
					t.Errorf("request %s: %q, %v", body, got, err)
				}
			})
		}
		wg.Wait()
		_, err := request(none, "")
		wantCode(t, err, toolmesh.CodeUnavailable, toolmesh.StartedNo)
		if !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%v does not wrap nats.ErrNoResponders", err)
		}
		// The Bus itself may be asking for the time.
		meshtest.Until(t, "no inbox is left open", func() bool { return b.OpenInboxes() == 0 })
	})
}

func TestInboxTakesManyRepliesInOrder(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	server := s.Connect(t)
	const n = 2000
	if _, err := server.Subscribe("stream", func(m *nats.Msg) {
		for i := range n {
			_ = server.Publish(m.Reply, fmt.Append(nil, i))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := server.Flush(); err != nil {
		t.Fatal(err)
	}
	b := open(t, s.Connect(t), nil)
	got := make(chan string, n)
	in, err := b.Open(func(m *nats.Msg, _ error) { got <- string(m.Data) })
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Send(nats.NewMsg("stream")); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if text := receive(t, got, "reply"); text != fmt.Sprint(i) {
			t.Fatalf("reply %d is %s", i, text)
		}
	}
	// Messages with more tokens after the subject belong to the call, too.
	if err := server.Publish(in.Subject()+".7.x", []byte("behind")); err != nil {
		t.Fatal(err)
	}
	if text := receive(t, got, "reply with a suffix"); text != "behind" {
		t.Fatalf("reply with a suffix is %q", text)
	}
	in.Close()
	in.Close()
	if err := server.Publish(in.Subject(), nil); err != nil {
		t.Fatal(err)
	}
	// Messages for an unknown inbox are ignored.
	serve(t, server, "echo")
	if _, err := b.Request(t.Context(), nats.NewMsg("echo")); err != nil {
		t.Fatal(err)
	}
}

func TestOneSubscriptionForAllCalls(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	b := open(t, nc, nil)
	before := nc.NumSubscriptions()
	const n = 20_000
	seen := make(map[string]bool, n)
	for range n {
		in, err := b.Open(func(*nats.Msg, error) {})
		if err != nil {
			t.Fatal(err)
		}
		if seen[in.Subject()] {
			t.Fatal("two inboxes have one subject")
		}
		seen[in.Subject()] = true
	}
	if got := nc.NumSubscriptions(); got > before+1 {
		t.Fatalf("%d subscriptions for %d calls, want one", got-before, n)
	}
	if got := b.OpenInboxes(); got < n {
		t.Fatalf("%d inboxes, want at least %d", got, n)
	}
}

func TestCustomInboxPrefix(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	serve(t, s.Connect(t), "echo")
	prefix, err := subjects.InboxPrefix("s1")
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, s.Connect(t, nats.CustomInboxPrefix(prefix)), nil)
	in, err := b.Open(func(*nats.Msg, error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if !strings.HasPrefix(in.Subject(), prefix+".") || !subjects.ReplyAllowed(in.Subject(), "s1", true) {
		t.Fatalf("reply subject %s does not belong to session s1", in.Subject())
	}
	if _, err := b.Request(t.Context(), nats.NewMsg("echo")); err != nil {
		t.Fatal(err)
	}
}

func TestForeignConnectionIsNotBuffered(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	// The reconnect buffer of this connection is on: nats.go's own default.
	nc, err := nats.Connect(s.URL, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b := open(t, nc, nil)
	lost := make(chan bus.State, 16)
	defer b.OnState(func(s bus.State) { lost <- s })()
	s.Stop()
	receive(t, lost, "loss")
	_, err = b.Request(t.Context(), nats.NewMsg("echo"))
	wantCode(t, err, toolmesh.CodeUnavailable, toolmesh.StartedNo)
	if n, err := nc.Buffered(); err == nil && n > 0 {
		t.Fatalf("%d bytes wait in the reconnect buffer", n)
	}
}

func TestTooLargeIsRefusedHere(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t, meshtest.MaxPayload(2000)).Connect(t), nil)
	if got := b.MaxPayload(); got != 2000 {
		t.Fatalf("MaxPayload is %d, want 2000", got)
	}
	m := nats.NewMsg("echo")
	m.Data = make([]byte, 3000)
	_, err := b.Request(t.Context(), m)
	wantCode(t, err, toolmesh.CodePayloadTooLarge, toolmesh.StartedNo)
}

const permissions = `authorization { users: [
  { user: all, password: all }
  { user: narrow, password: narrow, permissions: { publish: ["ok"], subscribe: ["_INBOX_s1.>"] } }
] }`

func TestDeniedPublishReachesItsCalls(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.Config(permissions))
	// ok is heard and never answered: its call must not be touched.
	if _, err := s.Connect(t, nats.UserInfo("all", "all")).SubscribeSync("ok"); err != nil {
		t.Fatal(err)
	}
	logs := meshtest.CaptureLogs(t)
	b := open(t, s.Connect(t, nats.UserInfo("narrow", "narrow"), nats.CustomInboxPrefix("_INBOX_s1")), &bus.Options{Logger: logs.Logger})
	other := make(chan error, 1)
	in, err := b.Open(func(_ *nats.Msg, err error) {
		if err != nil {
			other <- err
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := in.Send(nats.NewMsg("ok")); err != nil {
		t.Fatal(err)
	}
	_, err = b.Request(t.Context(), nats.NewMsg("forbidden"))
	wantCode(t, err, toolmesh.CodePermissionDenied, toolmesh.StartedNo)
	select {
	case err := <-other:
		t.Fatalf("a call on another subject was failed: %v", err)
	default:
	}
	// The same connection may not ask for the time either: that is logged, once, without
	// waiting.
	if err := b.FreshTime(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := b.Time(); now.Measured || now.Bound < time.Hour {
		t.Fatalf("time without the right to ask: %+v", now)
	}
	logs.Wait(t, "does not tell this connection its time") // after the wait
	if n := logs.Count("does not tell this connection its time"); n != 1 {
		t.Fatalf("logged %d times, want once", n)
	}
}

func TestDeniedInboxFailsTheCalls(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.Config(permissions))
	serve(t, s.Connect(t, nats.UserInfo("all", "all")), "ok")
	b := open(t, s.Connect(t, nats.UserInfo("narrow", "narrow")), nil)
	_, err := b.Request(t.Context(), nats.NewMsg("ok"))
	if code := toolmesh.CodeOf(err); code != toolmesh.CodePermissionDenied || !strings.Contains(err.Error(), "CustomInboxPrefix") {
		t.Fatalf("%v, want permission_denied that names nats.CustomInboxPrefix", err)
	}
	if _, err := b.Open(func(*nats.Msg, error) {}); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Fatalf("a later call: %v, want permission_denied at once", err)
	}
}

func TestSlowConsumerIsTold(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	told := make(chan error, 16)
	nc := s.Connect(t, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { told <- err }))
	logs := meshtest.CaptureLogs(t)
	open(t, nc, &bus.Options{Logger: logs.Logger})
	release := make(chan struct{})
	defer close(release)
	sub, err := nc.Subscribe("flood", func(*nats.Msg) { <-release })
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(1, -1); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := nc.Publish("flood", nil); err != nil {
			t.Fatal(err)
		}
	}
	logs.Wait(t, "this process reads too slowly\" subject=flood")
	if err := receive(t, told, "the connection's own handler"); !errors.Is(err, nats.ErrSlowConsumer) {
		t.Fatalf("the connection's own handler got %v", err)
	}
}

func TestRequestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	if _, err := s.Connect(t).SubscribeSync("silent"); err != nil {
		t.Fatal(err)
	}
	b := open(t, s.Connect(t), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Request(ctx, nats.NewMsg("silent"))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want context.Canceled", err)
	}
}

func BenchmarkRequest(b *testing.B) {
	s := meshtest.Broker(b)
	serve(b, s.Connect(b), "echo")
	body := make([]byte, 128)
	b.Run("bus", func(b *testing.B) {
		x := open(b, s.Connect(b), nil)
		b.ReportAllocs()
		for b.Loop() {
			m := &nats.Msg{Subject: "echo", Data: body}
			if _, err := x.Request(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("nats", func(b *testing.B) {
		nc := s.Connect(b)
		b.ReportAllocs()
		for b.Loop() {
			m := &nats.Msg{Subject: "echo", Data: body}
			if _, err := nc.RequestMsgWithContext(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bus-parallel", func(b *testing.B) {
		x := open(b, s.Connect(b), nil)
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := x.Request(b.Context(), &nats.Msg{Subject: "echo", Data: body}); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("nats-parallel", func(b *testing.B) {
		nc := s.Connect(b)
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := nc.RequestMsgWithContext(b.Context(), &nats.Msg{Subject: "echo", Data: body}); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// Reads of the store close their inboxes, also where the reader stops early, nothing is
// stored, or the stream does not exist.
func TestReadsCloseTheirInboxes(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	st := store.Of(b)
	if err := st.EnsureBucket(t.Context(), subjects.BucketNodes); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2"} {
		if _, err := st.Put(t.Context(), store.Key{Bucket: subjects.BucketNodes, Name: name}, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	stream, all := subjects.KVStream(subjects.BucketNodes), subjects.KVAll(subjects.BucketNodes)
	for range st.Read(t.Context(), store.Query{Stream: stream, Subject: all}) {
		break
	}
	for _, lookup := range []store.Lookup{{Subject: all}, {Subject: all, From: 1, Pending: true}, {Subject: all, From: 1}, {Subject: "none"}} {
		if _, err := st.Find(t.Context(), stream, lookup); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Find(t.Context(), "MISSING", store.Lookup{Subject: "x"}); err == nil {
		t.Error("a stream that does not exist was read")
	}
	meshtest.Until(t, "no inbox is left open", func() bool { return b.OpenInboxes() == 0 })
}
