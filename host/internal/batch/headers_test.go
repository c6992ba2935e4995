package batch_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// The headers of a batch hold for each of its calls, on the node that runs the batch and on others.
func TestHeadersOfABatchHoldForItsCalls(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	asked := host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		return sink.Send(ctx, fmt.Appendf(nil, `"%s %v"`, call.Isolation, call.NoCache))
	})
	for i, r := range m.routers {
		if _, err := r.Handle(subjects.IndexName(fmt.Sprint("of", i)), "asked", asked); err != nil {
			t.Fatal(err)
		}
	}
	calls := []client.BatchCall{{Tool: "of0.asked"}, {Tool: "of1.asked"}}
	for _, c := range []struct {
		want    string
		options []client.CallOption
	}{
		{`[" false" " false"]`, nil},
		{`["fresh true" "fresh true"]`, []client.CallOption{client.WithIsolation(toolmesh.IsolationFresh), client.NoCache()}},
		{`[unavailable started:false unavailable started:false]`, []client.CallOption{client.WithRevision("of another time")}},
	} {
		results, err := m.client.Batch(t.Context(), calls, c.options...)
		if got := fmt.Sprint(outcome(results)); err != nil || got != c.want {
			t.Errorf("%s, want %s: %v", got, c.want, err)
		}
	}
	answer := m.request(t, nats.Header{"Mesh-Idempotency-Key": {"k"}}, `{"type":"rpc_batch_call","requests":[{"tool_id":"of0.asked"}]}`)[0]
	if answer.Header.Get("Mesh-Error-Code") != "invalid_request" || answer.Header.Get("Mesh-Started") != "false" {
		t.Errorf("a batch with an idempotency key: %v %s", answer.Header, answer.Data)
	}
	const batch = `{"type":"rpc_batch_call","batch_id":"required","requests":[{"tool_id":"of0.asked"}]}`
	if answer := m.request(t, nats.Header{"Mesh-Require": {"batch"}}, batch)[0]; answer.Header.Get("Mesh-Error-Code") != "" {
		t.Errorf("a batch that requires batches: %v %s", answer.Header, answer.Data)
	}
	// What may be the same batch in another form, or ran elsewhere, has begun or not: nobody knows.
	for what, tc := range map[string]struct {
		header nats.Header
		body   string
	}{
		"in another form":           {nil, batch + " "},
		"again, without its object": {nats.Header{"Mesh-Rpc-Id": {"required"}, "Mesh-Again": {"5"}, "Mesh-Ref": {"default.gone"}, "Mesh-Digest": {"SHA-256=" + strings.Repeat("A", 43) + "="}}, ""},
	} {
		answer := m.request(t, tc.header, tc.body)[0]
		if answer.Header.Get("Mesh-Error-Code") != "invalid_request" || answer.Header.Get("Mesh-Started") != "" || strings.Contains(string(answer.Data), `"started"`) {
			t.Errorf("%s: %v %s", what, answer.Header, answer.Data)
		}
	}
}
