package main

import (
	"context"
	"io"
	"os"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
)

// Set when the binary is linked.
var version, commit string

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args, env []string, _ io.Reader, stdout, stderr io.Writer) int {
	return process.Agent(ctx, args, env, stdout, stderr, process.ThisBuild(version, commit).Version)
}
