package host

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/meshtest"
)

// A process that hears another boot in its node's name asks at once whose the node
// is: what is directed to the node after that it leaves to the other where the lease
// is the other's, and goes on where the lease is its own.
func TestForeignHeartbeat(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	h, err := New(broker.Connect(t), &Options{Node: "one", Index: "desk", Service: "-"})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(context.Background()) })
	meshtest.Until(t, "the node has joined", func() bool { return h.Stats().Joined })
	foreign := &nats.Msg{Subject: "mesh.hb.one", Data: []byte(`{"node":"one","boot":"another","state":"serving"}`)}
	for range 3 {
		h.echo(foreign)
		if !h.isNode() {
			t.Fatal("a heartbeat alone has made the process give up its node")
		}
	}
	js, err := jetstream.New(broker.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	// The other process has taken the node over, as it may behind a partition.
	if _, err := js.Publish(t.Context(), "$KV.MESH_NODES.one", fmt.Appendf(nil, `{"node":"one","boot":"another"}`)); err != nil {
		t.Fatal(err)
	}
	h.echo(foreign)
	if h.isNode() {
		t.Error("it runs what is directed to the node, which is another process by now")
	}
	<-h.Lost()
}
