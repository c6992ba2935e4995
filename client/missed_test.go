package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A frozen node also answers for the registry: questions to it about its calls get no answer.
func frozenRegistry(t *testing.T, broker *meshtest.Server, nodes int) {
	t.Helper()
	nc := broker.Connect(t)
	for range nodes {
		if _, err := nc.QueueSubscribeSync("mesh.registry.>", subjects.QueueGroup); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// The caller learns of the loss in time, also without the tool's descriptor.
func TestLossIsToldWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	frozenRegistry(t, broker, 1)
	proxy := meshtest.NewProxy(t, broker)
	d.serve(t, proxy.Connect(t), nil)
	t.Cleanup(proxy.Heal)
	c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: true})
	call := start(t, c, "desk.hold", toolArgs{Key: "one"})
	wait(t, "start", d.gate("one").started)
	proxy.Blackhole()
	frozen := time.Now()
	if o := wait(t, "answer", call); toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost {
		t.Errorf("%v, want node_lost", o.err)
	}
	// 3 s, and some for a busy machine; less than it takes to ask the registry after the loss.
	if took := time.Since(frozen); took > 4200*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	close(d.gate("one").release)
}

// Calls of an idempotent tool are sent again although every second question to the
// registry is never answered.
func TestIdempotentCallsOfANodeThatAnswersForTheRegistry(t *testing.T) {
	t.Parallel()
	const n = 8
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	frozenRegistry(t, broker, 1)
	proxy := meshtest.NewProxy(t, broker)
	victim := d.serve(t, proxy.Connect(t), nil).Node()
	t.Cleanup(proxy.Heal)
	calls := make([]<-chan outcome, n)
	for i := range n { // a client each: they share no question
		c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: true})
		key := fmt.Sprint("again ", i)
		calls[i] = start(t, c, "desk.again", toolArgs{Key: key})
		if at := wait(t, "start", d.gate(key).started); at != victim {
			t.Fatalf("it began on %s", at)
		}
	}
	d.serve(t, broker.Connect(t), nil)
	known(t, view, "desk.again", 2)
	proxy.Blackhole()
	for i := range n {
		g := d.gate(fmt.Sprint("again ", i))
		g.release <- struct{}{}
		g.release <- struct{}{}
		if o := wait(t, "answer", calls[i]); o.err != nil {
			t.Errorf("call %d: %v", i, o.err)
		}
	}
}

// The registry may be silent since the call was sent: its answer about the tool before that counts,
// though it is older than the 5 s for which the test waits.
func TestIdempotentCallWhileTheRegistryIsSilent(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	answers := meshtest.NewProxy(t, broker)
	view := answerRegistry(t, answers.Connect(t))
	t.Cleanup(answers.Heal)
	proxies := map[subjects.NodeID]*meshtest.Proxy{}
	for range 2 {
		p := meshtest.NewProxy(t, broker)
		proxies[d.serve(t, p.Connect(t), nil).Node()] = p
		t.Cleanup(p.Heal)
	}
	known(t, view, "desk.again", 2)
	c := newClient(t, broker.Connect(t), nil)
	directed := newSpy(t, broker.Connect(t), "mesh.node.*.tools.>")
	meshtest.Until(t, "calls are directed", func() bool {
		if _, err := c.Call(t.Context(), "desk.again", toolArgs{Key: "warm"}); err != nil {
			t.Fatal(err)
		}
		return len(directed.heard()) > 0
	})
	answers.Blackhole()
	call := start(t, c, "desk.again", toolArgs{Key: "lost"}, client.WithTimeout(testTimeout))
	g := d.gate("lost")
	lost := wait(t, "start", g.started)
	heartbeats, err := broker.Connect(t).SubscribeSync("mesh.hb." + string(lost))
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if _, err := heartbeats.NextMsg(testTimeout); err != nil {
			t.Fatal(err)
		}
	}
	proxies[lost].Blackhole()
	select {
	case <-g.started:
		g.release <- struct{}{}
		g.release <- struct{}{}
		if o := wait(t, "answer", call); o.err != nil {
			t.Error(o.err)
		}
	case o := <-call:
		t.Errorf("it ended without a second start: %v", o.err)
	}
}
