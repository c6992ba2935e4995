package batch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// Results that are larger than a message arrive by reference: a single one, and all of them
// together. So does a batch with calls that are larger than a message, through any node and on
// repetition. Messages are short, so that little is large: a busy machine has all of it copied in
// time for keepalives.
func TestLargeValuesInBatches(t *testing.T) {
	t.Parallel()
	const message = 128 << 10
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		m := open(t, top, 2, router.Options{})
		for what, tc := range map[string]struct {
			size, calls, pad int
		}{
			"one large result":  {3 * message, 1, 0},
			"two of them":       {2 * message, 2, 0},
			"many small ones":   {message / 10, 30, 0},
			"many small calls":  {1, 30, message / 10},
			"large and small":   {3 * message, 1, 3 * message},
			"everything at all": {message / 5 * 2, 10, message / 5 * 2},
		} {
			var calls []client.BatchCall
			for i := range tc.calls {
				calls = append(calls, call("safe", in{Name: fmt.Sprintf("%s %d ", what, i) + strings.Repeat("n", tc.pad), Size: tc.size}))
			}
			for range 2 { // the second time it is repeated
				results, err := m.client.Batch(t.Context(), calls, client.WithRPCID(subjects.RPCID("batch "+what)))
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				for i, r := range results {
					var text string
					if err := r.Decode(&text); err != nil || len(text) != len(fmt.Sprintf("%s %d ", what, i))+tc.pad+tc.size {
						t.Errorf("%s, call %d: %d bytes, %v", what, i, len(text), err)
					}
				}
				if tc.size > message {
					break // its reference is its call's, and read
				}
			}
			for i := range calls {
				if n := m.stage.ran(fmt.Sprintf("%s %d ", what, i) + strings.Repeat("n", tc.pad)); n != 1 {
					t.Errorf("%s: call %d ran %d times", what, i, n)
				}
			}
		}
		serving := top.Serve(t)
		js, err := jetstream.New(serving)
		if err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "nothing stays in the store", func() bool {
			stream, err := js.Stream(t.Context(), "OBJ_MESH_PAYLOADS")
			return err == nil && stream.CachedInfo().State.Msgs == 0
		})
	}, meshtest.MaxPayload(message))
}

// A caller without references gets the results that fit, and an error for each other one.
func TestLargeResultsWithoutReferences(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	for range 4 { // here and on the other node
		a, err := m.nc.Request("mesh.batch.default", []byte(`{"type":"rpc_batch_call","requests":[
			{"tool_id":"stage.safe","kwargs":{"name":"wide","size":2000000}},{"tool_id":"stage.safe","kwargs":{"name":"small"}}]}`), waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if body := string(a.Data); !strings.Contains(body, `"payload_too_large"`) || !strings.Contains(body, `"result":"small"`) {
			t.Errorf("%.300s", body)
		}
	}
}
