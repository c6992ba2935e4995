package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
)

// open makes a Bus that ends with the test, before its connection does.
func open(t testing.TB, nc *nats.Conn, options *bus.Options) *bus.Bus {
	t.Helper()
	b, err := bus.New(nc, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// serve answers every request to subject with its own body.
func serve(t testing.TB, nc *nats.Conn, subject string) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code toolmesh.Code, started toolmesh.Started) {
	t.Helper()
	if got := toolmesh.CodeOf(err); got != code {
		t.Fatalf("code %q (%v), want %q", got, err, code)
	}
	if got := toolmesh.AsError(err).Started; got != started {
		t.Fatalf("started %v (%v), want %v", got, err, started)
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

func TestNewRefusesAClosedConnection(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	nc.Close()
	_, err := bus.New(nc, nil)
	wantCode(t, err, toolmesh.CodeUnavailable, toolmesh.StartedNo)
}

func TestStateFollowsTheConnection(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	b := open(t, nc, nil)
	if got := b.State(); !got.Connected || got.Closed || got.Generation != 1 || time.Since(got.Since) > time.Minute {
		t.Fatalf("state %+v, want connected, generation 1, since now", got)
	}
	states := make(chan bus.State, 16)
	cancel := b.OnState(func(s bus.State) { states <- s })
	defer cancel()
	s.Stop()
	if got := receive(t, states, "loss"); got.Connected || got.Generation != 1 {
		t.Fatalf("after the broker stopped: %+v", got)
	}
	if err := b.Ping(t.Context()); err == nil {
		t.Fatal("a ping without a broker succeeded")
	}
	s.Start(t)
	if got := receive(t, states, "return"); !got.Connected || got.Generation != 2 {
		t.Fatalf("after the broker came back: %+v", got)
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	for {
		if got := receive(t, states, "close"); got.Closed {
			break
		}
	}
}

func TestRetryFirstConnectsLater(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	s.Stop()
	nc, err := nats.Connect(s.URL, bus.ConnectOptions(&bus.ConnectConfig{RetryFirst: true})...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b := open(t, nc, nil)
	_, err = b.Request(t.Context(), nats.NewMsg("anything"))
	wantCode(t, err, toolmesh.CodeUnavailable, toolmesh.StartedNo)
	if got := b.State(); got.Connected || got.Generation != 0 {
		t.Fatalf("state without a broker: %+v", got)
	}
	states := make(chan bus.State, 16)
	defer b.OnState(func(s bus.State) { states <- s })()
	s.Start(t)
	if got := receive(t, states, "connection"); !got.Connected || got.Generation != 1 {
		t.Fatalf("state %+v, want connected, generation 1", got)
	}
}

func TestPingIsSharedAndSeesABlackHole(t *testing.T) {
	t.Parallel()
	p := meshtest.NewProxy(t, meshtest.Broker(t))
	b := open(t, p.Connect(t), nil)
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Blackhole()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	results := make(chan error, 100)
	for range cap(results) {
		go func() { results <- b.Ping(ctx) }()
	}
	for range cap(results) {
		if err := receive(t, results, "ping"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a ping into a black hole: %v, want a deadline", err)
		}
	}
	p.Heal()
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCloseLeavesTheConnectionOpen(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	serve(t, nc, "echo")
	before := nc.NumSubscriptions()
	b := open(t, nc, nil)
	waiting := make(chan error, 1)
	if _, err := b.Open(func(_ *nats.Msg, err error) { waiting <- err }); err != nil {
		t.Fatal(err)
	}
	b.Close()
	b.Close()
	wantCode(t, receive(t, waiting, "the call that waited"), toolmesh.CodeUnavailable, toolmesh.StartedUnknown)
	if _, err := b.Request(t.Context(), nats.NewMsg("echo")); err == nil {
		t.Fatal("a closed Bus sent a request")
	}
	if got := nc.NumSubscriptions(); got != before {
		t.Fatalf("%d subscriptions after Close, want %d", got, before)
	}
	if _, err := nc.Request("echo", nil, 5*time.Second); err != nil {
		t.Fatalf("the connection does not work after Close: %v", err)
	}
}

func TestServiceIsListedOnce(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := open(t, s.Connect(t), nil)
	svc, err := b.StartService(bus.ServiceConfig{
		Name: "mesh-agent", Version: "1.2.3", Description: "a node", Metadata: map[string]string{"node": "n1"},
		Endpoint: "calls", Subject: "mesh.node.n1.tools.>",
		Stats: func() bus.ServiceStats {
			return bus.ServiceStats{Requests: 4, Errors: 1, Took: 8 * time.Second, Data: map[string]int{"in_flight": 7}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	nc := s.Connect(t)
	pong, err := nc.Request("$SRV.PING", nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var listed struct{ ID string }
	if err := json.Unmarshal(pong.Data, &listed); err != nil || listed.ID == "" {
		t.Fatalf("%s: %v", pong.Data, err)
	}
	identity := `"name":"mesh-agent","id":"` + listed.ID + `","version":"1.2.3","metadata":{"node":"n1"}`
	for verb, want := range map[string]string{
		"PING": `{` + identity + `,"type":"io.nats.micro.v1.ping_response"}`,
		"INFO": `{` + identity + `,"type":"io.nats.micro.v1.info_response","description":"a node",` +
			`"endpoints":[{"name":"calls","subject":"mesh.node.n1.tools.\u003e","queue_group":"","metadata":{}}]}`,
		"STATS": `"endpoints":[{"name":"calls","subject":"mesh.node.n1.tools.\u003e","queue_group":"","num_requests":4,"num_errors":1,` +
			`"last_error":"","processing_time":8000000000,"average_processing_time":2000000000,"data":{"in_flight":7}}]}`,
	} {
		for _, target := range []string{"", ".mesh-agent", ".mesh-agent." + listed.ID} {
			m, err := nc.Request("$SRV."+verb+target, nil, 10*time.Second)
			if err != nil {
				t.Fatalf("%s%s: %v", verb, target, err)
			}
			if got := string(m.Data); !strings.HasSuffix(got, want) || !strings.HasPrefix(got, `{`+identity) {
				t.Errorf("%s%s: got %s, want %s", verb, target, got, want)
			}
		}
	}
	// A reply subject outside of the inbox is not answered.
	sub, err := nc.SubscribeSync("elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		if err := nc.PublishRequest("$SRV."+verb, "elsewhere", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Request("$SRV."+verb, nil, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if n, _, err := sub.Pending(); err != nil || n != 0 {
		t.Fatalf("%d answers went to a subject that is no inbox (%v)", n, err)
	}
	if _, err := b.StartService(bus.ServiceConfig{Name: "no name"}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("a service whose name has a space: %v", err)
	}
	svc.Stop()
	meshtest.Until(t, "it is off the list", func() bool {
		_, err := nc.Request("$SRV.PING.mesh-agent", nil, 10*time.Second)
		return errors.Is(err, nats.ErrNoResponders)
	})
}
