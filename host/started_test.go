package host_test

import (
	"context"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
)

// crowd is a handler whose calls wait for a worker, as the executor's do: their errors say
// whether the tool's code began.
type crowd struct {
	waiting chan struct{} // one element for each call that waits
	ended   chan error    // the cause of each context
	fails   func(ctx context.Context) error
}

func newCrowd(fails func(context.Context) error) *crowd {
	return &crowd{waiting: make(chan struct{}, 100), ended: make(chan error, 100), fails: fails}
}

// ServeTool implements [host.Handler].
func (c *crowd) ServeTool(ctx context.Context, _ *host.Call, _ host.Sink) error {
	c.waiting <- struct{}{}
	<-ctx.Done()
	c.ended <- context.Cause(ctx)
	return c.fails(ctx)
}

// ofWorker returns the executor's error of a call whose context has ended.
func ofWorker(started toolmesh.Started) func(context.Context) error {
	return func(ctx context.Context) error {
		return toolmesh.AsError(ctx.Err()).WithOrigin(toolmesh.OriginWorker).WithStarted(started)
	}
}

// Only the handler knows whether the tool's code began before the call was over.
func TestErrorsBeforeTheStartSayNotStarted(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	handlers := map[string]*crowd{
		"queued": newCrowd(ofWorker(toolmesh.StartedNo)),
		"ran":    newCrowd(ofWorker(toolmesh.StartedYes)),
		"unsure": newCrowd(ofWorker(toolmesh.StartedUnknown)),
		"go":     newCrowd(func(ctx context.Context) error { return ctx.Err() }),
		"full": newCrowd(func(context.Context) error {
			return toolmesh.Errorf(toolmesh.CodeBusy, "no worker").WithStarted(toolmesh.StartedNo)
		}),
	}
	for name, handler := range handlers {
		if _, err := r.h.Handle(name, handler); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]struct{ started, origin string }{
		"queued": {"false", "agent"}, "full": {"false", "agent"}, "ran": {"true", "worker"}, "unsure": {"unknown", "worker"}, "go": {"true", "agent"},
	} {
		for _, how := range []string{"", "1", "inbox"} {
			var more []string
			if how != "" {
				more = []string{"Mesh-Stream", how}
			}
			a := r.call(name, "", append(more, "Mesh-Timeout-Ms", "300")...)
			if a.code() != "deadline_exceeded" || a.Error.started() != want.started || a.Error.Origin != want.origin || a.Error.Details["limit"] != "time" {
				t.Errorf("%s, stream %q: %s, want started %s by %s", name, how, a.Data, want.started, want.origin)
			}
			wait(t, "the call", handlers[name].waiting)

			in, joined, id := r.inbox(), r.inbox(), name+how
			subject := "tools.default.desk." + name
			r.send(in, subject, "", append(more, "Mesh-Rpc-Id", id)...)
			wait(t, "the call", handlers[name].waiting)
			r.send(joined, subject, "", append(more, "Mesh-Rpc-Id", id)...)
			r.settled()
			r.ask("mesh.ctl.default."+id, "")
			for _, in := range []*inbox{in, joined} {
				if a := in.next(); a.code() != "cancelled" || a.Error.started() != want.started {
					t.Errorf("%s, stream %q: %s, want started %s", name, how, a.Data, want.started)
				}
			}
			// Its cancel came: it does not begin later.
			for _, body := range []string{"", "{}"} {
				again := r.ask(subject, body, append(more, "Mesh-Rpc-Id", id)...)
				if again.code() != "cancelled" && (body == "" || again.code() != "invalid_request") {
					t.Errorf("%s, stream %q, repeated with %q: %s", name, how, body, again.Data)
				}
			}
			if n := len(handlers[name].waiting); n > 0 {
				t.Errorf("%s, stream %q: it was made once more after its cancel", name, how)
			}
		}
	}
	// A call that did not begin and was not cancelled may be sent again.
	for range 2 {
		r.call("queued", "", "Mesh-Timeout-Ms", "20", "Mesh-Rpc-Id", "late")
		wait(t, "the call", handlers["queued"].waiting)
	}
}

// Nor has it on a node that stops, or when its caller is gone: another node, or
// the same, may be sent it.
func TestCallsThatNeverBeganMayGoElsewhere(t *testing.T) {
	t.Parallel()
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		queued := newCrowd(ofWorker(toolmesh.StartedNo))
		if _, err := r.h.Handle("queued", queued); err != nil {
			t.Fatal(err)
		}
		a := r.call("queued", "", "Mesh-Stream", "1", "Mesh-Credit", "1")
		if a.code() != "cancelled" || a.Error.started() != "false" || a.Error.Details["reason"] != "caller_gone" {
			t.Errorf("answer = %s", a.Data)
		}
	})
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		other := newDesk().host(t, r.broker.Connect(t), &host.Options{Index: "other"})
		queued := newCrowd(ofWorker(toolmesh.StartedNo))
		if _, err := other.Handle("queued", queued); err != nil {
			t.Fatal(err)
		}
		testmesh.Start(t, other)
		in := r.inbox()
		r.send(in, "tools.default.other.queued", "")
		wait(t, "the call", queued.waiting)
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = other.Stop(over)
		if a := in.next(); a.code() != "unavailable" || a.Error.started() != "false" || !strings.Contains(a.Error.Message, "stopped") {
			t.Errorf("answer = %s", a.Data)
		}
	})
}

// A function that made calls has itself begun, also if those did not start, for every kind of
// handler and also after its end.
func TestPassedOnErrorsHaveStartedInEveryHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := testmesh.Client(t, r.nc, nil)
	nested := func(ctx context.Context) error {
		_, err := c.Call(ctx, "desk.add", map[string]any{"a": 1, "b": 2})
		return err
	}
	late := newCrowd(nested)
	for name, handler := range map[string]host.Handler{
		"late": late,
		"relays": host.HandlerFunc(func(ctx context.Context, _ *host.Call, _ host.Sink) error {
			_, err := c.Call(ctx, "desk.add", map[string]any{"a": "no number"})
			return err
		}),
	} {
		if _, err := r.h.Handle(name, handler); err != nil {
			t.Fatal(err)
		}
	}
	if a := r.call("late", "", "Mesh-Timeout-Ms", "20"); a.code() != "deadline_exceeded" || a.Error.started() != "true" {
		t.Errorf("a call after the end: %s", a.Data)
	}
	if a := r.call("relays", ""); a.code() != "invalid_arguments" || a.Error.started() != "true" {
		t.Errorf("a call that was refused: %s", a.Data)
	}
}
