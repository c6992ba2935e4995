package client_test

import (
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
)

// The only broker is killed while tools run: that nothing answers any more does not say
// that they did not begin. A stream waits for its connection, but not for ever.
func TestOnlyBrokerIsKilled(t *testing.T) {
	t.Parallel()
	for _, queue := range []bool{false, true} {
		d := newTools()
		broker := meshtest.Broker(t)
		d.serve(t, broker.Connect(t), nil)
		answerRegistry(t, broker.Connect(t))
		c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: queue})
		if !queue {
			directCalls(t, broker, c)
		}
		calls := []<-chan outcome{start(t, c, "desk.hold", toolArgs{Key: "one"}), start(t, c, "desk.again", toolArgs{Key: "two"})}
		for _, key := range []string{"one", "two"} {
			wait(t, "start", d.gate(key).started)
		}
		items, first := make(chan counted, 1), make(chan int, 3)
		go func() {
			items <- countItems(t, c, t.Context(), toolArgs{Key: "gen", N: 3, Gate: true}, func(i int) { first <- i })
		}()
		d.gate("gen").release <- struct{}{}
		wait(t, "first item", first)
		broker.Stop()
		for _, call := range calls {
			if o := wait(t, "answer", call); o.err == nil || toolmesh.AsError(o.err).Started == toolmesh.StartedNo {
				t.Errorf("queue=%v: %v, want an error that leaves open whether it ran", queue, o.err)
			}
		}
		if s := wait(t, "end of the stream", items); s.items != 1 || toolmesh.CodeOf(s.err) != toolmesh.CodeUnavailable || toolmesh.AsError(s.err).Started != toolmesh.StartedYes {
			t.Errorf("queue=%v: %d items of a stream, then %v", queue, s.items, s.err)
		}
		for _, key := range []string{"one", "two", "gen"} {
			close(d.gate(key).release)
		}
	}
}

// A call may have run before its node was lost, also if its repetition finds no node.
func TestErrorIsOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, broker)
	d.serve(t, proxy.Connect(t), nil)
	t.Cleanup(proxy.Heal)
	c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: true})
	call := start(t, c, "desk.hold", toolArgs{Key: "one"}, client.Idempotent())
	wait(t, "start", d.gate("one").started)
	proxy.Cut(true)
	if o := wait(t, "answer", call); o.err == nil || toolmesh.AsError(o.err).Started == toolmesh.StartedNo {
		t.Errorf("%v, want an error that leaves open whether it ran", o.err)
	}
	close(d.gate("one").release)
}
