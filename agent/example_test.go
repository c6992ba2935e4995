package agent_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
)

// A program of yours is a machine of the mesh, as mesh-agent is: it takes installs, makes
// their environments below its folder and serves them until it is stopped.
func ExampleAgent() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	nc, err := nats.Connect(nats.DefaultURL, client.ConnectOptions()...)
	if err != nil {
		log.Print(err)
		return
	}
	defer nc.Close()
	a, err := agent.New(nc, "/var/lib/my-agent", &agent.Options{Environ: os.Environ()})
	if err != nil {
		log.Print(err)
		return
	}
	if err := a.Start(ctx); err != nil {
		log.Print(err)
		return
	}
	select {
	case <-ctx.Done():
	case <-a.Done(): // another process has the node's id
		log.Print(a.Err())
	}
	if err := a.Stop(context.WithoutCancel(ctx)); err != nil { // calls that run end first
		log.Print(err)
	}
}
