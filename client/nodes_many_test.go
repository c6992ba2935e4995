package client

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A client that knows many nodes listens to some of them: those with calls that last come
// first, and a node that was lost gets no call until it is heard.
func TestClientListensToSomeOfManyNodes(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	c, err := New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.bus.FreshTime(t.Context()); err != nil { // which subscribes the inbox
		t.Fatal(err)
	}
	before := nc.NumSubscriptions()
	ns := &c.shared.nodes
	var all []*node
	for i := range 3 * maxHeard {
		all = append(all, ns.told(subjects.NodeID(fmt.Sprintf("n%d", i)), "boot1"))
	}
	listens := func(n *node) bool {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		return ns.subs[n.id] != nil
	}
	check := func(when string) {
		t.Helper()
		if got := nc.NumSubscriptions() - before; got != maxHeard {
			t.Errorf("%s: %d heartbeats are subscribed, want %d", when, got, maxHeard)
		}
	}
	check("at first")
	busy, last := all[0], all[len(all)-1]
	for _, n := range all[:maxHeard-1] {
		n.outstanding.Add(1)
	}
	if listens(last) || !last.usable() {
		t.Fatal("the last node is listened to, or not used for not being heard")
	}
	ns.attend(last)
	if !listens(last) || !listens(busy) || listens(all[maxHeard-1]) {
		t.Error("the node without calls was to make room for one with a call that lasts")
	}
	check("when a call lasts")
	last.outstanding.Add(1)
	ns.attend(all[maxHeard+1])
	if listens(all[maxHeard+1]) {
		t.Error("no node without calls was left to make room")
	}
	check("when all have calls")

	ns.doubt(last)
	if last.usable() {
		t.Error("a node that was lost gets calls before it is heard again")
	}
	subject, err := subjects.Heartbeat(last.id)
	if err != nil {
		t.Fatal(err)
	}
	beat := codec.Heartbeat{Node: string(last.id), Boot: "boot1", State: "serving", Slots: 1}.Encode()
	if err := nc.Flush(); err != nil { // the broker has the subscription
		t.Fatal(err)
	}
	if err := s.Connect(t).PublishMsg(&nats.Msg{Subject: subject, Data: beat}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the node is used again", last.usable)
	last.outstanding.Add(-1)
	ns.attend(all[maxHeard+1])
	if listens(last) || !last.usable() {
		t.Error("a node that is not listened to any more is not used for its silence")
	}
}
