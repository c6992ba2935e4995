package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// lostWithin is the promise of 3 s, with room for a busy machine. Without
// liveness these calls would end after half a minute, or never.
const lostWithin = 10 * time.Second

// A node that goes away without a word: its process killed, or its cable.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"closed", "silent"} {
		for _, way := range []string{"queue", "directed"} {
			t.Run(how+" "+way, func(t *testing.T) {
				t.Parallel()
				d := newTools()
				broker := meshtest.Broker(t)
				proxy := meshtest.NewProxy(t, broker)
				nc := proxy.Connect(t)
				d.serve(t, nc, nil)
				t.Cleanup(proxy.Heal)
				c := newClient(t, broker.Connect(t), nil)
				if way == "directed" {
					answerRegistry(t, broker.Connect(t))
					directCalls(t, broker, c)
				} else {
					c = newClient(t, broker.Connect(t), &client.Options{QueueOnly: true})
				}
				one := start(t, c, "desk.hold", toolArgs{Key: "one"})
				two := start(t, c, "desk.hold", toolArgs{Key: "two"}, client.WithTimeout(50*time.Second))
				items := make(chan counted, 1)
				go func() { items <- countItems(t, c, t.Context(), toolArgs{Key: "gen", N: 10, Gate: true}, nil) }()
				d.gate("gen").release <- struct{}{}
				wait(t, "start", d.gate("one").started)
				wait(t, "start", d.gate("two").started)
				wait(t, "first item", d.gate("gen").sent)
				began := time.Now()
				if how == "closed" {
					proxy.Cut(true)
				} else {
					proxy.Blackhole()
				}
				for _, call := range []<-chan outcome{one, two} {
					o := wait(t, "answer", call)
					if e := toolmesh.AsError(o.err); e == nil || e.Code != toolmesh.CodeNodeLost || e.Started != toolmesh.StartedUnknown {
						t.Errorf("call: %v, want node_lost, and nobody knows whether it ran", o.err)
					}
				}
				s := wait(t, "stream", items)
				if toolmesh.CodeOf(s.err) != toolmesh.CodeNodeLost || s.items != 1 {
					t.Errorf("stream: %d items, then %v, want one and node_lost", s.items, s.err)
				}
				took := time.Since(began)
				t.Logf("lost after %v", took)
				if took > lostWithin {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// directCalls makes calls until one goes to a node's own subject.
func directCalls(t *testing.T, broker *meshtest.Server, c *client.Client) {
	t.Helper()
	spy, err := broker.Connect(t).SubscribeSync("mesh.node.*.tools.>")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = spy.Unsubscribe() }()
	for _, id := range []subjects.ToolID{"desk.note", "desk.hold", "desk.gen"} {
		meshtest.Until(t, "calls of "+string(id)+" are directed", func() bool {
			if id == "desk.gen" {
				countItems(t, c, t.Context(), toolArgs{Key: "warm"}, nil)
			} else if _, err := c.Call(t.Context(), id, toolArgs{Key: "warm"}); err != nil {
				t.Fatal(err)
			}
			for {
				m, err := spy.NextMsg(time.Millisecond)
				if err != nil {
					return false
				}
				if s, err := subjects.Parse(m.Subject); err == nil && s.Tool == id {
					return true
				}
			}
		})
	}
}

// The caller loses its own connection: that is another error.
func TestOwnConnectionLost(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	proxy := meshtest.NewProxy(t, broker)
	c := newClient(t, proxy.Connect(t), nil)
	call := start(t, c, "desk.hold", toolArgs{Key: "one"})
	items := make(chan counted, 1)
	first := make(chan int, 3)
	go func() {
		items <- countItems(t, c, t.Context(), toolArgs{Key: "gen", N: 3, Gate: true}, func(i int) { first <- i })
	}()
	d.gate("gen").release <- struct{}{}
	wait(t, "start", d.gate("one").started)
	wait(t, "first item", first)
	proxy.Blackhole()
	lost := time.Now()
	o := wait(t, "answer", call)
	if e := toolmesh.AsError(o.err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Origin != toolmesh.OriginCaller || e.Started == toolmesh.StartedNo {
		t.Errorf("call: %v, want unavailable of the caller, and not started:false", o.err)
	}
	if took := time.Since(lost); took > lostWithin {
		t.Errorf("it took %v", took)
	}
	// A stream goes on when the connection is back.
	proxy.Heal()
	close(d.gate("gen").release)
	if s := wait(t, "stream", items); s.err != nil || s.items != 3 {
		t.Errorf("stream: %d items, then %v", s.items, s.err)
	}
	close(d.gate("one").release)
}

// A node was not silent if its heartbeats went to a lost connection.
func TestSilenceOfALostConnection(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	proxy := meshtest.NewProxy(t, broker)
	nc := proxy.Connect(t)
	c := newClient(t, nc, nil)
	items := make(chan counted, 1)
	first := make(chan int, 2)
	go func() {
		items <- countItems(t, c, t.Context(), toolArgs{Key: "gen", N: 2, Gate: true}, func(i int) { first <- i })
	}()
	d.gate("gen").release <- struct{}{}
	wait(t, "first item", first)
	lost, back := nc.StatusChanged(nats.RECONNECTING), nc.StatusChanged(nats.CONNECTED)
	proxy.Cut(true)
	wait(t, "loss", lost)
	cut := time.Now()
	meshtest.Until(t, "the node has been silent for long", func() bool { return time.Since(cut) > 3*time.Second })
	proxy.Heal()
	wait(t, "return", back)
	heartbeats, err := nc.SubscribeSync("mesh.hb.>")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := heartbeats.NextMsg(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	close(d.gate("gen").release)
	if s := wait(t, "stream", items); s.err != nil || s.items != 2 {
		t.Errorf("stream: %d items, then %v", s.items, s.err)
	}
}

// heartbeat says that a node lives; a plain client may.
func heartbeat(t *testing.T, nc *nats.Conn, node, boot string) {
	t.Helper()
	body := fmt.Sprintf(`{"node":%q,"boot":%q,"state":"serving","slots":8,"in_flight":0,"queued":0}`, node, boot)
	if err := nc.Publish("mesh.hb."+node, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

// Another boot of the node means that its calls are lost, now.
func TestNodeStartedAnew(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	n := d.serve(t, broker.Connect(t), nil)
	nc := broker.Connect(t)
	c := newClient(t, broker.Connect(t), nil)
	call := start(t, c, "desk.hold", toolArgs{Key: "one"})
	wait(t, "start", d.gate("one").started)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for { // the old boot goes on beating, so that silence is not the reason
		select {
		case o := <-call:
			if toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost {
				t.Errorf("call: %v, want node_lost", o.err)
			}
			if o.took > lostWithin {
				t.Errorf("it took %v", o.took)
			}
			close(d.gate("one").release)
			return
		case <-ticker.C:
			heartbeat(t, nc, string(n.Node()), "the-next-boot")
		}
	}
}

// kept waits for a keepalive of a call, which tells the caller where it runs, and then for a
// heartbeat: so the node has all its time until it is heard again.
func kept(t *testing.T, broker *meshtest.Server) {
	t.Helper()
	all, err := broker.Connect(t).SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	for known := false; ; {
		m, err := all.NextMsg(testTimeout)
		switch {
		case err != nil:
			t.Fatal(err)
		case m.Header.Get("Mesh-Keepalive") != "":
			known = true
		case known && strings.HasPrefix(m.Subject, "mesh.hb."):
			return
		}
	}
}

// loseReplies runs a call whose answer gets lost, and returns the call's outcome.
func loseReplies(t *testing.T, d *tools, broker *meshtest.Server, node, caller *meshtest.Proxy, c *client.Client) outcome {
	t.Helper()
	call := start(t, c, "desk.hold", toolArgs{Key: "lost"})
	wait(t, "start", d.gate("lost").started)
	kept(t, broker)
	if node != nil {
		node.Blackhole() // takes the reply, and never gives it on
	} else {
		caller.Cut(true) // no subscription of the inbox
	}
	d.gate("lost").release <- struct{}{}
	wait(t, "end", d.gate("lost").ended)
	if node != nil {
		beat := time.NewTimer(300 * time.Millisecond)
		defer beat.Stop()
		<-beat.C // time for the reply to be in the hole
		node.Cut(false)
		node.Heal()
	} else {
		beat := time.NewTimer(300 * time.Millisecond)
		defer beat.Stop()
		<-beat.C
		caller.Heal()
	}
	return wait(t, "answer", call)
}

// The reply gets lost, the node lives: it is asked again, and has kept the result.
func TestLostReply(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"the node", "the caller"} {
		for _, way := range []string{"queue", "directed"} {
			t.Run(at+" "+way, func(t *testing.T) {
				t.Parallel()
				d := newTools()
				broker := meshtest.Broker(t)
				near, far := meshtest.NewProxy(t, broker), meshtest.NewProxy(t, broker)
				d.serve(t, far.Connect(t), nil)
				c := newClient(t, near.Connect(t), &client.Options{QueueOnly: way == "queue"})
				if way == "directed" {
					answerRegistry(t, broker.Connect(t))
					directCalls(t, broker, c)
				}
				node := far
				if at == "the caller" {
					node = nil
				}
				o := loseReplies(t, d, broker, node, near, c)
				if o.err != nil || string(o.result.Value) != `"released lost"` {
					t.Errorf("call: %v, want the recorded result", o.err)
				}
				if n := d.ran("lost"); n != 1 {
					t.Errorf("it ran %d times", n)
				}
			})
		}
	}
}

// A node that has served many other calls since does not run a call again whose answer got lost:
// its result is unknown, but the tool ran once.
func TestLostReplyOfABusyNode(t *testing.T) {
	t.Parallel()
	const others = 12_000
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), &host.Options{Slots: others + 1})
	near := meshtest.NewProxy(t, broker)
	c := newClient(t, near.Connect(t), nil)
	call := start(t, c, "desk.hold", toolArgs{Key: "lost"})
	wait(t, "start", d.gate("lost").started)
	kept(t, broker)
	near.Cut(true)
	d.gate("lost").release <- struct{}{}
	wait(t, "end", d.gate("lost").ended)
	nc := broker.Connect(t)
	flood(t, nc, others)
	near.Heal()
	d.gate("lost").release <- struct{}{} // a second execution would end, too
	o := wait(t, "answer", call)
	if e := toolmesh.AsError(o.err); e == nil || e.Started == toolmesh.StartedNo {
		t.Errorf("call: %v, want an error that does not say that it never ran", o.err)
	}
	if n := d.ran("lost"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// flood makes so many calls that a node has no room for the results of all, and
// waits for their answers.
func flood(t *testing.T, nc *nats.Conn, calls int) {
	t.Helper()
	in, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := in.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	sent := 0
	send := func() {
		sent++
		m := &nats.Msg{Subject: "tools.default.desk.note", Reply: in.Subject, Data: []byte("{}"), Header: nats.Header{"Mesh-Rpc-Id": {fmt.Sprint(sent)}}}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for range calls {
		send()
	}
	for ran := 0; ran < calls; {
		m, err := in.NextMsg(testTimeout)
		switch {
		case err == nil && m.Header.Get("Mesh-Error-Code") == "":
			ran++
		case err == nil && m.Header.Get("Mesh-Error-Code") == "unavailable" && sent < 2*calls: // a busy node that has not heard itself in time
			send()
		default:
			t.Fatalf("one of many calls: %v, %v", m, err)
		}
	}
}

// impostor is a node of the test's own making, on plain NATS: it takes calls,
// says that they run, and nothing else.
type impostor struct {
	nc       *nats.Conn
	requests chan *nats.Msg
}

func newImpostor(t *testing.T, nc *nats.Conn, keepalives bool) *impostor {
	t.Helper()
	im := &impostor{nc: nc, requests: make(chan *nats.Msg, 100)}
	_, err := nc.QueueSubscribe("tools.*.fake.x", "mesh", func(m *nats.Msg) {
		im.requests <- m
		if keepalives {
			im.keepalive(m)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return im
}

func (im *impostor) keepalive(m *nats.Msg) { im.keepaliveOf(m, "b1") }

func (im *impostor) keepaliveOf(m *nats.Msg, boot string) {
	_ = im.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{
		"Mesh-Keepalive": {"1"}, "Mesh-Rpc-Id": m.Header["Mesh-Rpc-Id"], "Mesh-Node": {"fake"}, "Mesh-Boot": {boot},
	}})
}

// A call that runs in a process that is the node no more: the heartbeats of the
// one that is say nothing of it, and it must not be sent there.
func TestCallOfAnEarlierStart(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	im := newImpostor(t, broker.Connect(t), false)
	c := newClient(t, broker.Connect(t), nil)
	again := newSpy(t, broker.Connect(t), "mesh.node.fake.tools.>")
	one := start(t, c, "fake.x", nil)
	im.keepalive(wait(t, "request", im.requests))
	two := start(t, c, "fake.x", nil)
	second := wait(t, "request", im.requests)
	im.keepaliveOf(second, "b2")
	if err := second.Respond([]byte("1")); err != nil {
		t.Fatal(err)
	}
	if o := wait(t, "answer", two); o.err != nil {
		t.Errorf("a call of the later start: %v", o.err)
	}
	if o := wait(t, "answer", one); toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost {
		t.Errorf("a call of the earlier start: %v", o.err)
	}
	three := start(t, c, "fake.x", nil)
	im.keepalive(wait(t, "request", im.requests)) // the earlier one was only frozen
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case o := <-three:
			if toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost || o.took > lostWithin+time.Second {
				t.Errorf("after %v: %v, want node_lost", o.took, o.err)
			}
			if sent := again.heard(); len(sent) != 0 {
				t.Errorf("the later start got the call: %v", sent)
			}
			return
		case <-ticker.C:
			heartbeat(t, im.nc, "fake", "b2")
		case <-t.Context().Done():
			return
		}
		if len(again.heard()) != 0 {
			t.Fatal("the later start got the call, and would run it, too")
		}
	}
}

// A node reports that it runs a call or a batch, and never ends it: the caller's own time ends it.
func TestTimeoutOfANodeThatNeverAnswers(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	for _, subject := range []string{"tools.*.fake.x", "mesh.batch.*"} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			beat := time.NewTicker(300 * time.Millisecond)
			defer beat.Stop()
			for im := (&impostor{nc: nc}); t.Context().Err() == nil; <-beat.C {
				im.keepalive(m)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(t, nc, nil)
	ends := map[string]func(client.CallOption) error{
		"call": func(o client.CallOption) error {
			_, err := c.Call(t.Context(), "fake.x", nil, o)
			return err
		},
		"batch": func(o client.CallOption) error {
			_, err := c.Batch(t.Context(), []client.BatchCall{{Tool: "fake.x"}}, o)
			return err
		},
	}
	for what, call := range ends {
		err := call(client.WithTimeout(500 * time.Millisecond))
		if e := toolmesh.AsError(err); e.Code != toolmesh.CodeDeadlineExceeded || e.Started != toolmesh.StartedUnknown {
			t.Errorf("%s: %+v", what, e)
		}
	}
}

// A joined call outlives a caller that lost its connection: the next runner joins it and learns
// its outcome.
func TestConnectionOfACallThatOutlivesIsLost(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	im := newImpostor(t, broker.Connect(t), true)
	proxy := meshtest.NewProxy(t, broker)
	c := newClient(t, proxy.Connect(t), nil)
	call := start(t, c, "fake.x", nil, client.WithTimeout(500*time.Millisecond), client.Outlive())
	im.keepalive(wait(t, "request", im.requests))
	proxy.Blackhole()
	t.Cleanup(proxy.Heal)
	if e := toolmesh.AsError(wait(t, "end", call).err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Origin != toolmesh.OriginCaller {
		t.Errorf("%+v", e)
	}
}

// A repetition that finds no subscription says nothing about the first request, which may have
// run: it must not go to another node.
func TestNodeIsGoneBeforeTheSecondRequest(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	im := newImpostor(t, broker.Connect(t), true)
	nc := broker.Connect(t)
	c := newClient(t, nc, nil)
	call := start(t, c, "fake.x", nil)
	first := wait(t, "request", im.requests)
	// The node lives and no longer has the subject, as after a drain.
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	sent := uint64(0)
	for beats := 0; nc.Stats().OutMsgs <= sent || sent == 0; beats++ {
		select {
		case o := <-call:
			t.Fatalf("the call ended: %v", o.err)
		case <-ticker.C:
			heartbeat(t, im.nc, "fake", "b1")
		}
		if beats == 5 { // the question for the time is over
			sent = nc.Stats().OutMsgs
		}
	}
	if err := nc.Flush(); err != nil { // behind the broker's 503
		t.Fatal(err)
	}
	// Now the node falls silent.
	o := wait(t, "answer", call)
	if e := toolmesh.AsError(o.err); e == nil || e.Code != toolmesh.CodeNodeLost || e.Started != toolmesh.StartedUnknown {
		t.Errorf("call: %v, want node_lost", o.err)
	}
	if n := len(im.requests); n != 0 {
		t.Errorf("%d more requests went to the queue group after %v", n, first.Subject)
	}
}

// No keepalive comes at all: the node that the queue group chose is lost.
func TestSilenceFromTheBeginning(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	im := newImpostor(t, broker.Connect(t), false)
	c := newClient(t, broker.Connect(t), nil)
	o := wait(t, "answer", start(t, c, "fake.x", nil))
	if e := toolmesh.AsError(o.err); e == nil || e.Code != toolmesh.CodeNodeLost {
		t.Errorf("call: %v, want node_lost", o.err)
	}
	if o.took < 2500*time.Millisecond || o.took > lostWithin {
		t.Errorf("after %v, want 2.5s of silence", o.took)
	}
	if n := len(im.requests); n != 1 {
		t.Errorf("%d requests, want 1: it is not known whether it ran", n)
	}
	// An idempotent call is sent twice more, under new names.
	<-im.requests
	o = wait(t, "answer", start(t, c, "fake.x", nil, client.Idempotent()))
	if toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost || len(im.requests) != 3 {
		t.Fatalf("idempotent: %v after %d requests, want 3", o.err, len(im.requests))
	}
	a, b := <-im.requests, <-im.requests
	if a.Header.Get("Mesh-Rpc-Id") == b.Header.Get("Mesh-Rpc-Id") {
		t.Error("the second request has the rpc_id of the first: the node might refuse it")
	}
}

// A call that is idempotent survives its node.
func TestIdempotentCallSurvivesItsNode(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	proxies := map[subjects.NodeID]*meshtest.Proxy{}
	for range 2 {
		p := meshtest.NewProxy(t, broker)
		n := d.serve(t, p.Connect(t), nil)
		t.Cleanup(p.Heal)
		proxies[n.Node()] = p
	}
	c := newClient(t, broker.Connect(t), nil)
	call := start(t, c, "desk.hold", toolArgs{Key: "i"}, client.Idempotent())
	lost := wait(t, "start", d.gate("i").started)
	proxies[lost].Cut(true)
	other := wait(t, "second start", d.gate("i").started)
	if other == lost {
		t.Errorf("it was sent to the node that was lost")
	}
	d.gate("i").release <- struct{}{}
	d.gate("i").release <- struct{}{} // the first one is still there
	if o := wait(t, "answer", call); o.err != nil || o.result.Node != other {
		t.Errorf("call: %v", o.err)
	}
}

// Of a stream that has begun nothing is sent again: its items would come twice.
func TestIdempotentStreamIsNotBegunTwice(t *testing.T) {
	t.Parallel()
	d := newTools()
	broker := meshtest.Broker(t)
	proxies := map[subjects.NodeID]*meshtest.Proxy{}
	for range 2 {
		p := meshtest.NewProxy(t, broker)
		n := d.serve(t, p.Connect(t), nil)
		t.Cleanup(p.Heal)
		proxies[n.Node()] = p
	}
	c := newClient(t, broker.Connect(t), nil)
	for _, begun := range []bool{false, true} {
		key := fmt.Sprint("begun ", begun)
		g := d.gate(key)
		done := make(chan counted, 1)
		go func() {
			done <- countItems(t, c, t.Context(), toolArgs{Key: key, N: 3, Gate: true}, nil, client.Idempotent())
		}()
		where := wait(t, "start", g.started)
		if begun {
			g.release <- struct{}{}
			wait(t, "first item", g.sent)
		}
		proxies[where].Cut(true)
		if !begun {
			wait(t, "second start", g.started)
		}
		for range 6 {
			g.release <- struct{}{}
		}
		s := wait(t, "stream", done)
		if begun && (toolmesh.CodeOf(s.err) != toolmesh.CodeNodeLost || toolmesh.AsError(s.err).Started != toolmesh.StartedYes || s.items > 1 || d.ran(key) != 1) {
			t.Errorf("after an item: %d items, then %v, ran %d times", s.items, s.err, d.ran(key))
		}
		if !begun && (s.err != nil || s.items != 3) {
			t.Errorf("before any: %d items, then %v", s.items, s.err)
		}
		proxies[where].Heal()
	}
}

// caller is the process of TestFrozenCaller: it makes one call and prints how
// that ended.
func caller(url string) {
	err := func() error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		c, err := client.New(nc, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		r, err := c.Call(context.Background(), "desk.hold", toolArgs{Key: "frozen"})
		if err != nil {
			return err
		}
		if string(r.Value) != `"released frozen"` {
			return errors.New(string(r.Value))
		}
		return nil
	}()
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	fmt.Println("ok")
}
