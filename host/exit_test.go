package host_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"runtime"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A function that ends its goroutine, as t.Fatal in the handler of a test does,
// has failed: its caller is told, and its slot is free again.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	h, c := office(t, &host.Options{Index: "exit", Slots: 1})
	unary := host.Func(func(context.Context, struct{}) (int, error) { runtime.Goexit(); return 1, nil })
	stream := host.Stream(func(context.Context, struct{}) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			yield(1, nil)
			runtime.Goexit()
		}
	})
	for name, handler := range map[string]host.Handler{"unary": unary, "stream": stream} {
		if _, err := h.Handle(name, handler); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the one slot is there for each
		_, err := c.Call(t.Context(), "exit.unary", nil, client.WithTimeout(waitTimeout))
		if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodeToolError || e.Type != "goexit" || e.Started != toolmesh.StartedYes {
			t.Errorf("unary: %v", err)
		}
		items := 0
		for _, err = range c.Stream(t.Context(), "exit.stream", nil, client.WithTimeout(waitTimeout)) {
			if err == nil {
				items++
			}
		}
		if e := toolmesh.AsError(err); items != 1 || toolmesh.CodeOf(err) != toolmesh.CodeToolError || e.Type != "goexit" {
			t.Errorf("stream: %d items, then %v", items, err)
		}
	}
	stop, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if err := h.Stop(stop); err != nil {
		t.Errorf("stop: %v", err)
	}
	if n := h.Figures().InFlight; n != 0 {
		t.Errorf("%d calls are left in flight", n)
	}
}

// A host that was drained or stopped before its start does not start; bad options have the code
// invalid_request.
func TestHostThatCannotStart(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	for name, tc := range map[string]struct {
		service string
		before  func(h *host.Host) error
	}{
		"drained":        {"exit", func(h *host.Host) error { return h.Drain(t.Context()) }},
		"stopped":        {"exit", func(h *host.Host) error { return h.Stop(t.Context()) }},
		"an odd service": {"a b", func(*host.Host) error { return nil }},
	} {
		h, err := host.New(nc, &host.Options{Index: "exit", Service: tc.service})
		if err != nil {
			t.Fatal(err)
		}
		if err := tc.before(h); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := h.Start(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("%s: Start: %v, want invalid_request", name, err)
		}
		if err := h.Stop(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ClosedError is an error of a type that callers can know.
type ClosedError struct{ order string }

func (e *ClosedError) Error() string { return "order " + e.order + " is closed" }

// The type of a failure is exported by its package, or empty: errors of errors.New and fmt.Errorf
// have no type for callers.
func TestTypeOfAFailure(t *testing.T) {
	t.Parallel()
	h, c := office(t, &host.Options{Index: "kinds"})
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"new":     {errors.New("plain"), ""},
		"wrapped": {fmt.Errorf("refund: %w", errors.New("plain")), ""},
		"own":     {&ClosedError{"7"}, "*host_test.ClosedError"},
		"inner":   {fmt.Errorf("refund: %w", &ClosedError{"7"}), "*host_test.ClosedError"},
		"path":    {&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, "*fs.PathError"},
	} {
		fails := host.Func(func(context.Context, struct{}) (int, error) { return 0, tc.err })
		if _, err := h.Handle(name, fails); err != nil {
			t.Fatal(err)
		}
		_, err := c.Call(t.Context(), subjects.ToolID("kinds."+name), nil, client.WithTimeout(waitTimeout))
		e := toolmesh.AsError(err)
		if e.Code != toolmesh.CodeToolError || e.Type != tc.want || e.Message != tc.err.Error() {
			t.Errorf("%s: type %q, want %q: %v", name, e.Type, tc.want, err)
		}
	}
}
