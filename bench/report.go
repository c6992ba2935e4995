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
	Verdict         string // ok, good (the goal is reached too), MISSED, or empty for what is only told
}

type result struct {
	Machine string
	Lines   []line

	samples map[string]map[string][]answer
	rounds  int
}

// bound is what a ratio must reach, so that a regression shows, and what it should.
type bound struct {
	must, goal float64 // must 0: there is only a goal
	least      bool    // the ratio must be at least that; else at most
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

// The table of what the mesh must reach against raw NATS.
var bounds = map[string]map[string]*bound{
	"unary":  {sideGo: {must: 1.4, goal: 1.25}, sidePython: {must: 2.0, goal: 1.8}},
	"burst":  {sidePython: {must: 0.18, goal: 0.3, least: true}},
	"stream": {sideGo: {must: 0.33, goal: 0.35, least: true}, sidePython: {must: 0.33, goal: 0.35, least: true}},
}

// What a landing must keep of the calls/s of 64 plain callers of a Python tool, measured side by
// side with the state before it (-before): ratios against raw NATS differ by machine.
var beforeBound = &bound{must: 0.9, goal: 1, least: true}

// What our client should reach against a plain NATS client that calls the same
// tool.
var clientBounds = map[string]*bound{"unary": {goal: 1.15}, "burst": {goal: 0.8, least: true}}

// plainOf is the side whose tools a side calls by a plain NATS client.
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

// ratioOf is the median of the ratios within each round.
func ratioOf(ours, raw []answer, f func(answer) float64) float64 {
	values := make([]float64, min(len(ours), len(raw)))
	for i := range values {
		values[i] = f(ours[i]) / f(raw[i])
	}
	return median(values)
}

func p50(a answer) float64  { return float64(a.P50) }
func rate(a answer) float64 { return float64(a.Ops) / a.Took.Seconds() }

var sideNames = map[string]string{
	sideGo: "Go tool", sidePython: "warm Python tool",
	sidePlainGo: "Go tool by a plain NATS client", sidePlainPython: "warm Python tool by a plain NATS client",
}

func (r *result) add(l line, limit *bound) {
	if limit != nil {
		l.Must, l.Verdict = limit.verdict(l.Ratio)
	}
	r.Lines = append(r.Lines, l)
}

func (r *result) compared(what string, ours, raw []answer, value func(answer) float64, show func(float64) string, limit *bound) {
	r.add(line{What: what, Ours: show(medianOf(ours, value)), Raw: show(medianOf(raw, value)), Ratio: ratioOf(ours, raw, value)}, limit)
}

func (r *result) conclude() {
	for _, b := range benchmarks {
		got := r.samples[b.name]
		raw := got[sideRaw]
		if len(raw) == 0 {
			continue
		}
		value, show, what := rate, perSecond, "calls/s, 64 callers, "
		switch b.name {
		case "unary":
			value, show, what = p50, micros, "unary p50, "
		case "stream":
			what = "streamed items/s, stored and delivered, "
		}
		for _, side := range b.sides[1:] {
			name := sideNames[side]
			if b.name == "stream" {
				name = map[string]string{sideGo: "Go generator", sidePython: "Python generator"}[side]
			}
			r.compared(what+name, got[side], raw, value, show, bounds[b.name][side])
		}
		for _, plain := range b.sides {
			if side, ok := plainOf[plain]; ok {
				r.compared(what+sideNames[side]+": our client against a plain one", got[side], got[plain], value, show, clientBounds[b.name])
			}
		}
	}
	if got := r.samples["keys"]; len(got) > 0 {
		r.compared("unary p50, Go tool, with keys against without", got["keys"], got["open"], p50, micros, &bound{must: 1.1, goal: 1.02})
	}
	r.concludeEngine()
	r.concludeInstall()
	r.concludeBulk()
}

func micros(ns float64) string      { return fmt.Sprintf("%.1f µs", ns/1000) }
func wholeMillis(ns float64) string { return fmt.Sprintf("%.0f ms", ns/1e6) }

func millis(ns float64) string { return fmt.Sprintf("%.0f", ns/1e6) }

func perSecond(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

// counted adds the lines of what a side's unary call costs in messages and requests.
func (r *result) counted(side string, batches [][]float64) {
	for i, one := range []struct {
		what string
		must float64
	}{
		{"messages out of the caller", 1},
		{"messages into the caller", 1},
		{"messages to the broker from everybody (registry reads would be among them)", 2},
		{"subscriptions made", 0},
		{"JetStream requests", 0},
	} {
		values := make([]float64, len(batches))
		for n, batch := range batches {
			values[n] = batch[i]
		}
		got, verdict := median(values), "good"
		if got != one.must {
			verdict = "MISSED"
		}
		r.add(line{What: one.what + " per unary call, " + side, Ours: fmt.Sprintf("%.3g", got), Must: fmt.Sprintf("= %.0f", one.must), Verdict: verdict}, nil)
	}
}

func (r *result) missed() bool {
	return slices.ContainsFunc(r.Lines, func(l line) bool { return l.Verdict == "MISSED" })
}

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
