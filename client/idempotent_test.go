package client_test

import (
	"fmt"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Of the calls that are on their way when a node dies, those of a tool that is declared
// idempotent end well, and no other is sent again.
func TestCallsOfALostNode(t *testing.T) {
	t.Parallel()
	for _, queue := range []bool{false, true} {
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("queue=%v,frozen=%v", queue, frozen), func(t *testing.T) {
				t.Parallel()
				testLostNode(t, queue, frozen)
			})
		}
	}
}

func testLostNode(t *testing.T, queue, frozen bool) {
	const n = 30
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	proxies := map[subjects.NodeID]*meshtest.Proxy{}
	for range 3 {
		p := meshtest.NewProxy(t, broker)
		proxies[d.serve(t, p.Connect(t), nil).Node()] = p
		t.Cleanup(p.Heal)
	}
	known(t, view, "desk.again", 3)
	known(t, view, "desk.hold", 3)
	c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: queue})
	if !queue {
		directCalls(t, broker, c)
	}
	asked := newSpy(t, broker.Connect(t), "mesh.registry.*.candidates")
	var calls, others [n]<-chan outcome
	var victim subjects.NodeID
	for i := range n {
		key, other := fmt.Sprint("again ", i), fmt.Sprint("hold ", i)
		calls[i] = start(t, c, "desk.again", toolArgs{Key: key})
		where := wait(t, "start", d.gate(key).started)
		if i == 0 {
			victim = where
		}
		others[i] = start(t, c, "desk.hold", toolArgs{Key: other})
		wait(t, "start", d.gate(other).started)
		if i == 0 && queue && len(asked.heard()) > 0 { // later, on a slow machine, a keepalive may be overdue
			t.Error("a call that is well asks the registry")
		}
	}
	if frozen {
		proxies[victim].Blackhole()
	} else {
		proxies[victim].Cut(true)
	}
	lost := 0
	for i := range n {
		key, other := fmt.Sprint("again ", i), fmt.Sprint("hold ", i)
		if d.ran(string(victim)+" "+other) > 0 {
			lost++
			if o := wait(t, "answer", others[i]); toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost {
				t.Errorf("%s: %v, want node_lost", other, o.err)
			}
		}
		if d.ran(string(victim)+" "+key) > 0 {
			select {
			case <-d.gate(key).started:
			case o := <-calls[i]:
				t.Fatalf("%s ended without a second start: %v", key, o.err)
			}
		}
		for range 2 { // the lost ones are still there
			d.gate(key).release <- struct{}{}
			d.gate(other).release <- struct{}{}
		}
	}
	for i := range n {
		if o := wait(t, "answer", calls[i]); o.err != nil {
			t.Errorf("again %d: %v", i, o.err)
		}
		if d.ran(string(victim)+fmt.Sprint(" hold ", i)) == 0 {
			if o := wait(t, "answer", others[i]); o.err != nil {
				t.Errorf("hold %d: %v", i, o.err)
			}
		}
		if ran := d.ran(fmt.Sprint("hold ", i)); ran != 1 {
			t.Errorf("hold %d ran %d times", i, ran)
		}
	}
	t.Logf("%d calls of the other tool were lost", lost)
}
