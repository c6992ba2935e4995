package task_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// Agents and routers run the package's service. A caller submits a task, may end, and
// finds it by its id.
func Example() {
	type film struct {
		Title string `json:"title"`
	}
	render := func(_ context.Context, f film) (string, error) { return f.Title + ".mp4", nil }

	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		r, err := router.New(nc, nil)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		if _, err := r.Handle("films", "render", host.Func(render)); err != nil {
			return err
		}
		if err := r.Start(ctx); err != nil {
			return err
		}
		mesh, err := client.Connect(ctx, url, nil)
		if err != nil {
			return err
		}
		defer mesh.Close()
		submitted, err := mesh.Submit(ctx, "films.render", film{Title: "Tides"}, &client.SubmitOptions{Attempts: 5})
		if err != nil {
			return err
		}
		res, err := mesh.Task(submitted.ID()).Wait(ctx) // also in a later process
		if err != nil {
			return err
		}
		fmt.Println(string(res.Value))
		return nil
	})
	// Output: "Tides.mp4"
}
