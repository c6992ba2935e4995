package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/meshtest"
)

// TestMain lets the test binary be every process of the benchmark.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], rolePrefix) {
		main()
	}
	goleak.VerifyTestMain(m)
}

// Each benchmark runs once, with tiny counts: the test wants lines, whatever their figures. make
// test runs one, make soak all but that of Python, whose peers are large.
func TestEveryBenchmark(t *testing.T) {
	t.Parallel()
	which := "unary"
	if meshtest.Soak() {
		which = "unary|burst|stream|payload|gateway"
	}
	p := plan{Which: regexp.MustCompile(which), Rounds: 1, Calls: 20, Burst: 64, Items: 50}
	log, err := os.Create(filepath.Join(t.TempDir(), "log")) // a file: many processes write to it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	r, err := p.run(t.Context(), log)
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, said)
	}
	var table bytes.Buffer
	r.print(&table)
	wants := []string{
		"unary p50, Go tool: our client against a plain one", "unary p50, Go tool", "unary p50, warm Python tool",
	}
	if meshtest.Soak() {
		wants = append(wants, "calls/s, 64 callers, warm Python tool: our client against a plain one",
			"calls/s, 64 callers, warm Python tool", "Go generator", "Python generator", "64 MB argument and result", "MCP tools/call of a Go tool", "HTTP call of a Go tool", "MCP tools/list of 10,000 tools")
	}
	for _, want := range wants {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no line %q in\n%s", want, table.String())
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	most, least := bound{must: 1.25, goal: 1.1}, bound{must: 0.3, goal: 0.4, least: true}
	for _, c := range []struct {
		bound bound
		ratio float64
		want  string
	}{
		{most, 1.1, "good"}, {most, 1.2, "ok"}, {most, 1.26, "MISSED"},
		{bound{goal: 1.15}, 1.1, "good"}, {bound{goal: 1.15}, 9, "ok"},
		{least, 0.4, "good"}, {least, 0.35, "ok"}, {least, 0.29, "MISSED"},
	} {
		if _, got := c.bound.verdict(c.ratio); got != c.want {
			t.Errorf("%+v of %v: %s, want %s", c.bound, c.ratio, got, c.want)
		}
	}
	if got := median([]float64{5, 1, 9, 3}); got != 4 {
		t.Errorf("median = %v, want 4", got)
	}
}

// A mesh of 70 nodes, more than agents hear of all, is measured once, with tiny counts.
func TestScale(t *testing.T) {
	if !meshtest.Soak() {
		t.Skip("not run: it takes half a minute: make soak")
	}
	t.Parallel()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	var table bytes.Buffer
	args := []string{"scale", "-nodes", "70", "-tools", "140", "-per-index", "2", "-copies", "3", "-sessions", "70", "-calls", "50", "-settle", "1s", "-steady", "2s"}
	if status := run(t.Context(), args, &table, log); status != 0 {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("status %d\n%s\n%s", status, table.String(), said)
	}
	for _, want := range []string{
		"70 nodes, 140 tools", "router: view ready after", "agent: heap", "broker 3: deliveries, steady", "unary p50, 70 nodes",
		"a killed node known to its caller after", "agent: bytes in around a reconnect of all",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
}
