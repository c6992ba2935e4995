package presence

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// node starts a presence on a broker's mesh.
func node(t *testing.T, broker *meshtest.Server) *Presence {
	t.Helper()
	p := start(t, broker, func(context.Context) error { return nil })
	meshtest.Until(t, "the node has its lease", func() bool { return p.Missing() == nil }) // on a busy machine its start is over before
	return p
}

// start is node without a wait for the lease. prepared is called before each attempt to take it.
func start(t *testing.T, broker *meshtest.Server, prepared func(context.Context) error) *Presence {
	t.Helper()
	b, err := bus.New(broker.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	p := New(b, "mesh.hb.one", "mine", &Options{
		Prepare: func(ctx context.Context) error {
			return errors.Join(store.Of(b).Ensure(ctx, nil), prepared(ctx))
		},
		Record:    func() registry.NodeRecord { return registry.NodeRecord{Node: "one", Boot: "mine", State: "serving"} },
		Heartbeat: func() codec.Heartbeat { return codec.Heartbeat{Node: "one", Boot: "mine", State: "serving"} },
		Write:     func(context.Context) error { return nil },
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(context.Background()) })
	return p
}

// become writes another process into the lease of the node.
func become(t *testing.T, broker *meshtest.Server) {
	t.Helper()
	js, err := jetstream.New(broker.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "$KV.MESH_NODES.one", []byte(`{"node":"one","boot":"another"}`)); err != nil {
		t.Fatal(err)
	}
}

// A start whose time is over while it listens for the process that holds the node's lease listens
// again: the holder may only be frozen, and both would be the node once it goes on.
func TestStartIsNoNodeBesideItsHolder(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	attempts := 0
	p := start(t, broker, func(ctx context.Context) error {
		if attempts++; attempts == 1 {
			become(t, broker)
			end, _ := ctx.Deadline()
			time.Sleep(time.Until(end) - registry.Silence/2) // a registry that is slow, as on a busy machine
		}
		return nil
	})
	if err := p.Missing(); err != nil {
		t.Errorf("it is the node without a lease, which another process holds: %v", err)
	}
	if attempts < 2 {
		t.Error("it was not kept from its lease")
	}
}

// A process that served without the registry leaves the node to the one that has its lease, without
// the announcement of a drain: callers would take it for the other's.
func TestNodeWithoutALeaseIsLeftToItsHolder(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	var reached atomic.Bool
	p := start(t, broker, func(context.Context) error {
		if reached.Load() {
			return nil
		}
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "no registry")
	})
	if p.Missing() == nil {
		t.Fatal("it has a lease")
	}
	become(t, broker)
	reached.Store(true)
	other := broker.Connect(t)
	for lost := false; !lost; {
		if err := other.Publish("mesh.hb.one", []byte(`{"node":"one","boot":"another","state":"serving"}`)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Lost():
			lost = true
		case <-time.After(BeatEvery / 10):
		}
	}
	if !p.Taken() || p.Certain() {
		t.Errorf("it goes on as the node: %v", p.Err())
	}
}

// A process that receives a heartbeat of another boot with its node's name checks the lease at
// once: it leaves later directed requests to the other boot if the lease is the other's, and goes
// on if the lease is its own.
func TestForeignHeartbeat(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	p := node(t, broker)
	foreign := &nats.Msg{Subject: "mesh.hb.one", Data: []byte(`{"node":"one","boot":"another","state":"serving"}`)}
	for range 3 {
		p.heard(foreign)
		if !p.Confirm(t.Context()) {
			t.Fatal("a heartbeat alone has made the process give up its node")
		}
	}
	become(t, broker) // as it may behind a partition
	p.heard(foreign)
	if p.Confirm(t.Context()) {
		t.Error("it runs what is directed to the node, which is another process by now")
	}
	<-p.Lost()
	if p.Err() == nil || !p.Taken() || p.Certain() {
		t.Errorf("lost: %v, taken %v, certain %v", p.Err(), p.Taken(), p.Certain())
	}
}

func TestOwnHeartbeatsKeepAProcessCertain(t *testing.T) {
	t.Parallel()
	p := node(t, meshtest.Broker(t))
	first := *p.until.Load()
	meshtest.Until(t, "a heartbeat that came back has counted", func() bool { return p.until.Load().After(first) })
}

// A process is certain of its lease no longer than another one would wait before a takeover,
// counted from the sending of the answered request, and an answer never shortens that.
func TestPresenceIsCertainForALimitedTime(t *testing.T) {
	t.Parallel()
	var p Presence
	sent := time.Now()
	if p.certain(sent) {
		t.Error("it is certain before anything came back")
	}
	p.extend(sent)
	p.extend(sent.Add(-time.Second)) // an older one, late
	end := sent.Add(registry.Silence)
	if !p.certain(end.Add(-1)) || p.certain(end) {
		t.Errorf("certain just before the end: %v, at the end: %v", p.certain(end.Add(-1)), p.certain(end))
	}
}
