package bus_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
)

// While a probe is on its way, the previous one tells whether there is a subscriber.
func TestProbeOnItsWay(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	var p bus.Probe
	t.Cleanup(p.Close)
	next := func() (reply string) {
		meshtest.Until(t, "the next probe", func() bool { reply = p.Next(b); return reply != "" })
		return reply
	}
	if err := b.Conn().PublishMsg(&nats.Msg{Subject: "nobody", Reply: next()}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the broker's word", p.NoSubscriber)
	next()
	if !p.NoSubscriber() {
		t.Error("a probe without an answer yet counts as a subscriber")
	}
	next() // the one before had a subscriber
	if p.NoSubscriber() || p.Gone(time.Nanosecond) {
		t.Error("a probe that met a subscriber counts as none")
	}
}
