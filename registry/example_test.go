package registry_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

// A view and a host share one connection.
func ExampleOpenView() {
	type amount struct {
		Amount int `json:"amount"`
	}
	refund := func(_ context.Context, in amount) (int, error) { return in.Amount, nil }

	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		conn, err := registry.NewConn(nc, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		h, err := host.NewOn(conn, &host.Options{Node: "n1", Index: "billing"})
		if err != nil {
			return err
		}
		if _, err := h.Handle("refund", host.Func(refund)); err != nil {
			return err
		}
		if err := h.Start(ctx); err != nil {
			return err
		}
		defer func() { _ = h.Stop(ctx) }()

		view, err := registry.OpenView(ctx, conn, nil)
		if err != nil {
			return err
		}
		defer view.Close()
		tools, _ := view.List("default", "", 0)
		for _, t := range tools {
			fmt.Println(t.ID)
		}
		return nil
	})
	// Output: billing.refund
}
