package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// nats.go delivers a message with an unreadable header block as one without headers: the caller's
// requirements and its budget would be lost, and the body could be taken for an envelope.
func TestHeadersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	held := r.storedAndHeld()
	node := string(r.h.Node())
	for _, header := range []string{
		"NATS/1.0\r\nbad\r\nMesh-Require: zz\r\n\r\n", "NATS/2.0\r\nMesh-Require: zz\r\n\r\n", "NATS/1.0\r\nMesh-Rpc-Id: r1\r\nbad\r\n\r\n",
		"NATS/1.0 5\r\n\r\n", "NATS/1.0\r\nMesh-Timeout-Ms: 5\r\n",
		"NATS/1.0\r\nMesh-Rpc-Id: r1\r\nLong: " + strings.Repeat("x", 32<<10) + "\r\n\r\n",
	} {
		for _, q := range []struct{ subject, body string }{
			{"tools.default.desk.note", `{"key":"deputy"}`},
			{directed(r.h, "default", "desk.note"), `{"key":"deputy"}`},
			{"tools.default.desk.note", ``},
			{"tools.default.desk.note", `{"type":"rpc_tool_call","rpc_id":"deputy","tool_id":"desk.note","kwargs":{"key":"deputy"}}`},
			{"tools.default.desk.gen", `{"type":"rpc_tool_stream","rpc_id":"deputy","tool_id":"desk.gen","kwargs":{"key":"deputy","n":2}}`},
			{"mesh.replay.default.stored", `{"from_seq":1}`},
			{"mesh.ctl.default.victim", `{"type":"cancel"}`},
			{"mesh.node." + node + ".ctl.default.victim", ``},
		} {
			in := r.heard()
			r.broker.PublishRaw(t, q.subject, in.Subject, header, q.body)
			a := in.next()
			if a.code() != "invalid_request" || a.Error.started() != "false" || a.Header.Get("Mesh-Error-Code") != "invalid_request" ||
				a.Header.Get("Mesh-Started") != "false" || !strings.Contains(a.Error.Message, "header") && !strings.Contains(a.Error.Message, "at most 8192") {
				t.Errorf("%.80q to %s with %s: %v %s", header, q.subject, q.body, a.Header, a.Data)
			}
			in.none("after the refusal")
		}
		r.broker.PublishRaw(t, "mesh.ctl.default.victim", "", header, "") // without a reply subject it is ignored
	}
	r.settled()
	if n := r.ran("deputy"); n != 0 {
		t.Errorf("%d of them were run", n)
	}
	// Blocks without a line, and lines without a name, are no fault.
	for _, header := range []string{"NATS/1.0\r\n\r\n", "NATS/1.0\r\n: x\r\n\r\n"} {
		in := r.heard()
		r.broker.PublishRaw(t, "tools.default.desk.note", in.Subject, header, `{"key":"fine"}`)
		if a := in.next(); a.code() != "ok" {
			t.Errorf("%q: %s", header, a.Data)
		}
	}
	close(r.gate("victim").release)
	if cause := wait(t, "end", r.gate("victim").ended); cause != nil {
		t.Errorf("the call that nobody could cancel: %v", cause)
	}
	held.next()
}

// heard is an inbox that other connections can send to already.
func (r *rig) heard() *inbox {
	r.t.Helper()
	in := r.inbox()
	if err := r.nc.Flush(); err != nil {
		r.t.Fatal(err)
	}
	return in
}

// storedAndHeld has a stream "stored" and a running call "victim", as targets of replay and
// control subjects.
func (r *rig) storedAndHeld() *inbox {
	r.t.Helper()
	streamed, held := r.inbox(), r.inbox()
	r.send(streamed, "tools.default.desk.gen", `{"key":"stored","n":2}`, "Mesh-Rpc-Id", "stored", "Mesh-Stream", "inbox")
	streamed.chunks()
	r.send(held, "tools.default.desk.hold", `{"key":"victim"}`, "Mesh-Rpc-Id", "victim")
	wait(r.t, "start", r.gate("victim").started)
	return held
}

// Requirements and the protocol's version count on every kind of request.
func TestVersionOfReplayAndControl(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	held := r.storedAndHeld()
	for _, subject := range []string{"mesh.replay.default.stored", "mesh.ctl.default.victim", "mesh.node." + string(r.h.Node()) + ".ctl.default.victim"} {
		body := `{"type":"cancel"}`
		if strings.HasPrefix(subject, "mesh.replay") {
			body = `{"from_seq":1}`
		}
		for _, pair := range [][]string{{"Mesh-Require", "zz"}, {"mesh-require", "stream, zz"}, {"Mesh-Proto", "2"}} {
			a := r.ask(subject, body, pair...)
			if a.code() != "protocol_error" || a.Error.started() != "false" || a.Header.Get("Nats-Service-Error-Code") != "502" {
				t.Errorf("%s with %v: %v %s", subject, pair, a.Header, a.Data)
			}
		}
		if a := r.ask(subject, `{"FROM_SEQ":1,"TYPE":"cancel"}`); a.code() != "invalid_request" || strings.Contains(a.Error.Message, "codec.") {
			t.Errorf("%s: %v %s", subject, a.Header, a.Data)
		}
	}
	if a := r.ask("mesh.ctl.default.victim", `{"type":"cancel"}`, "Mesh-Require", "cancel", "Mesh-Proto", "1"); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("a cancel that requires what is known: %v %s", a.Header, a.Data)
	}
	if a := held.next(); a.code() != "cancelled" {
		t.Errorf("the call: %s", a.Data)
	}
}

// The log of any number of refused requests of one publisher stays short, and has their number.
func TestRefusalsAreLoggedSeldom(t *testing.T) {
	t.Parallel()
	logs := meshtest.CaptureLogs(t)
	r := newRig(t, &rigOptions{host: host.Options{Logger: logs.Logger, Service: "-"}})
	const n = 3000
	for range n {
		if err := r.nc.PublishRequest("tools.default.desk.note", "victim.x", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		if err := r.nc.PublishRequest("mesh.replay.default.x", "victim.x", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "all are refused", func() bool { return r.h.Figures().RefusedReplies >= 2*n })
	if lines := logs.Count("reply subject is not an inbox"); lines == 0 || lines > 60 {
		t.Errorf("%d lines tell of %d refusals", lines, 2*n)
	}
	// Nor do those of calls that fail grow with their number.
	began, in := time.Now(), r.inbox()
	for range n / 3 {
		r.send(in, "tools.default.desk.nojson", `{}`)
		in.next()
	}
	most := 200 + 20*int(time.Since(began)/time.Second+1)
	if lines := logs.Count(`level=INFO msg="call finished"`); lines == 0 || lines > most {
		t.Errorf("%d lines tell of %d failed calls, want at most %d", lines, n/3, most)
	}
}
