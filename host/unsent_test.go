package host_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// While a node is cut off, its calls keep sending keepalives that arrive nowhere. Their results
// arrive once it is back, and a call that still runs then sends its current state only.
func TestResultsOutliveKeepalivesWhileCutOff(t *testing.T) {
	t.Parallel()
	const calls = 6000
	const long = "Mesh-Timeout-Ms" // a busy machine takes more than the 30 s of other calls
	broker := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, broker)
	d := newDesk()
	h := d.serve(t, proxy.Connect(t), &host.Options{Slots: calls + 10})
	r := &rig{desk: d, t: t, broker: broker, h: h, nc: broker.Connect(t)}
	told := r.inbox() // of all that want to hear of their call
	for n := range calls {
		r.send(told, "tools.default.desk.hold", fmt.Sprintf(`{"key":"%d"}`, n), "Mesh-Keepalive", "1", long, "600000")
	}
	lasting := r.inbox()
	r.send(lasting, "tools.default.desk.hold", `{"key":"name lasts"}`, "Mesh-Keepalive", "1", long, "600000")
	wait(t, "start of the call that lasts", d.gate("name lasts").started)
	plain := r.inbox()
	r.send(plain, "tools.default.desk.hold", `{"key":"plain"}`, long, "600000")
	for n := range calls {
		wait(t, "start of a call", d.gate(fmt.Sprint(n)).started)
	}
	wait(t, "start of the plain call", d.gate("plain").started)
	proxy.Cut(true)
	away := time.Now()
	meshtest.Until(t, "each call has had time to say three times that it runs", func() bool { return time.Since(away) > 4*time.Second })
	d.gate("plain").release <- struct{}{}
	wait(t, "end of the plain call", d.gate("plain").ended)
	for n := range calls {
		d.gate(fmt.Sprint(n)).release <- struct{}{}
		wait(t, "end of a call", d.gate(fmt.Sprint(n)).ended)
	}
	for more := true; more; {
		_, more = lasting.has()
	}
	proxy.Heal()
	for range 2 {
		if m := lasting.next(); m.Header.Get("Mesh-Keepalive") != "1" {
			t.Errorf("of the call that lasts: %v %s", m.Header, m.Data)
		}
	}
	d.gate("name lasts").release <- struct{}{}
	for m := lasting.next(); ; m = lasting.next() {
		if m.Header.Get("Mesh-Keepalive") == "" {
			if a := readAnswer(m.Msg); a.code() != "ok" {
				t.Errorf("of the call that lasts: %s", m.Data)
			}
			break
		}
	}
	if a := plain.next(); a.code() != "ok" || string(a.Data) != `"released plain"` {
		t.Errorf("the plain caller is told %s", a.Data)
	}
	results := 0
	for results < calls {
		m := told.next()
		if m.Header.Get("Mesh-Keepalive") != "" {
			continue
		}
		if a := readAnswer(m.Msg); a.code() != "ok" {
			t.Fatalf("after %d results: %s", results, m.Data)
		}
		results++
	}
}
