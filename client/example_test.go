package client_test

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

type amount struct {
	Amount int `json:"amount"`
}

// billing serves the tools that the examples call.
func billing(ctx context.Context, nc *nats.Conn) (stop func()) {
	h, err := host.New(nc, &host.Options{Index: "billing"})
	if err != nil {
		panic(err)
	}
	for name, handler := range map[string]host.Handler{
		"refund": host.Func(func(_ context.Context, in amount) (string, error) {
			if in.Amount > 100 {
				return "", errors.New("more than 100 needs a person")
			}
			return fmt.Sprintf("refunded %d", in.Amount), nil
		}),
		"count": host.Stream(func(_ context.Context, in amount) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := range in.Amount {
					if !yield(i+1, nil) {
						return
					}
				}
			}
		}),
	} {
		if _, err := h.Handle(name, handler); err != nil {
			panic(err)
		}
	}
	if err := h.Start(ctx); err != nil {
		panic(err)
	}
	return func() { _ = h.Stop(ctx) }
}

func ExampleConnect() {
	meshtest.Example(func(ctx context.Context, url string) error {
		// Most programs pass no address and Env: os.Environ().
		mesh, err := client.Connect(ctx, url, nil)
		if err != nil {
			return err
		}
		defer mesh.Close()
		_, err = mesh.Call(ctx, "billing.refund", map[string]any{"amount": 12})
		fmt.Println(toolmesh.CodeOf(err)) // no node is there

		_, err = client.Connect(ctx, "", &client.Options{Env: []string{"MESH_NATS_CONTEXT=nowhere"}})
		fmt.Println(toolmesh.CodeOf(err))
		return nil
	})
	// Output:
	// unavailable
	// invalid_request
}

func ExampleClient_Call() {
	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		defer billing(ctx, nc)()

		mesh, err := client.New(nc, nil)
		if err != nil {
			return err
		}
		defer mesh.Close()
		res, err := mesh.Call(ctx, "billing.refund", map[string]any{"amount": 12})
		if err != nil {
			return err
		}
		var text string
		if err := res.Decode(&text); err != nil {
			return err
		}
		fmt.Println(text)

		_, err = mesh.Call(ctx, "billing.refund", amount{Amount: 1000})
		if toolmesh.CodeOf(err) == toolmesh.CodeToolError {
			fmt.Println("the tool failed, not the mesh:", toolmesh.AsError(err).Message)
		}
		return nil
	})
	// Output:
	// refunded 12
	// the tool failed, not the mesh: more than 100 needs a person
}

func ExampleClient_Stream() {
	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		defer billing(ctx, nc)()

		mesh, err := client.New(nc, nil)
		if err != nil {
			return err
		}
		defer mesh.Close()
		for chunk, err := range mesh.Stream(ctx, "billing.count", amount{Amount: 3}) {
			if err != nil {
				return err
			}
			fmt.Println(chunk.Seq, string(chunk.Data))
		}
		return nil
	})
	// Output:
	// 1 1
	// 2 2
	// 3 3
}

func ExampleClient_Batch() {
	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		r, stop := sums(ctx, nc) // nodes with sessions run batches: agents and routers
		defer stop()
		results, err := r.Batch(ctx, []client.BatchCall{
			{Tool: "sums.double", Args: amount{Amount: 1}},
			{Tool: "sums.double", Args: map[string]any{"amount": "many"}},
			{Tool: "sums.double", Args: amount{Amount: 3}},
		})
		if err != nil {
			return err
		}
		for _, one := range results { // in the order of the calls
			fmt.Println(string(one.Value) + string(toolmesh.CodeOf(one.Err)))
		}
		return nil
	})
	// Output:
	// 2
	// invalid_arguments
	// 6
}

// The call is made even if this process ends; any other one of the session asks for the result by the task's id.
func ExampleClient_Submit() {
	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		r, stop := sums(ctx, nc)
		defer stop()
		task, err := r.Submit(ctx, "sums.double", amount{Amount: 21}, &client.SubmitOptions{ID: "the-answer", Attempts: 5})
		if err != nil {
			return err
		}
		res, err := r.Client().Task(task.ID()).Wait(ctx)
		if err != nil {
			return err
		}
		fmt.Println(task.ID(), string(res.Value))
		return nil
	})
	// Output: the-answer 42
}

func ExampleClient_Search() {
	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		r, stop := sums(ctx, nc)
		defer stop()
		found, err := r.Client().Search(ctx, "make a number twice as large", 3)
		if err != nil {
			return err
		}
		for _, tool := range found {
			fmt.Println(tool.ID, tool.Description)
		}
		return nil
	})
	// Output: sums.double Doubles a number.
}

// sums starts a router that serves a function.
func sums(ctx context.Context, nc *nats.Conn) (*router.Router, func()) {
	r, err := router.New(nc, nil)
	if err != nil {
		panic(err)
	}
	double := func(_ context.Context, in amount) (int, error) { return 2 * in.Amount, nil }
	if _, err := r.Handle("sums", "double", host.Func(double), host.Description("Doubles a number.")); err != nil {
		panic(err)
	}
	if err := r.Start(ctx); err != nil {
		panic(err)
	}
	return r, func() { _ = r.Close() }
}
