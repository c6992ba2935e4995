package client_test

import (
	"fmt"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A call that every node refuses for want of a slot is sent again for as long as it has
// time: not a number of times.
func TestBusyIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"directed", "queue"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d := newTools()
			broker := meshtest.Broker(t)
			view := answerRegistry(t, broker.Connect(t))
			h := d.serve(t, broker.Connect(t), &host.Options{Slots: 1})
			known(t, view, "desk.note", 1)
			c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: way == "queue"})
			if way == "directed" {
				directCalls(t, broker, c)
			}
			holds := start(t, c, "desk.hold", toolArgs{Key: "slot"})
			wait(t, "start", d.gate("slot").started)
			const waiting = 4
			calls := make([]<-chan outcome, waiting)
			for i := range calls {
				calls[i] = start(t, c, "desk.note", toolArgs{Key: fmt.Sprint("waits ", i)}, client.WithTimeout(testTimeout))
			}
			meshtest.Until(t, "each was refused ten times", func() bool { return h.Stats().Busy >= 10*waiting })
			if _, err := c.Call(t.Context(), "desk.note", nil, client.NoWait()); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
				t.Errorf("a call that does not wait: %v", err)
			}
			d.gate("slot").release <- struct{}{}
			for i, call := range append(calls, holds) {
				if o := wait(t, "answer", call); o.err != nil {
					t.Errorf("call %d: %v", i, o.err)
				}
			}
		})
	}
}
