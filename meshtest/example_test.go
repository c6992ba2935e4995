package meshtest_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
)

// A test of a service has a broker of its own, on a free port, that ends with it.
func ExampleBroker() {
	_ = func(t *testing.T) { // func TestService(t *testing.T)
		broker := meshtest.Broker(t)
		service, caller := broker.Connect(t), broker.Connect(t)
		if _, err := service.Subscribe("greet", func(m *nats.Msg) { _ = m.Respond([]byte("hello")) }); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the service answers", func() bool {
			_, err := caller.Request("greet", nil, time.Second)
			return err == nil
		})
		broker.Restart(t) // on the same port and files: connections come back by themselves
	}
	// Output:
}
