package host_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/router/standby"
	"github.com/toolmesh/toolmesh/tool"
)

// Misuse of the exported API is an error that names the fault, and no panic.
func TestMisuseIsAnError(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	h := newHost(t, broker.Connect(t), &host.Options{Index: "desk"})
	c := testmesh.Client(t, broker.Connect(t), nil)
	x, err := executor.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	ctx := t.Context()
	described := &tool.Descriptor{ID: "desk.a", Name: "a", Source: tool.SourceGo}
	for what, try := range map[string]func() error{
		"client.New":                     func() error { _, err := client.New(nil, nil); return err },
		"host.New":                       func() error { _, err := host.New(nil, nil); return err },
		"client.NewOn":                   func() error { _, err := client.NewOn(nil, nil); return err },
		"host.NewOn":                     func() error { _, err := host.NewOn(nil, nil); return err },
		"registry.NewStore":              func() error { _, err := registry.NewStore(nil); return err },
		"router.New":                     func() error { _, err := router.New(nil, nil); return err },
		"agent.New":                      func() error { _, err := agent.New(nil, t.TempDir(), nil); return err },
		"Handle without a handler":       func() error { _, err := h.Handle("x", nil); return err },
		"Handle of a nil function":       func() error { _, err := h.Handle("x", host.HandlerFunc(nil)); return err },
		"Handle of a nil typed function": func() error { _, err := h.Handle("x", host.Func[struct{}, int](nil)); return err },
		"Handle of a nil stream":         func() error { _, err := h.Handle("x", host.Stream[struct{}, int](nil)); return err },
		"HandleIn nothing":               func() error { _, err := h.HandleIn("", "", "x", echo); return err },
		"Add of nothing":                 func() error { return h.Add("desk", "", host.Tool{}) },
		"Add without a handler":          func() error { return h.Add("desk", "", host.Tool{Descriptor: described}) },
		"Publish of nothing":             func() error { return h.Publish(ctx, host.Service{Index: "desk", Tools: make([]host.Tool, 1)}) },
		"Publish without a handler": func() error {
			return h.Publish(ctx, host.Service{Index: "desk", Tools: []host.Tool{{Descriptor: described}}})
		},
		"Publish of no name": func() error {
			return h.Publish(ctx, host.Service{Index: "desk", Tools: []host.Tool{{Descriptor: &tool.Descriptor{}, Handler: echo}}})
		},
		"Publish of an untold": func() error {
			return h.Publish(ctx, host.Service{Index: "desk", Unavailable: make([]host.Unavailable, 1)})
		},
		"Handle of a nil option": func() error { _, err := h.Handle("x", echo, nil, host.Schema(json.RawMessage("{"), nil)); return err },
		"Call of a nil option":   func() error { _, err := c.Call(ctx, "desk.none", nil, nil); return err },
		"Batch of a nil option":  func() error { _, err := c.Batch(ctx, nil, nil); return err },
		"Stream of a nil option": func() (err error) {
			for _, err = range c.Stream(ctx, "desk.none", nil, nil) {
			}
			return err
		},
		"registry.NewResponder": func() error { _, err := registry.NewResponder(nil, nil, nil); return err },
		"standby.New":           func() error { _, err := standby.New(nil, nil, "", nil); return err },
		"registry.Acquire": func() error {
			_, err := registry.Acquire(ctx, nil, registry.NodeRecord{Node: "n", Boot: "b"}, nil, nil)
			return err
		},
		"registry.OpenView":       func() error { _, err := registry.OpenView(ctx, nil, nil); return err },
		"Call of no tool":         func() error { _, err := c.Call(ctx, "", nil); return err },
		"Call of no arguments":    func() error { _, err := c.Call(ctx, "desk.a", make(chan int)); return err },
		"Batch of nothing":        func() error { _, err := c.Batch(ctx, make([]client.BatchCall, 1)); return err },
		"Describe of no tool":     func() error { _, err := c.Describe(ctx, ""); return err },
		"Open of nothing":         func() error { _, err := x.Open(ctx, executor.Spec{}); return err },
		"tool.Compile of no JSON": func() error { _, err := tool.Compile(json.RawMessage("{")); return err },
		"tool.Bind of nothing":    func() error { _, _, err := tool.Bind(&tool.Descriptor{}, []json.RawMessage{nil}, nil); return err },
	} {
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("%s panics: %v", what, p)
					err = context.Canceled
				}
			}()
			return try()
		}()
		if err == nil {
			t.Errorf("%s is no error", what)
		} else if code := toolmesh.CodeOf(err); !code.Valid() || code == toolmesh.CodeInternal && what != "Open of nothing" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Labels by which no placement or setting could name a node are refused, by whichever way they come.
func TestLabelsAreChecked(t *testing.T) {
	t.Parallel()
	b := testmesh.Bus(t, meshtest.Broker(t).Connect(t), nil)
	h, err := host.NewOn(b, &host.Options{Labels: map[string]string{"zone": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, labels := range []map[string]string{{"": "a"}, {"a,b": "c"}, {"a": " b"}, {"a": "b,c"}} {
		if _, err := host.NewOn(b, &host.Options{Labels: labels}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("Options.Labels %q: %v", labels, err)
		}
		if err := h.Label(t.Context(), labels); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("Label %q: %v", labels, err)
		}
	}
	if err := h.Label(t.Context(), map[string]string{"a,b": ""}); toolmesh.CodeOf(err) == toolmesh.CodeInvalidRequest {
		t.Errorf("a label that an earlier version has put cannot be removed: %v", err)
	}
}
