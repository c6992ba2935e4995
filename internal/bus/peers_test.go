package bus_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Of many nodes the heartbeats of some are subscribed: those with calls that last come first.
// A node that was lost gets no call until it is heard.
func TestHeartbeatsOfManyNodes(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	b, err := bus.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.FreshTime(t.Context()); err != nil { // which subscribes the inbox
		t.Fatal(err)
	}
	before := nc.NumSubscriptions()
	var all []*bus.Peer
	for i := range 3 * bus.MaxHeard {
		all = append(all, b.Listed(subjects.NodeID(fmt.Sprintf("n%d", i)), "boot1"))
	}
	listens := (*bus.Peer).Attended
	check := func(when string) {
		t.Helper()
		if got := nc.NumSubscriptions() - before; got != bus.MaxHeard {
			t.Errorf("%s: %d heartbeats are subscribed, want %d", when, got, bus.MaxHeard)
		}
	}
	check("at first")
	busy, last := all[0], all[len(all)-1]
	for _, n := range all[:bus.MaxHeard-1] {
		n.Outstanding.Add(1)
	}
	if listens(last) || !last.Usable() {
		t.Fatal("the last node is listened to, or not used for not being heard")
	}
	b.Attend(last)
	if !listens(last) || !listens(busy) || listens(all[bus.MaxHeard-1]) {
		t.Error("the node without calls was to make room for one with a call that lasts")
	}
	check("when a call lasts")
	last.Outstanding.Add(1)
	b.Attend(all[bus.MaxHeard+1])
	if listens(all[bus.MaxHeard+1]) {
		t.Error("no node without calls was left to make room")
	}
	check("when all have calls")

	b.Doubt(last)
	if last.Usable() {
		t.Error("a node that was lost gets calls before it is heard again")
	}
	subject, err := subjects.Heartbeat(last.ID)
	if err != nil {
		t.Fatal(err)
	}
	beat := codec.Encode(codec.Heartbeat{Node: string(last.ID), Boot: "boot1", State: "serving", Slots: 1})
	if err := nc.Flush(); err != nil { // the broker has the subscription
		t.Fatal(err)
	}
	if err := s.Connect(t).PublishMsg(&nats.Msg{Subject: subject, Data: beat}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the node is used again", last.Usable)
	last.Outstanding.Add(-1)
	b.Attend(all[bus.MaxHeard+1])
	if listens(last) || !last.Usable() {
		t.Error("a node that is not listened to any more is not used for its silence")
	}
}
