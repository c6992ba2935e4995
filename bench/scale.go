package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh/internal/wake"
)

// scale is a mesh of many nodes on a cluster of three brokers.
type scale struct {
	Nodes    int
	Tools    int
	Sessions int
	Copies   int // nodes that serve each index
	PerIndex int // tools of an index
	Calls    int
	Settle   time.Duration // wait before measuring, until leases have reached their final interval
	Steady   time.Duration // duration of the measurement without calls
}

const (
	scaleBrokers = 3
	// scaleSmall is the size of the mesh for comparison.
	scaleSmall = 3
	// scaleProcesses is the number of processes of simulated nodes.
	scaleProcesses = 4
)

func (s *scale) indexes() int { return max(s.Tools/s.PerIndex, 1) }

func runScale(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s := scale{}
	flags := flag.NewFlagSet("bench scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.Nodes, "nodes", 1000, "simulated agents")
	flags.IntVar(&s.Tools, "tools", 100_000, "tools of the mesh")
	flags.IntVar(&s.Sessions, "sessions", 10_000, "sessions that exist")
	flags.IntVar(&s.Copies, "copies", 10, "nodes that serve each index")
	flags.IntVar(&s.PerIndex, "per-index", 100, "tools of an index")
	flags.IntVar(&s.Calls, "calls", 5000, "unary calls of a round")
	flags.DurationVar(&s.Settle, "settle", 3*time.Minute, "how long the mesh is left alone before that: leases that were written among few nodes are renewed soon")
	flags.DurationVar(&s.Steady, "steady", time.Minute, "how long the mesh is watched without calls")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if s.Nodes < scaleSmall || s.Copies < 1 || s.PerIndex < 1 {
		fmt.Fprintf(stderr, "bench scale: at least %d nodes, and a copy and a tool of each index, are needed\n", scaleSmall)
		return 2
	}
	lines, err := s.run(ctx, stderr)
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(stdout, "%s\n%d nodes, %d tools in indexes of %d on %d nodes each, %d sessions, %d brokers\n\n",
		machine(), s.Nodes, s.indexes()*s.PerIndex, s.PerIndex, min(s.Copies, s.Nodes), s.Sessions, scaleBrokers)
	fmt.Fprintln(t, "what\tfigure\tmust")
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%s\t%s\n", l.What, l.Ours, l.Must)
	}
	_ = t.Flush()
	if err != nil {
		fmt.Fprintln(stderr, "bench scale:", err)
		return 2
	}
	return 0
}

// hall has the processes of a measurement of scale.
type hall struct {
	scale
	stage
	urls    string
	brokers []*child
	nodes   []*child
	lines   []line
}

func (h *hall) say(what, figure, must string) {
	h.lines = append(h.lines, line{What: what, Ours: figure, Must: must})
	fmt.Fprintf(h.stderr, "%s: %s\n", what, figure)
}

func (s *scale) run(ctx context.Context, stderr io.Writer) (_ []line, err error) {
	dir, err := os.MkdirTemp("", "toolmesh-scale-")
	if err != nil {
		return nil, err
	}
	h := &hall{scale: *s, stage: stage{ctx: ctx, stderr: stderr, dir: dir}}
	defer func() {
		h.end()
		_ = os.RemoveAll(dir)
	}()
	for _, step := range []func() error{h.startBrokers, h.populate, h.views, h.steady, h.loseNode, h.callMany, h.reconnect} {
		if err := step(); err != nil {
			return h.lines, err
		}
		if ctx.Err() != nil {
			return h.lines, ctx.Err()
		}
	}
	return h.lines, nil
}

func (h *hall) startBrokers() error {
	var routes []string
	for range scaleBrokers {
		l, err := (&net.ListenConfig{}).Listen(h.ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		routes = append(routes, l.Addr().String())
		_ = l.Close()
	}
	var group errgroup.Group
	h.brokers = make([]*child, scaleBrokers)
	for i := range h.brokers {
		config := fmt.Sprintf("cluster { name: scale, listen: %q, routes: [nats://%s] }", routes[i], strings.Join(routes, ", nats://"))
		group.Go(func() (err error) {
			h.brokers[i], err = startChild(h.ctx, h.stderr, "broker", filepath.Join(h.dir, fmt.Sprint("broker", i)), fmt.Sprint("broker-", i), config)
			return err
		})
	}
	err := group.Wait()
	var urls []string
	for _, b := range h.brokers {
		if b != nil {
			h.all = append(h.all, b)
			urls = append(urls, b.hello)
		}
	}
	h.urls = strings.Join(urls, ",")
	return err
}

// populate starts three nodes and measures calls, then all others.
func (h *hall) populate() error {
	spec, err := json.Marshal(h.scale)
	if err != nil {
		return err
	}
	for range scaleProcesses + 1 { // one for the first three nodes
		c, err := h.start("nodes", h.urls, string(spec))
		if err != nil {
			return err
		}
		h.nodes = append(h.nodes, c)
	}
	if _, err := h.nodes[0].ask(request{Do: "nodes", N: scaleSmall}); err != nil {
		return err
	}
	// Callers need a router from the start.
	first, err := h.start("router", h.urls)
	if err != nil {
		return err
	}
	first.name = "first router"
	if err := h.calls("3 nodes"); err != nil {
		return err
	}
	if _, err := h.nodes[0].ask(request{Do: "sessions", N: h.Sessions}); err != nil {
		return err
	}
	began := time.Now()
	var group errgroup.Group
	from := scaleSmall
	for i, c := range h.nodes[1:] {
		to := scaleSmall + (h.Nodes-scaleSmall)*(i+1)/scaleProcesses
		first := from
		group.Go(func() error { _, err := c.ask(request{Do: "nodes", Callers: first, N: to}); return err })
		from = to
	}
	if err := group.Wait(); err != nil {
		return err
	}
	h.say("all nodes started and published", time.Since(began).Round(time.Millisecond).String(), "")
	return nil
}

// views starts processes with a view: a router and an agent.
func (h *hall) views() error {
	for _, one := range []struct{ name, ready, heap string }{{"router", "<= 10 s", "<= 500 MB"}, {"agent", "", "<= 100 MB"}} {
		began := time.Now()
		c, err := h.start(one.name, h.urls, filepath.Join(h.dir, one.name), "scale-agent")
		if err != nil {
			return err
		}
		h.say(one.name+": view ready after", time.Since(began).Round(time.Millisecond).String(), one.ready)
		f, err := c.figures()
		if err != nil {
			return err
		}
		h.say(one.name+": read for that", megabytes(f.InBytes), "")
		h.say(one.name+": heap", megabytes(f.Heap), one.heap)
	}
	return nil
}

type figures struct {
	CPU             time.Duration
	Heap            uint64 // bytes in use after a collection
	InMsgs, InBytes uint64
	OutMsgs         uint64
	Subscriptions   uint64
}

func (c *child) figures() (figures, error) {
	a, err := c.ask(request{Do: "figures"})
	return a.Figures, err
}

// watched returns the processes to measure.
func (h *hall) watched() []*child {
	return append(slices.Clone(h.brokers), h.child("router"), h.child("agent"))
}

// during returns the figures of all watched processes before and after do, and its duration.
func (h *hall) during(do func() error) (before, after []figures, took time.Duration, err error) {
	read := func() (all []figures) {
		for _, c := range h.watched() {
			f, bad := c.figures()
			all, err = append(all, f), cmp.Or(err, bad)
		}
		return all
	}
	before = read()
	began := time.Now()
	if err == nil {
		err = do()
	}
	took = time.Since(began)
	after = read()
	return before, after, took, err
}

// steady watches the mesh without calls, once its start is complete.
func (h *hall) steady() error {
	wake.After(h.ctx, h.Settle)
	before, after, took, err := h.during(func() error { wake.After(h.ctx, h.Steady); return nil })
	if err != nil {
		return err
	}
	for i, c := range h.watched() {
		b, a := before[i], after[i]
		name, must := c.name, ""
		switch {
		case i < scaleBrokers:
			name, must = fmt.Sprint("broker ", i+1), "<= 5 %"
		case c.name == "agent":
			must = "<= 1 %"
		}
		h.say(name+": cpu, steady", fmt.Sprintf("%.2f %% of a core", 100*(a.CPU-b.CPU).Seconds()/took.Seconds()), must)
		msgs, what := a.InMsgs-b.InMsgs, "messages in"
		if i < scaleBrokers {
			msgs, what = a.OutMsgs-b.OutMsgs, "deliveries"
			h.say(name+": memory, subscriptions", fmt.Sprintf("%s, %d", megabytes(a.Heap), a.Subscriptions), "")
		}
		h.say(name+": "+what+", steady", fmt.Sprintf("%.1f/s", float64(msgs)/took.Seconds()), "")
	}
	return nil
}

// callMany measures calls of the first three nodes' tools again, once with all other nodes running
// and once with their processes stopped: here they use the cores of one machine. The brokers and
// the registry keep their state.
func (h *hall) callMany() error {
	if err := h.calls(fmt.Sprintf("%d nodes on this machine", h.Nodes)); err != nil {
		return err
	}
	signal := func(s syscall.Signal) error {
		for _, c := range h.nodes[1:] {
			if err := c.cmd.Process.Signal(s); err != nil {
				return err
			}
		}
		return nil
	}
	err := signal(syscall.SIGSTOP)
	if err == nil {
		err = h.calls(fmt.Sprintf("%d nodes, all but 3 paused", h.Nodes))
	}
	return errors.Join(err, signal(syscall.SIGCONT))
}

// calls measures with a new caller.
func (h *hall) calls(where string) error {
	c, err := h.start("caller", h.urls)
	if err != nil {
		return err
	}
	id := indexTool(0, 0)
	var p50s, rates []float64
	busy := append(slices.Clone(h.brokers), h.nodes[0], c)
	before, err := cpuOf(busy)
	if err != nil {
		return err
	}
	const rounds = 6
	for round := range rounds {
		one, err := c.ask(request{Do: "unary", Side: id, N: h.Calls})
		if err != nil {
			return err
		}
		many, err := c.ask(request{Do: "burst", Side: id, N: 4 * h.Calls, Callers: burstCallers})
		if err != nil {
			return err
		}
		if round > 0 {
			p50s, rates = append(p50s, p50(one)), append(rates, rate(many))
		}
	}
	after, err := cpuOf(busy)
	if err != nil {
		return err
	}
	for i, name := range []string{"brokers", "nodes", "caller"} {
		h.say("processor time of a call, "+name+", "+where, micros(float64((after[i]-before[i]).Nanoseconds())/float64(rounds*5*h.Calls)), "")
	}
	must := ""
	if strings.HasSuffix(where, "paused") {
		must = "within 10 % of 3 nodes"
	}
	h.say("unary p50, "+where, micros(median(p50s)), must)
	h.say("calls/s, 64 callers, "+where, perSecond(median(rates)), must)
	return nil
}

// loseNode kills a node that runs a call.
func (h *hall) loseNode() error {
	victim, err := h.start("host", h.urls)
	if err != nil {
		return err
	}
	c, err := h.start("caller", h.urls)
	if err != nil {
		return err
	}
	var got answer
	var ended time.Time
	var group errgroup.Group
	group.Go(func() (err error) {
		got, err = c.ask(request{Do: "hang"})
		ended = time.Now()
		return err
	})
	wake.After(h.ctx, 5*time.Second)
	killed := time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if got.Text != "node_lost" {
		return fmt.Errorf("the call of the node that was killed ended with %q", got.Text)
	}
	h.say("a killed node known to its caller after", ended.Sub(killed).Round(time.Millisecond).String(), "<= 3 s")
	return nil
}

// reconnect makes all connections reconnect.
func (h *hall) reconnect() error {
	before, after, _, err := h.during(func() error {
		var group errgroup.Group
		for _, c := range append(slices.Clone(h.nodes), h.child("router"), h.child("agent")) {
			group.Go(func() error { _, err := c.ask(request{Do: "reconnect"}); return err })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		wake.After(h.ctx, h.Steady/2)
		return nil
	})
	if err != nil {
		return err
	}
	for i, c := range h.watched()[scaleBrokers:] {
		h.say(c.name+": bytes in around a reconnect of all", megabytes(after[scaleBrokers+i].InBytes-before[scaleBrokers+i].InBytes), "<= 2x the registry")
	}
	return nil
}

// cpuOf returns the processor time used so far by the brokers, the process of the first nodes and a
// caller.
func cpuOf(children []*child) (times [3]time.Duration, err error) {
	for i, c := range children {
		f, err := c.figures()
		if err != nil {
			return times, err
		}
		times[max(i-scaleBrokers+1, 0)] += f.CPU
	}
	return times, nil
}

func megabytes(n uint64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }
