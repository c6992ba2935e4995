package task_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A time of a schedule that a runner had when it was lost is not one that passed while no process
// ran tasks: the next runner submits its task, also of a schedule that catches up with none.
func TestDueTimeOfALostRunner(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	first := broker.Connect(t)
	runs(t, first, 0)
	at := testmesh.Bus(t, broker.Connect(t), nil).Time().Now.UTC().Add(8 * time.Second)
	c := calls(t, broker.Connect(t), "")
	submit(t, c, "jobs.echo", "once", &client.SubmitOptions{ID: "once", Cron: at.Format("5 4 15 2 1 *"), CatchUp: codec.CatchUpNone})
	first.Close()
	nc := broker.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := js.Consumer(t.Context(), subjects.StreamSchedules, "due")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := lost.Next(jetstream.FetchMaxWait(waitTimeout)); err != nil {
		t.Fatalf("the time does not come: %v", err)
	} else if meta, err := m.Metadata(); err != nil || meta.NumDelivered != 1 {
		t.Fatalf("the time was delivered before: %+v %v", meta, err)
	}
	runs(t, nc, 0)
	d.starts(t, "once")
}

// A runner goes on after the broker has lost the streams of tasks and their consumers: a node makes the
// streams anew.
func TestConsumersAreMadeAnew(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	nc := broker.Connect(t)
	runner := runs(t, nc, 0)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{subjects.StreamSchedules, subjects.StreamTasks} {
		if err := js.DeleteStream(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Of(testmesh.Bus(t, broker.Connect(t), nil)).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the consumers are there", func() bool {
		if err := runner.Sweep(t.Context()); err != nil {
			t.Log(err)
		}
		_, due := js.Consumer(t.Context(), subjects.StreamSchedules, "due")
		_, queue := js.Consumer(t.Context(), subjects.StreamTasks, "normal-0")
		return due == nil && queue == nil
	})
	submit(t, calls(t, broker.Connect(t), ""), "jobs.echo", "each", &client.SubmitOptions{Every: time.Second})
	d.starts(t, "each")
}
