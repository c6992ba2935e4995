package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

type line struct {
	What, Ours, Raw string
	Ratio           float64
	Must            string
	Verdict         string // ok, good (the goal is reached too), MISSED, or empty for a row without a bound
}

type result struct {
	Machine string
	Lines   []line

	samples map[string]map[string][]answer
	rounds  int
}

// bound is the min ratio (must), so that a regression shows, and the desired one (goal).
type bound struct {
	must, goal float64 // must 0: only a goal
	least      bool    // the ratio must be at least that, else at most
}

func (b bound) verdict(ratio float64) (must, verdict string) {
	sign, ok, good := "<=", ratio <= b.must, ratio <= b.goal
	if b.least {
		sign, ok, good = ">=", ratio >= b.must, ratio >= b.goal
	}
	must = fmt.Sprintf("%s %.3g (%.3g)", sign, b.must, b.goal)
	if b.must == 0 {
		must, ok = fmt.Sprintf("(%s %.3g)", sign, b.goal), true
	}
	switch {
	case good:
		return must, "good"
	case ok:
		return must, "ok"
	}
	return must, "MISSED"
}

// row is one line of the table: the values of two sides and their ratio.
type row struct {
	benchmark, what, ours, raw string
	value                      func(answer) float64
	show                       func(float64) string
	limit                      *bound
}

// rows are the ratios against raw NATS and against a plain NATS client.
var rows = []row{
	{"unary", "unary p50, Go tool", sideGo, sideRaw, p50, micros, &bound{must: 1.4, goal: 1.25}},
	{"unary", "unary p50, warm Python tool", sidePython, sideRaw, p50, micros, &bound{must: 2.0, goal: 1.8}},
	{"unary", "unary p50, Go tool: our client against a plain one", sideGo, sidePlainGo, p50, micros, &bound{goal: 1.15}},
	{"unary", "unary p50, warm Python tool: our client against a plain one", sidePython, sidePlainPython, p50, micros, &bound{goal: 1.15}},
	{"burst", "calls/s, 64 callers, Go tool", sideGo, sideRaw, rate, perSecond, nil},
	{"burst", "calls/s, 64 callers, warm Python tool", sidePython, sideRaw, rate, perSecond, &bound{must: 0.18, goal: 0.3, least: true}},
	{"burst", "calls/s, 64 callers, Go tool: our client against a plain one", sideGo, sidePlainGo, rate, perSecond, &bound{goal: 0.8, least: true}},
	{"burst", "calls/s, 64 callers, warm Python tool: our client against a plain one", sidePython, sidePlainPython, rate, perSecond, &bound{goal: 0.8, least: true}},
	{"stream", "streamed items/s, stored and delivered, Go generator", sideGo, sideRaw, rate, perSecond, &bound{must: 0.33, goal: 0.35, least: true}},
	{"stream", "streamed items/s, stored and delivered, Python generator", sidePython, sideRaw, rate, perSecond, &bound{must: 0.33, goal: 0.35, least: true}},
	{"gateway", "MCP tools/call of a Go tool, 2026-07-28, p50: the gateway against the official SDK's server", "mcp", "mcp-sdk", p50, micros, &bound{goal: 1.2}},
	{"gateway", "the same, 2025-11-25", "mcp-session", "mcp-session-sdk", p50, micros, &bound{goal: 1.2}},
	{"gateway", "MCP calls/s, 64 callers, 2026-07-28: the gateway against the official SDK's server", "mcp/64", "mcp-sdk/64", rate, perSecond, &bound{goal: 1, least: true}},
	{"gateway", "the same, 2025-11-25", "mcp-session/64", "mcp-session-sdk/64", rate, perSecond, &bound{goal: 1, least: true}},
	{"gateway", "HTTP call of a Go tool, p50: against the NATS call that it makes", "http", sideGo, p50, micros, &bound{goal: 2.5}},
	{"gateway", "streamed items/s as events over HTTP: against our client's on NATS", "items-http", "items", rate, perSecond, &bound{goal: 0.5, least: true}},
	{"payload", "64 MB argument and result against an object store's put and get of both, p50", sideGo, sideRaw, p50, millis, &bound{must: 1.5, goal: 1.2}},
}

// beforeBound is the share of the calls/s of 64 plain callers of a Python tool that a change must
// keep (-before): ratios to raw NATS differ by machine.
var beforeBound = &bound{must: 0.9, goal: 1, least: true}

// plainOf maps the side of a plain NATS client to the side with its tools.
var plainOf = map[string]string{sidePlainGo: sideGo, sidePlainPython: sidePython}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func medianOf(samples []answer, f func(answer) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = f(s)
	}
	return median(values)
}

// ratioOf returns the median of the ratios of each round.
func ratioOf(ours, raw []answer, f func(answer) float64) float64 {
	values := make([]float64, min(len(ours), len(raw)))
	for i := range values {
		values[i] = f(ours[i]) / f(raw[i])
	}
	return median(values)
}

func p50(a answer) float64  { return float64(a.P50) }
func rate(a answer) float64 { return float64(a.Ops) / a.Took.Seconds() }

func (r *result) add(l line, limit *bound) {
	if limit != nil {
		l.Must, l.Verdict = limit.verdict(l.Ratio)
	}
	r.Lines = append(r.Lines, l)
}

func (r *result) compared(what string, ours, raw []answer, value func(answer) float64, show func(float64) string, limit *bound) {
	r.add(line{What: what, Ours: show(medianOf(ours, value)), Raw: show(medianOf(raw, value)), Ratio: ratioOf(ours, raw, value)}, limit)
}

// conclude adds the rows of the measured benchmarks.
func (r *result) conclude() {
	for _, row := range rows {
		if got := r.samples[row.benchmark]; len(got) > 0 {
			r.compared(row.what, got[row.ours], got[row.raw], row.value, row.show, row.limit)
		}
	}
}

func micros(ns float64) string      { return fmt.Sprintf("%.1f µs", ns/1000) }
func millis(ns float64) string      { return fmt.Sprintf("%.0f ms", ns/1e6) }
func perSecond(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "%s\nmedian of up to %d rounds; a ratio is ours/raw within a round; in brackets the goal, the rest a regression would break\n\n", r.Machine, r.rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\tours\traw\tratio\tmust (goal)\tverdict")
	for _, l := range r.Lines {
		ratio := ""
		if l.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", l.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.What, l.Ours, l.Raw, ratio, l.Must, l.Verdict)
	}
	_ = t.Flush()
}

func machine() string {
	load := "unknown"
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(data)); len(f) > 2 {
			load = strings.Join(f[:3], " ")
		}
	}
	return fmt.Sprintf("%s/%s, %d cores, load average %s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load, runtime.Version())
}
