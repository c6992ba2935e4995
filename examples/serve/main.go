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
	ID string `json:"id"`
}

func refund(_ context.Context, o order) (string, error) { return "refunded order " + o.ID, nil }

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt) // until the process ends
	if err := host.Serve(ctx, "", &host.Options{Index: "billing", Env: os.Environ()},
		host.Named("refund", host.Func(refund), host.Description("Refund an order."))); err != nil {
		log.Fatal(err)
	}
}
