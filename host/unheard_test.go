package host

import (
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A call whose event has no subscriber allocates nothing for it.
func TestAnEventWithoutSubscribersCostsNothing(t *testing.T) { //nolint:paralleltest // it counts allocations
	b, err := bus.New(meshtest.Broker(t).Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r := &runner{core: &core{bus: b}, audience: audience{bus: b, of: map[subjects.SessionID]*bus.Probe{"s": {Every: time.Hour}}}}
	c := &inflight{run: r, Reader: stream.Reader{Request: &codec.Request{Call: codec.Call{Session: "s", Tool: "a.b"}}, Identity: &codec.Identity{}}}
	r.audit(c, admit.Record{})
	meshtest.Until(t, "the broker says that there is no subscriber", func() bool {
		_, heard := r.audience.ask("s")
		return !heard
	})
	if n := testing.AllocsPerRun(1000, func() { r.audit(c, admit.Record{}) }); n != 0 {
		t.Errorf("%v allocations for each call", n)
	}
}
