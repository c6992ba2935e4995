package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// watched is longer than a client waits before it looks after a call's node.
const watched = 4 * time.Second

// A heartbeat on one node's subject is that node's, whatever node its body names: the calls of
// the named node go on.
func TestHeartbeatOfAnotherName(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	a, b := newTools(), newTools()
	named := a.serve(t, broker.Connect(t), &host.Options{Index: "a"})
	speaker := b.serve(t, broker.Connect(t), &host.Options{Index: "b"})
	c := newClient(t, broker.Connect(t), nil)
	// The client follows both: it has a longer call on each.
	on := map[string]<-chan outcome{"a": start(t, c, "a.hold", toolArgs{Key: "one"}), "b": start(t, c, "b.hold", toolArgs{Key: "one"})}
	wait(t, "start", a.gate("one").started)
	wait(t, "start", b.gate("one").started)
	nc := broker.Connect(t)
	forged := fmt.Sprintf(`{"node":%q,"boot":"another","state":"serving","slots":8}`, named.Node())
	began, ticker := time.Now(), time.NewTicker(100*time.Millisecond)
	defer ticker.Stop()
	for time.Since(began) < watched {
		if err := nc.Publish("mesh.hb."+string(speaker.Node()), []byte(forged)); err != nil {
			t.Fatal(err)
		}
		select {
		case o := <-on["a"]:
			t.Fatalf("the call of the node that is named: %v", o.err)
		case o := <-on["b"]: // its node speaks with another boot's id
			if toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost {
				t.Errorf("the call of the node that speaks: %v, want node_lost", o.err)
			}
			close(b.gate("one").release)
			on["b"] = nil
		case <-ticker.C:
		}
	}
	if on["b"] != nil {
		t.Error("the call of the node that speaks goes on, with another boot's id on its subject")
	}
	close(a.gate("one").release)
	if o := wait(t, "answer", on["a"]); o.err != nil {
		t.Errorf("the call of the node that is named: %v", o.err)
	}
}

// A boot id that was heard once and never again is believed until the node's next
// heartbeat: longer calls that are made then go on, and are sent to the node.
func TestWrongBootIsCorrected(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newTools()
	n := d.serve(t, broker.Connect(t), nil)
	view := answerRegistry(t, broker.Connect(t))
	known(t, view, "desk.hold", 1)
	c := newClient(t, broker.Connect(t), nil)
	directCalls(t, broker, c)
	nc := broker.Connect(t)
	beats := newSpy(t, nc, "mesh.hb.>")
	heartbeat(t, nc, string(n.Node()), "another")
	if len(beats.heard()) == 0 {
		t.Fatal("the heartbeat was not sent")
	}
	meshtest.Until(t, "the node's next heartbeat", func() bool { return len(beats.heard()) > 0 })
	direct := newSpy(t, broker.Connect(t), "mesh.node.*.tools.*.desk.hold")
	began := time.Now()
	call := start(t, c, "desk.hold", toolArgs{Key: "one"})
	wait(t, "start", d.gate("one").started)
	meshtest.Until(t, "the client has looked after the call's node", func() bool { return time.Since(began) > watched })
	close(d.gate("one").release)
	if o := wait(t, "answer", call); o.err != nil {
		t.Errorf("a call after the next heartbeat: %v", o.err)
	}
	if len(direct.heard()) != 1 {
		t.Error("it was not sent to the node itself")
	}
}

// An answer names only the process that made it: one that names another node,
// with a boot id of its own, ends nothing there.
func TestAnswerInAnotherNodesName(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newTools()
	n := d.serve(t, broker.Connect(t), nil)
	im := newImpostor(t, broker.Connect(t), false)
	c := newClient(t, broker.Connect(t), nil)
	call := start(t, c, "desk.hold", toolArgs{Key: "one"})
	wait(t, "start", d.gate("one").started)
	// The client knows the node once the call's first keepalive and a heartbeat came.
	began := time.Now()
	meshtest.Until(t, "the client has looked after the call's node", func() bool { return time.Since(began) > watched })
	other := start(t, c, "fake.x", nil, client.WithTimeout(testTimeout))
	m := wait(t, "request", im.requests)
	for _, keepalive := range []string{"1", ""} {
		h := nats.Header{"Mesh-Rpc-Id": m.Header["Mesh-Rpc-Id"], "Mesh-Node": {string(n.Node())}, "Mesh-Boot": {"another"}, "Mesh-Load": {"9/9"}}
		body := "1"
		if keepalive != "" {
			h["Mesh-Keepalive"], body = []string{"1"}, ""
		}
		if err := im.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h, Data: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	if o := wait(t, "answer", other); o.err != nil {
		t.Fatal(o.err)
	}
	began = time.Now()
	meshtest.Until(t, "the client has looked again", func() bool {
		select {
		case o := <-call:
			t.Fatalf("a call of the node that was named: %v", o.err)
		default:
		}
		return time.Since(began) > time.Second
	})
	close(d.gate("one").release)
	if o := wait(t, "answer", call); o.err != nil {
		t.Errorf("a call of the node that was named: %v", o.err)
	}
}
