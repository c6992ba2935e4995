package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/toolmesh/toolmesh/internal/access"
)

// plan says what is measured and how often.
type plan struct {
	Which  *regexp.Regexp
	Rounds int
	Calls  int    // sequential calls of a round
	Burst  int    // calls of a round with many callers
	Items  int    // items of a round's stream
	Before string // the program of another state; empty: none is compared with
}

func defaultPlan() plan {
	return plan{Which: regexp.MustCompile("."), Rounds: 21, Calls: 1000, Burst: 6400, Items: 10_000}
}

// burstCallers is how many callers a benchmark with many has.
const burstCallers = 64

// benchmark is one measurement of several sides.
type benchmark struct {
	name  string
	sides []string
	do    string // the request, to the caller or, for raw streams, to the raw side
	count func(p *plan) int
}

var benchmarks = []benchmark{
	{"unary", []string{sideRaw, sideGo, sidePython, sidePlainGo, sidePlainPython}, "unary", func(p *plan) int { return p.Calls }},
	{"burst", []string{sideRaw, sideGo, sidePython, sidePlainGo, sidePlainPython}, "burst", func(p *plan) int { return p.Burst }},
	{"before", nil, "", nil},
	{"stream", []string{sideRaw, sideGo, sidePython}, "stream", func(p *plan) int { return p.Items }},
	{"keys", nil, "", nil},
	{"messages", nil, "", nil},
	{"engine", nil, "", nil},
	{"install", nil, "", nil},
	{"python", nil, "", nil},
	{"bulk", nil, "", nil},
	{"overload", nil, "", nil},
	{"slow", nil, "", nil},
}

func benchmarkNames() (names []string) {
	for _, b := range benchmarks {
		names = append(names, b.name)
	}
	return names
}

func (p *plan) run(ctx context.Context, stderr io.Writer) (*result, error) {
	dir, err := os.MkdirTemp("", "toolmesh-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &result{Machine: machine(), rounds: p.Rounds, samples: make(map[string]map[string][]answer)}
	s, err := startStage(ctx, stderr, dir)
	defer s.end()
	if err != nil {
		return nil, err
	}
	for _, b := range benchmarks {
		if !p.Which.MatchString(b.name) {
			continue
		}
		fmt.Fprintf(stderr, "%s …\n", b.name)
		switch b.name {
		case "before":
			err = p.measureBefore(ctx, stderr, s, r)
		case "messages":
			err = p.countMessages(s, r)
		case "keys":
			err = p.measureKeys(ctx, stderr, s, r)
		case "engine":
			err = p.measureEngine(ctx, stderr, dir, r)
		case "install":
			err = p.measureInstall(ctx, stderr, dir, r)
		case "python":
			err = p.measurePython(ctx, stderr, s, r)
		case "overload":
			err = p.measureOverload(ctx, stderr, dir, r)
		case "slow":
			err = p.measureSlow(ctx, stderr, dir, r)
		case "bulk":
			if err = p.measureBulk(ctx, stderr, s, r); err == nil {
				err = p.measureCache(s, r)
			}
		default:
			err = p.measure(s, b, r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	r.conclude()
	return r, nil
}

type stage struct {
	dir                              string
	broker, raw, host, agent, caller *child
	all                              []*child // in the order of starting
}

// start starts processes, the broker first. The stage is to be ended also after an error.
func start(ctx context.Context, stderr io.Writer, dir, node string, names ...string) (*stage, error) {
	s := &stage{dir: dir}
	into := map[string]**child{"broker": &s.broker, "raw": &s.raw, "host": &s.host, "agent": &s.agent, "caller": &s.caller}
	for _, name := range names {
		args := []string{filepath.Join(dir, name), node}
		if name != "broker" {
			args = append([]string{s.broker.hello}, args...)
		}
		c, err := startChild(ctx, stderr, name, args...)
		if err != nil {
			return s, err
		}
		*into[name] = c
		s.all = append(s.all, c)
	}
	return s, nil
}

// startStage starts what most benchmarks use.
func startStage(ctx context.Context, stderr io.Writer, dir string) (*stage, error) {
	s, err := start(ctx, stderr, dir, "bench-agent", "broker", "raw", "agent", "host", "caller")
	if err != nil {
		return s, err
	}
	source, err := makeIndex(dir)
	if err != nil {
		return s, err
	}
	if _, err := s.caller.ask(request{Do: "install", Text: source}); err != nil {
		return s, err
	}
	// Each side is warm, and the caller knows the nodes, before anything counts.
	for _, side := range []string{sideRaw, sideGo, sidePython, sidePlainGo, sidePlainPython} {
		for range 3 {
			if _, err := s.caller.ask(request{Do: "burst", Side: side, N: 256, Callers: 4}); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

func (s *stage) end() {
	for _, c := range slices.Backward(s.all) {
		c.end()
	}
}

func (p *plan) measure(s *stage, b benchmark, r *result) error {
	r.samples[b.name] = make(map[string][]answer)
	sides := slices.Clone(b.sides)
	for range p.Rounds {
		for _, side := range sides {
			actor := s.caller
			if b.do == "stream" && side == sideRaw {
				actor = s.raw
			}
			one, err := actor.ask(request{Do: b.do, Side: side, N: b.count(p), Callers: burstCallers})
			if err != nil {
				return fmt.Errorf("%s: %w", side, err)
			}
			r.samples[b.name][side] = append(r.samples[b.name][side], one)
		}
		sides = append(sides[1:], sides[0]) // nobody always goes first
	}
	return nil
}

// measureKeys compares calls of a mesh with keys, by a caller that has none, with those
// of a mesh without.
func (p *plan) measureKeys(ctx context.Context, stderr io.Writer, open *stage, r *result) error {
	dir := filepath.Join(open.dir, "keys")
	keyed := &stage{dir: dir}
	defer keyed.end()
	start := func(name string, args ...string) (*child, error) {
		c, err := startChild(ctx, stderr, name, args...)
		if err == nil {
			keyed.all = append(keyed.all, c)
		}
		return c, err
	}
	b, err := start("broker", dir, withKeys)
	if err != nil {
		return err
	}
	// The node that makes the registry, and the one that serves.
	if _, err := start("agent", b.hello+" "+access.File(dir, access.Admin), filepath.Join(dir, "agent"), "bench-keys"); err != nil {
		return err
	}
	if _, err := start("host", b.hello+" "+access.File(dir, access.Node)); err != nil {
		return err
	}
	caller, err := start("caller", b.hello)
	if err != nil {
		return err
	}
	sides := []string{"open", "keys"}
	actors := map[string]*child{"open": open.caller, "keys": caller}
	got := map[string][]answer{}
	for round := range p.Rounds + 1 {
		for _, side := range sides {
			one, err := actors[side].ask(request{Do: "unary", Side: sideGo, N: p.Calls})
			if err != nil {
				return fmt.Errorf("%s: %w", side, err)
			}
			if round > 0 { // each side is warm
				got[side] = append(got[side], one)
			}
		}
		slices.Reverse(sides)
	}
	r.samples["keys"] = got
	return nil
}

// countBatches batches of calls are counted: what runs beside the calls, such as
// a heartbeat each second, falls into few of them.
const countBatches = 15

// countMessages counts what a call costs in messages, subscriptions and
// JetStream requests.
func (p *plan) countMessages(s *stage, r *result) error {
	calls := min(p.Calls, 200)
	for _, side := range []string{sideGo, sidePython} {
		var batches [][]float64
		for range countBatches {
			before, err := s.counters()
			if err != nil {
				return err
			}
			if _, err := s.caller.ask(request{Do: "unary", Side: side, N: calls}); err != nil {
				return err
			}
			after, err := s.counters()
			if err != nil {
				return err
			}
			for i := range after {
				after[i] = (after[i] - before[i]) / float64(calls)
			}
			batches = append(batches, after)
		}
		r.counted(side, batches)
	}
	return nil
}

// counters are the values of [result.counted] so far.
func (s *stage) counters() ([]float64, error) {
	caller, err := s.caller.ask(request{Do: "counters"})
	if err != nil {
		return nil, err
	}
	broker, err := s.broker.ask(request{Do: "counters"})
	return []float64{float64(caller.Out), float64(caller.In), float64(broker.In), float64(broker.Inbox), float64(broker.API)}, err
}

// measureBefore compares the calls/s of plain callers of a Python tool with those of another
// state of this project, whose processes run beside ours and have their rounds in turn.
func (p *plan) measureBefore(ctx context.Context, stderr io.Writer, s *stage, r *result) error {
	if p.Before == "" {
		return nil
	}
	ours := executable
	executable = func() (string, error) { return p.Before, nil }
	defer func() { executable = ours }()
	before, err := startStage(ctx, stderr, filepath.Join(s.dir, "before"))
	defer before.end()
	if err != nil {
		return err
	}
	var now, then []answer
	for range p.Rounds {
		for _, side := range []struct {
			*stage
			into *[]answer
		}{{s, &now}, {before, &then}} {
			a, err := side.caller.ask(request{Do: "burst", Side: sidePlainPython, N: p.Burst, Callers: burstCallers})
			if err != nil {
				return err
			}
			*side.into = append(*side.into, a)
		}
	}
	r.compared("calls/s, 64 callers, "+sideNames[sidePlainPython]+": against the state before", now, then, rate, perSecond, beforeBound)
	return nil
}
