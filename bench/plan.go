package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// plan is the benchmarks to run, and their sizes.
type plan struct {
	Which  *regexp.Regexp
	Rounds int
	Calls  int    // sequential calls of a round
	Burst  int    // calls of a round with many callers
	Items  int    // items of a round's stream
	Before string // the program of another version; empty: no comparison
}

func defaultPlan() plan {
	return plan{Which: regexp.MustCompile("."), Rounds: 21, Calls: 1000, Burst: 6400, Items: 10_000}
}

// burstCallers is the number of concurrent callers.
const burstCallers = 64

// benchmark is one section: its sides, or the function that measures it.
type benchmark struct {
	name  string
	sides []side
	run   func(s *stage, r *result) error
}

// side is one side of a benchmark, with the request in a round to the process actor.
type side struct {
	name, actor string
	request     request
}

func (p *plan) benchmarks() []benchmark {
	const caller = "caller"
	var unary, burst []side
	for _, name := range allSides {
		unary = append(unary, side{name, caller, request{Do: "unary", Side: name, N: p.Calls}})
		burst = append(burst, side{name, caller, request{Do: "burst", Side: name, N: p.Burst, Callers: burstCallers}})
	}
	return []benchmark{
		{name: "unary", sides: unary},
		{name: "burst", sides: burst},
		{name: "before", run: p.measureBefore},
		{name: "stream", sides: []side{
			{sideRaw, "raw", request{Do: "stream", N: p.Items}},
			{sideGo, caller, request{Do: "stream", Side: sideGo, N: p.Items}},
			{sidePython, caller, request{Do: "stream", Side: sidePython, N: p.Items}},
		}},
		{name: "payload", sides: []side{{sideRaw, caller, request{Do: "objects", N: 1}}, {sideGo, caller, request{Do: "large", N: 1}}}},
		{name: "gateway", run: p.measureGateway},
		{name: "python", run: p.measurePython},
		{name: "overload", run: p.measureOverload},
		{name: "slow", run: p.measureSlow},
	}
}

func (p *plan) run(ctx context.Context, stderr io.Writer) (*result, error) {
	dir, err := os.MkdirTemp("", "toolmesh-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &result{Machine: machine(), rounds: p.Rounds, samples: make(map[string]map[string][]answer)}
	s := &stage{ctx: ctx, stderr: stderr, dir: dir}
	defer s.end()
	if err := s.startAll(); err != nil {
		return nil, err
	}
	for _, b := range p.benchmarks() {
		if !p.Which.MatchString(b.name) {
			continue
		}
		fmt.Fprintf(stderr, "%s …\n", b.name)
		if b.run != nil {
			err = b.run(s, r)
		} else {
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

// stage has the processes of a measurement. End it, also after an error.
type stage struct {
	ctx    context.Context //nolint:containedctx // of one measurement
	stderr io.Writer
	dir    string
	all    []*child // in order of start
}

// start starts a process that ends with the stage.
func (s *stage) start(name string, args ...string) (*child, error) {
	c, err := startChild(s.ctx, s.stderr, name, args...)
	if err == nil {
		s.all = append(s.all, c)
	}
	return c, err
}

// child returns the first process of a name.
func (s *stage) child(name string) *child {
	return s.all[slices.IndexFunc(s.all, func(c *child) bool { return c.name == name })]
}

func (s *stage) end() {
	for _, c := range slices.Backward(s.all) {
		c.end()
	}
}

// startBroker starts a broker, and a caller that it serves.
func (s *stage) startBroker() (broker string, err error) {
	c, err := s.start("broker", filepath.Join(s.dir, "broker"), "", "")
	if err == nil {
		_, err = s.start("caller", c.hello)
	}
	if err != nil {
		return "", err
	}
	return c.hello, nil
}

// startAll starts the processes of most benchmarks.
func (s *stage) startAll() error {
	broker, err := s.startBroker()
	if err != nil {
		return err
	}
	for _, name := range []string{"raw", "agent", "host"} {
		if _, err := s.start(name, broker, filepath.Join(s.dir, name), "bench-agent"); err != nil {
			return err
		}
	}
	source, err := makeIndex(filepath.Join(s.dir, pyIndex), "bill", pyTools, "refund", "count")
	if err != nil {
		return err
	}
	if _, err := s.child("caller").ask(request{Do: "install", Text: source}); err != nil {
		return err
	}
	// Warm every side, and let the caller learn the nodes.
	for _, side := range allSides {
		for range 3 {
			if _, err := s.child("caller").ask(request{Do: "burst", Side: side, N: 256, Callers: 4}); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure runs each side once per round; the first round only warms up.
func (p *plan) measure(s *stage, b benchmark, r *result) error {
	r.samples[b.name] = make(map[string][]answer)
	sides := slices.Clone(b.sides)
	for round := range p.Rounds + 1 {
		for _, side := range sides {
			one, err := s.child(side.actor).ask(side.request)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			if round > 0 {
				r.samples[b.name][side.name] = append(r.samples[b.name][side.name], one)
			}
		}
		sides = append(sides[1:], sides[0]) // another side goes first
	}
	return nil
}

// measureBefore compares the calls/s of plain callers of a Python tool with those of another
// version of this project. Its processes run next to ours, with rounds alternating.
func (p *plan) measureBefore(s *stage, r *result) error {
	if p.Before == "" {
		return nil
	}
	ours := executable
	executable = func() (string, error) { return p.Before, nil }
	defer func() { executable = ours }()
	before := &stage{ctx: s.ctx, stderr: s.stderr, dir: filepath.Join(s.dir, "before")}
	defer before.end()
	if err := before.startAll(); err != nil {
		return err
	}
	var now, then []answer
	for range p.Rounds {
		for _, side := range []struct {
			*stage
			into *[]answer
		}{{s, &now}, {before, &then}} {
			a, err := side.child("caller").ask(request{Do: "burst", Side: sidePlainPython, N: p.Burst, Callers: burstCallers})
			if err != nil {
				return err
			}
			*side.into = append(*side.into, a)
		}
	}
	r.compared("calls/s, 64 callers, warm Python tool by a plain NATS client: against the state before", now, then, rate, perSecond, beforeBound)
	return nil
}
