package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// relaying serves the desk on a node that passes calls on, as an agent's does.
func relaying(t *testing.T, d *desk, nc *nats.Conn, opts *host.Options) (*host.Host, *registry.View) {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	store := testmesh.Store(t, b)
	responder, err := registry.NewResponder(b, view, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(responder.Close)
	c, err := client.NewOn(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	h := d.serve(t, nc, opts)
	if err := h.ServeBatches(t.Context(), view, store, c); err != nil {
		t.Fatal(err)
	}
	return h, view
}

// A node without a slot has another one run the calls of its queue group, for any caller; the
// caller's later messages reach the call.
func TestFullNodePassesCallsOn(t *testing.T) {
	t.Parallel()
	const slots = 32 // and as many calls may be passed on
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		d := newDesk()
		// In a cluster the queue group prefers nodes of the caller's server: the full one.
		full, view := relaying(t, d, top.ServeOn(t, len(top.Brokers)-1), &host.Options{Node: "full", Slots: slots})
		free, _ := relaying(t, d, top.ServeOn(t, 0), &host.Options{Node: "free", Slots: 64})
		r := &rig{desk: d, t: t, h: full, nc: top.Call(t), session: top.Session}
		meshtest.Until(t, "both nodes serve the desk", func() bool {
			route, _ := view.Route("default", "desk.hold")
			return len(route.Nodes) == 2
		})
		meshtest.Until(t, "both are heard by the caller", func() bool {
			for _, h := range []*host.Host{full, free} {
				if _, err := r.nc.Request(directed(h, "default", "desk.note"), []byte(`{"key":"warm"}`), waitTimeout); err != nil {
					return false
				}
			}
			return true
		})
		occupied := r.inbox()
		for range slots {
			r.send(occupied, directed(full, "default", "desk.hold"), `{"key":"occupied"}`, "Mesh-Timeout-Ms", "600000")
			wait(t, "start", r.gate("occupied").started)
		}
		t.Run("calls", func(t *testing.T) { relayedCalls(t, &rig{desk: d, t: t, h: full, nc: r.nc, session: r.session}) })
		t.Run("names", func(t *testing.T) { relayedNames(t, &rig{desk: d, t: t, h: full, nc: r.nc, session: r.session}) })
		t.Run("streams", func(t *testing.T) { relayedStreams(t, &rig{desk: d, t: t, h: full, nc: r.nc, session: r.session}) })
		close(r.gate("occupied").release)
		for range slots {
			if a := occupied.next(); a.code() != "ok" {
				t.Errorf("a call that ran all the time: %s", a.Data)
			}
		}
		if n := full.Figures().Relayed; n == 0 {
			t.Error("the full node has passed nothing on")
		}
		if n := free.Figures().Relayed; n != 0 {
			t.Errorf("the free node has passed %d calls on", n)
		}
	})
}

func relayedCalls(t *testing.T, r *rig) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for i := range 20 {
		key := fmt.Sprint("call ", i)
		a := r.call("note", fmt.Sprintf(`{"key":%q}`, key), "Mesh-Rpc-Id", fmt.Sprint("relay-", i), "Mesh-Parent", "above",
			"traceparent", trace, "Mesh-Timeout-Ms", "30000")
		if a.code() != "ok" || a.Header.Get("Mesh-Node") != "free" || a.Header.Get("Mesh-Rpc-Id") != fmt.Sprint("relay-", i) {
			t.Fatalf("call %d: %v %s", i, a.Header, a.Data)
		}
		if c := wait(t, "call", r.gate(key).seen); string(c.RPCID) != fmt.Sprint("relay-", i) || c.Parent != "above" || c.Traceparent != trace || c.Deadline.IsZero() {
			t.Errorf("call %d: the tool was given %+v", i, c)
		}
	}
	for i := range 10 {
		e := r.call("add", fmt.Sprintf(`{"type":"rpc_tool_call","rpc_id":"e%d","tool_id":"desk.add","args":[1,2]}`, i))
		if want := fmt.Sprintf(`{"type":"rpc_tool_response","rpc_id":"e%d","status":"ok","result":3}`, i); string(e.Data) != want {
			t.Errorf("envelope: %s", e.Data)
		}
		if a := r.call("fail", `{"code":"plain"}`); a.code() != "tool_error" || a.Error.started() != "true" {
			t.Errorf("a failure: %s", a.Data)
		}
	}
	// A caller that chose the node must choose another one itself.
	if a := r.ask(directed(r.h, "default", "desk.note"), `{}`); a.code() != "busy" || a.Error.Details["retry_after_ms"] == nil {
		t.Errorf("directed: %s", a.Data)
	}
	for i := range 10 { // as one that has been passed on already
		if a := r.call("note", `{"key":"hops"}`, "Mesh-Hops", "2"); a.code() != "ok" && a.code() != "busy" || a.code() == "ok" && a.Header.Get("Mesh-Node") != "free" {
			t.Errorf("call %d of two hops: %s", i, a.Data)
		}
	}
}

// relayedNames has calls go on that were passed on, and repeats and cancels them.
func relayedNames(t *testing.T, r *rig) {
	const n = 24
	inboxes := make([]*inbox, n)
	body := func(i int) string { return fmt.Sprintf(`{"key":"name %d"}`, i) }
	for i := range n {
		inboxes[i] = r.inbox()
		r.send(inboxes[i], "tools.default.desk.hold", body(i), "Mesh-Rpc-Id", fmt.Sprint("name-", i), "Mesh-Keepalive", "1")
		wait(t, "start", r.gate(fmt.Sprint("name ", i)).started)
	}
	result := func(in *inbox) answer {
		a := in.next()
		for a.Header.Get("Mesh-Keepalive") != "" {
			a = in.next()
		}
		return a
	}
	var passed []int
	for i := range n {
		if a := inboxes[i].next(); a.Header.Get("Mesh-Keepalive") == "1" && a.Header.Get("Mesh-Node") == "full" {
			passed = append(passed, i)
		}
	}
	if len(passed) < 2 {
		t.Fatalf("%d of %d calls were passed on", len(passed), n)
	}
	one, other := passed[0], passed[1]
	for reported := ""; reported == ""; { // the node that has passed it on hears of it first
		a := inboxes[other].next()
		if reported = a.Header.Get("Mesh-Progress"); a.Header.Get("Mesh-Keepalive") != "1" {
			t.Fatalf("no progress, but %v %s", a.Header, a.Data)
		}
		if want := fmt.Sprintf(`{"fraction":0.5,"text":"h\u00f6ld name %d"}`, other); reported != "" && reported != want {
			t.Errorf("progress %s, want %s", reported, want)
		}
	}

	again := r.inbox()
	r.send(again, directed(r.h, "default", "desk.hold"), body(one), "Mesh-Rpc-Id", fmt.Sprint("name-", one), "Mesh-Keepalive", "1")
	again.next() // it has joined
	r.gate(fmt.Sprint("name ", one)).release <- struct{}{}
	if a := result(again); string(a.Data) != fmt.Sprintf(`"released name %d"`, one) {
		t.Errorf("repeated while it ran: %s", a.Data)
	}
	late := r.inbox()
	r.send(late, directed(r.h, "default", "desk.hold"), body(one), "Mesh-Rpc-Id", fmt.Sprint("name-", one))
	if a := result(inboxes[one]); string(a.Data) != fmt.Sprintf(`"released name %d"`, one) {
		t.Errorf("the first: %s", a.Data)
	}
	if a := result(late); string(a.Data) != fmt.Sprintf(`"released name %d"`, one) || a.Header.Get("Mesh-Node") != "free" {
		t.Errorf("repeated when it was over: %v %s", a.Header, a.Data)
	}
	if ran := r.ran(fmt.Sprint("name ", one)); ran != 1 {
		t.Errorf("it ran %d times", ran)
	}

	r.send(nil, fmt.Sprintf("mesh.node.full.ctl.default.name-%d", other), `{"type":"cancel"}`)
	if cause := toolmesh.AsError(wait(t, "end", r.gate(fmt.Sprint("name ", other)).ended)); cause == nil || cause.Code != toolmesh.CodeCancelled {
		t.Errorf("a cancel at the node that passed it on ends it with %v", cause)
	}
	if a := result(inboxes[other]); a.code() != "cancelled" {
		t.Errorf("the cancelled call: %s", a.Data)
	}
	for i := range n {
		r.gate(fmt.Sprint("name ", i)).release <- struct{}{}
	}
}

// relayedStreams has streams passed on, one in each delivery, and holds them back,
// repeats and cancels them.
func relayedStreams(t *testing.T, r *rig) {
	n := 0
	// passed begins streams until one is passed on; the others are ended.
	passed := func(body string, pairs ...string) (in *inbox, id string, g *gate) {
		for {
			n++
			id, key := fmt.Sprint("stream-", n), fmt.Sprint("stream ", n)
			in, g = r.inbox(), r.gate(key)
			named := slices.Clone(pairs)
			if pairs != nil { // else the body has it
				named = append(named, "Mesh-Rpc-Id", id)
			}
			r.send(in, genSubject, strings.NewReplacer("KEY", key, "ID", id).Replace(body), named...)
			if ran := wait(t, "start", g.seen); string(ran.RPCID) == id+".passed" {
				return in, id, g
			} else if string(ran.RPCID) != id {
				t.Fatalf("stream %s runs as %s", id, ran.RPCID)
			}
			r.send(nil, "mesh.ctl.default."+id, `{"type":"cancel"}`)
			wait(t, "end", g.ended)
		}
	}
	whole := []string{"data1", "data2", "data3", "complete3"}

	in, id, g := passed(`{"key":"KEY","n":3,"gate":true}`, "Mesh-Stream", "inbox")
	g.release <- struct{}{}
	in.item(1)
	again := r.inbox()
	r.send(again, directed(r.h, "default", "desk.gen"), fmt.Sprintf(`{"key":"stream %d","n":3,"gate":true}`, n), "Mesh-Stream", "inbox", "Mesh-Rpc-Id", id)
	close(g.release)
	in.finish(2, 3)
	if diff := cmp.Diff(whole, bodies(again.chunks())); diff != "" || r.ran(fmt.Sprint("stream ", n)) != 1 {
		t.Errorf("repeated (-want +got):\n%s", diff)
	}

	in, id, g = passed(`{"key":"KEY","n":3,"gate":true}`, "Mesh-Stream", "1")
	close(g.release)
	if a := in.next(); a.Header.Get("Mesh-Node") != "full" || !strings.Contains(string(a.Data), `"rpc_id":"`+id+`"`) {
		t.Errorf("acknowledgement: %v %s", a.Header, a.Data)
	}
	if diff := cmp.Diff(whole, bodies(r.replayedSoon(id))); diff != "" {
		t.Errorf("what is stored (-want +got):\n%s", diff)
	}

	in, _, g = passed(`{"type":"rpc_tool_stream","tool_id":"desk.gen","kwargs":{"key":"KEY","n":1,"fail":true},"rpc_id":"ID"}`)
	wait(t, "end", g.ended)
	if m := in.next(); !strings.Contains(string(m.Data), `"chunk_type":"data","data":1,"seq":1`) {
		t.Errorf("envelope: %s", m.Data)
	}
	if m := in.next(); !strings.Contains(string(m.Data), `"code":"tool_error"`) || !strings.Contains(string(m.Data), "out of items") {
		t.Errorf("envelope, end: %s", m.Data)
	}

	in, _, g = passed(`{"key":"KEY","fail":true}`, "Mesh-Stream", "inbox")
	wait(t, "end", g.ended)
	if a := in.next(); a.code() != "tool_error" || a.Error.started() != "true" || !isEmpty(in.next().Msg) {
		t.Errorf("one that fails at once: %v %s", a.Header, a.Data)
	}

	// A reader that gives no further credit holds the tool back.
	in, id, g = passed(`{"key":"KEY","n":1000000}`, "Mesh-Stream", "1", "Mesh-Credit", "4")
	in.next()
	meshtest.Until(t, "as many items are stored as there is credit for", func() bool {
		return r.ask("mesh.replay.default."+id, `{"from_seq":5}`).Header.Get("Mesh-High") == "4"
	})
	r.send(nil, "mesh.node.full.ctl.default."+id, `{"type":"cancel"}`)
	if cause := toolmesh.AsError(wait(t, "end", g.ended)); cause == nil || cause.Code != toolmesh.CodeCancelled {
		t.Errorf("a cancel at the node that passed it on ends it with %v", cause)
	}
	if sent := len(g.sent); sent > 1000 {
		t.Errorf("with credit for 4 the tool sent %d items", sent)
	}
	all := r.replayedSoon(id)
	if end := all[len(all)-1]; len(all) != 5 || end.kind != "error" || !strings.Contains(end.body, `"cancelled"`) {
		t.Errorf("the cancelled stream: %+v", all)
	}
}

// When no node has a slot the caller hears so, with when to try again; a node that is
// full holds as many calls for others as it has slots, and no more.
func TestAllNodesAreFull(t *testing.T) {
	t.Parallel()
	began := time.Now() // no call takes longer than since then
	d := newDesk()
	broker := meshtest.Broker(t)
	var hosts []*host.Host
	var view *registry.View
	for _, node := range []subjects.NodeID{"one", "two"} {
		h, v := relaying(t, d, broker.Connect(t), &host.Options{Node: node, Slots: 2})
		hosts, view = append(hosts, h), v
	}
	meshtest.Until(t, "both nodes serve the desk", func() bool {
		route, _ := view.Route("default", "desk.hold")
		return len(route.Nodes) == 2
	})
	r := &rig{desk: d, t: t, h: hosts[0], nc: broker.Connect(t)}
	in := r.inbox()
	for _, h := range hosts {
		for range 2 {
			r.send(in, directed(h, "default", "desk.hold"), `{"key":"full"}`)
			wait(t, "start", r.gate("full").started)
		}
	}
	for range 20 {
		a := r.call("note", `{"key":"more"}`)
		if a.code() != "busy" || a.Error.started() != "false" || a.Error.Details["limit"] != toolmesh.LimitSlots {
			t.Fatalf("with all slots taken: %s", a.Data)
		}
		r.send(in, genSubject, `{"key":"more"}`, "Mesh-Stream", "inbox")
		if a := in.next(); a.code() != "busy" || a.Error.started() != "false" || a.Error.Details["retry_after_ms"] == nil || !isEmpty(in.next().Msg) {
			t.Fatalf("a stream with all slots taken: %s", a.Data)
		}
		if hint, ok := a.Error.Details["retry_after_ms"].(float64); !ok || hint < 1 || hint > 1000+float64(time.Since(began).Milliseconds()) || !strings.Contains(a.Error.Message, "all 2 slots") {
			t.Errorf("busy: %s", a.Data)
		}
	}
	if r.ran("more") != 0 {
		t.Errorf("%d calls ran", r.ran("more"))
	}
	// Once each, whichever node refused them first, and each weighs: no call has ended.
	busy := uint64(0)
	for _, h := range hosts {
		busy += h.Figures().Busy
	}
	if busy != 40 {
		t.Errorf("%d callers were answered busy, want 40", busy)
	}
	meshtest.Until(t, "heartbeats have told of it", func() bool {
		calls, wanting := 0, 0.0
		for _, n := range view.Loads() {
			calls, wanting = calls+n.Busy, wanting+n.Wanting
		}
		if calls == 0 && wanting == 0 {
			r.call("note", `{"key":"more"}`) // a second without one
		}
		return calls > 0 && wanting > 0
	})
	close(r.gate("full").release)
	for range 4 {
		if a := in.next(); a.code() != "ok" {
			t.Errorf("a call that ran: %s", a.Data)
		}
	}
	if a := r.call("note", `{"key":"more"}`); a.code() != "ok" {
		t.Errorf("with slots free: %s", a.Data)
	}
}

// If the handler refuses an admitted call because it would wait too long, the call is passed on
// like one without a slot, with its name and also as a stream. If no node takes it, the caller
// gets the handler's hint for its next attempt.
func TestCallsThatWouldWaitArePassedOn(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	crowded := func(_ context.Context, call *host.Call, _ host.Sink) error {
		return toolmesh.Errorf(toolmesh.CodeBusy, "9 calls wait for the workers").WithStarted(toolmesh.StartedNo).
			WithDetail("limit", toolmesh.LimitSlots).WithDetail("retry_after_ms", int64(7654))
	}
	serves := func(ctx context.Context, call *host.Call, sink host.Sink) error { return sink.Send(ctx, call.Args) }
	d := newDesk()
	handlers := map[subjects.NodeID]map[string]host.HandlerFunc{
		"crowded": {"here": crowded, "nowhere": crowded}, "free": {"here": serves, "nowhere": crowded},
	}
	nodes := map[subjects.NodeID]*host.Host{}
	var view *registry.View
	for _, node := range []subjects.NodeID{"crowded", "free"} {
		nodes[node], view = relaying(t, d, broker.Connect(t), &host.Options{Node: node, Slots: 2})
		for name, handler := range handlers[node] {
			if _, err := nodes[node].Handle(name, handler, host.Schema([]byte(`{"type":"object"}`), nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []subjects.ToolID{"desk.here", "desk.nowhere"} {
		meshtest.Until(t, "both nodes serve the tools", func() bool {
			route, _ := view.Route("default", name)
			return len(route.Nodes) == 2
		})
	}
	r := &rig{desk: d, t: t, h: nodes["crowded"], nc: broker.Connect(t)}
	for i := range 20 {
		a := r.call("here", `{"key":"passed"}`, "Mesh-Rpc-Id", fmt.Sprint("passed-", i), "Mesh-Timeout-Ms", "60000")
		if a.code() != "ok" || a.Header.Get("Mesh-Node") != "free" || string(a.Data) != `{"key":"passed"}` {
			t.Fatalf("call %d: %v %s", i, a.Header, a.Data)
		}
		in := r.inbox()
		r.send(in, "tools.default.desk.here", `{"key":"passed"}`, "Mesh-Stream", "inbox")
		if a := in.next(); string(a.Data) != `{"key":"passed"}` {
			t.Fatalf("stream %d: %v %s", i, a.Header, a.Data)
		}
		for a := in.next(); !isEmpty(a.Msg); a = in.next() {
		}
	}
	if n := nodes["crowded"].Figures().Relayed; n < 2 {
		t.Errorf("%d calls were passed on", n)
	}
	for _, subject := range []string{"tools.default.desk.nowhere", directed(nodes["crowded"], "default", "desk.here")} {
		a := r.ask(subject, `{}`)
		if a.code() != "busy" || a.Error.started() != "false" || a.Error.Details["limit"] != toolmesh.LimitSlots || a.Error.Details["retry_after_ms"] != 7654.0 {
			t.Errorf("%s: %s", subject, a.Data)
		}
	}
	for id, h := range nodes {
		if s := h.Figures(); s.InFlight != 0 {
			t.Errorf("%s: %+v", id, s)
		}
	}
}

// A node asks for candidates before it passes a call on. If it and the node that runs the call
// are cut off together, the caller gets node_lost, and the call runs once.
func TestNodeAndTheNodeThatItPassedACallToAreCutOff(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	proxies := map[subjects.NodeID]*meshtest.Proxy{}
	var full *host.Host
	join := func(nodes ...subjects.NodeID) {
		t.Helper()
		for _, node := range nodes {
			proxies[node] = meshtest.NewProxy(t, broker)
			h, view := relaying(t, d, proxies[node].Connect(t), &host.Options{Node: node, Slots: 1})
			t.Cleanup(proxies[node].Heal)
			if node == "full" {
				full = h
			}
			meshtest.Until(t, "the node knows all that serve the desk", func() bool {
				route, _ := view.Route("default", "desk.hold")
				return len(route.Nodes) == len(proxies)
			})
		}
	}
	join("full", "free")
	r := &rig{desk: d, t: t, h: full, nc: broker.Connect(t)}
	r.send(r.inbox(), directed(full, "default", "desk.hold"), `{"key":"occupied"}`)
	wait(t, "start", r.gate("occupied").started)
	passed := openInbox(t, r.nc, "mesh.node.free.tools.>")
	c, err := client.New(broker.Connect(t), &client.Options{QueueOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ended := make(chan error, 1)
	for n := 0; ; n++ { // until the queue group brings one to the full node, which passes it on
		key := fmt.Sprint("call ", n)
		go func() {
			_, err := c.Call(t.Context(), "desk.hold", map[string]string{"key": key}, client.WithTimeout(time.Minute))
			ended <- err
		}()
		wait(t, "start", r.gate(key).started)
		if err := r.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if _, ok := passed.has(); !ok {
			close(r.gate(key).release)
			if err := wait(t, "end", ended); err != nil {
				t.Fatal(err)
			}
			continue
		}
		join("third") // it would get a repetition
		proxies["full"].Blackhole()
		proxies["free"].Blackhole()
		if e := toolmesh.AsError(wait(t, "end", ended)); e == nil || e.Code != toolmesh.CodeNodeLost || e.Started == toolmesh.StartedNo {
			t.Errorf("the caller is told %v", e)
		}
		if n := d.ran(key); n != 1 {
			t.Errorf("it ran %d times", n)
		}
		close(r.gate(key).release)
		return
	}
}

// The caller of a call that is passed on dies without a word: the node that runs the call
// ends it, unless another caller has joined it there.
func TestCallerOfACallThatIsPassedOnIsGone(t *testing.T) {
	t.Parallel()
	const n, slots = 16, 32
	broker := meshtest.Broker(t)
	d := newDesk()
	full, view := relaying(t, d, broker.Connect(t), &host.Options{Node: "full", Slots: slots})
	free, _ := relaying(t, d, broker.Connect(t), &host.Options{Node: "free", Slots: 64})
	meshtest.Until(t, "both nodes serve the desk", func() bool {
		route, _ := view.Route("default", "desk.hold")
		return len(route.Nodes) == 2
	})
	r := &rig{desk: d, t: t, h: full, nc: broker.Connect(t)}
	occupied := r.inbox()
	for range slots {
		r.send(occupied, directed(full, "default", "desk.hold"), `{"key":"occupied"}`)
		wait(t, "start", r.gate("occupied").started)
	}
	dead := broker.Connect(t)
	in := openInbox(t, dead, dead.NewInbox())
	call := func(to *inbox, subject, key string) {
		r.send(to, subject, fmt.Sprintf(`{"key":%q}`, key), "Mesh-Rpc-Id", key, "Mesh-Keepalive", "1", "Mesh-Timeout-Ms", "600000")
	}
	names := func(kind string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint(kind, i))
		}
		return all
	}
	for _, key := range append(names("alone"), names("joined")...) {
		call(in, "tools.default.desk.hold", key) // half of them come to the full node, and are passed on
		wait(t, "start", r.gate(key).started)
	}
	for _, key := range names("joined") {
		joined := r.inbox()
		call(joined, directed(free, "default", "desk.hold"), key)
		if a := joined.next(); a.Header.Get("Mesh-Keepalive") != "1" {
			t.Fatalf("%s was not joined: %s", key, a.Data)
		}
	}
	dead.Close()
	for _, key := range names("alone") {
		if cause := toolmesh.AsError(wait(t, "end of a call whose caller is gone", r.gate(key).ended)); cause == nil || cause.Details["reason"] != "caller_gone" {
			t.Errorf("%s: cause = %v", key, cause)
		}
	}
	for _, key := range names("joined") {
		close(r.gate(key).release)
		if err := wait(t, "end", r.gate(key).ended); err != nil {
			t.Errorf("%s, which another caller has joined: %v", key, err)
		}
	}
	close(r.gate("occupied").release)
	meshtest.Until(t, "calls were passed on", func() bool { return full.Figures().Relayed > 0 })
}
