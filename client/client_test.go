package client_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func connect(t *testing.T, s *meshtest.Server, opts *client.Options) *client.Client {
	t.Helper()
	c := testmesh.Client(t, s.Connect(t), opts)
	return c
}

// The error of a call that was never sent has started no and origin caller.
func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	c := connect(t, meshtest.Broker(t), nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		id   subjects.ToolID
		args any
		want toolmesh.Code
	}{
		"arguments that JSON cannot carry": {t.Context(), "a.b", map[string]any{"f": func() {}}, toolmesh.CodeInvalidArguments},
		"arguments that are no object":     {t.Context(), "a.b", []int{1}, toolmesh.CodeInvalidArguments},
		"a tool without a name":            {t.Context(), "", nil, toolmesh.CodeInvalidRequest},
		"a context that is over":           {ended, "a.b", nil, toolmesh.CodeCancelled},
		"more than a message carries":      {t.Context(), "a.b", map[string]string{"x": string(make([]byte, 2<<20))}, toolmesh.CodePayloadTooLarge},
	} {
		_, err := c.Call(tc.ctx, tc.id, tc.args)
		e := toolmesh.AsError(err)
		if e == nil || e.Code != tc.want || e.Started != toolmesh.StartedNo || e.Origin != toolmesh.OriginCaller {
			t.Errorf("%s: %#v, want %s that never started", name, e, tc.want)
		}
	}
	// What a model wrote need not be JSON.
	err := c.Ask(t.Context(), registry.VerbArguments, registry.Request{Tool: "a.b", Arguments: json.RawMessage("{'a':1}")}, new(registry.ArgumentsAnswer))
	if e := toolmesh.AsError(err); err == nil || e.Code != toolmesh.CodeInvalidRequest || e.Started != toolmesh.StartedNo {
		t.Errorf("a question that is no JSON: %v", err)
	}
}

func TestCallWithoutAnyNode(t *testing.T) {
	t.Parallel()
	c := connect(t, meshtest.Broker(t), nil)
	_, err := c.Call(t.Context(), "a.b", nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("no registry: %v, want unavailable that never started", err)
	}
	if ok, err := c.Cancel(t.Context(), "rpc_unknown"); ok || err != nil {
		t.Errorf("cancel of an unknown call = %v, %v", ok, err)
	}
	for _, err := range c.Stream(t.Context(), "a.b", nil) {
		if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
			t.Errorf("stream: %v", err)
		}
	}
}

// A client of another session shares everything, and closing it closes nothing.
func TestCallInAnotherSession(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	h := testmesh.Host(t, s.Connect(t), &host.Options{Session: "s1"})
	echo := host.Func(func(_ context.Context, in map[string]any) (map[string]any, error) { return in, nil })
	if _, err := h.Handle("echo", echo); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	c := connect(t, s, nil)
	other := c.In("s1")
	for range 2 {
		r, err := other.Call(t.Context(), "echo", json.RawMessage(`{"n":9007199254740993}`))
		if err != nil || string(r.Value) != `{"n":9007199254740992}` && string(r.Value) != `{"n":9007199254740993}` {
			t.Fatalf("echo: %v %v", r, err)
		}
		other.Close()
	}
	if other.Session() != "s1" || c.Session() != subjects.DefaultSession {
		t.Errorf("sessions are %q and %q", other.Session(), c.Session())
	}
}

// A plain NATS service may serve a session's tool. It sends no header of the mesh.
func TestServicesThatAreNoNodes(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	service := broker.Connect(t)
	for id, answer := range map[string]string{"json": `{"t":1}`, "text": "all well"} {
		if _, err := service.QueueSubscribe("tools.default."+id, "mesh", func(m *nats.Msg) { _ = m.Respond([]byte(answer)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := service.Flush(); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, broker.Connect(t), nil)
	stream := func(id subjects.ToolID) (items []string, err error) {
		var chunk client.Chunk
		for chunk, err = range c.Stream(t.Context(), id, nil) {
			if err == nil {
				items = append(items, string(chunk.Data))
			}
		}
		return items, err
	}
	if r, err := c.Call(t.Context(), "json", nil); err != nil || string(r.Value) != `{"t":1}` {
		t.Errorf("a call: %+v, %v", r, err)
	}
	if items, err := stream("json"); err != nil || len(items) != 1 || items[0] != `{"t":1}` {
		t.Errorf("a stream: %q, %v; want its result as the only item", items, err)
	}
	_, err := c.Call(t.Context(), "text", nil)
	_, streamErr := stream("text")
	for what, err := range map[string]error{"call": err, "stream": streamErr} {
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeProtocolError || !strings.Contains(e.Message, "all well") {
			t.Errorf("a %s whose answer is not JSON: %v", what, err)
		}
	}
}
