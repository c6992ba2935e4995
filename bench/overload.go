package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
)

// The sections "overload" and "slow": calls at a fixed rate, whether earlier ones have ended or
// not, of a tool that sleeps for loadTakes, so that only the waiting is measured.

const (
	loadTakes   = 100 * time.Millisecond
	loadTimeout = 2 * time.Second
	loadWorkers = 8 // per node
	slowNode    = "slow"
)

var loadSides = []string{"plain", "go", "python"}

// loadTools is the index. On a node with the folder slowNode it is ten times slower.
const loadTools = `import time

TAKES = 1.0 if "/slow/" in __file__ else 0.1

def work() -> int:
    """Wait for a while."""
    time.sleep(TAKES)
    return 1
`

// loaded is the result of one load.
type loaded struct {
	Served, Late, Busy, Other int
	P99                       time.Duration // of served calls, from the start by the caller
	Attempt                   time.Duration // of the served attempt alone, if the client reports it
	Slow                      int           // served by the slow node
	Else                      time.Duration // P99 of the other nodes
	Took                      time.Duration
}

func (l *loaded) rate() float64 { return float64(l.Served) / l.Took.Seconds() }

// load makes calls at a rate for some seconds.
func (c *caller) load(ctx context.Context, r request) answer {
	call := func() (attempt time.Duration, node string, err error) {
		res, err := c.mesh.Call(ctx, "load.load.work", nil, client.WithTimeout(loadTimeout))
		if err != nil {
			return 0, "", err
		}
		return res.Took, string(res.Node), nil
	}
	if r.Side == "plain" {
		call = func() (attempt time.Duration, node string, err error) {
			began := time.Now()
			m, err := c.raw.RequestMsg(&nats.Msg{
				Subject: "tools.default.load.load.work", Data: []byte(`{}`),
				Header: nats.Header{"Mesh-Timeout-Ms": {fmt.Sprint(loadTimeout.Milliseconds())}},
			}, loadTimeout+2*time.Second)
			if err != nil {
				return 0, "", err
			}
			if code := m.Header.Get("Mesh-Error-Code"); code != "" {
				err = toolmesh.Errorf(toolmesh.Code(code), "%s", m.Data)
			}
			return time.Since(began), m.Header.Get("Mesh-Node"), err
		}
	}
	var mu sync.Mutex
	var l loaded
	var all, attempts, others []time.Duration
	one := func() {
		began := time.Now()
		attempt, node, err := call()
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		switch toolmesh.CodeOf(err) {
		case "":
			l.Served++
			all, attempts = append(all, took), append(attempts, attempt)
			if node == slowNode {
				l.Slow++
			} else {
				others = append(others, took)
			}
		case toolmesh.CodeDeadlineExceeded:
			l.Late++
		case toolmesh.CodeBusy:
			l.Busy++
		default:
			l.Other++
			fmt.Fprintln(os.Stderr, err)
		}
	}
	var calls sync.WaitGroup
	began := time.Now()
	for n := range r.N * r.Callers {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(r.N))))
		calls.Go(one)
	}
	l.Took = time.Since(began)
	calls.Wait()
	l.P99, l.Attempt, l.Else = p99(all), p99(attempts), p99(others)
	return answer{Loaded: l}
}

func p99(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)*99/100]
}

// loading has the processes of these sections.
type loading struct {
	stage
	nodes int
}

// startLoading starts agents that serve the index. End the stage, also after an error.
func startLoading(of *stage, dir string, nodes ...string) (*loading, error) {
	l := &loading{stage: stage{ctx: of.ctx, stderr: of.stderr, dir: filepath.Join(of.dir, dir)}}
	if _, err := l.startBroker(); err != nil {
		return l, err
	}
	source, err := makeIndex(filepath.Join(l.dir, "load"), "load", loadTools, "work")
	if err != nil {
		return l, err
	}
	for i, node := range nodes {
		if err := l.join(node); err != nil {
			return l, err
		}
		if i == 0 {
			if _, err := l.child("caller").ask(request{Do: "install", Text: source}); err != nil {
				return l, err
			}
		}
	}
	return l, l.settled()
}

// join starts an agent and returns once its index is served.
func (l *loading) join(node string) error {
	c, err := l.start("agent", l.child("broker").hello, filepath.Join(l.dir, "nodes", node), node)
	if err != nil {
		return err
	}
	l.nodes++
	_, err = c.ask(request{Do: "ready"})
	return err
}

// settled waits until all workers run and every client knows the nodes.
func (l *loading) settled() error {
	for _, side := range loadSides {
		if _, err := l.run(side, loadWorkers*l.nodes*8, 4); err != nil {
			return err
		}
	}
	return nil
}

func (l *loading) run(side string, rate, seconds int) (got loaded, err error) {
	if side == "python" {
		got, err = l.runPython(rate, seconds)
	} else {
		var a answer
		a, err = l.child("caller").ask(request{Do: "load", Side: side, N: rate, Callers: seconds})
		got = a.Loaded
	}
	fmt.Fprintf(l.stderr, "%s, %d/s: %+v\n", side, rate, got)
	return got, err
}

func (l *loading) runPython(rate, seconds int) (got loaded, err error) {
	cmd, err := l.program("load.py", l.child("broker").hello, fmt.Sprint(rate), fmt.Sprint(seconds), fmt.Sprint(loadTimeout.Seconds()))
	if err != nil {
		return got, err
	}
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &got)
	}
	return got, err
}

const loadSeconds = 12

// measureOverload calls one node at rates above its capacity.
func (p *plan) measureOverload(s *stage, r *result) error {
	l, err := startLoading(s, "overload", "one")
	defer l.end()
	if err != nil {
		return err
	}
	capacity := loadWorkers * int(time.Second/loadTakes)
	for _, side := range loadSides {
		rates, peak := map[float64]float64{}, 0.0
		for _, times := range []float64{0.9, 1.5, 2, 3, 5} {
			got, err := l.run(side, int(times*float64(capacity)), loadSeconds)
			if err != nil {
				return err
			}
			rates[times] = got.rate()
			peak = max(peak, got.rate())
			if times == 2 {
				limit := 2*loadTakes + 100*time.Millisecond
				one := line{What: "overload: p99 on the node at twice the capacity, " + side + ", against two calls and 100 ms", Ours: millis(float64(got.Attempt)), Raw: millis(float64(limit)), Ratio: float64(got.Attempt) / float64(limit)}
				if side != "python" { // it does not report the time of the attempt
					r.add(one, &bound{must: 1.3, goal: 1})
				}
				if side != "plain" {
					r.add(line{What: "overload: the same, " + side + ", with what the client waits in the call's own time", Ours: millis(float64(got.P99))}, nil)
				}
				r.add(line{What: "overload: calls that ended at their deadline, " + side, Ours: fmt.Sprintf("%d of %d", got.Late, got.Late+got.Served+got.Busy)}, nil)
			}
		}
		for _, times := range []float64{1.5, 2, 3, 5} {
			r.add(line{What: fmt.Sprintf("overload: calls/s at %g times the capacity, %s, against the most", times, side), Ours: perSecond(rates[times]), Raw: perSecond(peak), Ratio: rates[times] / peak},
				&bound{must: 0.85, goal: 0.9, least: true})
		}
	}
	return nil
}

// measureSlow adds a node that is ten times slower to five others, at 60 % of their capacity.
func (p *plan) measureSlow(s *stage, r *result) error {
	l, err := startLoading(s, "slow-node", "a", "b", "c", "d", "e")
	defer l.end()
	if err != nil {
		return err
	}
	rate := l.nodes * loadWorkers * int(time.Second/loadTakes) * 6 / 10
	without := map[string]loaded{}
	for _, side := range loadSides {
		if without[side], err = l.run(side, rate, loadSeconds); err != nil {
			return err
		}
	}
	if err := l.join(slowNode); err != nil {
		return err
	}
	if err := l.settled(); err != nil {
		return err
	}
	for _, side := range loadSides {
		got, err := l.run(side, rate, loadSeconds)
		if err != nil {
			return err
		}
		all := got.Served + got.Late + got.Busy + got.Other
		share := func(what string, n int, limit bound) {
			r.add(line{What: fmt.Sprintf("slow node: %s, %s", what, side), Ours: fmt.Sprintf("%d of %d", n, all), Ratio: float64(n) / float64(all)}, &limit)
		}
		share("calls that failed", all-got.Served, bound{must: 0.002})
		limit := bound{must: 0.02, goal: 0.01}
		if side == "plain" {
			limit = bound{must: 0.04, goal: 0.02} // the broker chooses the node, which passes calls on
		}
		share("calls that it ran", got.Slow, limit)
		r.add(line{What: "slow node: p99 elsewhere, " + side + ", against the run without it", Ours: millis(float64(got.Else)), Raw: millis(float64(without[side].P99)), Ratio: float64(got.Else) / float64(without[side].P99)},
			&bound{must: 1.3, goal: 1.1})
	}
	return nil
}
