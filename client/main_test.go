package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// callerEnv makes the test binary a process that only calls; see caller.
const callerEnv = "TOOLMESH_TEST_CALLER"

// TestMain lets more tests run at once than there are processors, because they
// mostly wait.
func TestMain(m *testing.M) {
	if url := os.Getenv(callerEnv); url != "" {
		caller(url)
		return
	}
	meshtest.Parallel(8)
	meshtest.Main(m)
}

const testTimeout = 60 * time.Second

// gate is the calls of one key as the test holds them.
type gate struct {
	started chan subjects.NodeID
	release chan struct{}
	ended   chan error
	sent    chan int
}

// tools are the handlers of all nodes of a test.
type tools struct {
	mu    sync.Mutex
	runs  map[string]int // by key, and by node and key
	gates map[string]*gate
}

func newTools() *tools { return &tools{runs: make(map[string]int), gates: make(map[string]*gate)} }

func (d *tools) gate(key string) *gate {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.gates[key]
	if g == nil {
		g = &gate{
			started: make(chan subjects.NodeID, 1000), release: make(chan struct{}, 1000),
			ended: make(chan error, 1000), sent: make(chan int, 1<<16),
		}
		d.gates[key] = g
	}
	return g
}

func (d *tools) ran(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[key]
}

func (d *tools) begin(node subjects.NodeID, key string) *gate {
	g := d.gate(key)
	d.mu.Lock()
	d.runs[key]++
	d.runs[string(node)+" "+key]++
	d.mu.Unlock()
	select {
	case g.started <- node:
	default:
	}
	return g
}

type toolArgs struct {
	Key  string `json:"key,omitempty"`
	N    int    `json:"n,omitempty"`
	Size int    `json:"size,omitempty"`
	Gate bool   `json:"gate,omitempty"`
	Fail bool   `json:"fail,omitempty"`
}

// node is one host of the index "desk".
type node struct {
	*host.Host
	nc *nats.Conn
}

// serve starts a host on a connection, and stops it with the test.
func (d *tools) serve(t *testing.T, nc *nats.Conn, opts *host.Options) *node {
	t.Helper()
	o := host.Options{Index: "desk"}
	if opts != nil {
		o = *opts
		if o.Index == "" && o.Session == "" {
			o.Index = "desk"
		}
	}
	h := testmesh.Host(t, nc, &o)
	read := func(call *host.Call) (in toolArgs, g *gate, err error) {
		if err := json.Unmarshal(call.Args, &in); err != nil {
			return in, nil, err
		}
		return in, d.begin(h.Node(), in.Key), nil
	}
	note := func(ctx context.Context, call *host.Call, sink host.Sink) error {
		if _, _, err := read(call); err != nil {
			return err
		}
		return sink.Send(ctx, call.Args)
	}
	hold := func(ctx context.Context, call *host.Call, sink host.Sink) error {
		in, g, err := read(call)
		if err != nil {
			return err
		}
		if in.Key == "warm" {
			return sink.Send(ctx, call.Args)
		}
		select {
		case <-g.release:
			g.ended <- nil
			return sink.Send(ctx, json.RawMessage(strconv.Quote("released "+in.Key)))
		case <-ctx.Done():
			g.ended <- context.Cause(ctx)
			return ctx.Err()
		}
	}
	gen := func(ctx context.Context, call *host.Call, sink host.Sink) (err error) {
		in, g, err := read(call)
		if err != nil || in.Key == "warm" { // the ends of warm calls do not matter
			return err
		}
		defer func() {
			if cause := context.Cause(ctx); cause != nil {
				g.ended <- cause
				return
			}
			g.ended <- err
		}()
		for i := 1; i <= in.N; i++ {
			if in.Gate {
				select {
				case <-g.release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			text := strconv.Itoa(i)
			if in.Size > 0 {
				text = strconv.Quote(text + strings.Repeat(".", max(in.Size-len(text)-2, 0)))
			}
			if err := sink.Send(ctx, json.RawMessage(text)); err != nil {
				return err
			}
			select {
			case g.sent <- i:
			default:
			}
		}
		if in.Fail {
			return errors.New("out of items")
		}
		return nil
	}
	open := host.Schema(json.RawMessage(`{"type":"object"}`), nil)
	for name, f := range map[string]host.HandlerFunc{"note": note, "hold": hold} {
		if _, err := h.Handle(name, f, open); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Handle("again", host.HandlerFunc(hold), open, host.Annotate(tool.Annotations{Idempotent: true})); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Handle("gen", host.HandlerFunc(gen), open, host.Annotate(tool.Annotations{Streaming: true})); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	if nc.IsConnected() {
		meshtest.Until(t, "the node has joined", func() bool { return h.Unready() == nil })
	}
	return &node{h, nc}
}

// answerRegistry has registry requests answered, as an agent or a router does.
func answerRegistry(t *testing.T, nc *nats.Conn) *registry.View {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	responder, err := registry.NewResponder(b, view, testmesh.Store(t, b))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(responder.Close)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return view
}

func newClient(t *testing.T, nc *nats.Conn, opts *client.Options) *client.Client {
	t.Helper()
	c := testmesh.Client(t, nc, opts)
	return c
}

// outcome is how one call ended.
type outcome struct {
	result *client.Result
	err    error
	took   time.Duration
}

// start makes a call beside the test.
func start(t *testing.T, c *client.Client, id subjects.ToolID, args any, opts ...client.CallOption) <-chan outcome {
	t.Helper()
	done := make(chan outcome, 1)
	began := time.Now()
	go func() {
		r, err := c.Call(t.Context(), id, args, opts...)
		done <- outcome{r, err, time.Since(began)}
	}()
	return done
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(testTimeout)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("%s: nothing after %v", what, testTimeout)
		panic("unreachable")
	}
}

// counted is a stream read by the test: it holds that items come in order,
// without gap or repeat.
type counted struct {
	items int
	err   error
}

func countItems(t *testing.T, c *client.Client, ctx context.Context, args toolArgs, each func(i int), opts ...client.CallOption) counted {
	t.Helper()
	var got counted
	for chunk, err := range c.Stream(ctx, "desk.gen", args, opts...) {
		if got.err != nil {
			t.Errorf("something follows the error %v: %s, %v", got.err, chunk.Data, err)
		}
		if err != nil {
			got.err = err
			continue
		}
		got.items++
		text := strings.TrimRight(strings.Trim(string(chunk.Data), `"`), ".")
		if n, err := strconv.Atoi(text); err != nil || n != got.items || chunk.Seq != int64(n) {
			t.Fatalf("item %d is %q, seq %d", got.items, text, chunk.Seq)
		}
		if each != nil {
			each(got.items)
		}
	}
	return got
}
