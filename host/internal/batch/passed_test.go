package batch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// However many nodes pass its answers on, one node has no more of them on their way to a session
// than of those that it sends itself.
func TestAnswersThatArePassedOnArePaced(t *testing.T) {
	const size, sent = 900 << 10, 75
	m := single(t, 4, router.Options{})
	inbox := nats.NewInbox() + "."
	sub, err := m.nc.SubscribeSync(inbox + ">")
	if err != nil {
		t.Fatal(err)
	}
	_ = sub.SetPendingLimits(-1, -1)
	began := time.Now() // answers count as read 5 s after they were sent
	nodes := []subjects.NodeID{"node-0", "node-1", "node-2", "node-3"}
	for n, k := 0, 0; n < sent; k++ {
		id := fmt.Sprint("b", k)
		if subjects.Owner(nodes, "default", id) != "node-0" {
			continue
		}
		n++
		body := fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":%q,"requests":[{"index":0,"tool_id":"stage.safe","kwargs":{"name":"l","size":%d}}]}`, id, size)
		if err := m.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: inbox + id, Header: nats.Header{"Mesh-Read": {"1"}}, Data: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	bytes := 0
	for pause := waitTimeout; ; {
		a, err := sub.NextMsg(pause)
		if err != nil {
			break
		}
		if bytes += len(a.Data); bytes >= 8<<20 {
			pause = time.Second // the rest of what may go comes at once
		}
	}
	// What the node sends itself, and what the three others pass on.
	if bytes < 8<<20 || bytes > 32<<20 && time.Since(began) < 5*time.Second {
		t.Errorf("%d bytes are in transit from one node, unread", bytes)
	}
}
