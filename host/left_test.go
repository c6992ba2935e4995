package host_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Nothing stays in the object store of our client's calls that were refused, failed or
// cancelled, of streams and calls with a key among them, nor of results that were read.
func TestCallsThatFailLeaveNothingInTheStore(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	for _, node := range []subjects.NodeID{"desk-1", "desk-2"} {
		d.serve(t, broker.Connect(t), &host.Options{Node: node, Slots: 4})
	}
	nc := broker.Connect(t)
	c := clientOf(t, nc, "")
	const size = 3 << 20
	text := strings.Repeat("x", size)
	fails := func(code string) json.RawMessage {
		return json.RawMessage(`{"code":"` + code + `","text":"` + text + `"}`)
	}
	call := func(ctx context.Context, id subjects.ToolID, args any, want toolmesh.Code, options ...client.CallOption) {
		t.Helper()
		if _, err := c.Call(ctx, id, args, options...); toolmesh.CodeOf(err) != want {
			t.Errorf("%s: %.300v, want %q", id, err, want)
		}
	}
	calls := []struct {
		id      subjects.ToolID
		args    any
		want    toolmesh.Code
		options []client.CallOption
	}{
		{"desk.add", large("x", size), toolmesh.CodeInvalidArguments, nil},
		{"desk.none", large("x", size), toolmesh.CodeUnavailable, nil}, // only the registry knows that there is none
		{"desk.none", large("x", size), toolmesh.CodeUnavailable, []client.CallOption{client.WithSession("made-up")}},
		{"desk.fail", fails("tool_error"), toolmesh.CodeToolError, nil},
		{"desk.fail", fails("tool_error"), toolmesh.CodeToolError, []client.CallOption{client.WithIdempotencyKey("k")}},
		{"desk.fail", fails("tool_error"), toolmesh.CodeToolError, []client.CallOption{client.WithIdempotencyKey("k")}},
		{"desk.fail", fails("other"), toolmesh.CodeInvalidRequest, []client.CallOption{client.WithIdempotencyKey("k")}},
		{"desk.fail", fails("worker_crashed"), toolmesh.CodeWorkerCrashed, nil},
		{"desk.fail", fails("unavailable"), toolmesh.CodeUnavailable, nil},
		{"desk.hold", large("late", size), toolmesh.CodeDeadlineExceeded, []client.CallOption{client.WithTimeout(3 * time.Second)}},
		{"desk.wide", json.RawMessage(`{"key":"w","size":3000000}`), "", nil},
		{"desk.wide", json.RawMessage(`{"key":"w","size":3000000}`), "", []client.CallOption{client.WithIdempotencyKey("w")}},
	}
	for _, tc := range calls {
		call(t.Context(), tc.id, tc.args, tc.want, tc.options...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-d.gate("cancelled").started
		cancel()
	}()
	call(ctx, "desk.hold", large("cancelled", size), toolmesh.CodeCancelled)
	for _, err := range c.Stream(t.Context(), "desk.gen", json.RawMessage(`{"key":"s","n":2,"fail":true,"text":"`+text+`"}`)) {
		if err != nil && toolmesh.CodeOf(err) != toolmesh.CodeToolError {
			t.Errorf("a stream that fails: %v", err)
		}
	}
	for range c.Stream(t.Context(), "desk.gen", json.RawMessage(`{"key":"l","n":100000,"size":1000,"text":"`+text+`"}`)) {
		break
	}
	_, err := c.Batch(t.Context(), []client.BatchCall{{Tool: "desk.add", Args: large("x", size)}, {Tool: "desk.fail", Args: fails("tool_error")}})
	if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable { // hosts alone run none
		t.Errorf("a batch: %v", err)
	}
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, nc) == 0 })
}
