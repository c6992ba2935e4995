// Command serve serves one Go function as the tool billing.refund until it is
// interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/subjects"
)

type order struct {
	ID     string `json:"id"`
	Amount int    `json:"amount"`
}

func refund(_ context.Context, o order) (string, error) {
	if o.Amount > 100 {
		return "", errors.New("more than 100 needs a person")
	}
	return "refunded order " + o.ID, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	options := client.ConnectOptions()
	if file := os.Getenv("MESH_NATS_NKEY"); file != "" { // the key of a node
		key, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, key, nats.CustomInboxPrefix(subjects.InboxNode))
	}
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), options...)
	if err != nil {
		log.Fatal(err)
	}
	h, err := host.New(nc, &host.Options{Index: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := h.Handle("refund", host.Func(refund)); err != nil { // schemas from the Go types
		log.Fatal(err)
	}
	if err := h.Run(ctx); err != nil { // serves until ctx ends, then drains
		log.Fatal(err)
	}
}
