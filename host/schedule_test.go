package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// ledger records executions by node.
type ledger struct {
	mu   sync.Mutex
	runs map[string]int // by boot and rpc_id
	keys map[string]int // by the call that was meant
}

// serve starts a node whose tools take the time that their arguments say, and record themselves
// in the ledger.
func (l *ledger) serve(t *testing.T, p *meshtest.Proxy, node subjects.NodeID) *host.Host {
	t.Helper()
	h, err := host.New(p.Connect(t), &host.Options{Index: "chaos", Node: node, Slots: 24})
	if err != nil {
		t.Fatal(err)
	}
	note := func(call *host.Call) (key string, ms, n int, err error) {
		var in struct {
			Key string `json:"key"`
			MS  int    `json:"ms"`
			N   int    `json:"n"`
		}
		if err := json.Unmarshal(call.Args, &in); err != nil {
			return "", 0, 0, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.runs[string(h.Boot())+" "+string(call.RPCID)]++
		l.keys[in.Key]++
		return in.Key, in.MS, in.N, nil
	}
	pause := func(ctx context.Context, ms int) error {
		timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	unary := func(ctx context.Context, call *host.Call, sink host.Sink) error {
		key, ms, _, err := note(call)
		if err == nil {
			err = pause(ctx, ms)
		}
		if err != nil {
			return err
		}
		return sink.Send(ctx, json.RawMessage(fmt.Sprintf("%q", key)))
	}
	stream := func(ctx context.Context, call *host.Call, sink host.Sink) error {
		key, ms, n, err := note(call)
		for i := 1; i <= n && err == nil; i++ {
			if err = pause(ctx, ms/max(n, 1)); err == nil {
				err = sink.Send(ctx, json.RawMessage(fmt.Sprintf(`{"key":%q,"i":%d}`, key, i)))
			}
		}
		return err
	}
	open := host.Schema(json.RawMessage(`{"type":"object"}`), nil)
	for name, f := range map[string]host.HandlerFunc{"unary": unary, "stream": stream} {
		if _, err := h.Handle(name, f, open); err != nil {
			t.Fatal(err)
		}
	}
	testmesh.Start(t, h)
	t.Cleanup(func() {
		p.Heal()
		stop(t, h)
	})
	return h
}

// Random calls, streams, repetitions and cancels on two nodes, with connections that are cut and
// stopped at random. Every call ends, once, and its outcome is true; no rpc_id runs twice on one
// node; a call that is not idempotent runs at most once.
func TestRandomSchedule(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	broker := meshtest.Broker(t)
	l := &ledger{runs: make(map[string]int), keys: make(map[string]int)}
	view := registryOn(t, broker.Connect(t))
	var proxies []*meshtest.Proxy
	for i := range 2 {
		p := meshtest.NewProxy(t, broker)
		l.serve(t, p, subjects.NodeID(fmt.Sprint("chaos", i)))
		proxies = append(proxies, p)
	}
	meshtest.Until(t, "the registry knows both", func() bool {
		r, ok := view.Route("default", "chaos.unary")
		return ok && len(r.Nodes) == 2
	})
	var clients []*client.Client
	for i := range 3 {
		c := testmesh.Client(t, broker.Connect(t), &client.Options{QueueOnly: i == 0})
		clients = append(clients, c)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	var all sync.WaitGroup
	// Trouble.
	all.Go(func() {
		rnd := rand.New(rand.NewPCG(seed, 1))
		for ctx.Err() == nil {
			p := proxies[rnd.IntN(len(proxies))]
			pauseFor(ctx, time.Duration(200+rnd.IntN(600))*time.Millisecond)
			switch rnd.IntN(3) {
			case 0:
				p.Cut(false)
			case 1:
				p.Cut(true)
			case 2:
				p.Blackhole()
			}
			pauseFor(ctx, time.Duration(200+rnd.IntN(2)*3200+rnd.IntN(500))*time.Millisecond) // shorter or longer than a node may be silent
			p.Heal()
		}
		for _, p := range proxies {
			p.Heal()
		}
	})
	var mu sync.Mutex
	codes := map[toolmesh.Code]int{}
	count := func(err error) {
		mu.Lock()
		codes[toolmesh.CodeOf(err)]++
		mu.Unlock()
	}
	allowed := map[toolmesh.Code]bool{
		"": true, toolmesh.CodeNodeLost: true, toolmesh.CodeCancelled: true, toolmesh.CodeDeadlineExceeded: true,
		toolmesh.CodeBusy: true, toolmesh.CodeUnavailable: true,
	}
	for w := range 24 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(100+w)))
			for n := 0; ctx.Err() == nil; n++ {
				c := clients[rnd.IntN(len(clients))]
				key := fmt.Sprintf("%d.%d", w, n)
				rpc := subjects.RPCID("rpc-" + key)
				opts := []client.CallOption{client.WithRPCID(rpc)}
				if rnd.IntN(2) == 0 {
					opts = append(opts, client.WithTimeout(time.Duration(20+rnd.IntN(3000))*time.Millisecond))
				}
				callCtx, stop := context.WithTimeout(t.Context(), waitTimeout)
				if rnd.IntN(6) == 0 {
					go func(d time.Duration) { // ends with the call
						pauseFor(callCtx, d)
						stop()
					}(time.Duration(rnd.IntN(400)) * time.Millisecond)
				}
				if rnd.IntN(6) == 0 {
					all.Go(func() { _, _ = c.Cancel(t.Context(), rpc) })
				}
				ms := rnd.IntN(200)
				if rnd.IntN(20) == 0 {
					ms = 3500 // longer than it takes to lose a node
				}
				args := map[string]any{"key": key, "ms": ms, "n": rnd.IntN(40)}
				if rnd.IntN(4) == 0 {
					checkStream(t, c, callCtx, args, count, allowed, opts)
				} else {
					// Sometimes twice at once: the same call.
					calls := 1 + rnd.IntN(8)/7
					var twins sync.WaitGroup
					for range calls {
						twins.Go(func() {
							r, err := c.Call(callCtx, "chaos.unary", args, opts...)
							count(err)
							if !allowed[toolmesh.CodeOf(err)] {
								t.Errorf("call %s: %v", key, err)
							}
							if err == nil && string(r.Value) != fmt.Sprintf("%q", key) {
								t.Errorf("call %s got %s", key, r.Value)
							}
							if e := toolmesh.AsError(err); calls == 1 && e != nil && e.Started == toolmesh.StartedNo {
								l.mu.Lock()
								ran := l.keys[key]
								l.mu.Unlock()
								if ran > 0 {
									t.Errorf("call %s ran, and ended with started:false: %v", key, err)
								}
							}
						})
					}
					twins.Wait()
					l.mu.Lock()
					if ran := l.keys[key]; ran > calls {
						t.Errorf("call %s ran %d times, and was made %d times", key, ran, calls)
					}
					l.mu.Unlock()
				}
				if callCtx.Err() == context.DeadlineExceeded {
					t.Errorf("call %s did not end", key)
				}
				stop()
			}
		})
	}
	all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.runs {
		if n > 1 {
			t.Errorf("%s ran %d times on one node", name, n)
		}
	}
	t.Logf("%d calls ran; they ended with %v", len(l.keys), codes)
	if codes[""] < 100 {
		t.Errorf("only %d calls ended well", codes[""])
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// checkStream reads a stream and checks that it is a prefix of the expected items, and all of
// them if it ends without an error.
func checkStream(t *testing.T, c *client.Client, ctx context.Context, args map[string]any, count func(error), allowed map[toolmesh.Code]bool, opts []client.CallOption) {
	t.Helper()
	items := 0
	var last error
	for chunk, err := range c.Stream(ctx, "chaos.stream", args, opts...) {
		if last != nil {
			t.Errorf("stream %v: something follows %v", args["key"], last)
		}
		if last = err; err != nil {
			continue
		}
		items++
		if want := fmt.Sprintf(`{"key":%q,"i":%d}`, args["key"], items); string(chunk.Data) != want || chunk.Seq != int64(items) {
			t.Errorf("stream %v: item %d is %s", args["key"], items, chunk.Data)
		}
	}
	count(last)
	if !allowed[toolmesh.CodeOf(last)] {
		t.Errorf("stream %v: %v", args["key"], last)
	}
	if last == nil && items != args["n"] {
		t.Errorf("stream %v ended well after %d items, want %v", args["key"], items, args["n"])
	}
}
