package host_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const keyHeader = "Mesh-Idempotency-Key"

// One execution per key, for calls at any nodes, at once and later, over restarts of nodes and
// broker.
func TestOneRunUnderAKey(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		d := newDesk()
		var hosts []*host.Host
		for i := range 3 {
			hosts = append(hosts, d.serve(t, top.ServeOn(t, i), &host.Options{Node: subjects.NodeID(fmt.Sprint("n", i))}))
		}
		r := &rig{desk: d, t: t, broker: top.Brokers[0], h: hosts[0], nc: top.Call(t), session: top.Session}
		meshtest.Until(t, "the tool can be called", func() bool { return r.call("note", `{"key":"first"}`).code() == "ok" })
		answers := make(chan answer, 30)
		gate := d.gate("once")
		for range cap(answers) {
			go func() { answers <- r.call("hold", `{"key":"once"}`, keyHeader, "k1") }()
		}
		<-gate.started
		gate.release <- struct{}{}
		for range cap(answers) {
			if a := <-answers; string(a.Data) != `"released once"` {
				t.Errorf("got %s", a.Data)
			}
		}
		for range 6 {
			if a := r.call("hold", ` { "key" : "once" } `, keyHeader, "k1"); string(a.Data) != `"released once"` {
				t.Errorf("afterwards: %s", a.Data)
			}
		}
		if n := d.ran("once"); n != 1 {
			t.Errorf("run %d times", n)
		}
		for name, a := range map[string]answer{
			"other arguments": r.call("hold", `{"key":"other"}`, keyHeader, "k1"),
			"another tool":    r.call("note", `{"key":"once"}`, keyHeader, "k1"),
		} {
			if a.code() != "invalid_request" || a.Error.started() != "false" {
				t.Errorf("%s: %s", name, a.Data)
			}
		}
		if top.Name == "single" {
			other := &rig{desk: d, t: t, nc: r.nc, session: "other"}
			if a := other.call("note", `{"key":"elsewhere"}`, keyHeader, "k1"); a.code() != "ok" || d.ran("elsewhere") != 1 {
				t.Errorf("in another session: %s", a.Data)
			}
		}
	})
}

// The record of a key outlives the node and the broker.
func TestKeysOutliveNodeAndBroker(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	first := d.serve(t, broker.Connect(t), &host.Options{Node: "first"})
	r := &rig{desk: d, t: t, broker: broker, h: first, nc: broker.Connect(t)}
	for range 2 {
		a := r.call("fail", `{"code":"tool_error"}`, keyHeader, "failed")
		if a.code() != "tool_error" || a.Error.Message != "as asked" || a.Error.started() != "true" {
			t.Errorf("a failure: %s", a.Data)
		}
	}
	if a := r.call("note", `{"key":"a"}`, keyHeader, "x"); a.code() != "ok" {
		t.Fatalf("%s", a.Data)
	}
	stop(t, first)
	broker.Restart(t)
	meshtest.Until(t, "the caller is back", func() bool { return r.nc.Stats().Reconnects > 0 && r.nc.IsConnected() })
	d.serve(t, broker.Connect(t), &host.Options{Node: "second"})
	var a answer
	meshtest.Until(t, "the store answers again", func() bool {
		a = r.call("note", `{"key":"a"}`, keyHeader, "x")
		return a.code() != "unavailable" || a.Error.started() != "false"
	})
	if string(a.Data) != `{"key":"a"}` || d.ran("a") != 1 {
		t.Errorf("after restarts: %s, run %d times", a.Data, d.ran("a"))
	}
}

// A call that never began frees its key; one that cannot have a key is refused.
func TestKeysThatAreNotTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Slots: 1}})
	for name, c := range map[string]struct {
		tool, key string
		headers   []string
		code      string
	}{
		"an empty key":       {"note", "", nil, "invalid_request"},
		"a megabyte":         {"note", strings.Repeat("k", 1<<18), nil, "invalid_request"},
		"a stream":           {"gen", "s", []string{"Mesh-Stream", "inbox"}, "invalid_request"},
		"what does not fit":  {"add", "f", nil, "invalid_arguments"},
		"an unknown feature": {"note", "r", []string{"Mesh-Require", "wings"}, "protocol_error"},
	} {
		a := r.call(c.tool, `{"key":"never"}`, append(c.headers, keyHeader, c.key)...)
		if a.code() != c.code || a.Error.started() != "false" {
			t.Errorf("%s: %.300s", name, a.Data)
		}
	}
	if a := r.call("add", `{"a":1,"b":2}`, keyHeader, "f", "Mesh-Require", keyHeader); string(a.Data) != "3" {
		t.Errorf("a key that was not taken: %s", a.Data)
	}
	// A full node: the call runs when it is sent again under the same key.
	busy := make(chan answer, 1)
	go func() { busy <- r.call("hold", `{"key":"fills"}`) }()
	gate := r.gate("fills")
	<-gate.started
	if a := r.call("note", `{"key":"late"}`, keyHeader, "late"); a.code() != "busy" {
		t.Errorf("a full node: %s", a.Data)
	}
	gate.release <- struct{}{}
	<-busy
	meshtest.Until(t, "there is a slot", func() bool { return r.call("note", `{"key":"late"}`, keyHeader, "late").code() == "ok" })
	if r.ran("never") != 0 || r.ran("late") != 1 {
		t.Errorf("run %d and %d times", r.ran("never"), r.ran("late"))
	}
}

// A call whose time ends while another one of its key runs says so. An idempotent tool that ran out of time runs again
// under its key.
func TestKeysOfCallsThatRunOutOfTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if _, err := r.h.Handle("again", host.HandlerFunc(r.hold), host.Annotate(tool.Annotations{Idempotent: true}), host.Schema([]byte(`{"type":"object"}`), nil)); err != nil {
		t.Fatal(err)
	}
	held := make(chan answer, 1)
	go func() { held <- r.call("hold", `{"key":"held"}`, keyHeader, "held") }()
	gate := r.gate("held")
	<-gate.started
	if a := r.call("hold", `{"key":"held"}`, keyHeader, "held", "Mesh-Timeout-Ms", "100"); a.code() != "deadline_exceeded" || a.Error.started() != "unknown" || a.Error.Details["reason"] != "key_in_use" {
		t.Errorf("a key that is in use: %s", a.Data)
	}
	gate.release <- struct{}{}
	if a := <-held; a.code() != "ok" {
		t.Errorf("%s", a.Data)
	}
	if a := r.call("again", `{"key":"late"}`, keyHeader, "late", "Mesh-Timeout-Ms", "100"); a.code() != "deadline_exceeded" {
		t.Errorf("a call that takes too long: %s", a.Data)
	}
	gate = r.gate("late")
	gate.release <- struct{}{}
	if a := r.call("again", `{"key":"late"}`, keyHeader, "late"); string(a.Data) != `"released late"` || r.ran("late") != 2 || r.ran("held") != 1 {
		t.Errorf("again under the key: %s, run %d and %d times", a.Data, r.ran("late"), r.ran("held"))
	}
}

// A node that dies during a call leaves "unknown", and the call does not run again, unless its
// tool is declared idempotent.
func TestNodeLostUnderAKey(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	idempotent := func(h *host.Host) {
		if _, err := h.Handle("again", host.HandlerFunc(d.hold), host.Annotate(tool.Annotations{Idempotent: true}), host.Schema([]byte(`{"type":"object"}`), nil)); err != nil {
			t.Fatal(err)
		}
	}
	proxy := meshtest.NewProxy(t, broker)
	dying := d.serve(t, proxy.Connect(t), &host.Options{Node: "dying"})
	idempotent(dying)
	r := &rig{desk: d, t: t, broker: broker, h: dying, nc: broker.Connect(t)}
	in := r.inbox()
	r.send(in, "tools.default.desk.hold", `{"key":"lost"}`, keyHeader, "lost")
	r.send(in, "tools.default.desk.again", `{"key":"again"}`, keyHeader, "again")
	<-d.gate("lost").started
	<-d.gate("again").started
	proxy.Blackhole()
	next := d.serve(t, broker.Connect(t), &host.Options{Node: "next"})
	idempotent(next)
	// Directed: the broker still counts the dying one among the group.
	lost := make(chan answer, 2)
	go func() { lost <- r.ask(directed(next, "default", "desk.hold"), `{"key":"lost"}`, keyHeader, "lost") }()
	again := make(chan answer, 1)
	go func() { again <- r.ask(directed(next, "default", "desk.again"), `{"key":"again"}`, keyHeader, "again") }()
	a := <-lost // once the lease is over
	if a.code() != "node_lost" || a.Error.started() != "unknown" || a.Error.Details["reason"] != "key_unknown" || a.Error.Details["node"] != "dying" {
		t.Errorf("an unknown fate: %s", a.Data)
	}
	<-d.gate("again").started
	d.gate("again").release <- struct{}{}
	d.gate("again").release <- struct{}{} // the dying one's
	if a := <-again; string(a.Data) != `"released again"` {
		t.Errorf("an idempotent tool: %s", a.Data)
	}
	if n, m := d.ran("lost"), d.ran("again"); n != 1 || m != 2 {
		t.Errorf("run %d and %d times", n, m)
	}
	d.gate("lost").release <- struct{}{}
	proxy.Heal()
	// The lost node's result, once it is back, is the outcome of the key's call.
	meshtest.Until(t, "the record is stored", func() bool {
		return r.ask(directed(next, "default", "desk.hold"), `{"key":"lost"}`, keyHeader, "lost").code() == "ok"
	})
}

// A client's call under a key survives its node: the next node answers with its outcome.
func TestClientSendsKeysAgain(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	proxy := meshtest.NewProxy(t, broker)
	d.serve(t, proxy.Connect(t), &host.Options{Node: "dying"})
	c := testmesh.Client(t, broker.Connect(t, client.ConnectOptions()...), nil)
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), "desk.hold", map[string]any{"key": "k"}, client.WithIdempotencyKey("k"), client.WithTimeout(time.Minute))
		result <- err
	}()
	gate := d.gate("k")
	<-gate.started
	d.serve(t, broker.Connect(t), &host.Options{Node: "next"})
	gate.release <- struct{}{}
	if err := <-result; err != nil {
		t.Errorf("%v", err)
	}
	proxy.Cut(true)
	meshtest.Until(t, "the broker has let the node go", func() bool {
		_, err := c.Call(t.Context(), "desk.note", map[string]any{"key": "n"})
		return err == nil
	})
	r, err := c.Call(t.Context(), "desk.hold", map[string]any{"key": "k"}, client.WithIdempotencyKey("k"))
	if err != nil || string(r.Value) != `"released k"` || r.Node != "next" || d.ran("k") != 1 {
		t.Errorf("from the next node: %+v %v, run %d times", r, err, d.ran("k"))
	}
	proxy.Heal()
	for _, bad := range []string{" k", "k\n", "ü"} {
		if _, err := c.Call(t.Context(), "desk.note", nil, client.WithIdempotencyKey(bad)); toolmesh.AsError(err).Origin != toolmesh.OriginCaller {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
