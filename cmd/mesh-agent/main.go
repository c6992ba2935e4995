package main

import (
	"context"
	"os"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
)

// Set when the binary is linked.
var version, commit string

func main() {
	os.Exit(process.Agent(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr, process.ThisBuild(version, commit).Version))
}
