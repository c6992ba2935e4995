package host_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
)

// A call that is made here and has joined another one of its name ends in its own time.
func TestCallHereThatJoinsEndsInItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first := r.inbox()
	r.send(first, "tools.default.desk.hold", `{"key":"one"}`, "Mesh-Rpc-Id", "r1", "Mesh-Timeout-Ms", "600000")
	g := r.gate("one")
	wait(t, "start", g.started)
	ended := make(chan error, 1)
	go func() {
		call := codec.Call{Session: "default", Tool: "desk.hold", RPCID: "r1", Timeout: 50 * time.Millisecond}
		_, mine, err := r.h.CallHere(t.Context(), &call, json.RawMessage(`{"key":"one"}`), nil)
		if !mine {
			t.Error("the call is not this node's")
		}
		ended <- err
	}()
	if err := wait(t, "end of what has joined", ended); toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded || toolmesh.AsError(err).Started != toolmesh.StartedYes {
		t.Errorf("%v", err)
	}
	if a := first.next(); a.code() != "deadline_exceeded" { // it is one call, as for callers elsewhere
		t.Errorf("the first caller: %s", a.code())
	}
	if n := r.ran("one"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// The cancel of a call reaches what was made anew of it once its node was lost, and what is
// yet to come.
func TestCancelOfACallMadeAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, id := range []string{"r1", "ein Name, der nicht in ein Token passt: länger als achtunddreissig Bytes"} {
		in := r.inbox()
		again := id + ".again2"
		if id != "r1" {
			again = tokenOf(t, id) + ".again2"
		}
		r.send(in, "tools.default.desk.hold", `{"key":"`+id+`"}`, "Mesh-Rpc-Id", again)
		wait(t, "start", r.gate(id).started)
		if a := r.ask("mesh.ctl.default."+tokenOf(t, id), `{"type":"cancel"}`); string(a.Data) != `{"cancelled":true}` {
			t.Errorf("the cancel: %s", a.Data)
		}
		if a := in.next(); a.code() != "cancelled" {
			t.Errorf("the call: %s", a.code())
		}
	}
	if err := r.nc.Publish("mesh.ctl.default.r2", nil); err != nil {
		t.Fatal(err)
	}
	r.settled()
	if a := r.call("hold", `{"key":"two"}`, "Mesh-Rpc-Id", "r2.again1"); a.code() != "cancelled" || a.Header.Get("Mesh-Started") != "false" {
		t.Errorf("what comes after its cancel: %s %v", a.code(), a.Header)
	}
}
