package client_test

import (
	"context"
	"testing"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// BenchmarkCall is one unary call at a time of a Go function, by the queue group.
func BenchmarkCall(b *testing.B) {
	broker := meshtest.Broker(b)
	h, err := host.New(broker.Connect(b), &host.Options{Index: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := h.Handle("echo", host.Func(func(_ context.Context, _ struct{}) (string, error) { return "1", nil })); err != nil {
		b.Fatal(err)
	}
	testmesh.Start(b, h)
	b.Cleanup(func() { _ = h.Stop(b.Context()) })
	c := testmesh.Client(b, broker.Connect(b), &client.Options{QueueOnly: true})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(b.Context(), "bench.echo", nil); err != nil {
			b.Fatal(err)
		}
	}
}
