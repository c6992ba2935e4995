package main

import (
	"context"
	"os"
)

// Set when the binary is linked.
var version, commit string

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
