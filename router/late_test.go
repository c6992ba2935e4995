package router_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// A caller that must not ask the broker for its time gets it from the mesh, and calls that the
// network delays beyond their deadline do not run.
func TestDelayedCallsDoNotRunAfterTheirDeadline(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t, meshtest.Config(`
authorization { users: [
  { user: node, password: node }
  { user: caller, password: caller, permissions: { publish: { deny: "$SYS.REQ.USER.INFO" } } }
] }`))
	node := broker.Connect(t, nats.UserInfo("node", "node"))
	r := testmesh.Router(t, node, nil)
	s, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ran := map[string]int{}
	note := func(_ context.Context, q query) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		ran[q.Text]++
		return q.Text, nil
	}
	if _, err := s.Handle("note", host.Func(note)); err != nil {
		t.Fatal(err)
	}
	seen, err := node.SubscribeSync("tools.s.note")
	if err != nil {
		t.Fatal(err)
	}
	proxy := meshtest.NewProxy(t, broker)
	c := testmesh.Client(t, proxy.Connect(t, nats.UserInfo("caller", "caller")), &client.Options{Session: "s", QueueOnly: true})
	// The monotonic clock of the test says when a call that was held is too late.
	call := func(text string, timeout time.Duration) error {
		_, err := c.Call(t.Context(), "note", query{Text: text}, client.WithTimeout(timeout))
		return err
	}
	meshtest.Until(t, "the client sends deadlines", func() bool {
		if err := call("first", time.Minute); err != nil {
			t.Fatal(err)
		}
		m, err := seen.NextMsg(time.Minute)
		return err == nil && m.Header.Get(codec.HeaderDeadline) != ""
	})
	for range 8 {
		began := time.Now()
		proxy.Stall()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := c.Call(ctx, "note", query{Text: "held"}); toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded {
			t.Errorf("a call that is held: %v", err)
		}
		cancel()
		meshtest.Until(t, "it is too late for certain", func() bool { return time.Since(began) > 600*time.Millisecond })
		proxy.Heal()
		if err := call("after", time.Minute); err != nil { // on the same connection
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if ran["held"] != 0 || ran["after"] != 8 {
		t.Errorf("ran %v", ran)
	}
}
