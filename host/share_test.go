package host_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// The rest of a nearly full store is reserved for running streams.
func TestNewStreamsAreRefusedBeforeTheStoreIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{StoreOptions: host.StoreOptions{ChunksMax: 1_000_000}}})
	begin := func(body string) *inbox {
		in := r.inbox()
		r.send(in, genSubject, body, "Mesh-Stream", "inbox")
		return in
	}
	running := begin(`{"key":"running","n":3,"size":20000,"gate":true}`)
	g := r.gate("running")
	g.release <- struct{}{}
	wait(t, "the first item", g.sent)
	if all := begin(`{"n":46,"size":20000}`).chunks(); all[len(all)-1].kind != "complete" {
		t.Fatalf("the stream that fills the store ends with %+v", all[len(all)-1])
	}
	try := func() answer { // a stream that stores nothing
		in := r.inbox()
		r.send(in, "tools.default.desk.fail", `{"code":"plain"}`, "Mesh-Stream", "inbox")
		return in.next()
	}
	var refused answer
	meshtest.Until(t, "the store is known to be nearly full", func() bool {
		refused = try()
		return refused.code() == "unavailable"
	})
	if e := refused.Error; e.started() != "false" || e.Details["limit"] != "chunks_max" || e.Origin != "mesh" || !*e.Retryable {
		t.Errorf("a new stream is refused with %s", refused.Data)
	}
	if a := r.call("note", `{}`); a.code() != "ok" {
		t.Errorf("a unary call: %s", a.Data)
	}
	g.release <- struct{}{}
	g.release <- struct{}{}
	if all := running.chunks(); len(all) != 4 || all[3].kind != "complete" {
		t.Errorf("the stream that runs: %d chunks, the last is %+v", len(all), all[len(all)-1])
	}
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := js.Stream(t.Context(), subjects.StreamChunks)
	if err != nil {
		t.Fatal(err)
	}
	if err := stored.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the store has room again", func() bool { return try().code() == "tool_error" })
}

// One session's calls do not block another's, and all sessions that were never created count as
// one.
func TestAFloodOfOneSession(t *testing.T) {
	t.Parallel()
	const slots = 4
	r := newRig(t, &rigOptions{host: host.Options{Slots: slots}})
	flood := r.inbox()
	one := 0
	hold := func() {
		one++
		r.send(flood, fmt.Sprintf("tools.invented%d.desk.hold", one), `{"key":"flood"}`)
	}
	for range slots {
		hold()
		wait(t, "start", r.gate("flood").started)
	}
	// Another is waited for as long as its callers take to send again, so that on a
	// slow machine the flood may get in.
	meshtest.Until(t, "the flood leaves a place to who waits for one", func() bool {
		if a := r.call("note", `{}`); a.code() != "busy" {
			t.Fatalf("with all slots taken: %s", a.Data)
		}
		r.gate("flood").release <- struct{}{}
		if a := flood.next(); a.code() != "ok" {
			t.Fatalf("a call of the flood: %s", a.Data)
		}
		hold()
		for {
			select {
			case <-r.gate("flood").started:
				return false
			default:
			}
			a, ok := flood.has()
			if !ok {
				continue
			}
			if a.code() != "busy" || a.Error.started() != "false" || a.Error.Details["limit"] != toolmesh.LimitSlots ||
				!strings.Contains(a.Error.Message, "sessions that were not created have together 3 of the 4 slots") {
				t.Fatalf("the flood goes on: %s", a.Data)
			}
			return true
		}
	})
	if a := r.call("note", `{}`); a.code() != "ok" {
		t.Errorf("the call that waited: %s", a.Data)
	}
	close(r.gate("flood").release)
}
