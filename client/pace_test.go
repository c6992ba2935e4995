package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// servePace has nodes serve the tool pace.work, which returns 1 or the error of work.
func servePace(t *testing.T, work func(call *host.Call, node subjects.NodeID) error, nodes ...subjects.NodeID) *meshtest.Server {
	t.Helper()
	broker := meshtest.Broker(t)
	view := answerRegistry(t, broker.Connect(t))
	for _, node := range nodes {
		h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "pace", Node: node})
		handler := func(ctx context.Context, call *host.Call, sink host.Sink) error {
			if err := work(call, node); err != nil {
				return err
			}
			return sink.Send(ctx, json.RawMessage("1"))
		}
		if _, err := h.Handle("work", host.HandlerFunc(handler), host.Schema(json.RawMessage(`{"type":"object"}`), nil)); err != nil {
			t.Fatal(err)
		}
		testmesh.Start(t, h)
	}
	known(t, view, "pace.work", len(nodes))
	return broker
}

// A node on which a tool is slow, or cannot be run, next to others is tried less by callers,
// as the registry tells them; it is not forgotten.
func TestNodesAreWeighed(t *testing.T) {
	t.Parallel()
	for what, work := range map[string]func() error{
		"slow":  func() error { time.Sleep(50 * time.Millisecond); return nil },
		"fails": func() error { return toolmesh.Errorf(toolmesh.CodeInternal, "no such device") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			broker := servePace(t, func(call *host.Call, node subjects.NodeID) error {
				if node == "bad" {
					return work()
				}
				return nil
			}, "bad", "one", "two", "three")
			c := newClient(t, broker.Connect(t), nil)
			met := func(c *client.Client, calls int) (bad int) {
				for range calls {
					r, err := c.Call(t.Context(), "pace.work", nil)
					if err != nil || r.Node == "bad" {
						bad++
					}
				}
				return bad
			}
			meshtest.Until(t, "it has met all", func() bool { return met(c, 20) > 0 })
			// The client's figures of nodes are five seconds old at most.
			meshtest.Until(t, "no more than 20 of 200 calls go to one node of four that "+what, func() bool { return met(c, 200) <= 20 })
			asks := broker.Connect(t)
			meshtest.Until(t, "the registry tells it", func() bool {
				met(c, 10)
				m, err := asks.Request("mesh.registry.default.candidates", []byte(`{"tool":"pace.work"}`), testTimeout)
				if err != nil {
					t.Fatal(err)
				}
				var answer struct {
					Nodes []struct {
						Node   subjects.NodeID
						Weight float64
					}
				}
				if err := json.Unmarshal(m.Data, &answer); err != nil {
					t.Fatal(err)
				}
				told := false
				for _, n := range answer.Nodes {
					if n.Node == "bad" {
						told = n.Weight > 0 && n.Weight < 0.5
					} else if n.Weight != 0 {
						t.Errorf("%s, which is well, has the weight %v", n.Node, n.Weight)
					}
				}
				return told
			})
		})
	}
}

// A tool that fails by its own code, for the calls of one session, is none of its node's
// faults: others go there as before.
func TestFailuresOfAToolDoNotCountForItsNode(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"raises": errors.New("these arguments"), "crashes": toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "exit status 1")} {
		t.Run(name, func(t *testing.T) { t.Parallel(); toolFails(t, failure) })
	}
}

func toolFails(t *testing.T, failure error) {
	broker := servePace(t, func(call *host.Call, _ subjects.NodeID) error {
		if call.Session == "bad" {
			return failure
		}
		return nil
	}, "one", "two", "three")
	nc := broker.Connect(t)
	beats, err := nc.SubscribeSync("mesh.hb.one")
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the node tells how the calls went", func() bool {
		for range 20 {
			_, _ = nc.Request("mesh.node.one.tools.bad.pace.work", []byte("{}"), testTimeout)
			_, _ = nc.Request("mesh.node.two.tools.default.pace.work", []byte("{}"), testTimeout)
		}
		m, err := beats.NextMsg(testTimeout)
		return err == nil && strings.Contains(string(m.Data), `"pace.work"`)
	})
	m, err := nc.Request("mesh.registry.default.candidates", []byte(`{"tool":"pace.work"}`), testTimeout)
	if err != nil || strings.Contains(string(m.Data), "weight") {
		t.Errorf("the registry weighs nodes by it: %s %v", m.Data, err)
	}
}
