// Command call calls one tool and reads its result.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
)

func main() {
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), client.ConnectOptions()...)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	mesh, err := client.New(nc, nil)
	if err != nil {
		log.Fatal(err)
	}
	res, err := mesh.Call(context.Background(), "weather.forecast.today", map[string]any{"city": "Oslo"})
	if toolmesh.CodeOf(err) == toolmesh.CodeToolError {
		log.Fatal("the tool failed, not the mesh: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	var today struct {
		Summary string  `json:"summary"`
		High    float64 `json:"high"`
	}
	if err := res.Decode(&today); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s (node %s)\n", today.Summary, res.Node)
}
