package task_test

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A session's first task begins after at most so many tasks of another one with
// thousands as run at once.
func TestFirstTaskBesideThousands(t *testing.T) {
	t.Parallel()
	const slots = 4
	many := 10_000
	if testing.Short() {
		many = 1_000
	}
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{Slots: slots})
	created(t, broker, "flood", "other")
	runs(t, broker.Connect(t), slots)
	flood, other := calls(t, broker.Connect(t), "flood"), calls(t, broker.Connect(t), "other")
	var group errgroup.Group
	group.SetLimit(16)
	for i := range many {
		group.Go(func() error {
			_, err := flood.Submit(t.Context(), "jobs.wait", job{"flood"}, &client.SubmitOptions{ID: codecID(i)})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for range d.count("flood") {
		d.starts(t, "flood")
	}
	first := submit(t, other, "jobs.echo", "first", nil)
	becomes(t, first, codec.TaskRunning) // it waits for a slot of the node
	for n := 1; ; n++ {
		d.gate("flood") <- struct{}{} // one task ends
		if <-d.began == "first" {
			break
		}
		if n > slots {
			t.Fatalf("%d tasks began before it after it was submitted: at most those of one round, %d", n, slots)
		}
	}
	succeeds(t, first, "did first")
}

// The first task of a session waits for no task that takes long, however many another
// session has of them.
func TestFirstTaskBesideLongOnes(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	created(t, broker, "flood", "other")
	runs(t, broker.Connect(t), 4)
	flood, other := calls(t, broker.Connect(t), "flood"), calls(t, broker.Connect(t), "other")
	for i := range 100 {
		submit(t, flood, "jobs.wait", "flood", &client.SubmitOptions{ID: codecID(i)})
	}
	succeeds(t, submit(t, other, "jobs.echo", "first", nil), "did first")
}

// Made-up session names get the tasks of their caller no earlier: they are one account.
func TestInventedSessionsQueueAsOneAccount(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	created(t, broker, "other")
	runs(t, broker.Connect(t), 4)
	nc := broker.Connect(t)
	for i := range 600 {
		submit(t, calls(t, nc, subjects.SessionID(fmt.Sprint("made-up-", i))), "jobs.wait", "flood", nil)
	}
	succeeds(t, submit(t, calls(t, nc, "other"), "jobs.echo", "first", nil), "did first")
}

func codecID(i int) subjects.RPCID { return subjects.RPCID(fmt.Sprintf("flood-%d", i)) }

func TestHighPriorityOvertakesLow(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{Slots: 1})
	runs(t, broker.Connect(t), 1)
	c := calls(t, broker.Connect(t), "")
	var low []*client.Task
	for i := range 40 {
		low = append(low, submit(t, c, "jobs.wait", "low", &client.SubmitOptions{ID: codecID(i), Priority: codec.PriorityLow}))
	}
	d.starts(t, "low")
	meshtest.Until(t, "as many as may wait for a slot", func() bool {
		running, err := c.Tasks(t.Context(), codec.TaskRunning)
		return err == nil && len(running) >= 1
	})
	high := submit(t, c, "jobs.echo", "high", &client.SubmitOptions{Priority: codec.PriorityHigh})
	becomes(t, high, codec.TaskRunning) // it is tried, and waits for the slot like those before it
	close(d.gate("low"))
	succeeds(t, high, "did high")
	d.mu.Lock()
	at := slices.Index(d.order, "high")
	d.mu.Unlock()
	if at > 6 {
		t.Errorf("%d tasks of low priority began before it", at)
	}
	for _, handle := range low {
		succeeds(t, handle, "waited low")
	}
}
