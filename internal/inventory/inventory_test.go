package inventory_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// A JetStream that does not answer holds up no command: readers of streams have timeouts of their own.
func TestJetStreamIsNotAskedForever(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	b, err := bus.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	asked := make(chan struct{}, 1)
	if _, err := nc.Subscribe(subjects.JetStreamAPI("silent")+"INFO", func(*nats.Msg) { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := inventory.MayAsk(t.Context(), b, "silent"); err != nil {
		t.Errorf("%v, want no error: it may ask", err)
	}
	<-asked
}
