package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
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
	which := flags.String("which", ".", "run the benchmarks whose name matches this `regexp`: "+strings.Join(names, " "))
	flags.IntVar(&p.Rounds, "rounds", p.Rounds, "rounds of each benchmark")
	flags.IntVar(&p.Calls, "calls", p.Calls, "sequential calls of a round")
	flags.IntVar(&p.Burst, "burst", p.Burst, "calls of a round with many callers")
	flags.IntVar(&p.Items, "items", p.Items, "items of a round's stream")
	flags.StringVar(&p.Before, "before", "", "compare with the program `bench` of the state before a landing: go build -o FILE ./bench there")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var err error
	if p.Which, err = regexp.Compile(*which); err != nil {
		fmt.Fprintln(stderr, "bench: -which:", err)
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
