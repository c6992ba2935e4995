package standby_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/router/standby"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

const waitTimeout = 60 * time.Second

// pool is the pool of these tests' index.
const pool = "gpu"

// tools of the index "weather": "today" returns how often it ran, "watch" yields 1 to 3,
// "slow" runs until the test says so.
var tools = []*tool.Descriptor{
	{ID: "weather.today", Name: "today", Source: tool.SourceGo, InputSchema: json.RawMessage(`{"type":"object"}`)},
	{ID: "weather.watch", Name: "watch", Source: tool.SourceGo, InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: tool.Annotations{Streaming: true}},
	{ID: "weather.slow", Name: "slow", Source: tool.SourceGo, InputSchema: json.RawMessage(`{"type":"object"}`)},
}

// rig is a mesh with routers, an installed index, and no node that serves it.
type rig struct {
	t       *testing.T
	top     *meshtest.Topology
	routers []*router.Router
	nc      *nats.Conn // a caller's
	caller  *client.Client
	ran     atomic.Int64
	release chan struct{}
	started chan struct{}
	proxy   *meshtest.Proxy // of the router of a rig without options
}

func newRig(t *testing.T, top *meshtest.Topology, routers int, opts *standby.Options) *rig {
	t.Helper()
	return newRigOf(t, top, routers, opts, true)
}

// single is a topology of one broker.
func single(t *testing.T) *meshtest.Topology {
	t.Helper()
	return meshtest.Single(t)
}

// newRigOf is newRig, where the index's record may list no tools.
func newRigOf(t *testing.T, top *meshtest.Topology, routers int, opts *standby.Options, listed bool) *rig {
	t.Helper()
	r := &rig{t: t, top: top, release: make(chan struct{}, 100), started: make(chan struct{}, 100)}
	for i := range routers {
		r.routers = append(r.routers, r.router(top.ServeOn(t, i), opts))
	}
	if opts == nil { // the test starts the router that is to be there
		r.proxy = meshtest.NewProxy(t, top.Brokers[0])
		r.routers = append(r.routers, r.router(r.proxy.Connect(t), &standby.Options{}))
	}
	r.install(listed)
	r.nc = top.Call(t)
	c := testmesh.Client(t, top.Call(t), &client.Options{Session: top.Session})
	r.caller = c
	return r
}

func (r *rig) router(nc *nats.Conn, opts *standby.Options) *router.Router {
	r.t.Helper()
	one := testmesh.Router(r.t, nc, &router.Options{Standby: opts, Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil))})
	testmesh.Start(r.t, one)
	return one
}

// install writes an install's records to the registry.
func (r *rig) install(listed bool) {
	r.t.Helper()
	b := testmesh.Bus(r.t, r.top.Serve(r.t), nil)
	store := testmesh.Store(r.t, b)
	record := registry.IndexRecord{Name: "weather", Source: "folder:/weather", Revision: "r1", Bundle: "sha256-x", On: registry.Labels{"pool": pool}, State: registry.IndexInstalled}
	if listed {
		digests, err := store.PutDescriptors(r.t.Context(), tools...)
		if err != nil {
			r.t.Fatal(err)
		}
		for i, d := range tools {
			record.Tools = append(record.Tools, registry.ToolRoute{ID: d.ID, Digest: digests[i], Streaming: d.Annotations.Streaming})
		}
	}
	if err := store.ClaimIndex(r.t.Context(), record); err != nil {
		r.t.Fatal(err)
	}
	for _, one := range r.routers {
		meshtest.Until(r.t, "the router knows that nobody serves the index", func() bool { return len(one.Seen().Unserved()) == 1 })
	}
	r.standsBy(len(r.routers))
}

// standsBy waits until routers have subscribed the index's tools.
func (r *rig) standsBy(routers int) {
	r.t.Helper()
	if routers == 0 {
		return
	}
	nc := r.top.Call(r.t)
	meshtest.Until(r.t, "calls of the index are subscribed", func() bool {
		// An envelope without a tool is refused by any answerer.
		m, err := nc.Request("tools."+r.session()+".weather.today", []byte(`{"type":"rpc_tool_call","rpc_id":"","tool_id":"weather.today"}`), time.Second)
		return err == nil && len(m.Data) > 0
	})
}

func (r *rig) session() string {
	if r.top.Session == "" {
		return "default"
	}
	return string(r.top.Session)
}

// node starts a node that serves the index.
func (r *rig) node(id subjects.NodeID, slots int) *host.Host {
	r.t.Helper()
	return r.nodeOn(r.top.Serve(r.t), id, slots)
}

func (r *rig) nodeOn(nc *nats.Conn, id subjects.NodeID, slots int) *host.Host {
	r.t.Helper()
	h := r.agent(nc, id, slots)
	r.serve(h)
	return h
}

// agent starts a node that is to serve the index, and says nothing of it yet.
func (r *rig) agent(nc *nats.Conn, id subjects.NodeID, slots int) *host.Host {
	r.t.Helper()
	b, err := bus.New(nc, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	h, err := host.NewOn(b, &host.Options{Node: id, Slots: slots, Labels: map[string]string{"pool": pool}, Sandbox: registry.SandboxState{Effective: "none"}})
	if err != nil {
		r.t.Fatal(err)
	}
	testmesh.Start(r.t, h)
	view := testmesh.View(r.t, b, nil)
	c, err := client.NewOn(b, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		meshtest.End(r.t, h)
		c.Close()
		view.Close()
		b.Close()
	})
	if err := h.ServeBatches(r.t.Context(), view, testmesh.Store(r.t, b), c); err != nil {
		r.t.Fatal(err)
	}
	return h
}

// serve has a node serve the index.
func (r *rig) serve(h *host.Host) {
	r.t.Helper()
	today := handler(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		return sink.Send(ctx, json.RawMessage(strconv.FormatInt(r.ran.Add(1), 10)))
	})
	watch := handler(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		for i := range 3 {
			if err := sink.Send(ctx, json.RawMessage(strconv.Itoa(i+1))); err != nil {
				return err
			}
		}
		return nil
	})
	slow := handler(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		r.started <- struct{}{}
		select {
		case <-r.release:
			return sink.Send(ctx, json.RawMessage(`"done"`))
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	err := h.Publish(r.t.Context(), host.Service{Index: "weather", Revision: "r1", Tools: []host.Tool{
		{Descriptor: tools[0], Handler: today}, {Descriptor: tools[1], Handler: watch}, {Descriptor: tools[2], Handler: slow},
	}})
	if err != nil {
		r.t.Fatal(err)
	}
}

type handler func(ctx context.Context, call *host.Call, sink host.Sink) error

func (f handler) ServeTool(ctx context.Context, call *host.Call, sink host.Sink) error {
	return f(ctx, call, sink)
}

// awaits waits until all routers say that so many calls wait for the pool.
func (r *rig) awaits(calls int) {
	r.t.Helper()
	for _, one := range r.routers {
		meshtest.Until(r.t, strconv.Itoa(calls)+" calls wait for the pool", func() bool {
			seen := one.Seen()
			return seen == nil || seen.Awaited()[pool].Calls == calls
		})
	}
}

// request sends a request of any NATS client, and returns its first answer.
func (r *rig) request(id, body string, header nats.Header) <-chan *nats.Msg {
	r.t.Helper()
	answers := make(chan *nats.Msg, 1)
	ctx, cancel := context.WithTimeout(r.t.Context(), waitTimeout)
	go func() {
		defer cancel()
		m, err := r.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: "tools." + r.session() + "." + id, Header: header, Data: []byte(body)})
		if err != nil {
			m = &nats.Msg{Data: []byte(err.Error())}
		}
		answers <- m
	}()
	return answers
}

// failure is the error of an answer in the plain form.
func failure(t *testing.T, m *nats.Msg) *toolmesh.Error {
	t.Helper()
	reply := codec.ParseReply(codec.Header(m.Header), m.Data)
	if reply.Kind != codec.ReplyError {
		t.Fatalf("the answer is no error: %v %s", m.Header, m.Data)
	}
	return reply.Err
}
