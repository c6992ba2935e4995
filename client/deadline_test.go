package client_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Deadlines are in the broker's time. A caller with a caller's key may not ask the broker, and
// sends no deadline while no agent or router tells the time: by a clock that is hours behind, the
// deadline would have passed already.
func TestDeadlinesAreInTheBrokersTime(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t, meshtest.Config(`
authorization { users: [
  { user: node, password: node }
  { user: caller, password: caller, permissions: { publish: { deny: "$SYS.REQ.USER.INFO" } } }
] }`))
	node := broker.Connect(t, nats.UserInfo("node", "node"))
	newTools().serve(t, node, nil)
	sub, err := node.SubscribeSync("tools.default.desk.note")
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Flush(); err != nil {
		t.Fatal(err)
	}
	sends := func(c *client.Client) bool {
		t.Helper()
		if _, err := c.Call(t.Context(), "desk.note", nil, client.WithTimeout(testTimeout)); err != nil {
			t.Fatal(err)
		}
		m, err := sub.NextMsg(testTimeout)
		if err != nil {
			t.Fatal(err)
		}
		return m.Header.Get(codec.HeaderDeadline) != ""
	}
	queue := &client.Options{QueueOnly: true}
	refused := make(chan error, 10)
	hear := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
	measured := newClient(t, node, queue)
	meshtest.Until(t, "a caller that may ask the broker sends deadlines", func() bool { return sends(measured) })
	for what, nc := range map[string]*nats.Conn{
		"ours":    broker.Connect(t, append(client.ConnectOptions(), nats.UserInfo("caller", "caller"))...),
		"foreign": broker.Connect(t, nats.UserInfo("caller", "caller")),
	} {
		c := newClient(t, nc, queue)
		for range 2 { // before and after the broker has refused to tell the time
			if sends(c) {
				t.Errorf("%s: a deadline by the caller's own clock", what)
			}
		}
	}
	// Where nodes tell the time callers ask them alone: a broker logs each question that it refuses as an error.
	answerRegistry(t, node)
	told := newClient(t, broker.Connect(t, append(client.ConnectOptions(), nats.UserInfo("caller", "caller"), hear)...), queue)
	meshtest.Until(t, "a caller that nodes tell the time sends deadlines", func() bool { return sends(told) })
	if len(refused) > 0 {
		t.Errorf("the broker refused what a caller asked: %v", <-refused)
	}
}

// If the node that is asked for the time is frozen, or an answerer in an open mesh sends nonsense,
// the broker tells the time.
func TestTimeWithAFrozenNode(t *testing.T) {
	t.Parallel()
	for _, says := range []string{"", `{"now_ms":1700000000000,"bound_ms":-1}`, `{"now_ms":-1,"bound_ms":1}`, `{"now_ms":9000000000000000000,"bound_ms":1}`} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			timeBeside(t, says)
		})
	}
}

// timeBeside calls beside a node that answers so when it is asked for the time.
func timeBeside(t *testing.T, says string) {
	t.Helper()
	broker := meshtest.Broker(t)
	node := broker.Connect(t)
	newTools().serve(t, node, nil)
	calls, err := node.SubscribeSync("tools.default.desk.note")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.Subscribe("mesh.registry.default.time", func(m *nats.Msg) {
		if says != "" {
			_ = m.Respond([]byte(says))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := node.Flush(); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, broker.Connect(t), &client.Options{QueueOnly: true})
	meshtest.Until(t, "the caller sends deadlines", func() bool {
		if _, err := c.Call(t.Context(), "desk.note", nil, client.WithTimeout(testTimeout)); err != nil {
			t.Fatal(err)
		}
		m, err := calls.NextMsg(testTimeout)
		if err != nil {
			t.Fatal(err)
		}
		deadline, _ := strconv.ParseInt(m.Header.Get(codec.HeaderDeadline), 10, 64)
		if away := time.Until(time.UnixMilli(deadline)); deadline != 0 && (away <= 0 || away > 2*testTimeout) {
			t.Fatalf("a deadline that is %v away", away)
		}
		return deadline != 0
	})
}
