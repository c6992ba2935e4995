package host_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A node that was cut off for so long that another process has become it gets
// the requests that waited for it when it is back. The other process has run
// them: they run once, and nothing is heard of the old start any more.
func TestRequestsOfANodeThatWasTakenOver(t *testing.T) {
	t.Parallel()
	const blackhole = "nothing passes for a while"
	for _, how := range []string{blackhole, "the connection is made anew"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			proxy := meshtest.NewProxy(t, broker)
			before, after := newDesk(), newDesk()
			options := &host.Options{Node: "twice"}
			old := before.serve(t, proxy.Connect(t), options)
			r := &rig{desk: before, t: t, broker: broker, h: old, nc: broker.Connect(t)}
			r.settled()
			if how == blackhole {
				proxy.Blackhole()
			} else {
				proxy.Cut(true)
			}
			next := after.serve(t, broker.Connect(t), options) // listens for 2.5 s
			beats := openInbox(t, r.nc, "mesh.hb.twice")
			const n = 20
			send := func(key string) {
				t.Helper()
				if a := r.ask(directed(next, "default", "desk.note"), fmt.Sprintf(`{"key":%q}`, key)); a.code() != "ok" || a.Header.Get("Mesh-Boot") != string(next.Boot()) {
					t.Errorf("%s: %v %s", key, a.Header, a.Data)
				}
			}
			for i := range n {
				send(fmt.Sprint("held back ", i))
			}
			proxy.Heal()
			deadline := time.After(waitTimeout)
			for lost, i := false, 0; !lost; i++ {
				send(fmt.Sprint("healed ", i))
				select {
				case <-old.Lost():
					lost = true
				case <-deadline:
					t.Fatal("the old process does not learn that it is not the node any more")
				default:
				}
			}
			stop(t, old)
			for key, runs := range before.counts() {
				if after.ran(key) > 0 {
					t.Errorf("%q ran %d times here and %d times there", key, runs, after.ran(key))
				}
			}
			// Messages that it sent before it could know may still arrive: three heartbeats in
			// 2.5 s.
			heard := 0
			for m, ok := beats.has(); ok; m, ok = beats.has() {
				if bootOf(t, m.Msg) == string(old.Boot()) {
					heard++
				}
			}
			if most := 3; heard > most || heard > 0 && how != blackhole {
				t.Errorf("%d heartbeats of the start that is over: callers take those of the other for lost", heard)
			}
		})
	}
}

// A node that was cut off, without a takeover, goes on.
func TestANodeThatWasCutOffGoesOn(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, broker)
	d := newDesk()
	h := d.serve(t, proxy.Connect(t), &host.Options{Node: "once"})
	r := &rig{desk: d, t: t, broker: broker, h: h, nc: broker.Connect(t)}
	r.settled()
	beats := openInbox(t, r.nc, "mesh.hb.once")
	beats.next()
	proxy.Blackhole()
	in := r.inbox()
	r.send(in, directed(h, "default", "desk.note"), `{"key":"held back"}`)
	silent := time.Now()
	meshtest.Until(t, "it has been silent for long enough to be taken over", func() bool {
		if _, ok := beats.has(); ok {
			silent = time.Now()
		}
		return time.Since(silent) > 3*time.Second
	})
	proxy.Heal()
	if a := in.next(); a.code() != "ok" {
		t.Errorf("what waited: %s", a.Data)
	}
	if n := d.ran("held back"); n != 1 {
		t.Errorf("what waited ran %d times", n)
	}
	for m := beats.next(); ; m = beats.next() {
		if bootOf(t, m.Msg) == string(h.Boot()) {
			break
		}
	}
	r.settled()
}

func bootOf(t *testing.T, m *nats.Msg) string {
	t.Helper()
	var b struct{ Boot string }
	if err := json.Unmarshal(m.Data, &b); err != nil {
		t.Fatalf("heartbeat %s: %v", m.Data, err)
	}
	return b.Boot
}
