// Command serve serves one Go function as the tool billing.refund until Ctrl-C.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/toolmesh/toolmesh/host"
)

type order struct {
	ID     string `json:"id"`
	Amount int    `json:"amount"`
}

func refund(_ context.Context, o order) (string, error) { return "refunded order " + o.ID, nil }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := host.Serve(ctx, "", &host.Options{Index: "billing", Env: os.Environ()},
		host.Named("refund", host.Func(refund), host.Description("Refund an order.")))
	if err != nil {
		log.Fatal(err)
	}
}
