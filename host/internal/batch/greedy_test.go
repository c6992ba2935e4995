package batch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
)

// A caller that reads none of its large answers, and goes on asking, takes no place that another
// session needs. It runs alone, as it takes so much of the processor that nodes of other tests fall
// silent under the race detector.
func TestAnswersThatAreNotReadHoldUpNoOtherSession(t *testing.T) {
	m := single(t, 1, router.Options{})
	created := registry.SessionRecord{ID: "mine", Epoch: "1", Created: time.Now()}
	if err := testmesh.Store(t, testmesh.Bus(t, m.nc, nil)).CreateSession(t.Context(), created); err != nil {
		t.Fatal(err)
	}
	c := testmesh.Client(t, m.nc, &client.Options{Session: "mine"})
	one := []client.BatchCall{{Tool: "stage.safe", Args: in{Name: "small"}}}
	if _, err := c.Batch(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	inbox := nats.NewInbox() + "."
	sub, err := m.nc.SubscribeSync(inbox + ">")
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	const size = 900 << 10
	flooding, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(flooding)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // faster than places become free
			}
			body := fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":"b%d","requests":[{"index":0,"tool_id":"stage.safe","kwargs":{"name":"l","size":%d}}]}`, n, size)
			_ = m.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: inbox + fmt.Sprint(n), Header: nats.Header{"Mesh-Read": {"1"}}, Data: []byte(body)})
		}
	}()
	defer func() { close(stop); <-flooding }()
	for refused := false; !refused; { // its places are taken
		a, err := sub.NextMsg(waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		refused = a.Header.Get("Mesh-Error-Code") == "busy"
	}
	for range 10 {
		meshtest.Until(t, "a batch of another session runs", func() bool { // a busy machine may lose one
			_, err := c.Batch(t.Context(), one, client.NoWait())
			if toolmesh.CodeOf(err) == toolmesh.CodeBusy {
				t.Fatalf("a batch of another session: %v", err)
			}
			return err == nil
		})
	}
}
