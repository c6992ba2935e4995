package host_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// sessionsOf returns the host's knowledge of sessions: its own view's, once it has one.
func sessionsOf(t *testing.T) *registry.Sessions {
	t.Helper()
	s, err := registry.NewSessions("open")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// learn gives it a view.
func learn(t *testing.T, nc *nats.Conn, s *registry.Sessions) *registry.View {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	s.Use(view)
	return view
}

// A key is one call's on nodes that have heard of its session, and on those that have not.
func TestKeysOfASessionThatNodesHaveNotHeardOf(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	d := newDesk()
	var hosts []*host.Host
	for i := range 4 {
		s := sessionsOf(t)
		hosts = append(hosts, d.serve(t, broker.Connect(t), &host.Options{Node: subjects.NodeID(fmt.Sprint("n", i)), Sessions: s}))
		if i%2 == 0 {
			view := learn(t, nc, s)
			defer meshtest.Until(t, "the view knows the session", func() bool { _, ok := view.Session("kept"); return ok })
		}
	}
	sessionRecord(t, nc, "kept", `{"id":"kept","epoch":"epoch-1"}`)
	r := &rig{desk: d, t: t, broker: broker, h: hosts[0], nc: nc}
	for _, h := range append(hosts, hosts...) {
		if a := r.ask(directed(h, "kept", "desk.note"), `{"key":"once"}`, keyHeader, "k"); a.code() != "ok" {
			t.Errorf("%s: %s", h.Node(), a.Data)
		}
	}
	if n := d.ran("once"); n != 1 {
		t.Errorf("run %d times", n)
	}
}

// A node that cannot be certain of a session answers unavailable and does not begin the call.
func TestKeysWhereTheRegistryIsSilent(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	js, err := jetstream.New(broker.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{desk: newDesk(), t: t, broker: broker, nc: broker.Connect(t)}
	r.h = r.serve(t, broker.Connect(t), &host.Options{Sessions: sessionsOf(t)})
	if err := js.DeleteStream(t.Context(), "KV_MESH_SESSIONS"); err != nil {
		t.Fatal(err)
	}
	a := r.ask("tools.kept.desk.note", `{"key":"key"}`, keyHeader, "k")
	if a.code() != "unavailable" || a.Error.started() != "false" || r.ran("key") != 0 {
		t.Errorf("under a key: %s", a.Data)
	}
	if a := r.ask("tools.kept.desk.note", `{"key":"plain"}`); a.code() != "ok" {
		t.Errorf("a call that depends on no epoch: %s", a.Data)
	}
	if a := r.call("note", `{"key":"default"}`, keyHeader, "k"); a.code() != "ok" {
		t.Errorf("the session that is always there: %s", a.Data)
	}
}

// A call that is admitted before its node hears of its session ends with it.
func TestCallsEndWithASessionThatIsHeardOfLater(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := sessionsOf(t)
	r := &rig{desk: newDesk(), t: t, broker: broker, nc: broker.Connect(t)}
	r.h = r.serve(t, broker.Connect(t), &host.Options{Sessions: s})
	sessionRecord(t, r.nc, "kept", `{"id":"kept","epoch":"epoch-1"}`)
	in := r.inbox()
	r.send(in, "tools.kept.desk.hold", `{"key":"u"}`)
	<-r.gate("u").started
	view := learn(t, r.nc, s)
	meshtest.Until(t, "the view knows the session", func() bool { _, ok := view.Session("kept"); return ok })
	began := time.Now()
	meshtest.Until(t, "the host, which looks four times a second, has looked", func() bool { return time.Since(began) > time.Second })
	sessionRecord(t, r.nc, "kept", "")
	if a := in.next(); a.code() != "cancelled" || a.Error.Details["reason"] != "session_ended" {
		t.Errorf("%v %s", a.Header, a.Data)
	}
}

// A call that its node admits before it hears of the session ends with it, also if the session
// has ended, or is the next of its name, by the time that the node looks for it.
func TestCallsEndWithASessionThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"", `{"id":"kept","epoch":"epoch-2"}`} {
		t.Run("next "+next, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil) // which follows the sessions itself
			in := r.inbox()
			r.send(in, "tools.kept.desk.hold", `{"key":"u"}`)
			<-r.gate("u").started
			for _, text := range []string{`{"id":"kept","epoch":"epoch-1"}`, "", next} {
				sessionRecord(t, r.nc, "kept", text)
			}
			if a := in.next(); a.code() != "cancelled" || a.Error.Details["reason"] != "session_ended" {
				t.Errorf("%v %s", a.Header, a.Data)
			}
			r.send(in, "tools.kept.desk.hold", `{"key":"later"}`)
			<-r.gate("later").started
			began := time.Now()
			meshtest.Until(t, "the host, which looks four times a second, has looked", func() bool { return time.Since(began) > time.Second })
			close(r.gate("later").release)
			if a := in.next(); a.code() != "ok" {
				t.Errorf("a call that came after the end: %v %s", a.Header, a.Data)
			}
		})
	}
}

// A call that times out or is cancelled while its key is created does not begin and leaves the
// key free; its error never says that it may be sent again.
func TestCallsThatEndWhileTheirKeyIsCreated(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"time", "cancel"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			d := newDesk()
			proxy := meshtest.NewProxy(t, broker)
			nc := proxy.Connect(t)
			slow := d.serve(t, nc, &host.Options{Node: "slow"})
			next := d.serve(t, broker.Connect(t), &host.Options{Node: "next"})
			r := &rig{desk: d, t: t, broker: broker, h: next, nc: broker.Connect(t)}
			if a := r.ask(directed(slow, "default", "desk.note"), `{"key":"first"}`, keyHeader, "first"); a.code() != "ok" {
				t.Fatalf("%s", a.Data)
			}
			handled := slow.Figures().Calls
			code := map[string]string{"time": "deadline_exceeded", "cancel": "cancelled"}[how]
			for n := range 10 {
				key, in := fmt.Sprint("k", n), r.inbox()
				proxy.Stall() // delays messages from the node, not those to it
				r.send(in, directed(slow, "default", "desk.note"), `{"key":"`+key+`"}`, keyHeader, key, "Mesh-Rpc-Id", how+key, "Mesh-Timeout-Ms", map[string]string{"time": "100", "cancel": "60000"}[how])
				meshtest.Until(t, "the call asks for its key", func() bool { return slow.Figures().InFlight == 1 || how == "time" })
				if how == "cancel" {
					r.send(nil, "mesh.ctl.default."+how+key, "")
				}
				meshtest.Until(t, "the call is over", func() bool { return slow.Figures().Calls == handled+1 })
				handled++
				proxy.Heal()
				if a := in.next(); a.code() != code || a.Error.started() != "false" {
					t.Errorf("%s: %s", key, a.Data)
				}
				if a := r.ask(directed(next, "default", "desk.note"), `{"key":"`+key+`"}`, keyHeader, key, "Mesh-Timeout-Ms", "30000"); a.code() != "ok" {
					t.Errorf("the next call of key %s: %s", key, a.Data)
				}
				if n := d.ran(key); n != 1 {
					t.Errorf("%s has run %d times", key, n)
				}
			}
		})
	}
}

// With a nearly full bucket of keys, a call does not begin if its result might find no room, and
// known results are answered. A call that ended without room for its result says so, and nothing
// is repeated for ever.
func TestTheBucketOfKeysIsNearlyFull(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		if top.Name == "single" || top.Name == "cluster3" { // in which a full stream replaces nothing either
			d := newDesk()
			h := d.serve(t, top.Serve(t), &host.Options{Node: "n"})
			r := &rig{desk: d, t: t, broker: top.Brokers[0], h: h, nc: top.Call(t)}
			if a := r.call("note", `{"key":"early"}`, keyHeader, "early"); a.code() != "ok" {
				t.Fatalf("%s", a.Data)
			}
			in, large := r.inbox(), strings.Repeat("x", 700<<10)
			r.send(in, "tools.default.desk.hold", `{"key":"`+large+`"}`, keyHeader, "running")
			gate := d.gate(large)
			<-gate.started
			js, err := jetstream.New(top.Serve(t))
			if err != nil {
				t.Fatal(err)
			}
			stream, err := js.Stream(t.Context(), "KV_MESH_IDEM")
			if err != nil {
				t.Fatal(err)
			}
			config := stream.CachedInfo().Config
			config.MaxBytes = 8 << 20
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			for i := range 8 { // of another session: leaves room for the small records of a second, not for the large one
				if _, err := js.Publish(t.Context(), fmt.Sprint("$KV.MESH_IDEM.filler.", i), make([]byte, 970<<10)); err != nil {
					t.Fatal(err)
				}
			}
			var a answer
			late := 0
			meshtest.Until(t, "the node knows that the bucket is full", func() bool {
				late++
				a = r.call("note", fmt.Sprintf(`{"key":"late%d"}`, late), keyHeader, fmt.Sprint("late", late))
				return a.code() != "ok"
			})
			// One call runs, whose room is counted: that is busy, as long as there is some.
			if code := a.code(); code != "unavailable" && code != "busy" || a.Error.started() != "false" || a.Error.Details["limit"] != "keys_max" {
				t.Errorf("a key more: %s", a.Data)
			}
			if a := r.call("note", `{"key":"early"}`, keyHeader, "early"); a.code() != "ok" || d.ran("early") != 1 {
				t.Errorf("a key that is stored: %s", a.Data)
			}
			gate.release <- struct{}{}
			if a := in.next(); a.code() != "ok" {
				t.Errorf("what ran: %.300s", a.Data)
			}
			a = r.call("hold", `{"key":"`+large+`"}`, keyHeader, "running")
			if a.code() != "payload_too_large" || a.Error.started() != "true" {
				t.Errorf("what ran, once more: %.300s", a.Data)
			}
			if d.ran(fmt.Sprint("late", late)) != 0 {
				t.Errorf("what was refused has run")
			}
		}
	})
}
