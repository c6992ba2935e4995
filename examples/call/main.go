// Command call calls one tool and prints its result.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/toolmesh/toolmesh/client"
)

func main() {
	res, err := client.Call(context.Background(), "", &client.Options{Env: os.Environ()},
		"weather.forecast.today", map[string]any{"city": "Oslo"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s (node %s)\n", res.Value, res.Node)
}
