package gateway

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A client that leaves while the registry is silent leaves the reading of the tools, too, and the next one
// asks by itself.
func TestReadingOfAClientThatLeaves(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	asked := make(chan struct{}, 16)
	registry := broker.Connect(t)
	if _, err := registry.Subscribe(subjects.AllRegistry, func(*nats.Msg) { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := registry.Flush(); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewOn(testmesh.Bus(t, broker.Connect(t), nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	k := (&mcpLink{of: &link{ctx: t.Context()}}).catalog(c)
	left := errors.New("the client has left")
	for range 2 {
		ctx, leave := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := k.get(ctx, 0)
			ended <- err
		}()
		<-asked
		leave(left)
		if err := <-ended; !errors.Is(err, left) {
			t.Errorf("the reading ends with %v", err)
		}
		for len(asked) > 0 {
			<-asked
		}
	}
}
