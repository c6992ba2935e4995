package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/meshtest"
)

const markingTools = `
def hold(path: str) -> str:
    with open(path) as gate:
        return gate.read()
def mark(path: str) -> str:
    open(path, "x").close()
    return path
def marks(path: str):
    yield mark(path)
`

// One worker for all of a session's calls.
const markingIndex = `
[index]
tools = ["t.hold", "t.mark", "t.marks"]
[tool."t.hold"]
isolation = "session"
[tool."t.mark"]
isolation = "session"
[tool."t.marks"]
isolation = "session"
`

// A call that waits for a worker and is over before it gets one says that its
// tool did not begin, and after its cancel it does not begin either.
func TestACallThatWaitedForAWorkerHasNotStarted(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "marks", map[string]string{"tools.toml": markingIndex, "t.py": markingTools})})
	dir := t.TempDir()
	gatePath := filepath.Join(dir, "gate")
	if err := syscall.Mkfifo(gatePath, 0o600); err != nil {
		t.Fatal(err)
	}
	beats, err := nc.SubscribeSync("mesh.hb.one")
	if err != nil {
		t.Fatal(err)
	}
	// send makes a call and returns the subscription of its answer.
	send := func(name, file string, pairs ...string) *nats.Subscription {
		t.Helper()
		body, err := json.Marshal(map[string]string{"path": filepath.Join(dir, file)})
		if err != nil {
			t.Fatal(err)
		}
		m := &nats.Msg{Subject: "tools.default.marks.t." + name, Reply: nc.NewInbox(), Header: nats.Header{}, Data: body}
		for i := 0; i < len(pairs); i += 2 {
			m.Header.Set(pairs[i], pairs[i+1])
		}
		in, err := nc.SubscribeSync(m.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		return in
	}
	next := func(in *nats.Subscription) *nats.Msg {
		t.Helper()
		m, err := in.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	refused := func(what string, m *nats.Msg, code toolmesh.Code, origin toolmesh.Origin) {
		t.Helper()
		var body struct{ Error *toolmesh.Error }
		if err := json.Unmarshal(m.Data, &body); err != nil || body.Error == nil || body.Error.Code != code ||
			body.Error.Started != toolmesh.StartedNo || body.Error.Origin != origin || m.Header.Get("Mesh-Started") != "false" {
			t.Errorf("%s: %v %s, want %s by %s, not started", what, m.Header, m.Data, code, origin)
		}
	}

	holder := send("hold", "gate")
	gate, err := os.OpenFile(gatePath, os.O_WRONLY, 0) // returns when the tool reads
	if err != nil {
		t.Fatal(err)
	}
	forms := []struct{ tool, stream string }{{"mark", ""}, {"marks", "1"}, {"marks", "inbox"}, {"mark", "inbox"}}
	headers := func(stream string, more ...string) []string {
		if stream == "" {
			return more
		}
		return append(more, "Mesh-Stream", stream)
	}
	for i, f := range forms {
		in := send(f.tool, fmt.Sprint("late", i), headers(f.stream, "Mesh-Timeout-Ms", "50")...)
		refused(fmt.Sprint("deadline, ", f), next(in), toolmesh.CodeDeadlineExceeded, toolmesh.OriginAgent)
	}
	ids := make([]string, len(forms))
	waiting := make([]*nats.Subscription, len(forms))
	for i, f := range forms {
		ids[i] = fmt.Sprint("rpc", i)
		waiting[i] = send(f.tool, fmt.Sprint("cancelled", i), headers(f.stream, "Mesh-Rpc-Id", ids[i])...)
	}
	for queued := 0; queued < len(forms); {
		var beat codec.Heartbeat
		if err := json.Unmarshal(next(beats).Data, &beat); err != nil {
			t.Fatal(err)
		}
		queued = beat.Queued
	}
	for i, f := range forms {
		if a, err := nc.Request("mesh.ctl.default."+ids[i], nil, time.Minute); err != nil || string(a.Data) != `{"cancelled":true}` {
			t.Fatalf("cancel: %v, %v", a, err)
		}
		refused(fmt.Sprint("cancel, ", f), next(waiting[i]), toolmesh.CodeCancelled, toolmesh.OriginCaller)
	}
	if err := gate.Close(); err != nil {
		t.Fatal(err)
	}
	if m := next(holder); string(m.Data) != `""` {
		t.Errorf("the call that had the worker: %s", m.Data)
	}
	// There is a worker now, and still nothing of them begins.
	for i, f := range forms {
		again := send(f.tool, fmt.Sprint("cancelled", i), headers(f.stream, "Mesh-Rpc-Id", ids[i])...)
		refused(fmt.Sprint("repeated, ", f), next(again), toolmesh.CodeCancelled, toolmesh.OriginAgent)
	}
	if m := next(send("mark", "last")); string(m.Data) != fmt.Sprintf("%q", filepath.Join(dir, "last")) {
		t.Errorf("the next call: %s", m.Data)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if f.Name() != "gate" && f.Name() != "last" {
			t.Errorf("the tool ran: %s", f.Name())
		}
	}
}
