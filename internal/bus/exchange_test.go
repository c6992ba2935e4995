package bus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
)

// responder is a node of the test's own making: it takes requests on the subject "work".
type responder struct {
	nc       *nats.Conn
	requests chan *nats.Msg
}

func newResponder(t *testing.T, nc *nats.Conn) *responder {
	t.Helper()
	r := &responder{nc: nc, requests: make(chan *nats.Msg, 100)}
	if _, err := nc.Subscribe("work", func(m *nats.Msg) { r.requests <- m }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return r
}

// says sends one keepalive of the start b1 of the node n, with more headers.
func (r *responder) says(m *nats.Msg, more ...string) {
	h := nats.Header{"Mesh-Keepalive": {"1"}, "Mesh-Node": {"n"}, "Mesh-Boot": {"b1"}}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = []string{more[i+1]}
	}
	_ = r.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h})
}

// beats sends the heartbeats of a start of the node n until the test ends.
func (r *responder) beats(t *testing.T, boot string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ticker := time.NewTicker(200 * time.Millisecond)
	go func() {
		defer ticker.Stop()
		for {
			_ = r.nc.Publish("mesh.hb.n", codec.Encode(codec.Heartbeat{Node: "n", Boot: boot, State: "serving", Slots: 1}))
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return cancel
}

// user records the events of an exchange.
type user struct{ lost chan *bus.Peer }

func (u *user) Keepalive(*nats.Msg, *codec.Reply) {}
func (u *user) Subject(*bus.Peer) (string, error) { return "work", nil }
func (u *user) Silent(n *bus.Peer, lost bool) {
	if lost {
		u.lost <- n
	}
}

// asks makes a request to the subject "work", as a call if it has a name.
func asks(t *testing.T, nc *nats.Conn, name string) *bus.Exchange {
	t.Helper()
	b, err := bus.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	x := &bus.Exchange{What: "it ran"}
	if name != "" {
		x.User, x.Session, x.RPC, x.Findable = &user{lost: make(chan *bus.Peer, 1)}, "default", "one", true
	}
	if err := x.Open(b, 8); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	if err := x.Send(&nats.Msg{Subject: "work", Data: []byte("please"), Header: nats.Header{}}, nil); err != nil {
		t.Fatal(err)
	}
	return x
}

// ends waits for the error of an exchange that gets no answer.
func ends(t *testing.T, x *bus.Exchange) *toolmesh.Error {
	t.Helper()
	m, err := x.Next(t.Context())
	if err == nil {
		t.Fatalf("an answer has come: %v", m)
	}
	return toolmesh.AsError(err)
}

// A node that falls silent, or was so from the beginning, is lost after 2.5 s, with an unknown
// outcome. Its heartbeats and keepalives keep it.
func TestSilentNodeIsLost(t *testing.T) {
	t.Parallel()
	for name, speaks := range map[string]func(*testing.T, *responder, *nats.Msg){
		"silent from the beginning": func(*testing.T, *responder, *nats.Msg) {},
		"after a keepalive":         func(_ *testing.T, r *responder, m *nats.Msg) { r.says(m) },
		"after heartbeats": func(t *testing.T, r *responder, m *nats.Msg) {
			stop := r.beats(t, "b1")
			r.says(m)
			time.AfterFunc(4*time.Second, stop)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			r := newResponder(t, broker.Connect(t))
			x := asks(t, broker.Connect(t), "one")
			began := time.Now()
			speaks(t, r, <-r.requests)
			if e := ends(t, x); e.Code != toolmesh.CodeNodeLost || e.Started != toolmesh.StartedUnknown || !strings.Contains(e.Message, "whether it ran is not known") {
				t.Errorf("%v", e)
			}
			took := time.Since(began)
			if name == "after heartbeats" {
				took -= 4 * time.Second
			}
			if took < bus.Silence-time.Second { // a heartbeat is up to 200 ms old
				t.Errorf("lost after %v", took)
			}
			if n := <-x.User.(*user).lost; n.Name() != x.Peer().Name() {
				t.Errorf("told that %q is lost", n.Name())
			}
		})
	}
}

// Another start of the node is heard: the request was the earlier one's.
func TestRestartedNodeIsLost(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	r := newResponder(t, broker.Connect(t))
	x := asks(t, broker.Connect(t), "")
	r.says(<-r.requests)
	r.beats(t, "b2")
	if e := ends(t, x); e.Code != toolmesh.CodeNodeLost || !strings.Contains(e.Message, "node n has restarted") || e.Details["node"] != "n" {
		t.Errorf("%v", e)
	}
}

// A message that came before another start was noticed is the answer, even if it is read later.
func TestAnswerOfANodeThatThenRestarted(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	r := newResponder(t, broker.Connect(t))
	x := asks(t, broker.Connect(t), "")
	m := <-r.requests
	r.says(m)
	meshtest.Until(t, "the node is known", func() bool { return x.Peer() != nil })
	_ = m.Respond([]byte("done"))
	meshtest.Until(t, "the answer has come", func() bool { return len(x.Arrived()) > 0 })
	r.beats(t, "b2")
	meshtest.Until(t, "the other start is heard", func() bool { return !x.Peer().Usable() })
	if err := x.Look(t.Context(), time.Now()); err != nil {
		t.Errorf("%v", err)
	}
}

// The registry named a start that is over: the one that answers has the request.
func TestAnotherStartAnswers(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	r := newResponder(t, broker.Connect(t))
	b := open(t, broker.Connect(t), nil)
	x := &bus.Exchange{What: "it ran"}
	if err := x.Open(b, 8); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	if err := x.Send(&nats.Msg{Subject: "work"}, b.Listed("n", "b0")); err != nil {
		t.Fatal(err)
	}
	r.says(<-r.requests)
	meshtest.Until(t, "the start that has it is known", func() bool { return x.Peer().Boot == "b1" })
}

// A request that was sent again before it came here keeps the start for which it is, and its
// time.
func TestSentAgainByBoth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ boot, ago, wantBoot, wantAgo string }{
		{"", "", "b1", "1001"}, {"b0", "5000", "b0", "6001"},
	} {
		h := nats.Header{}
		if c.boot != "" {
			h["Mesh-Boot"], h["Mesh-Again"] = []string{c.boot}, []string{c.ago}
		}
		bus.SentAgain(h, "b1", time.Second)
		if h["Mesh-Boot"][0] != c.wantBoot || h["Mesh-Again"][0] != c.wantAgo {
			t.Errorf("%+v: %v", c, h)
		}
	}
}

// A node that is well and says nothing gets a call again, as the same one; another request
// is not sent twice.
func TestCallIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one", ""} {
		t.Run("named "+name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			r := newResponder(t, broker.Connect(t))
			stop := r.beats(t, "b1")
			x := asks(t, broker.Connect(t), name)
			r.says(<-r.requests)
			defer stop()
			if name != "" {
				go func() {
					again := <-r.requests
					if again.Header.Get("Mesh-Boot") != "b1" || again.Header.Get("Mesh-Again") == "" || string(again.Data) != "please" {
						t.Errorf("sent again as %v %s", again.Header, again.Data)
					}
					_ = again.Respond([]byte("done"))
				}()
			}
			m, err := x.Next(t.Context())
			if name != "" && (err != nil || string(m.Data) != "done") {
				t.Errorf("%v %v", m, err)
			}
			if name == "" && (toolmesh.CodeOf(err) != toolmesh.CodeNodeLost || len(r.requests) > 0) {
				t.Errorf("%v, and %d more requests", err, len(r.requests))
			}
		})
	}
}

// Nothing subscribes to the subject: that is the broker's word, and comes as it is.
func TestExchangeWithoutResponders(t *testing.T) {
	t.Parallel()
	x := asks(t, meshtest.Broker(t).Connect(t), "one")
	if m, err := x.Next(t.Context()); err != nil || !bus.NoResponders(m) {
		t.Errorf("%v %v", m, err)
	}
}

// The connection of the caller is the one that is silent.
func TestOwnConnectionIsSilent(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	r := newResponder(t, broker.Connect(t))
	proxy := meshtest.NewProxy(t, broker)
	x := asks(t, proxy.Connect(t), "one")
	r.says(<-r.requests)
	meshtest.Until(t, "the keepalive comes", x.Heard)
	proxy.Blackhole()
	t.Cleanup(proxy.Heal)
	if e := ends(t, x); e.Code != toolmesh.CodeUnavailable || e.Origin != toolmesh.OriginCaller || e.Started != toolmesh.StartedUnknown {
		t.Errorf("%v", e)
	}
}

// Incoming data proves that a connection lives, even if the answer to a ping is late behind it.
func TestPingBehindMuchElse(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	r := newResponder(t, nc)
	proxy := meshtest.NewProxy(t, broker)
	mine := proxy.Connect(t)
	if _, err := mine.Subscribe("else", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	x := asks(t, mine, "one")
	m := <-r.requests
	r.says(m)
	meshtest.Until(t, "the keepalive comes", x.Heard)
	proxy.Stall() // pings have no answer, but the broker's messages arrive
	t.Cleanup(proxy.Heal)
	until := time.Now().Add(bus.Silence + 2*time.Second)
	go func() {
		for time.Now().Before(until) {
			_ = nc.Publish("else", []byte("something"))
			time.Sleep(20 * time.Millisecond)
		}
		_ = m.Respond([]byte("done"))
	}()
	if answer, err := x.Next(t.Context()); err != nil || string(answer.Data) != "done" {
		t.Errorf("%v %v", answer, err)
	}
}

// The connection was made anew before the node was known: nodes are asked which of them has
// the call.
func TestCallIsFoundAfterACut(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`{"node":"n","boot":"b1"}`, "", `{}`} {
		broker := meshtest.Broker(t)
		r := newResponder(t, broker.Connect(t))
		known := strings.Contains(answer, "b1")
		if known {
			r.beats(t, "b1")
		}
		if answer != "" {
			if _, err := r.nc.Subscribe("mesh.ctl.default.one", func(m *nats.Msg) { _ = m.Respond([]byte(answer)) }); err != nil {
				t.Fatal(err)
			}
		}
		proxy := meshtest.NewProxy(t, broker)
		nc := proxy.Connect(t)
		x := asks(t, nc, "one")
		<-r.requests
		back := nc.StatusChanged(nats.CONNECTED)
		proxy.Cut(false)
		<-back
		if known {
			go func() { _ = (<-r.requests).Respond([]byte("done")) }()
			if m, err := x.Next(t.Context()); err != nil || string(m.Data) != "done" {
				t.Errorf("%v %v", m, err)
			}
		} else if e := ends(t, x); e.Code != toolmesh.CodeUnavailable || e.Details["reason"] != bus.ReasonCut || e.Started != toolmesh.StartedUnknown {
			t.Errorf("%v", e)
		}
	}
}

// A call waits at a router that falls silent. While the router had not asked to pass it on,
// it has begun nowhere; from the answer to that on it is open.
func TestSilentRouter(t *testing.T) {
	t.Parallel()
	for word, started := range map[string]toolmesh.Started{"held": toolmesh.StartedNo, "ask": toolmesh.StartedUnknown} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			r := newResponder(t, broker.Connect(t))
			control, err := r.nc.SubscribeSync("mesh.ctl.default.one")
			if err != nil {
				t.Fatal(err)
			}
			x := asks(t, broker.Connect(t), "one")
			r.says(<-r.requests, "Mesh-Awaits", word)
			if e := ends(t, x); e.Started != started {
				t.Errorf("%v, started %v", e, e.Started)
			}
			_, err = control.NextMsg(time.Millisecond)
			if passed := err == nil; passed != (started == toolmesh.StartedUnknown) {
				t.Errorf("the router was answered: %v", passed)
			}
		})
	}
}

// A caller that gives up cancels the call at its node.
func TestCancelAtTheNode(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	r := newResponder(t, broker.Connect(t))
	control, err := r.nc.SubscribeSync("mesh.>")
	if err != nil {
		t.Fatal(err)
	}
	x := asks(t, broker.Connect(t), "one")
	r.says(<-r.requests)
	ctx, cancel := context.WithCancel(t.Context())
	meshtest.Until(t, "the keepalive comes", x.Heard)
	cancel()
	if _, err := x.Next(ctx); err != context.Canceled { //nolint:errorlint // as it is
		t.Errorf("%v", err)
	}
	x.Cancel()
	if m, err := control.NextMsg(time.Minute); err != nil || !strings.HasPrefix(m.Subject, "mesh.node.n.ctl.default.one") {
		t.Errorf("%v %v", m, err)
	}
}
