package host_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// viewed knows one epoch of each session, or that there is none any more, and
// counts how often it is asked.
type viewed struct {
	epoch atomic.Pointer[string] // nil: session_not_found
	asked atomic.Int64
}

func (*viewed) Ended(subjects.SessionID, time.Time) bool { return false }

func (v *viewed) Admit(s subjects.SessionID) (string, error) {
	v.asked.Add(1)
	if epoch := v.epoch.Load(); epoch != nil {
		return *epoch, nil
	}
	return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q has ended", s)
}

func (v *viewed) set(epoch string) { v.epoch.Store(&epoch) }

// The end of a session ends its unary calls and streams, with the reason; a view that is wrong
// about it ends nothing.
func TestCallsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(*viewed){
		"gone":          func(v *viewed) { v.epoch.Store(nil) },
		"created again": func(v *viewed) { v.set("epoch-2") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			view := &viewed{}
			view.set("epoch-1")
			r := newRig(t, &rigOptions{host: host.Options{Sessions: view}})
			js, err := jetstream.New(r.nc)
			if err != nil {
				t.Fatal(err)
			}
			record := func(text string, headers nats.Header) {
				t.Helper()
				if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "$KV.MESH_SESSIONS.kept", Data: []byte(text), Header: headers}); err != nil {
					t.Fatal(err)
				}
			}
			record(`{"id":"kept","epoch":"epoch-1"}`, nil)
			unary, stream := r.inbox(), r.inbox()
			r.send(unary, "tools.kept.desk.hold", `{"key":"u"}`, "Mesh-Rpc-Id", "u")
			r.send(stream, "tools.kept.desk.gen", `{"key":"s","n":2,"gate":true}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "s")
			<-r.gate("u").started
			<-r.gate("s").started

			over(view)
			before := view.asked.Load()
			meshtest.Until(t, "both calls look for their session", func() bool { return view.asked.Load() >= before+6 })
			if n := r.h.Figures().InFlight; n != 2 {
				t.Fatalf("%d calls are left though the registry has their session", n)
			}
			if name == "gone" {
				record("", nats.Header{"KV-Operation": {"DEL"}})
			} else {
				record(`{"id":"kept","epoch":"epoch-2"}`, nil)
			}
			if m := unary.next(); m.Header.Get("Mesh-Error-Code") != "cancelled" || !strings.Contains(string(m.Data), `"reason":"session_ended"`) {
				t.Errorf("unary call: %v %s", m.Header, m.Data)
			}
			if m := stream.next(); m.Header.Get("Mesh-Error-Code") != "cancelled" || !strings.Contains(string(m.Data), `"reason":"session_ended"`) {
				t.Errorf("stream: %v %s", m.Header, m.Data)
			}
		})
	}
}

// sessionRecord writes a session's record, or deletes it where text is empty.
func sessionRecord(t *testing.T, nc *nats.Conn, id, text string) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	m := &nats.Msg{Subject: "$KV.MESH_SESSIONS." + id, Data: []byte(text), Header: nats.Header{}}
	if text == "" {
		m.Header.Set("KV-Operation", "DEL")
	}
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// A service's tools in a session end with that session, by its epoch, however the host learns of
// it: also if the name is in use again at once, and if the host was cut off meanwhile. Tools that
// are registered then belong to the next session.
func TestToolsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"ended", "created again", "created again while cut off", "expired"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			nc := broker.Connect(t)
			newDesk().serve(t, broker.Connect(t), &host.Options{Index: "other"}) // makes the registry
			if how == "expired" {
				js, err := jetstream.New(nc)
				if err != nil {
					t.Fatal(err)
				}
				m := &nats.Msg{Subject: "$KV.MESH_SESSIONS.s", Data: []byte(`{"id":"s","epoch":"1"}`), Header: nats.Header{"Nats-TTL": {"2s"}}}
				if _, err := js.PublishMsg(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			} else {
				sessionRecord(t, nc, "s", `{"id":"s","epoch":"1"}`)
			}
			proxy := meshtest.NewProxy(t, broker)
			d := newDesk()
			h := d.serve(t, proxy.Connect(t), &host.Options{Session: "s"})
			r := &rig{desk: d, t: t, broker: broker, h: h, nc: nc}
			if how != "expired" {
				if a := r.ask("tools.s.session", `{"key":"1"}`); a.code() != "ok" {
					t.Fatalf("in its session: %s", a.Data)
				}
			}
			switch how {
			case "ended":
				sessionRecord(t, nc, "s", "")
			case "created again":
				sessionRecord(t, nc, "s", `{"id":"s","epoch":"2"}`)
			case "created again while cut off":
				proxy.Cut(true)
				sessionRecord(t, nc, "s", "")
				sessionRecord(t, nc, "s", `{"id":"s","epoch":"2"}`)
				proxy.Heal()
			}
			refused := false // by the host, before its tools are gone
			meshtest.Until(t, "the tools are served no more", func() bool {
				m, err := nc.Request("tools.s.session", nil, time.Minute)
				if err != nil {
					return errors.Is(err, nats.ErrNoResponders)
				}
				code := m.Header.Get("Mesh-Error-Code")
				if refused && code == "" {
					t.Error("a tool is served again")
				}
				refused = refused || code != ""
				return false
			})
			meshtest.Until(t, "they are not in the registry", func() bool {
				js, err := jetstream.New(nc)
				if err != nil {
					t.Fatal(err)
				}
				kv, err := js.KeyValue(t.Context(), "MESH_TOOLS")
				if err != nil {
					t.Fatal(err)
				}
				keys, err := kv.ListKeysFiltered(t.Context(), string(h.Node())+".>")
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for range keys.Keys() {
					n++
				}
				return n == 0
			})
			if how != "created again" {
				return
			}
			if _, err := h.Handle("later", host.HandlerFunc(d.note), host.Schema([]byte(`{"type":"object"}`), nil)); err != nil {
				t.Fatal(err)
			}
			if a := r.ask("tools.s.later", `{"key":"3"}`); a.code() != "ok" {
				t.Errorf("what was registered in the next session: %s", a.Data)
			}
			if _, err := nc.Request("tools.s.session", nil, time.Minute); !errors.Is(err, nats.ErrNoResponders) {
				t.Errorf("a tool of the session before is back: %v", err)
			}
		})
	}
}

// A function that is registered right after its session's name was used again does
// not bring back those of the session before.
func TestHandleInTheNextSession(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	newDesk().serve(t, broker.Connect(t), &host.Options{Index: "other"})
	d := newDesk()
	for i := range 10 {
		id := fmt.Sprint("s", i)
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			sessionRecord(t, nc, id, `{"id":"`+id+`","epoch":"1"}`)
			h := d.serve(t, broker.Connect(t), &host.Options{Session: subjects.SessionID(id), Service: "-"})
			r := &rig{desk: d, t: t, broker: broker, h: h, nc: nc}
			sessionRecord(t, nc, id, "")
			sessionRecord(t, nc, id, `{"id":"`+id+`","epoch":"2"}`)
			if _, err := h.Handle("later", host.HandlerFunc(d.note), host.Schema([]byte(`{"type":"object"}`), nil)); err != nil {
				t.Fatal(err)
			}
			if a := r.ask("tools."+id+".later", `{"key":"3"}`); a.code() != "ok" {
				t.Errorf("what was registered in the next session: %s", a.Data)
			}
			meshtest.Until(t, "the tools of the session before are gone", func() bool {
				_, err := nc.Request("tools."+id+".session", nil, time.Minute)
				return errors.Is(err, nats.ErrNoResponders)
			})
			if a := r.ask("tools."+id+".later", `{"key":"4"}`); a.code() != "ok" {
				t.Errorf("what was registered in the next session, afterwards: %s", a.Data)
			}
		})
	}
}

// A tool of a session is called before the view has the news that the session of
// its name has ended and was created again.
func TestCallsBeforeTheViewKnowsTheirSession(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	newDesk().serve(t, broker.Connect(t), &host.Options{Index: "other"}) // makes the registry
	sessionRecord(t, nc, "s", `{"id":"s","epoch":"2"}`)
	d := newDesk()
	h := d.serve(t, broker.Connect(t), &host.Options{Session: "s", Service: "-", Sessions: admitted{known: map[subjects.SessionID]string{"s": "1"}}})
	r := &rig{desk: d, t: t, broker: broker, h: h, nc: nc}
	if a := r.ask("tools.s.note", `{"key":"1"}`); a.code() != "ok" {
		t.Fatal(string(a.Data))
	}
	if seen := <-r.gate("1").seen; seen.Epoch != "2" {
		t.Errorf("the call is of epoch %q", seen.Epoch)
	}
}

// Tools that are served in a session before its creation belong to that session.
func TestToolsBeforeTheirSession(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	d := newDesk()
	h := d.serve(t, broker.Connect(t), &host.Options{Session: "s"})
	r := &rig{desk: d, t: t, broker: broker, h: h, nc: nc}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), "MESH_TOOLS")
	if err != nil {
		t.Fatal(err)
	}
	sessionRecord(t, nc, "s", `{"id":"s","epoch":"1"}`)
	meshtest.Until(t, "the tool's record is that session's", func() bool {
		e, err := kv.Get(t.Context(), string(h.Node())+".s.t.session")
		return err == nil && strings.Contains(string(e.Value()), `"epoch":"1"`)
	})
	if a := r.ask("tools.s.session", `{"key":"1"}`); a.code() != "ok" {
		t.Errorf("in the session: %s", a.Data)
	}
	sessionRecord(t, nc, "s", "")
	meshtest.Until(t, "the tools are served no more", func() bool {
		_, err := nc.Request("tools.s.session", nil, time.Minute)
		return errors.Is(err, nats.ErrNoResponders)
	})
}

// The calls that a session runs on a host without a view of the mesh end with it.
func TestCallsOfAPlainHostEndWithTheirSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	sessionRecord(t, r.nc, "s", `{"id":"s","epoch":"1"}`)
	// The host has the news once a stream says so without asking for it.
	unary, stream := r.inbox(), r.inbox()
	r.send(stream, "tools.s.desk.gen", `{"key":"s","n":2,"gate":true}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "s")
	<-r.gate("s").started
	meshtest.Until(t, "calls know their session", func() bool {
		r.ask("tools.s.desk.note", `{"key":"n"}`)
		return (<-r.gate("n").seen).Epoch == "1"
	})
	r.send(unary, "tools.s.desk.hold", `{"key":"u"}`, "Mesh-Rpc-Id", "u")
	<-r.gate("u").started
	sessionRecord(t, r.nc, "s", "")
	for name, in := range map[string]*inbox{"unary call": unary, "stream": stream} {
		if m := in.next(); m.Header.Get("Mesh-Error-Code") != "cancelled" || !strings.Contains(string(m.Data), `"reason":"session_ended"`) {
			t.Errorf("%s: %v %s", name, m.Header, m.Data)
		}
	}
}

// A view answers whether a session exists. Only calls with a slot look unknown sessions up in the
// registry.
func TestSessionsAreLookedUpByCallsWithASlot(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprint("strict ", strict), func(t *testing.T) {
			t.Parallel()
			known := map[subjects.SessionID]string{"known": "1"}
			r := newRig(t, &rigOptions{host: host.Options{Slots: 1, Sessions: admitted{known, strict}}})
			for _, id := range []string{"known", "unknown"} {
				sessionRecord(t, r.nc, id, `{"id":"`+id+`","epoch":"1"}`)
			}
			spy := r.broker.Connect(t)
			looks, err := spy.SubscribeSync("$JS.API.STREAM.MSG.GET.KV_MESH_SESSIONS")
			if err != nil {
				t.Fatal(err)
			}
			asked := func() int {
				t.Helper()
				if err := spy.Flush(); err != nil {
					t.Fatal(err)
				}
				n, _, err := looks.Pending()
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			stream := func(session string) string {
				t.Helper()
				in := r.inbox()
				r.send(in, "tools."+session+".desk.gen", `{"n":1}`, "Mesh-Stream", "inbox")
				first := in.next()
				code := first.Header.Get("Mesh-Error-Code")
				if code == "" && first.Header.Get("Mesh-Epoch") != "1" {
					t.Errorf("session %s: a chunk of %v", session, first.Header)
				}
				for m := first; !isEmpty(m.Msg); m = in.next() {
				}
				return code
			}
			asked() // the broker knows the spy
			for range 20 {
				if code := stream("known"); code != "" {
					t.Fatalf("known: %s", code)
				}
			}
			if n := asked(); n != 0 {
				t.Errorf("%d questions about a session that the view knows", n)
			}
			hold := r.inbox()
			r.send(hold, "tools.known.desk.hold", `{"key":"h"}`)
			<-r.gate("h").started
			for _, session := range []string{"unknown", "nobody"} {
				if code := stream(session); code != "busy" {
					t.Errorf("%s, with no slot free: %q, want busy", session, code)
				}
				if a := r.ask("tools."+session+".desk.note", `{}`); a.code() != "busy" {
					t.Errorf("%s, unary, with no slot free: %s", session, a.Data)
				}
			}
			if n := asked(); n != 0 {
				t.Errorf("%d questions by calls that have no slot", n)
			}
			r.gate("h").release <- struct{}{}
			hold.next()
			if code := stream("unknown"); code != "" {
				t.Errorf("what only the registry knows: %q", code)
			}
			if a := r.ask("tools.unknown.desk.note", `{}`); a.code() != "ok" {
				t.Errorf("what only the registry knows, unary: %s", a.Data)
			}
			want := "ok"
			if strict {
				want = "session_not_found"
			}
			if a := r.ask("tools.nobody.desk.note", `{}`); a.code() != want {
				t.Errorf("a session that nobody created: %s, want %s", a.Data, want)
			}
			if asked() == 0 {
				t.Error("the spy sees no questions")
			}
		})
	}
}

// admitted is a view that knows some sessions.
type admitted struct {
	known  map[subjects.SessionID]string
	strict bool
}

func (admitted) Ended(subjects.SessionID, time.Time) bool { return false }

func (a admitted) Admit(s subjects.SessionID) (string, error) {
	if epoch := a.known[s]; epoch != "" || !a.strict {
		return epoch, nil
	}
	return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q does not exist", s)
}

// The stored chunks of a session are removed at its end; those of the next one of its name, and
// of others, stay.
func TestChunksEndWithTheirSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stored := func(session string) uint64 {
		t.Helper()
		stream, err := js.Stream(t.Context(), "MESH_CHUNKS")
		if err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("mesh.chunks."+session+".>"))
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		for _, messages := range info.State.Subjects {
			n += messages
		}
		return n
	}
	run := func(session string) {
		t.Helper()
		in := r.inbox()
		r.send(in, "tools."+session+".desk.gen", `{"key":"`+session+`","n":3}`, "Mesh-Stream", "inbox")
		if n := len(in.chunks()); n != 4 {
			t.Fatalf("%d chunks of session %s", n, session)
		}
	}
	for _, session := range []string{"ends", "again", "stays"} {
		sessionRecord(t, r.nc, session, `{"id":"`+session+`","epoch":"1"}`)
		run(session)
	}
	sessionRecord(t, r.nc, "ends", "")
	sessionRecord(t, r.nc, "again", `{"id":"again","epoch":"2"}`)
	meshtest.Until(t, "the next session's stream is stored", func() bool {
		run("again")
		return stored("again") >= 12
	})
	meshtest.Until(t, "the chunks of the session that has ended are removed", func() bool { return stored("ends") == 0 })
	if a, b := stored("again"), stored("stays"); a < 12 || b != 4 {
		t.Errorf("%d chunks of a name that is in use, %d of another session are left", a, b)
	}
}
