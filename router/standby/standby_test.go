package standby_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router/standby"
	"github.com/toolmesh/toolmesh/subjects"
)

// outcome is the outcome of a call.
type outcome struct {
	value string
	wait  time.Duration
	err   error
}

func (r *rig) call(id subjects.ToolID, opts ...client.CallOption) <-chan outcome {
	ended := make(chan outcome, 1)
	ctx, cancel := context.WithTimeout(r.t.Context(), waitTimeout)
	go func() {
		defer cancel()
		res, err := r.caller.Call(ctx, id, nil, opts...)
		if err != nil {
			ended <- outcome{err: err}
			return
		}
		ended <- outcome{value: string(res.Value), wait: res.NodeWait}
	}()
	return ended
}

// Every form of a call waits for the first node, and has its answer from it: of a client
// that knows no more than NATS, of ours, as a stream, and in a batch.
func TestCallsWaitForANode(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		r := newRig(t, top, 2, &standby.Options{})
		plain := r.request("weather.today", `{}`, nil)
		envelope := r.request("weather.today", `{"type":"rpc_tool_call","rpc_id":"e1","tool_id":"weather.today","args":[],"kwargs":{}}`, nil)
		ours := r.call("weather.today")
		items := make(chan []string, 1)
		go func() {
			var all []string
			for chunk, err := range r.caller.Stream(t.Context(), "weather.watch", nil) {
				if err != nil {
					all = append(all, err.Error())
					break
				}
				all = append(all, string(chunk.Data))
			}
			items <- all
		}()
		inbox := r.nc.NewInbox()
		sub, err := r.nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		err = r.nc.PublishMsg(&nats.Msg{Subject: "tools." + r.session() + ".weather.watch", Reply: inbox, Header: nats.Header{"Mesh-Stream": {"inbox"}}})
		if err != nil {
			t.Fatal(err)
		}
		batched := make(chan []client.BatchResult, 1)
		go func() {
			all, err := r.caller.Batch(t.Context(), []client.BatchCall{{Tool: "weather.today"}, {Tool: "weather.today"}})
			if err != nil {
				t.Errorf("the batch: %v", err)
			}
			batched <- all
		}()
		r.awaits(7)
		r.node("n1", 8)
		m := <-plain
		if _, err := strconv.Atoi(string(m.Data)); err != nil || m.Header.Get("Mesh-Node") != "n1" || m.Header.Get("Mesh-Node-Wait-Ms") == "" {
			t.Errorf("plain: %v %s", m.Header, m.Data)
		}
		if m := <-envelope; !strings.Contains(string(m.Data), `"rpc_id":"e1","status":"ok"`) {
			t.Errorf("envelope: %s", m.Data)
		}
		if o := <-ours; o.err != nil || o.wait <= 0 {
			t.Errorf("our client: %+v", o)
		}
		if got := strings.Join(<-items, " "); got != "1 2 3" {
			t.Errorf("the stream: %s", got)
		}
		var got []string
		for {
			m, err := sub.NextMsg(waitTimeout)
			if err != nil {
				t.Fatalf("after %v: %v", got, err)
			}
			if len(m.Data) == 0 && m.Header == nil {
				break
			}
			got = append(got, m.Header.Get("Mesh-Chunk")+":"+string(m.Data))
		}
		if text := strings.Join(got, " "); !strings.HasPrefix(text, "data:1 data:2 data:3 complete:") {
			t.Errorf("the stream to an inbox: %s", text)
		}
		for _, one := range <-batched {
			if one.Err != nil {
				t.Errorf("of the batch: %v", one.Err)
			}
		}
		r.awaits(0)
		if n := r.ran.Load(); n != 5 {
			t.Errorf("%d calls ran, 5 were made", n)
		}
	})
}

// A tool that no installed index has is not_found at once, and an unreadable request is refused.
func TestCallsThatDoNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	if e := failure(t, <-r.request("weather.tomorrow", `{}`, nil)); e.Code != toolmesh.CodeToolNotFound || e.Started != toolmesh.StartedNo {
		t.Errorf("a tool that the index has not: %+v", e)
	}
	for _, id := range []subjects.ToolID{"other.today", "nosuch"} {
		if o := <-r.call(id); toolmesh.CodeOf(o.err) != toolmesh.CodeToolNotFound {
			t.Errorf("%s: %v", id, o.err)
		}
	}
	if e := failure(t, <-r.request("weather.today", `{}`, nats.Header{"Mesh-Timeout-Ms": {"soon"}})); e.Code != toolmesh.CodeInvalidRequest {
		t.Errorf("a timeout that is none: %+v", e)
	}
	if e := failure(t, <-r.request("weather.today", `{}`, nats.Header{"Mesh-Timeout-Ms": {"0"}})); e.Code != toolmesh.CodeDeadlineExceeded {
		t.Errorf("no time: %+v", e)
	}
	r.awaits(0)
	// Their descriptions are there all the same.
	all, err := r.caller.List(t.Context())
	if err != nil || len(all) != 3 || all[0].State != "unavailable" || all[0].Reason == "" {
		t.Errorf("listed: %+v, %v", all, err)
	}
	if d, err := r.caller.Describe(t.Context(), "weather.today"); err != nil || !strings.Contains(string(d), `"input_schema"`) {
		t.Errorf("described: %s, %v", d, err)
	}
	if o := <-r.call("today", client.WithTimeout(2*time.Second)); toolmesh.CodeOf(o.err) != toolmesh.CodeUnavailable {
		t.Errorf("by its short name: %v", o.err)
	}
}

// A call that has "for ever" waits as any other, and has its answer when it has run.
func TestVeryLongCallsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	var calls []<-chan *nats.Msg
	for _, header := range []string{"Mesh-Timeout-Ms", "Mesh-Deadline"} {
		for _, ms := range []string{"9007199254740991", "9223372036854775807"} {
			calls = append(calls, r.request("weather.today", `{}`, nats.Header{header: {ms}}))
		}
	}
	r.awaits(len(calls))
	r.node("n1", 4)
	for _, call := range calls {
		if m := <-call; m.Header.Get("Mesh-Node") != "n1" || m.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("%v %s", m.Header, m.Data)
		}
	}
}

// A call waits within its own time and the router's; the answer has the reason and the remedy.
func TestTheWaitHasBounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{Calls: 4, Timeout: 3 * time.Second})
	e := failure(t, <-r.request("weather.today", `{}`, nats.Header{"Mesh-Timeout-Ms": {"1000"}}))
	if e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo || !strings.Contains(e.Message, "its time is up") || !strings.Contains(e.Message, "pool=gpu") || e.Details["waited_ms"] == nil {
		t.Errorf("by its own time: %+v", e)
	}
	o := <-r.call("weather.today", client.WithTimeout(time.Second))
	if e := toolmesh.AsError(o.err); e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("our client, by its own time: %+v", e)
	}
	first, second := r.request("weather.today", `{}`, nil), r.call("weather.today")
	r.awaits(2)
	if e := failure(t, <-r.request("weather.today", `{}`, nil)); e.Code != toolmesh.CodeUnavailable || !strings.Contains(e.Message, "holds 4 calls") {
		t.Errorf("the third: %+v", e)
	}
	if e := failure(t, <-first); e.Code != toolmesh.CodeUnavailable || !strings.Contains(e.Message, "as long as router") {
		t.Errorf("by the router's time: %+v", e)
	}
	if e := toolmesh.AsError((<-second).err); e.Code != toolmesh.CodeUnavailable || e.Details["waited_ms"] == nil {
		t.Errorf("our client, by the router's time: %+v", e)
	}
	r.awaits(0)
}

// A session, or all that were never created together, leaves others as many places as it has, and
// calls with a place keep it.
func TestSessionsShareThePlaces(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{Calls: 4})
	request := func(session string) <-chan *nats.Msg {
		answers := make(chan *nats.Msg, 1)
		go func() {
			m, err := r.nc.Request("tools."+session+".weather.today", []byte(`{}`), waitTimeout)
			if err != nil {
				m = &nats.Msg{Data: []byte(err.Error())}
			}
			answers <- m
		}()
		return answers
	}
	var all []<-chan *nats.Msg
	for n, session := range []string{"made-up-0", "made-up-1", "default"} {
		all = append(all, request(session))
		r.awaits(n + 1)
	}
	for _, session := range []string{"made-up-2", "default"} {
		if e := failure(t, <-request(session)); e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo || !strings.Contains(e.Message, "its share") {
			t.Errorf("one more of session %s: %+v", session, e)
		}
	}
	r.node("n1", 4)
	for range all {
		r.release <- struct{}{}
	}
	for _, one := range all {
		if m := <-one; m.Header.Get("Mesh-Node") != "n1" {
			t.Errorf("a call that waited on: %s", m.Data)
		}
	}
}

// A call that waits is cancelled by its name, or because its caller has gone.
func TestCancelOfACallThatWaits(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		r := newRig(t, top, 2, &standby.Options{})
		named := r.request("weather.today", `{}`, nats.Header{"Mesh-Rpc-Id": {"a1"}})
		r.awaits(1)
		unread, err := r.nc.RequestMsg(&nats.Msg{Subject: "mesh.ctl." + r.session() + ".a1", Header: nats.Header{"Mesh-Require": {"later"}}}, waitTimeout)
		if err != nil || unread.Header.Get("Mesh-Error-Code") != "protocol_error" {
			t.Errorf("a cancel that requires what no member knows: %v %v", unread, err)
		}
		if ok, err := r.caller.Cancel(t.Context(), "a1"); err != nil || !ok {
			t.Errorf("cancel: %v %v", ok, err)
		}
		if e := failure(t, <-named); e.Code != toolmesh.CodeCancelled || e.Started != toolmesh.StartedNo {
			t.Errorf("cancelled: %+v", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := r.caller.Call(ctx, "weather.today", nil)
			ended <- err
		}()
		r.awaits(1)
		cancel()
		if err := <-ended; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("left: %v", err)
		}
		r.awaits(0)
		r.node("n1", 8)
		if o := <-r.call("weather.today"); o.err != nil || o.value != "1" {
			t.Errorf("what was cancelled has run: %+v", o)
		}
	})
}

// A caller that has gone without a word is found out, so that no node starts for it.
func TestTheCallerOfACallThatWaitsIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	nc := r.top.Call(t)
	c, err := client.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), "weather.today", nil)
		ended <- err
	}()
	r.awaits(1)
	nc.Close()
	<-ended
	c.Close()
	r.awaits(0)
}

// A caller that is not asked before its call is passed on dies: the call does not begin.
func TestCallsOfDeadCallersDoNotBegin(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	dead := r.top.Call(t)
	inbox := dead.NewInbox()
	if _, err := dead.SubscribeSync(inbox); err != nil {
		t.Fatal(err)
	}
	for id, key := range map[string]string{"r1": "", "r2": "key"} {
		header := nats.Header{"Mesh-Rpc-Id": {id}, "Mesh-Keepalive": {"1"}, "Mesh-Timeout-Ms": {"600000"}}
		if key != "" {
			header.Set("Mesh-Idempotency-Key", key)
		}
		if err := dead.PublishMsg(&nats.Msg{Subject: "tools." + r.session() + ".weather.today", Reply: inbox, Header: header}); err != nil {
			t.Fatal(err)
		}
	}
	r.awaits(2)
	dead.Close()
	left := time.Now()
	meshtest.Until(t, "a keepalive, of which there is one each second, has found nobody", func() bool { return time.Since(left) > 2500*time.Millisecond })
	r.node("n1", 8)
	r.awaits(0)
	meshtest.Until(t, "the call with a key, which may be asked for again, has run", func() bool { return r.ran.Load() == 1 })
	if m := <-r.request("weather.today", `{}`, nil); string(m.Data) != "2" {
		t.Errorf("the next call: %v %s", m.Header, m.Data)
	}
	if n := r.ran.Load(); n != 2 {
		t.Errorf("%d calls ran", n)
	}
}

// A header that the broker acts upon, and that a caller hides from it behind a line that ends in LF
// alone, is not published with the router's rights.
func TestHeadersOfTheBrokerAreNotPassedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	traces, err := r.nc.SubscribeSync("stolen")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := r.nc.SubscribeSync(r.nc.NewInbox())
	if err == nil {
		err = r.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{}`, `{"type":"rpc_tool_call","rpc_id":"e","tool_id":"weather.today"}`} {
		r.top.Brokers[0].PublishRaw(t, "tools.default.weather.today", answer.Subject, "NATS/1.0\r\nX: y\nNats-Trace-Dest: stolen\r\n\r\n", body)
	}
	r.awaits(2)
	r.node("n1", 2)
	for range 2 {
		if _, err := answer.NextMsg(waitTimeout); err != nil {
			t.Fatal(err)
		}
	}
	// The traces of the broker come in order.
	if err := r.nc.PublishMsg(&nats.Msg{Subject: "last", Header: nats.Header{"Nats-Trace-Dest": {"stolen"}}}); err != nil {
		t.Fatal(err)
	}
	if first, err := traces.NextMsg(waitTimeout); err != nil || !strings.Contains(string(first.Data), `"subj":"last"`) {
		t.Errorf("the router published with its own rights: %v %s", err, first.Data)
	}
}

// More calls than a node has slots are run as it has room, each once.
func TestMoreCallsThanSlots(t *testing.T) {
	t.Parallel()
	const calls = 40
	r := newRig(t, single(t), 2, &standby.Options{})
	var all []<-chan *nats.Msg
	for range calls {
		all = append(all, r.request("weather.today", `{}`, nil))
	}
	r.awaits(calls)
	r.node("n1", 2)
	seen := make(map[string]bool)
	for _, one := range all {
		m := <-one
		if m.Header.Get("Mesh-Error-Code") != "" || seen[string(m.Data)] {
			t.Errorf("%v %s", m.Header, m.Data)
		}
		seen[string(m.Data)] = true
	}
	if n := r.ran.Load(); n != calls {
		t.Errorf("%d ran of %d", n, calls)
	}
}

// The node that a call was passed on to is lost: the caller hears it in time.
func TestTheNodeOfACallThatWaitedIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	plain, ours := r.request("weather.slow", `{}`, nil), r.call("weather.slow")
	r.awaits(2)
	proxy := meshtest.NewProxy(t, r.top.Brokers[0])
	r.nodeOn(proxy.Connect(t), "n1", 8)
	<-r.started
	<-r.started
	proxy.Blackhole()
	if e := failure(t, <-plain); e.Code != toolmesh.CodeNodeLost {
		t.Errorf("plain: %+v", e)
	}
	if o := <-ours; toolmesh.CodeOf(o.err) != toolmesh.CodeNodeLost {
		t.Errorf("our client: %v", o.err)
	}
	proxy.Heal()
	r.release <- struct{}{}
	r.release <- struct{}{}
}

// A router whose own connection brings nothing says of no node that it is lost: the call that it
// passed on has its answer once the connection is back.
func TestRouterThatHearsNothingLosesNoNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 0, nil)
	t.Cleanup(r.proxy.Heal)
	plain := r.request("weather.slow", `{}`, nil)
	r.awaits(1)
	heartbeats, err := r.top.Serve(t).SubscribeSync("mesh.hb.n1")
	if err != nil {
		t.Fatal(err)
	}
	r.node("n1", 8)
	<-r.started
	r.proxy.Blackhole()
	for range 6 {
		if _, err := heartbeats.NextMsg(waitTimeout); err != nil {
			t.Fatal(err)
		}
	}
	r.release <- struct{}{}
	r.proxy.Heal()
	if m := <-plain; string(m.Data) != `"done"` {
		t.Errorf("the call: %v %s", m.Header, m.Data)
	}
}

// A router that ends has its calls sent again: by our client to the next one, and to
// others it says that they may.
func TestTheRouterOfACallThatWaitsStops(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	plain, ours := r.request("weather.today", `{}`, nil), r.call("weather.today")
	r.awaits(2)
	second := r.router(r.top.Serve(t), &standby.Options{})
	meshtest.Until(t, "the second one stands by", func() bool { return second.Standby().Indexes == 1 })
	first := r.routers[0]
	r.routers = append(r.routers[:0], second)
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if e := failure(t, <-plain); e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo {
		t.Errorf("plain: %+v", e)
	}
	r.awaits(1)
	r.node("n1", 8)
	if o := <-ours; o.err != nil || o.value != "1" {
		t.Errorf("our client: %+v", o)
	}
}

// A router that is gone without a word: our client finds out that no node has the call,
// and sends it to the next one; it runs once.
func TestTheRouterOfACallThatWaitsIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 0, nil)
	signs, err := r.top.Serve(t).SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	ours := r.call("weather.today")
	for {
		m, err := signs.NextMsg(waitTimeout)
		if err != nil {
			t.Fatalf("the first sign of life: %v", err)
		}
		if m.Header.Get("Mesh-Awaits") != "" {
			break
		}
	}
	second := r.router(r.top.Serve(t), &standby.Options{})
	meshtest.Until(t, "the second one stands by", func() bool { return second.Standby().Indexes == 1 })
	r.proxy.Cut(true)
	meshtest.Until(t, "the first one is silent, and the call waits at the second one", func() bool { return second.Seen().Awaited()[pool].Calls == 1 && second.Standby().Waiting == 1 })
	r.node("n1", 8)
	if o := <-ours; o.err != nil || o.value != "1" {
		t.Errorf("our client: %+v", o)
	}
	r.proxy.Heal()
	if n := r.ran.Load(); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// If the record of an index lists no tools, calls of any of its tools wait, and tools that the
// node lacks are not_found then.
func TestToolsThatAreNotKnownYet(t *testing.T) {
	t.Parallel()
	r := newRigOf(t, single(t), 1, &standby.Options{}, false)
	there, missing := r.request("weather.today", `{}`, nil), r.request("weather.tomorrow", `{}`, nil)
	r.awaits(2)
	r.node("n1", 8)
	if m := <-there; string(m.Data) != "1" {
		t.Errorf("%v %s", m.Header, m.Data)
	}
	if e := failure(t, <-missing); e.Code != toolmesh.CodeToolNotFound {
		t.Errorf("%+v", e)
	}
}

// One node cannot serve the index and says why, at the installed revision or an earlier one:
// calls wait while another node still builds it, and get the reason once none does.
func TestCallsWaitForTheNodeThatStillBuilds(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"r0", "r1"} {
		r := newRig(t, single(t), 1, &standby.Options{})
		fails := r.agent(r.top.Serve(t), "fails", 8)
		builds := fails // it failed to build an earlier revision
		if revision == "r1" {
			builds = r.agent(r.top.Serve(t), "builds", 8)
		}
		seen := r.routers[0].Seen()
		meshtest.Until(t, "the router sees the nodes", func() bool { return seen.Runs(fails.Node(), "") && seen.Runs(builds.Node(), "") })
		failed := host.Service{Index: "weather", Revision: revision}
		for _, d := range tools {
			failed.Unavailable = append(failed.Unavailable, host.Unavailable{ID: d.ID, Reason: "no compiler"})
		}
		if err := fails.Publish(t.Context(), failed); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the router knows why one cannot", func() bool {
			route, _ := seen.Route("default", "weather.today")
			return route.Reason == "no compiler"
		})
		if len(seen.Unserved()) != 1 {
			t.Fatalf("failed at %s: a node is still to build the index, and the router holds no calls of it", revision)
		}
		waits := r.call("weather.today")
		r.awaits(1)
		select {
		case o := <-waits:
			t.Fatalf("it did not wait: %+v", o)
		default:
		}
		r.serve(builds)
		if o := <-waits; o.err != nil || o.wait <= 0 {
			t.Errorf("%s: %+v", revision, o)
		}
		if builds == fails {
			continue
		}
		if err := builds.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the reason is the answer", func() bool {
			o := <-r.call("weather.today")
			return toolmesh.CodeOf(o.err) == toolmesh.CodeUnavailable && strings.Contains(o.err.Error(), "no compiler")
		})
	}
}

// A node that leaves: calls wait again. While there are nodes routers hear nothing of them.
func TestNodesThatComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	for range 3 {
		waits := r.request("weather.today", `{}`, nil)
		r.awaits(1)
		h := r.node("n1", 8)
		var n json.Number
		if m := <-waits; json.Unmarshal(m.Data, &n) != nil {
			t.Errorf("%v %s", m.Header, m.Data)
		}
		meshtest.Until(t, "only the node is in the queue group", func() bool {
			for range 20 {
				m, err := r.nc.Request("tools.default.weather.today", []byte(`{}`), waitTimeout)
				if err != nil {
					t.Fatal(err)
				}
				if m.Header.Get("Mesh-Node-Wait-Ms") != "" {
					return false
				}
			}
			return true
		})
		if err := h.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "nobody serves it", func() bool { return len(r.routers[0].Seen().Unserved()) == 1 })
		r.standsBy(1)
	}
}

// A node of the registry that refuses a call, or does not listen, has not run it: the call waits on, and runs once.
func TestCallsThatANodeRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	waits := r.request("weather.today", `{}`, nil)
	r.awaits(1)
	nc := r.top.Serve(t)
	refused := make(chan struct{}, 100)
	sub, err := nc.Subscribe("mesh.node.full.tools.default.weather.today", func(m *nats.Msg) {
		header, body := codec.ErrorReply(toolmesh.Errorf(toolmesh.CodeBusy, "no room").WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo))
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(header), Data: body})
		refused <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	full, err := registry.Acquire(t.Context(), testmesh.Bus(t, nc, nil), registry.NodeRecord{
		Node: "full", Boot: "b1", State: registry.StateServing, Slots: 1, Labels: map[string]string{"pool": pool}, Proto: [2]int{1, 1},
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Release(context.WithoutCancel(t.Context())) //nolint:errcheck // its lease ends by itself
	if err := full.Publish(t.Context(), registry.ToolsRecord{Index: "weather", Revision: "r1", Tools: []registry.ToolRoute{{ID: "weather.today"}}}); err != nil {
		t.Fatal(err)
	}
	<-refused
	<-refused
	if err := sub.Unsubscribe(); err != nil { // now NATS says that it does not listen
		t.Fatal(err)
	}
	r.awaits(1)
	r.node("n1", 2)
	if m := <-waits; string(m.Data) != "1" || m.Header.Get("Mesh-Node-Wait-Ms") == "" {
		t.Errorf("%v %s", m.Header, m.Data)
	}
	if n := r.ran.Load(); n != 1 {
		t.Errorf("%d ran, want 1", n)
	}
}

// A router that hears no node stands by for its index, and does so no longer once the connection is lost, as it cannot
// tell then. No request goes to it at the next one.
func TestConnectionOfARouterThatStandsByIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	r.node("n1", 8)
	proxy := meshtest.NewProxy(t, r.top.Brokers[0])
	t.Cleanup(proxy.Heal)
	nc := proxy.Connect(t)
	one := r.router(nc, &standby.Options{})
	meshtest.Until(t, "the router knows the node", func() bool { return len(one.Seen().Unserved()) == 0 })
	proxy.Blackhole()
	meshtest.Until(t, "it hears no node", func() bool { return one.Standby().Indexes == 1 })
	proxy.Cut(true)
	meshtest.Until(t, "it does not stand by", func() bool { return one.Standby().Indexes == 0 })
	proxy.Heal()
	meshtest.Until(t, "the connection is back", func() bool { return nc.IsConnected() && nc.Flush() == nil })
	for range 20 {
		if _, err := r.nc.Request("tools.default.weather.today", []byte(`{}`), 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// The router and the node that has begun a call are cut off together, before the node has
// said a word: the caller knows that the call may have begun, and runs it nowhere else.
func TestRouterAndNodeAreCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 0, nil)
	held := r.heldUp()
	ours := r.call("weather.slow")
	<-held
	proxy := meshtest.NewProxy(t, r.top.Brokers[0])
	t.Cleanup(proxy.Heal)
	t.Cleanup(r.proxy.Heal)
	r.nodeOn(proxy.Connect(t), "n1", 8)
	<-r.started
	proxy.Blackhole()
	r.proxy.Blackhole()
	second := r.router(r.top.Serve(t), &standby.Options{})
	meshtest.Until(t, "the second one stands by", func() bool { return second.Standby().Indexes == 1 })
	r.node("n2", 8)
	select {
	case o := <-ours:
		if e := toolmesh.AsError(o.err); e == nil || e.Code != toolmesh.CodeNodeLost || e.Started != toolmesh.StartedUnknown {
			t.Errorf("our client: %+v", o)
		}
	case <-r.started:
		t.Error("the tool ran twice")
	}
	r.release <- struct{}{}
	r.release <- struct{}{}
}

// heldUp gets a signal when a caller is told that its call waits.
func (r *rig) heldUp() <-chan string {
	r.t.Helper()
	told := make(chan string, 1000)
	_, err := r.top.Serve(r.t).Subscribe("_INBOX.>", func(m *nats.Msg) {
		if word := m.Header.Get("Mesh-Awaits"); word != "" {
			told <- word
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return told
}

// A caller that answers is asked before its call is passed on, and told the node.
func TestCallersAreAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	inbox := r.nc.NewInbox()
	answers, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	err = r.nc.PublishMsg(&nats.Msg{Subject: "tools." + r.session() + ".weather.today", Reply: inbox, Header: nats.Header{"Mesh-Rpc-Id": {"r1"}, "Mesh-Keepalive": {"1"}, "Mesh-Awaits": {"1"}}})
	if err != nil {
		t.Fatal(err)
	}
	next := func(awaits string) *nats.Msg {
		t.Helper()
		for {
			m, err := answers.NextMsg(waitTimeout)
			if err != nil {
				t.Fatal(err)
			}
			if m.Header.Get("Mesh-Awaits") == awaits {
				return m
			}
			if awaits == "" {
				t.Fatalf("%v %s", m.Header, m.Data)
			}
		}
	}
	next("held")
	r.node("n1", 8)
	next("ask")
	next("held") // that was not answered
	second := next("ask")
	if n := r.ran.Load(); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	if err := r.nc.Publish("mesh.ctl."+r.session()+".r1", []byte(`{"type":"pass","seq":`+second.Header.Get("Mesh-Seq")+`}`)); err != nil {
		t.Fatal(err)
	}
	if m := next(""); m.Header.Get("Mesh-Node") != "n1" || m.Header.Get("Mesh-Keepalive") != "1" || m.Header.Get("Mesh-Boot") == "" {
		t.Errorf("before it begins: %v", m.Header)
	}
	if m := next(""); string(m.Data) != "1" || m.Header.Get("Mesh-Node-Wait-Ms") == "" {
		t.Errorf("the answer: %v %s", m.Header, m.Data)
	}
}

// The caller of a call that was passed on is killed: the call's node ends it.
func TestCallerOfACallThatWasPassedOnIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, single(t), 1, &standby.Options{})
	dead := r.top.Call(t)
	inbox := dead.NewInbox()
	if _, err := dead.SubscribeSync(inbox); err != nil {
		t.Fatal(err)
	}
	err := dead.PublishMsg(&nats.Msg{Subject: "tools." + r.session() + ".weather.slow", Reply: inbox, Header: nats.Header{"Mesh-Rpc-Id": {"r1"}, "Mesh-Keepalive": {"1"}, "Mesh-Timeout-Ms": {"600000"}}})
	if err != nil {
		t.Fatal(err)
	}
	r.awaits(1)
	h := r.node("n1", 8)
	<-r.started
	dead.Close()
	meshtest.Until(t, "nothing runs on the node", func() bool { return h.Figures().InFlight == 0 })
}
