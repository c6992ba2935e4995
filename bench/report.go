package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// line is one row of the table.
type line struct {
	What  string  `json:"what"`
	Ours  string  `json:"ours"`
	Raw   string  `json:"raw,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	Must  string  `json:"must,omitempty"`
	// Verdict is ok, good (the goal is reached too), missed, or empty for what is
	// only told.
	Verdict string `json:"verdict,omitempty"`
}

// result is what a run found out.
type result struct {
	Began   time.Time `json:"began"`
	Machine string    `json:"machine"`
	Lines   []line    `json:"lines"`

	samples      map[string]map[string][]sample
	agentMemory  int64
	workerMemory int64
	workerShare  int64
	workers      int
	rounds       int
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
var bounds = map[string]map[string]bound{
	"unary":  {sideGo: {must: 1.4, goal: 1.25}, sidePython: {must: 2.0, goal: 1.8}},
	"burst":  {sidePython: {must: 0.18, goal: 0.3, least: true}},
	"stream": {sideGo: {must: 0.33, goal: 0.35, least: true}, sidePython: {must: 0.33, goal: 0.35, least: true}},
}

// What our client should reach against a plain NATS client that calls the same
// tool.
var clientBounds = map[string]bound{"unary": {goal: 1.15}, "burst": {goal: 0.8, least: true}}

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

func medianOf(samples []sample, f func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = f(s)
	}
	return median(values)
}

// ratioOf is the median of the ratios within each round.
func ratioOf(ours, raw []sample, f func(sample) float64) float64 {
	values := make([]float64, min(len(ours), len(raw)))
	for i := range values {
		values[i] = f(ours[i]) / f(raw[i])
	}
	return median(values)
}

func p50(s sample) float64  { return float64(s.P50) }
func p99(s sample) float64  { return float64(s.P99) }
func rate(s sample) float64 { return s.rate() }

// conclude makes the table's lines of the samples.
func (r *result) conclude() {
	names := map[string]string{
		sideGo: "Go tool", sidePython: "warm Python tool",
		sidePlainGo: "Go tool by a plain NATS client", sidePlainPython: "warm Python tool by a plain NATS client",
	}
	for _, b := range benchmarks {
		got := r.samples[b.name]
		raw := got[sideRaw]
		if len(raw) == 0 {
			continue
		}
		r.rounds = len(raw)
		value, show := rate, func(v float64) string { return fmt.Sprintf("%.0f/s", v) }
		what := "calls/s, 64 callers, "
		unit := "call"
		switch b.name {
		case "unary":
			value, show, what = p50, micros, "unary p50, "
		case "stream":
			what, unit = "streamed items/s, stored and delivered, ", "item"
		}
		for _, side := range b.sides[1:] {
			l := line{
				What: what + names[side], Ours: show(medianOf(got[side], value)), Raw: show(medianOf(raw, value)),
				Ratio: ratioOf(got[side], raw, value),
			}
			if b.name == "stream" && side == sidePython {
				l.What = what + "Python generator"
			} else if b.name == "stream" {
				l.What = what + "Go generator"
			}
			if limit, ok := bounds[b.name][side]; ok {
				l.Must, l.Verdict = limit.verdict(l.Ratio)
			}
			r.Lines = append(r.Lines, l)
		}
		for _, plain := range b.sides {
			side, ok := plainOf[plain]
			if !ok {
				continue
			}
			l := line{
				What: what + names[side] + ": our client against a plain one", Ours: show(medianOf(got[side], value)),
				Raw: show(medianOf(got[plain], value)), Ratio: ratioOf(got[side], got[plain], value),
			}
			l.Must, l.Verdict = clientBounds[b.name].verdict(l.Ratio)
			r.Lines = append(r.Lines, l)
		}
		for _, side := range b.sides[1:] {
			if b.name == "unary" {
				r.Lines = append(r.Lines, line{
					What: "  p99, " + names[side], Ours: micros(medianOf(got[side], p99)), Raw: micros(medianOf(raw, p99)), Ratio: ratioOf(got[side], raw, p99),
				})
			}
			r.Lines = append(r.Lines, r.costs(got[side], raw, unit+", "+b.name+", "+names[side])...)
		}
	}
	r.concludeEngine()
	r.concludeInstall()
	if r.agentMemory > 0 {
		r.Lines = append(r.Lines,
			line{What: fmt.Sprintf("memory of an idle agent with %d tools", pythonTools), Ours: mega(r.agentMemory)},
			line{What: fmt.Sprintf("  its %d worker processes, shared pages counted once", r.workers), Ours: mega(r.workerShare)},
			line{What: "  its worker processes, resident each by each", Ours: mega(r.workerMemory)})
	}
}

// costs are the CPU time, the sleeps and the allocations of an operation.
func (r *result) costs(ours, raw []sample, of string) []line {
	lines := []line{{
		What: "  allocations per " + of + ": caller, serving side",
		Ours: fmt.Sprintf("%.1f, %.1f", medianOf(ours, callerAllocs), medianOf(ours, hostAllocs)),
		Raw:  fmt.Sprintf("%.1f, %.1f", medianOf(raw, callerAllocs), medianOf(raw, hostAllocs)),
	}}
	o, w := perOp(ours), perOp(raw)
	if w.cpu == 0 {
		return lines // this system does not say
	}
	return append(lines,
		line{What: "  CPU per " + of + ": all = broker + caller + serving side", Ours: o.cpuText(), Raw: w.cpuText(), Ratio: o.cpu / w.cpu},
		line{What: "  threads put to sleep per " + of, Ours: o.waitsText(), Raw: w.waitsText(), Ratio: o.waits / w.waits})
}

func callerAllocs(s sample) float64 { return s.callerAllocs }
func hostAllocs(s sample) float64   { return s.hostAllocs }

// share is what an operation used: in all, and by process.
type share struct {
	cpu, waits float64 // ns, and times
	cpus, each [3]float64
}

// perOp is what an operation used, over all rounds.
func perOp(all []sample) (u share) {
	ops := 0
	for _, s := range all {
		ops += s.Ops
	}
	for _, s := range all {
		for i, p := range s.spent {
			u.cpus[i] += float64(p.cpu) / float64(ops)
			u.each[i] += float64(p.waits) / float64(ops)
		}
	}
	for i := range u.cpus {
		u.cpu += u.cpus[i]
		u.waits += u.each[i]
	}
	return u
}

func (u share) cpuText() string {
	return fmt.Sprintf("%.1f µs = %.0f+%.0f+%.0f", u.cpu/1e3, u.cpus[0]/1e3, u.cpus[1]/1e3, u.cpus[2]/1e3)
}

func (u share) waitsText() string {
	return fmt.Sprintf("%.2f = %.1f+%.1f+%.1f", u.waits, u.each[0], u.each[1], u.each[2])
}

func micros(ns float64) string { return fmt.Sprintf("%.1f µs", ns/1000) }

func mega(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// counts are messages and requests per call, one value for each batch.
type counts struct {
	out, in, broker, subscriptions, api []float64
}

func (c *counts) add(out, in, broker, subscriptions, api float64) {
	c.out, c.in, c.broker = append(c.out, out), append(c.in, in), append(c.broker, broker)
	c.subscriptions, c.api = append(c.subscriptions, subscriptions), append(c.api, api)
}

// counted adds the lines of a side's counts.
func (r *result) counted(side string, c counts) {
	add := func(what string, values []float64, must float64) {
		got := median(values)
		verdict := "good"
		if got != must {
			verdict = "MISSED"
		}
		r.Lines = append(r.Lines, line{What: what + " per unary call, " + side, Ours: fmt.Sprintf("%.3g", got), Must: fmt.Sprintf("= %.0f", must), Verdict: verdict})
	}
	add("messages out of the caller", c.out, 1)
	add("messages into the caller", c.in, 1)
	add("messages to the broker from everybody (registry reads would be among them)", c.broker, 2)
	add("subscriptions made", c.subscriptions, 0)
	add("JetStream requests", c.api, 0)
}

// missed reports whether a line misses what it must reach.
func (r *result) missed() bool {
	return slices.ContainsFunc(r.Lines, func(l line) bool { return l.Verdict == "MISSED" })
}

// print writes the table for people.
func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "%s\nmedian of %d rounds; a ratio is ours/raw within a round; in brackets the goal, the rest a regression would break\n\n", r.Machine, r.rounds)
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

// appendTo writes the result as one line of JSON at the end of a file.
func (r *result) appendTo(path string) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(f).Encode(r); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
