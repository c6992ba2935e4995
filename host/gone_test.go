package host_test

import (
	"testing"

	"github.com/toolmesh/toolmesh"
)

// The caller of a unary call dies without a word: its call ends. One that another caller
// has joined, that has an idempotency key, or that is to outlive its caller goes on.
func TestCallerOfAUnaryCallIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	dead := r.broker.Connect(t)
	in := openInbox(t, dead, dead.NewInbox())
	for key, more := range map[string][]string{
		"alone": {"Mesh-Keepalive", "1"}, "joined": {"Mesh-Keepalive", "1"}, "silent": nil,
		"key": {"Mesh-Keepalive", "1", "Mesh-Idempotency-Key", "k"}, "outlives": {"Mesh-Keepalive", "1", "Mesh-Outlive", "1"},
	} {
		r.send(in, "tools.default.desk.hold", `{"key":"`+key+`"}`, append(more, "Mesh-Rpc-Id", key, "Mesh-Timeout-Ms", "600000")...)
		wait(t, "start", r.gate(key).started)
	}
	joined := r.inbox()
	r.send(joined, "tools.default.desk.hold", `{"key":"joined"}`, "Mesh-Rpc-Id", "joined", "Mesh-Keepalive", "1", "Mesh-Timeout-Ms", "600000")
	r.settled()
	dead.Close()
	if cause := toolmesh.AsError(wait(t, "end of a call whose caller is gone", r.gate("alone").ended)); cause == nil || cause.Code != toolmesh.CodeCancelled || cause.Details["reason"] != "caller_gone" {
		t.Errorf("cause = %v", cause)
	}
	for _, key := range []string{"joined", "silent", "key", "outlives"} {
		close(r.gate(key).release)
		if err := wait(t, "end", r.gate(key).ended); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
