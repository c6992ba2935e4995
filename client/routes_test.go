package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// spy also receives the messages on a subject.
type spy struct {
	t   *testing.T
	nc  *nats.Conn
	sub *nats.Subscription
}

func newSpy(t *testing.T, nc *nats.Conn, subject string) *spy {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return &spy{t, nc, sub}
}

// heard returns the subjects of the messages since its last call.
func (s *spy) heard() []string {
	s.t.Helper()
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
	n, _, err := s.sub.Pending()
	if err != nil {
		s.t.Fatal(err)
	}
	all := make([]string, 0, n)
	for range n {
		m, err := s.sub.NextMsg(testTimeout)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, m.Subject)
	}
	return all
}

// known returns once the registry knows that the nodes serve a tool.
func known(t *testing.T, view *registry.View, id subjects.ToolID, nodes int) {
	t.Helper()
	meshtest.Until(t, fmt.Sprintf("%d nodes serve %s", nodes, id), func() bool {
		r, ok := view.Route("default", id)
		return ok && len(r.Nodes) == nodes
	})
}

// After the first call of a tool the client knows its nodes, and leaves the queue
// group alone.
func TestCallsAreDirected(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	for range 2 {
		d.serve(t, broker.Connect(t), nil)
	}
	known(t, view, "desk.note", 2)
	c := newClient(t, broker.Connect(t), nil)
	queue := newSpy(t, broker.Connect(t), "tools.>")
	if _, err := c.Call(t.Context(), "desk.note", nil); err != nil {
		t.Fatal(err)
	}
	if got := queue.heard(); len(got) != 1 {
		t.Errorf("the first call = %v, want the queue group", got)
	}
	directCalls(t, broker, c)
	queue.heard()
	direct := newSpy(t, broker.Connect(t), "mesh.node.*.tools.>")
	const n = 60
	for i := range n {
		var opts []client.CallOption
		if i%3 == 0 {
			opts = append(opts, client.WithTimeout(testTimeout))
		}
		if _, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "n"}, opts...); err != nil {
			t.Fatal(err)
		}
	}
	if got := queue.heard(); len(got) > 0 {
		t.Errorf("%d calls went to the queue group", len(got))
	}
	if got := direct.heard(); len(got) != n {
		t.Errorf("%d directed calls, want %d", len(got), n)
	}
	// Unless the call says so.
	if _, err := c.Call(t.Context(), "desk.note", nil, client.ViaQueue()); err != nil {
		t.Fatal(err)
	}
	if got := queue.heard(); len(got) != 1 {
		t.Errorf("a call by the queue group = %v", got)
	}
}

// Of two nodes, the one with calls of ours in flight gets fewer while the other is free.
func TestChoiceOfTwo(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	for range 2 {
		d.serve(t, broker.Connect(t), &host.Options{Slots: 4})
	}
	known(t, view, "desk.hold", 2)
	known(t, view, "desk.note", 2)
	c := newClient(t, broker.Connect(t), nil)
	directCalls(t, broker, c)
	one := start(t, c, "desk.hold", toolArgs{Key: "one"}, client.WithTimeout(10*testTimeout))
	slow := wait(t, "start", d.gate("one").started)
	// A free node that is not heard of for a moment, on a busy machine, is passed
	// over; chance alone would send half of the calls to the slow one, and drawing it twice
	// sends a quarter.
	passed := 0
	for range 400 {
		r, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "quick"})
		if err != nil {
			t.Fatal(err)
		}
		if r.Node == slow {
			passed++
		}
	}
	if passed > 150 {
		t.Errorf("%d of 400 calls went to the node that has one in flight, with a free node beside it", passed)
	}
	d.gate("one").release <- struct{}{}
	if o := wait(t, "answer", one); o.err != nil {
		t.Error(o.err)
	}
}

func TestBusyIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"directed", "queue"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d := newTools()
			broker := meshtest.Broker(t)
			view := answerRegistry(t, broker.Connect(t))
			for range 2 {
				d.serve(t, broker.Connect(t), &host.Options{Slots: 1})
			}
			known(t, view, "desk.note", 2)
			c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: way == "queue"})
			if way == "directed" {
				directCalls(t, broker, c)
			}
			// A call of another client, unknown to this one.
			other := newClient(t, broker.Connect(t), &client.Options{QueueOnly: true})
			one := start(t, other, "desk.hold", toolArgs{Key: "one"})
			full := wait(t, "start", d.gate("one").started)
			for range 20 {
				r, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "quick"})
				if err != nil || r.Node == full {
					// Six times the full one of two is possible through the queue group.
					if way == "queue" && toolmesh.CodeOf(err) == toolmesh.CodeBusy {
						continue
					}
					t.Fatalf("call: %v", err)
				}
			}
			d.gate("one").release <- struct{}{}
			wait(t, "answer", one)
		})
	}
	t.Run("nowhere", func(t *testing.T) {
		t.Parallel()
		broker := meshtest.Broker(t)
		h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "full"})
		// The call has more time than a slow machine takes, and less than the node says that it will have no room.
		refuse := func(context.Context, *host.Call, host.Sink) error {
			return toolmesh.Errorf(toolmesh.CodeBusy, "no room").WithStarted(toolmesh.StartedNo).
				WithDetail("limit", toolmesh.LimitSlots).WithDetail("retry_after_ms", (2 * testTimeout).Milliseconds())
		}
		if _, err := h.Handle("note", host.HandlerFunc(refuse), host.Schema(json.RawMessage(`{"type":"object"}`), nil)); err != nil {
			t.Fatal(err)
		}
		testmesh.Start(t, h)
		c := newClient(t, broker.Connect(t), nil)
		_, err := c.Call(t.Context(), "full.note", nil, client.WithTimeout(testTimeout))
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo {
			t.Errorf("call: %v", err)
		}
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	n := d.serve(t, broker.Connect(t), nil)
	known(t, view, "desk.note", 1)
	c := newClient(t, broker.Connect(t), nil)
	asked := newSpy(t, broker.Connect(t), "mesh.registry.>")
	count := func(verb string) (n int) {
		for _, subject := range asked.heard() {
			if subject == "mesh.registry.default."+verb {
				n++
			}
		}
		return n
	}
	// A short id is looked up once.
	for i := range 3 {
		r, err := c.Call(t.Context(), "note", toolArgs{Key: "short"})
		if err != nil || r.Node != n.Node() {
			t.Fatalf("call %d of a short id: %v", i, err)
		}
		if got, want := count("resolve"), map[bool]int{true: 1}[i == 0]; got != want {
			t.Errorf("call %d of a short id was looked up %d times, want %d", i, got, want)
		}
	}
	if d.ran("short") != 3 {
		t.Errorf("it ran %d times", d.ran("short"))
	}
	// The same for a stream.
	items := 0
	for _, err := range c.Stream(t.Context(), "gen", toolArgs{N: 3}) {
		if items++; err != nil {
			t.Error(err)
		}
	}
	if items != 3 {
		t.Errorf("stream of a short id: %d items", items)
	}
	// An unknown name comes with the nearest ones.
	for _, name := range []subjects.ToolID{"desk.nite", "nite"} {
		_, err := c.Call(t.Context(), name, nil)
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeToolNotFound || e.Started != toolmesh.StartedNo {
			t.Fatalf("%s: %v", name, err)
		}
		nearest, _ := json.Marshal(e.Details["nearest"])
		var list []string
		if json.Unmarshal(nearest, &list) != nil || !slices.Contains(list, "desk.note") {
			t.Errorf("%s: details.nearest = %s, want desk.note among them", name, nearest)
		}
	}
	// A tool that is known and not served.
	err := n.Publish(t.Context(), host.Service{Index: "broken", Unavailable: []host.Unavailable{{ID: "broken.tool", Reason: "no key"}}})
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the registry knows it", func() bool { _, ok := view.Route("default", "broken.tool"); return ok })
	_, err = c.Call(t.Context(), "broken.tool", nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("a tool that is not served: %v", err)
	}
}

func TestWithoutARegistry(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	for range 5 {
		if _, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "n"}); err != nil {
			t.Errorf("a tool that is served: %v", err)
		}
	}
	_, err := c.Call(t.Context(), "note", nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("a short id: %v", err)
	}
	for _, err := range c.Stream(t.Context(), "desk.missing", nil) {
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
			t.Errorf("a stream that nobody serves: %v", err)
		}
	}
}

// A node that has gone is forgotten at the first call that finds it gone.
func TestCallOfADepartedNode(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	d.serve(t, broker.Connect(t), nil)
	leaving := d.serve(t, broker.Connect(t), nil)
	known(t, view, "desk.note", 2)
	c := newClient(t, broker.Connect(t), nil)
	directCalls(t, broker, c)
	done := make(chan error, 1)
	go func() { done <- leaving.Stop(t.Context()) }()
	for stopped := false; !stopped; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			stopped = true
		default:
		}
		for range 20 {
			if _, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "n"}); err != nil {
				t.Fatalf("while a node leaves: %v", err)
			}
		}
	}
	for range 50 {
		if r, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "n"}); err != nil || r.Node == leaving.Node() {
			t.Fatalf("after a node has left: %v", err)
		}
	}
}

// The registry's record may be older than the node's own heartbeat.
func TestRegistryDoesNotReplaceABoot(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	n := d.serve(t, broker.Connect(t), nil)
	nc := broker.Connect(t)
	_, err := nc.Subscribe("mesh.registry.*.candidates", func(m *nats.Msg) {
		_ = m.Respond(fmt.Appendf(nil, `{"nodes":[{"node":%q,"boot":"of-yesterday","in_flight":0,"slots":8}],"stale_ms":0}`, n.Node()))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, broker.Connect(t), nil)
	// The stream's acknowledgement names the node.
	done := make(chan counted, 1)
	go func() { done <- countItems(t, c, t.Context(), toolArgs{Key: "g", N: 2, Gate: true}, nil) }()
	d.gate("g").release <- struct{}{}
	wait(t, "first item", d.gate("g").sent)
	asked := newSpy(t, nc, "mesh.registry.>")
	for i := 0; i < 3 || len(asked.heard()) == 0 && i < 1000; i++ {
		if _, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "n"}); err != nil {
			t.Fatal(err)
		}
	}
	beats := newSpy(t, nc, "mesh.hb.>")
	for range 4 { // time enough to be called lost
		if _, err := beats.sub.NextMsg(testTimeout); err != nil {
			t.Fatal(err)
		}
	}
	d.gate("g").release <- struct{}{}
	if s := wait(t, "stream", done); s.err != nil || s.items != 2 {
		t.Errorf("%d items, then %v: the node is as it was", s.items, s.err)
	}
}

// The end of a short stream may be faster than its acknowledgement, on a busy
// machine each time: its tool is asked for all the same.
func TestAStreamFasterThanItsAcknowledgement(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	subscribe := func(subject string, do nats.MsgHandler) {
		if _, err := nc.Subscribe(subject, do); err != nil {
			t.Fatal(err)
		}
	}
	asked := make(chan struct{}, 16)
	subscribe("mesh.registry.*.candidates", func(*nats.Msg) { asked <- struct{}{} })
	subscribe("tools.default.desk.gen", func(m *nats.Msg) {
		end := nats.NewMsg("mesh.live.default." + m.Header.Get("Mesh-Rpc-Id"))
		for name, value := range map[string]string{
			"Mesh-Rpc-Id": m.Header.Get("Mesh-Rpc-Id"), "Mesh-Seq": "1", "Mesh-Count": "0", "Mesh-Chunk": "complete",
		} {
			end.Header.Set(name, value)
		}
		if err := nc.PublishMsg(end); err != nil {
			t.Error(err)
		}
	})
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, broker.Connect(t), nil)
	if got := countItems(t, c, t.Context(), toolArgs{}, nil); got.items != 0 || got.err != nil {
		t.Errorf("got %+v", got)
	}
	wait(t, "the registry is asked which nodes serve the tool", asked)
}

func TestRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	c := newClient(t, nc, nil)
	meshtest.Until(t, "the question for the time is over", func() bool { return nc.Stats().OutMsgs >= 1 })
	before := nc.Stats().OutMsgs
	for name, call := range map[string]func() error{
		"a list":           func() error { _, err := c.Call(t.Context(), "a.b", []int{1}); return err },
		"no JSON":          func() error { _, err := c.Call(t.Context(), "a.b", make(chan int)); return err },
		"space in an id":   func() error { _, err := c.Call(t.Context(), "a.b", nil, client.WithRPCID(" x")); return err },
		"newline in an id": func() error { _, err := c.Call(t.Context(), "a.b", nil, client.WithRPCID("x\r\ny")); return err },
		"no tool":          func() error { _, err := c.Call(t.Context(), "", nil); return err },
		"an empty part":    func() error { _, err := c.Call(t.Context(), "a..b", nil); return err },
		"less than none":   func() error { _, err := c.Call(t.Context(), "a.b", nil, client.WithTimeout(-1)); return err },
	} {
		e := toolmesh.AsError(call())
		if e == nil || e.Started != toolmesh.StartedNo || e.Origin != toolmesh.OriginCaller {
			t.Errorf("%s: %v", name, e)
		}
	}
	if after := nc.Stats().OutMsgs; after != before {
		t.Errorf("%d messages were sent", after-before)
	}
	c.Close()
	if _, err := c.Call(t.Context(), "a.b", nil); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("a closed client: %v", err)
	}
}

// The promise of docs/concepts.md: a unary call is one message out and one in.
func TestMessagesOfACall(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"queue", "directed"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d := newTools()
			broker := meshtest.Broker(t)
			view := answerRegistry(t, broker.Connect(t))
			d.serve(t, broker.Connect(t), nil)
			known(t, view, "desk.note", 1)
			nc := broker.Connect(t)
			c := newClient(t, nc, &client.Options{QueueOnly: way == "queue"})
			if way == "directed" {
				directCalls(t, broker, c)
			} else if _, err := c.Call(t.Context(), "desk.note", nil); err != nil {
				t.Fatal(err)
			}
			requests := newSpy(t, broker.Connect(t), "$JS.API.>")
			registry := newSpy(t, broker.Connect(t), "mesh.registry.>")
			stored := newSpy(t, broker.Connect(t), "mesh.chunks.>")
			beats := newSpy(t, broker.Connect(t), "mesh.hb.>")
			meshtest.Until(t, "the question for the time is over", func() bool { return nc.Stats().OutMsgs >= 2 })
			subscriptions := broker.Server().NumSubscriptions()
			before := nc.Stats()
			const n = 300
			slow := false // so that its node is looked after
			for range n {
				began := time.Now()
				if _, err := c.Call(t.Context(), "desk.note", toolArgs{Key: "cheap"}, client.WithTimeout(testTimeout)); err != nil {
					t.Fatal(err)
				}
				slow = slow || time.Since(began) > time.Second
			}
			after := nc.Stats()
			heartbeats := uint64(len(beats.heard()))
			out, in := after.OutMsgs-before.OutMsgs, after.InMsgs-before.InMsgs
			// Now and then a route in use is asked for again, beside the calls, and the
			// broker for its time: by the clock, and a loaded machine is slow.
			const beside = n / 20
			asked := uint64(len(registry.heard()))
			if out < n || out > n+asked+beside || asked > beside {
				t.Errorf("%d messages out for %d calls, %d of them to the registry", out, n, asked)
			}
			if in < n || in > n+heartbeats+asked+beside {
				t.Errorf("%d messages in for %d calls, and %d heartbeats", in, n, heartbeats)
			}
			if now := broker.Server().NumSubscriptions(); now != subscriptions && !slow {
				t.Errorf("%d subscriptions were made", int64(now)-int64(subscriptions))
			}
			// The registry's own upkeep has some, more on a loaded machine; the calls have none.
			if got := requests.heard(); len(got) > n/3 {
				t.Errorf("%d requests to JetStream for %d calls: %v", len(got), n, got[:5])
			}
			if got := stored.heard(); len(got) > 0 {
				t.Errorf("%d messages were stored", len(got))
			}
		})
	}
}

func TestCancelFromOutside(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	c := newClient(t, broker.Connect(t), nil)
	call := start(t, c, "desk.hold", toolArgs{Key: "h"}, client.WithRPCID("my-call"))
	wait(t, "start", d.gate("h").started)
	if ok, err := c.Cancel(t.Context(), "my-call"); err != nil || !ok {
		t.Errorf("cancel = %v, %v", ok, err)
	}
	if o := wait(t, "answer", call); toolmesh.CodeOf(o.err) != toolmesh.CodeCancelled {
		t.Errorf("call: %v", o.err)
	}
	if ok, err := c.Cancel(t.Context(), "my-call"); err != nil || ok {
		t.Errorf("cancel of what has ended = %v, %v", ok, err)
	}
}

// A call that is made anew once its node was lost is within reach of its caller's cancel.
func TestCancelOfACallThatIsMadeAnew(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	proxy := meshtest.NewProxy(t, broker)
	d.serve(t, proxy.Connect(t), nil)
	t.Cleanup(proxy.Heal)
	c := newClient(t, broker.Connect(t), nil)
	call := start(t, c, "desk.again", toolArgs{Key: "h"}, client.WithRPCID("my-call"))
	wait(t, "start", d.gate("h").started)
	d.serve(t, broker.Connect(t), nil)
	known(t, view, "desk.again", 2)
	proxy.Cut(true)
	wait(t, "second start", d.gate("h").started)
	if ok, err := c.Cancel(t.Context(), "my-call"); err != nil || !ok {
		t.Errorf("cancel = %v, %v", ok, err)
	}
	if o := wait(t, "answer", call); toolmesh.CodeOf(o.err) != toolmesh.CodeCancelled {
		t.Errorf("call: %v", o.err)
	}
	close(d.gate("h").release)
}
