package router_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// A conversation has a session of its own, with a tool that no other sees.
func ExampleRouter_CreateSession() {
	type query struct {
		Text string `json:"text"`
	}
	search := func(_ context.Context, q query) ([]string, error) { return []string{"a page about " + q.Text}, nil }

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
		defer r.Close()
		s, err := r.CreateSession(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := s.Handle("search", host.Func(search)); err != nil {
			return err
		}
		res, err := s.Call(ctx, "search", query{Text: "tides"})
		if err != nil {
			return err
		}
		fmt.Println(string(res.Value))
		return s.End(ctx) // its tools, streams and calls end with it
	})
	// Output: ["a page about tides"]
}

// A service has one router: it serves its own functions and calls others.
func ExampleRouter_Handle() {
	type amount struct {
		Amount float64 `json:"amount"`
	}
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
		defer r.Close()
		id, err := r.Handle("billing", "round", host.Func(func(_ context.Context, in amount) (int, error) { return int(in.Amount + 0.5), nil }))
		if err != nil {
			return err
		}
		if err := r.Start(ctx); err != nil {
			return err
		}
		res, err := r.Call(ctx, id, amount{Amount: 11.7})
		if err != nil {
			return err
		}
		fmt.Println(id, string(res.Value))
		return r.Stop(ctx)
	})
	// Output: billing.round 12
}
