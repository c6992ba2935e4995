package host_test

import (
	"strings"
	"sync/atomic"
	"testing"

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

func (v *viewed) Admit(s subjects.SessionID) (string, error) {
	v.asked.Add(1)
	if epoch := v.epoch.Load(); epoch != nil {
		return *epoch, nil
	}
	return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q has ended", s)
}

func (v *viewed) set(epoch string) { v.epoch.Store(&epoch) }

// What a session runs is ended with it, unary calls and streams, and says why; a
// view that is wrong about it ends nothing.
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
			if n := r.h.Stats().InFlight; n != 2 {
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
