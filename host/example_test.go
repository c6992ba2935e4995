package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

func ExampleHost_Handle() {
	type text struct {
		Text string `json:"text"`
	}
	upper := func(_ context.Context, in text) (string, error) { return strings.ToUpper(in.Text), nil }

	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		h, err := host.New(nc, &host.Options{Index: "words"})
		if err != nil {
			return err
		}
		id, err := h.Handle("upper", host.Func(upper), // schemas from the Go types
			host.Description("Say it louder."), host.Annotate(tool.Annotations{Idempotent: true}))
		if err != nil {
			return err
		}
		if err := h.Start(ctx); err != nil { // or Run, which serves until ctx ends
			return err
		}
		// Any NATS client can call it now.
		reply, err := nc.RequestWithContext(ctx, "tools.default."+string(id), []byte(`{"text":"hello"}`))
		if err != nil {
			return err
		}
		fmt.Println(id, string(reply.Data))
		return h.Stop(ctx) // drains: calls that run end first
	})
	// Output: words.upper "HELLO"
}

func ExampleServe() {
	type text struct {
		Text string `json:"text"`
	}
	reverse := func(_ context.Context, in text) (string, error) {
		letters := []rune(in.Text)
		slices.Reverse(letters)
		return string(letters), nil
	}
	meshtest.Example(func(ctx context.Context, url string) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		served := make(chan error)
		go func() { // a program that only serves calls it in main
			served <- host.Serve(ctx, url, &host.Options{Index: "words"},
				host.Named("reverse", host.Func(reverse), host.Description("Say it backwards.")))
		}()
		mesh, err := client.Connect(ctx, url, nil)
		if err != nil {
			return err
		}
		defer mesh.Close()
		for { // until it is served
			if res, err := mesh.Call(ctx, "words.reverse", text{Text: "stressed"}); err == nil {
				fmt.Println(string(res.Value))
				break
			}
		}
		stop() // Serve drains and returns
		return <-served
	})
	// Output: "desserts"
}
