package bus_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A Bus for each request, on the same connection, leaves nothing behind.
func TestAClosedBusIsForgotten(t *testing.T) {
	t.Parallel()
	told := make(chan error, 100)
	nc := meshtest.Broker(t, meshtest.Config(`authorization { users: [
		{ user: a, password: a, permissions: { publish: { deny: "no.*" } } } ] }`)).Connect(t,
		nats.UserInfo("a", "a"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { told <- err }))
	stays := open(t, nc, nil)
	var closed []weak.Pointer[bus.Bus]
	var mu sync.Mutex
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 25 {
				b, err := bus.New(nc, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				closed = append(closed, weak.Make(b))
				mu.Unlock()
				b.Close()
			}
		})
	}
	group.Wait()
	last := open(t, nc, nil)
	meshtest.Until(t, "they are gone", func() bool {
		runtime.GC()
		for _, p := range closed {
			if p.Value() != nil {
				return false
			}
		}
		return true
	})
	// Each of the others is told of an error, and so is the connection's own handler, once.
	for subject, b := range map[string]*bus.Bus{"no.1": stays, "no.2": last} {
		_, err := b.Request(t.Context(), nats.NewMsg(subject))
		wantCode(t, err, toolmesh.CodePermissionDenied, toolmesh.StartedNo)
		if err := receive(t, told, "the connection's own handler"); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("the connection's own handler got %v", err)
		}
	}
	// Without a Bus it is alone again.
	stays.Close()
	last.Close()
	if err := nc.Publish("no.3", nil); err != nil {
		t.Fatal(err)
	}
	receive(t, told, "the connection's own handler")
	if len(told) > 0 {
		t.Errorf("%d errors too many", len(told))
	}
}
