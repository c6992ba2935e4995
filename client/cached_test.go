package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// numbered serves a tool whose result is how often it ran: counts.run keeps nothing,
// counts.kept keeps it at the node.
func numbered(t *testing.T, s *meshtest.Server) *atomic.Int64 {
	t.Helper()
	h, err := host.New(s.Connect(t), &host.Options{Index: "counts"})
	if err != nil {
		t.Fatal(err)
	}
	n := new(atomic.Int64)
	run := host.Func(func(_ context.Context, in map[string]any) (int64, error) {
		if in["fail"] != nil {
			return 0, errors.New("as asked")
		}
		return n.Add(1), nil
	})
	for name, a := range map[string]tool.Annotations{"run": {}, "kept": {CacheTTL: time.Hour}} {
		if _, err := h.Handle(name, run, host.Annotate(a)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(context.Background()) })
	return n
}

// A caller hears where its result is from, and may ask for a run.
func TestCacheOfTheNode(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	numbered(t, s)
	c := connect(t, s, nil)
	for i, step := range []struct {
		opts       []client.CallOption
		value, use string
	}{
		{nil, "1", "miss"},
		{nil, "1", "hit"},
		{[]client.CallOption{client.WithSession("other")}, "2", "miss"},
		{[]client.CallOption{client.NoCache()}, "3", "bypass"},
		{nil, "3", "hit"},
	} {
		r, err := c.Call(t.Context(), "counts.kept", nil, step.opts...)
		if err != nil || string(r.Value) != step.value || r.Cache != step.use {
			t.Errorf("%d: %+v %v, want %s, %s", i, r, err, step.value, step.use)
		}
	}
}

// A CachedTool keeps results beside its caller, by canonical arguments and by what the
// call asks for.
func TestCachedTool(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := numbered(t, s)
	c := connect(t, s, nil)
	kept := c.Cached("counts.run", time.Hour, 4)
	for i, step := range []struct {
		args  any
		opts  []client.CallOption
		value string
		hit   bool
	}{
		{map[string]any{"b": 1, "a": "x"}, nil, "1", false},
		{[]byte(`{"a":"\u0078", "b":1}`), nil, "1", true},
		{[]byte(`{"a":"x","b":1.0}`), nil, "2", false},
		{map[string]any{"b": 1, "a": "x"}, []client.CallOption{client.WithSession("other")}, "3", false},
		{map[string]any{"b": 1, "a": "x"}, []client.CallOption{client.WithIsolation(toolmesh.IsolationFresh)}, "4", false},
		{map[string]any{"b": 1, "a": "x"}, []client.CallOption{client.NoCache()}, "5", false},
		{map[string]any{"b": 1, "a": "x"}, nil, "5", true},
		{nil, nil, "6", false}, // the fifth: the second one gives way
		{[]byte(` {} `), nil, "6", true},
		{[]byte(`{"a":"x","b":1.0}`), nil, "7", false},
	} {
		r, err := kept.Call(t.Context(), step.args, step.opts...)
		if err != nil || string(r.Value) != step.value || (r.Cache == "hit") != step.hit || r.RPCID == "" {
			t.Errorf("%d: %+v %v, want %s, hit %t", i, r, err, step.value, step.hit)
		}
		if err == nil {
			r.Value[0] = 'x' // it is the caller's
		}
	}
	for range 2 {
		if _, err := kept.Call(t.Context(), map[string]any{"fail": true}); toolmesh.CodeOf(err) != toolmesh.CodeToolError {
			t.Errorf("error is %v", err)
		}
	}
	for _, args := range []any{[]int{1}, []byte(`{"a":1,"a":2}`)} {
		if _, err := kept.Call(t.Context(), args); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
			t.Errorf("%v: %v", args, err)
		}
	}
	if n.Load() != 7 {
		t.Errorf("%d runs", n.Load())
	}
}
