package main

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Killing `mesh call` ends its calls.
func TestKilledCallEnds(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "desk"})
	started, ended := make(chan struct{}), make(chan error)
	hold := host.HandlerFunc(func(ctx context.Context, _ *host.Call, _ host.Sink) error {
		started <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	})
	if _, err := h.Handle("hold", hold, host.Schema(json.RawMessage(`{"type":"object"}`), nil)); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	cmd := meshCommand(t, t.TempDir(), "call", "desk.hold", "{}", "--timeout=1h", "--server="+broker.URL)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-started
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	select {
	case err := <-ended:
		if e := toolmesh.AsError(err); e.Code != toolmesh.CodeCancelled || e.Details["reason"] != "caller_gone" {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}
