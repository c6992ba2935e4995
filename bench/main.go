package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program: the coordinator, or with rolePrefix a process started by it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && strings.HasPrefix(args[0], rolePrefix) {
		// An interrupt goes to the process group; the coordinator ends its children by closing
		// their standard input.
		return serveRole(context.WithoutCancel(ctx), strings.TrimPrefix(args[0], rolePrefix), args[1:], os.Stdin, stdout, stderr)
	}
	if len(args) > 0 && args[0] == "scale" {
		return runScale(ctx, args[1:], stdout, stderr)
	}
	p := defaultPlan()
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var names []string
	for _, b := range p.benchmarks() {
		names = append(names, b.name)
	}
	flags.TextVar(p.Which, "which", p.Which, "run the benchmarks whose name matches this `regexp`: "+strings.Join(names, " "))
	flags.IntVar(&p.Rounds, "rounds", p.Rounds, "rounds of each benchmark")
	flags.StringVar(&p.Before, "before", "", "compare with the program `bench` of the state before a landing: go build -o FILE ./bench there")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	result, err := p.run(ctx, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	result.print(stdout)
	return 0
}
