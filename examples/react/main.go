// Command react asks an agent of DSPy, which runs in a worker of the mesh, a
// question, and is itself what the agent asks: the tools are Go functions here.
//
//	mesh install ./examples/react/index --name react
//	MESH_NATS_NKEY=…/keys/node.nk go run ./examples/react
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

type order struct {
	Order string `json:"order"`
}

type line struct {
	Line string `json:"line"`
}

var lines = []string{"apple", "pear", "fig"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	options := client.ConnectOptions()
	if file := os.Getenv("MESH_NATS_NKEY"); file != "" { // the key of a node
		key, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return err
		}
		options = append(options, key, nats.CustomInboxPrefix(subjects.InboxNode))
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), options...)
	if err != nil {
		return err
	}
	defer nc.Close()
	r, err := router.New(nc, nil)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // the process ends
	if err := r.Start(ctx); err != nil {
		return err
	}
	session, err := r.CreateSession(ctx, nil)
	if err != nil {
		return err
	}
	defer session.End(context.WithoutCancel(ctx)) //nolint:errcheck // it ends with the process

	// One time for all nested calls together, however deep.
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	end, _ := ctx.Deadline()

	price, err := session.Handle("price", host.Func(func(ctx context.Context, l line) (int, error) {
		if mine, ok := ctx.Deadline(); !ok || mine.After(end.Add(time.Second)) {
			return 0, errors.New("this call has more time than the one that it is part of")
		}
		return 10 * len(l.Line), nil
	}))
	if err != nil {
		return err
	}
	// The agent in Python calls this in Go, which calls Python, which calls Go.
	cost, err := session.Handle("cost", host.Func(func(ctx context.Context, _ order) (json.RawMessage, error) {
		res, err := session.Call(ctx, "react.agent.total", map[string]any{"lines": lines, "price": price})
		if err != nil {
			return nil, err
		}
		return res.Value, nil
	}), host.Description("What an order costs."))
	if err != nil {
		return err
	}
	content, err := session.Handle("content", host.Stream(func(_ context.Context, _ order) iter.Seq2[line, error] {
		return func(yield func(line, error) bool) {
			for _, one := range lines {
				if !yield(line{Line: one}, nil) {
					return
				}
			}
		}
	}), host.Description("What is in an order, line by line."))
	if err != nil {
		return err
	}
	res, err := session.Call(ctx, "react.agent.react", map[string]any{
		"question": "order 7", "tool_ids": []subjects.ToolID{cost, content},
	})
	if err != nil {
		return err
	}
	fmt.Println(string(res.Value))
	return nil
}
