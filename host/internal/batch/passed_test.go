package batch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// However many nodes pass its answers on, one node has no more of them on their way to a session
// than of those that it sends itself.
func TestAnswersThatArePassedOnArePaced(t *testing.T) {
	const size, sent = 900 << 10, 75
	m := single(t, 4, router.Options{})
	inbox := nats.NewInbox() + "."
	sub, err := m.nc.SubscribeSync(inbox + ">")
	if err != nil {
		t.Fatal(err)
	}
	_ = sub.SetPendingLimits(-1, -1)
	began := time.Now() // answers count as read 5 s after they were sent
	nodes := []subjects.NodeID{"node-0", "node-1", "node-2", "node-3"}
	for n, k := 0, 0; n < sent; k++ {
		id := fmt.Sprint("b", k)
		if subjects.Owner(nodes, "default", id) != "node-0" {
			continue
		}
		n++
		body := fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":%q,"requests":[{"index":0,"tool_id":"stage.safe","kwargs":{"name":"l","size":%d}}]}`, id, size)
		if err := m.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: inbox + id, Header: nats.Header{"Mesh-Read": {"1"}}, Data: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	bytes := 0
	for pause := waitTimeout; ; {
		a, err := sub.NextMsg(pause)
		if err != nil {
			break
		}
		if bytes += len(a.Data); bytes >= 8<<20 {
			pause = time.Second // the rest of what may go comes at once
		}
	}
	// What the node sends itself, and what the three others pass on.
	if bytes < 8<<20 || bytes > 32<<20 && time.Since(began) < 5*time.Second {
		t.Errorf("%d bytes are in transit from one node, unread", bytes)
	}
}

// Batches that wait for another node have a bound, in number and in bytes, and a session leaves a
// part of it to others.
func TestBatchesThatArePassedOnAreShared(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	answers := make(chan *nats.Msg, 2000)
	inbox := nats.NewInbox()
	if _, err := m.nc.ChanSubscribe(inbox+".*", answers); err != nil {
		t.Fatal(err)
	}
	sent := 0
	send := func(session, id, path string) {
		t.Helper()
		sent++
		body := fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":%q,"requests":[{"tool_id":"stage.safe","kwargs":{"name":"held","wait":"door","path":%q}}]}`, id, path)
		header := nats.Header{"Mesh-Timeout-Ms": {"600000"}}
		if err := m.nc.PublishMsg(&nats.Msg{Subject: "mesh.node.node-1.batch." + session, Reply: fmt.Sprint(inbox, ".", sent), Header: header, Data: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	owned := func(session string) string { // by the node that is not asked
		for k := 0; ; k++ {
			if id := fmt.Sprint("b", k); subjects.Owner([]subjects.NodeID{"node-0", "node-1"}, session, id) == "node-0" {
				return id
			}
		}
	}
	small, large := owned("greedy"), owned("made-up")
	busy := func(n int, limit string) {
		t.Helper()
		for range n {
			select {
			case a := <-answers:
				if a.Header.Get("Mesh-Error-Code") != "busy" || a.Header.Get("Mesh-Started") != "false" || !strings.Contains(string(a.Data), `"limit":"`+limit+`"`) {
					t.Fatalf("one more: %v %.300s", a.Header, a.Data)
				}
			case <-time.After(waitTimeout):
				t.Fatalf("not all are refused for want of %s", limit)
			}
		}
	}
	// Sessions that were not created are one account.
	const over, long = 10, "x"
	for range 512 + over { // half of the places
		send("greedy", small, long)
	}
	m.stage.began(t, "held")
	busy(over, "batches")
	m.stage.open("door", 1)
	for range 512 {
		<-answers
	}
	kept := strings.Repeat("x", 900<<10)
	const fit = 145 // in half of 256 MiB
	for range fit + over {
		send("made-up", large, kept)
	}
	m.stage.began(t, "held")
	busy(over, "arguments")
	other := owned("default")
	send("default", other, long)
	m.stage.began(t, "held")
	m.stage.open("door", 2)
	for range fit + 1 {
		if a := <-answers; a.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("a batch that was taken: %v %.300s", a.Header, a.Data)
		}
	}
}

// The broker acts upon some headers with its publisher's rights. A caller hides one from it behind a
// line that ends in LF alone: a node that passes the request on does not publish it.
func TestHeadersOfTheBrokerAreNotPassedOn(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	m := open(t, &place{broker: broker}, 2, router.Options{})
	traces, err := m.nc.SubscribeSync("stolen")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := m.nc.SubscribeSync(nats.NewInbox())
	if err == nil {
		err = m.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	for node, owner := range map[string]string{"node-0": "node-1", "node-1": "node-0"} {
		id := "b"
		for k := 0; subjects.Owner([]subjects.NodeID{"node-0", "node-1"}, "default", id) != subjects.NodeID(owner); k++ {
			id = fmt.Sprint("b", k)
		}
		broker.PublishRaw(t, "mesh.node."+node+".batch.default", answer.Subject, "NATS/1.0\r\nX: y\nNats-Trace-Dest: stolen\r\n\r\n",
			fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":%q,"requests":[{"tool_id":"stage.safe","kwargs":{"name":"a"}}]}`, id))
		if a, err := answer.NextMsg(waitTimeout); err != nil || a.Header.Get("Mesh-Error-Code") != "" {
			t.Fatalf("%v %+v", err, a)
		}
	}
	// The traces of the broker come in order.
	if err := m.nc.PublishMsg(&nats.Msg{Subject: "last", Header: nats.Header{"Nats-Trace-Dest": {"stolen"}}}); err != nil {
		t.Fatal(err)
	}
	if first, err := traces.NextMsg(waitTimeout); err != nil || !strings.Contains(string(first.Data), `"subj":"last"`) {
		t.Errorf("a node published with its own rights: %v %s", err, first.Data)
	}
}
