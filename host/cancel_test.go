package host_test

import "testing"

// The cancel of a call also ends its renewed attempts after its node was lost, including later
// ones.
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
