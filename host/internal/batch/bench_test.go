package batch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/tool"
)

func BenchmarkBatch(b *testing.B) {
	broker := meshtest.Broker(b)
	r, err := router.New(broker.Connect(b, client.ConnectOptions()...), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := r.Handle("stage", "keyed", host.Func(func(_ context.Context, a in) (string, error) { return a.Name, nil }),
		host.Annotate(tool.Annotations{ParallelSafe: true, ResourceKey: tool.ResourceKey{Parts: []string{"fs", "{path}"}}})); err != nil {
		b.Fatal(err)
	}
	c := testmesh.Client(b, broker.Connect(b, client.ConnectOptions()...), nil)
	for _, n := range []int{1, 10, 1000} {
		calls := make([]client.BatchCall, n)
		for i := range calls {
			calls[i] = call("keyed", in{Name: "n", Path: fmt.Sprint(i)})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Batch(b.Context(), calls); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("call", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Call(b.Context(), "stage.keyed", in{Name: "n", Path: "x"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
