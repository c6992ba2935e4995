package client_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A connection is cut, by a broker for which too much waits as by anybody, and the results that
// were on their way are lost. The node has them: the client, which does not know yet which node
// that is, asks for them again. On a loaded machine the connection may be back, or answer, too late
// for a call: then it is cut once more.
func TestResultsLostWithTheConnection(t *testing.T) {
	t.Parallel()
	const calls, size = 12, 100_000
	broker := meshtest.Broker(t)
	started, release := make(chan struct{}, calls), make(chan struct{})
	h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "wide"})
	wide := func(ctx context.Context, in struct {
		N int `json:"n"`
	}) (string, error) {
		started <- struct{}{}
		<-release
		return strings.Repeat(string(rune('a'+in.N%20)), size), nil
	}
	if _, err := h.Handle("text", host.Func(wide)); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	proxy := meshtest.NewProxy(t, broker)
	t.Cleanup(proxy.Heal)
	c := newClient(t, proxy.Connect(t), &client.Options{QueueOnly: true})
	ends := make(chan error, calls)
	for cuts := uint64(1); ; cuts++ {
		for n := range calls {
			go func() {
				r, err := c.Call(t.Context(), "wide.text", map[string]int{"n": n})
				var text string
				if err == nil {
					err = r.Decode(&text)
				}
				if err == nil && (len(text) != size || text[0] != byte('a'+n%20)) {
					err = toolmesh.Errorf(toolmesh.CodeInternal, "call %d has another one's result", n)
				}
				ends <- err
			}()
		}
		for range calls {
			wait(t, "start", started)
		}
		proxy.Cut(true)
		for range calls {
			release <- struct{}{}
		}
		meshtest.Until(t, "the results are sent, to nobody", func() bool { return h.Figures().Calls == cuts*calls })
		proxy.Heal()
		late := 0
		for range calls {
			switch err := wait(t, "a call's end", ends); {
			case err != nil && (cuts == 5 || toolmesh.CodeOf(err) != toolmesh.CodeUnavailable):
				t.Errorf("a call: %v", err)
			case err != nil:
				late++
			}
		}
		if late == 0 {
			return
		}
	}
}

// After a cut the caller cannot know its node's state: the error is unavailable, not node_lost.
func TestCutConnectionIsNotANodeLost(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	asked := make(chan struct{}, 1)
	sub, err := nc.QueueSubscribe("tools.default.gone.tool", "mesh", func(_ *nats.Msg) { asked <- struct{}{} }) // and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	proxy := meshtest.NewProxy(t, broker)
	c := newClient(t, proxy.Connect(t), &client.Options{QueueOnly: true})
	call := start(t, c, "gone.tool", toolArgs{})
	wait(t, "the request", asked)
	proxy.Cut(false)
	e := toolmesh.AsError(wait(t, "the end", call).err)
	if e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedUnknown || e.Details["reason"] != "connection_cut" && !strings.Contains(e.Message, "ping") { // a new connection may be slow
		t.Errorf("after the cut: %+v", e)
	}
}
