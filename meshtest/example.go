package meshtest

import (
	"context"
	"fmt"
	"os"

	"github.com/toolmesh/toolmesh/internal/broker"
)

// Example runs a testable Example, which has no testing.TB, against a broker of
// its own, and prints the error if it returns one. The broker ends with it.
func Example(run func(ctx context.Context, url string) error) {
	err := func() error {
		dir, err := os.MkdirTemp("", "mesh-example-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		ctx := context.Background()
		b, err := broker.Start(ctx, broker.Options{StoreDir: dir})
		if err != nil {
			return err
		}
		defer b.Shutdown()
		return run(ctx, b.URL())
	}()
	if err != nil {
		fmt.Println("failed:", err)
	}
}
