package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/toolmesh/toolmesh/executor"
)

// The executor alone runs functions of a folder in warm Python workers, without a mesh.
func ExampleExecutor() {
	ctx := context.Background()
	x, err := executor.New("/var/lib/my-program", &executor.Options{Environ: os.Environ()})
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = x.Close() }()
	folder := "tools" // with weather.py, which has a function today
	env, err := x.Environment(ctx, folder, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		log.Print(err)
		return
	}
	ix, err := x.Open(ctx, executor.Spec{Name: "weather", SourceDir: folder, Env: env, Tools: []string{"weather.today"}})
	if err != nil {
		log.Print(err)
		return
	}
	value, err := ix.Call(ctx, executor.Call{Tool: "weather.today", Args: json.RawMessage(`{"city":"Oslo"}`)}, nil)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(string(value))
}
