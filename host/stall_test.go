package host_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// unstalled is how long a test of a stall waits: less than the 20 s after which the
// mesh's connection is closed, as its pings have no answer, and the minute after which
// nats.go gives a write up. Then everything goes on.
const unstalled = 16 * time.Second

// While a connection takes nothing, calls still end when their time is up, and
// the host can be stopped.
func TestConnectionStalls(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T, *meshtest.Proxy) *nats.Conn{
		"the mesh's": func(t *testing.T, p *meshtest.Proxy) *nats.Conn { return p.Connect(t) },
		"any": func(t *testing.T, p *meshtest.Proxy) *nats.Conn {
			nc, err := nats.Connect(p.URL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			return nc
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// nats.go reads nothing while it waits to answer a ping, and so would not read the cancel.
			broker := meshtest.Broker(t, meshtest.Config(`ping_interval: "5m"`))
			proxy := meshtest.NewProxy(t, broker)
			d, nc := newDesk(), connect(t, proxy)
			h := d.host(t, nc, &host.Options{})
			testmesh.Start(t, h)
			joined(t, nc, h)
			r := &rig{desk: d, t: t, broker: broker, h: h, nc: broker.Connect(t)}
			in := r.inbox()
			r.send(in, "tools.default.desk.hold", `{"key":"timed"}`, "Mesh-Timeout-Ms", "3000", "Mesh-Keepalive", "1")
			r.send(in, "tools.default.desk.hold", `{"key":"cancelled"}`, "Mesh-Rpc-Id", "cancelled", "Mesh-Keepalive", "1")
			r.send(in, "tools.default.desk.gen", `{"key":"stream","n":9,"gate":true}`, "Mesh-Stream", "inbox", "Mesh-Timeout-Ms", "3000")
			d.gate("stream").release <- struct{}{}
			for _, key := range []string{"timed", "cancelled", "stream"} {
				wait(t, "start of "+key, d.gate(key).started)
			}
			wait(t, "the first item", d.gate("stream").sent)
			proxy.Stall()
			t.Cleanup(proxy.Heal)
			meshtest.Clog(t, nc)
			r.send(nil, "mesh.ctl.default.cancelled", "")
			stalled := time.NewTimer(unstalled)
			defer stalled.Stop()
			for _, key := range []string{"timed", "cancelled", "stream"} {
				select {
				case err := <-d.gate(key).ended:
					if err == nil {
						t.Errorf("%s ended by itself", key)
					}
				case <-stalled.C:
					t.Fatalf("%s goes on while the connection stalls", key)
				}
			}
			if name == "any" {
				proxy.Heal() // to be stopped it waits for its socket
			}
			stopped := make(chan error, 1)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			stalled.Reset(unstalled)
			go func() { stopped <- h.Stop(ctx) }()
			select {
			case <-stopped:
			case <-stalled.C:
				t.Fatal("Stop waits for the connection")
			}
		})
	}
}
