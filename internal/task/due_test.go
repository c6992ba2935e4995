package task_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
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

// A runner goes on after an administrator has deleted the stream of schedules or its consumer,
// and a runner that started has made it anew.
func TestConsumerOfSchedulesIsMadeAnew(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), host.Options{})
	nc := broker.Connect(t)
	runs(t, nc, 0)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), subjects.StreamSchedules, "due"); err != nil {
		t.Fatal(err)
	}
	other := broker.Connect(t)
	second := runs(t, other, 0)
	second.Stop(t.Context())
	submit(t, calls(t, broker.Connect(t), ""), "jobs.echo", "each", &client.SubmitOptions{Every: time.Second})
	d.starts(t, "each")
}
