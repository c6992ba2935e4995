package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

var keptFor = tool.Annotations{CacheTTL: time.Hour}

// keep offers a handler under a name as a tool that keeps results.
func (r *rig) keep(name string, handler host.Handler, a tool.Annotations) {
	r.t.Helper()
	if _, err := r.h.Handle(name, handler, host.Annotate(a), host.Schema([]byte(`{"type":"object"}`), nil)); err != nil {
		r.t.Fatal(err)
	}
}

// use is the Mesh-Cache of an answer, or its code if it failed.
func (a answer) use() string {
	if a.Error != nil {
		return a.code()
	}
	return a.Header.Get("Mesh-Cache")
}

// Results are cached by canonical arguments; a caller that asks for an execution gets one, and
// its result is cached.
func TestResultsAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	for _, step := range []struct {
		body, use string
		headers   []string
	}{
		{`{"key":"k","a":1,"b":"é"}`, "miss", nil},
		{`{"key":"k","a":1,"b":"é"}`, "hit", nil},
		{" {\"b\":\"\\u00e9\",\n\"a\":1,\"key\":\"k\"}", "hit", nil},
		{`{"key":"k","a":1.0,"b":"é"}`, "miss", nil}, // another number to a function of Python
		{`{"key":"k","a":9007199254740993}`, "miss", nil},
		{`{"key":"k","a":9007199254740992}`, "miss", nil},
		{`{"key":"k","a":1,"b":"é"}`, "bypass", []string{"Mesh-Cache", "bypass"}},
		{`{"key":"k","a":1,"b":"é"}`, "hit", nil},
		{`{"key":"k","a":1,"b":"é"}`, "miss", []string{"Mesh-Isolation", "fresh"}},
		{`{"key":"k","a":1,"b":"é"}`, "invalid_request", []string{"Mesh-Cache", "hit"}},
		{`{"key":"k","a":1,"a":1}`, "invalid_arguments", nil},
		{`{"key":"k","a":"\ud800"}`, "miss", nil},
		{`{"key":"k","a":"\ufffd"}`, "miss", nil},
	} {
		a := r.call("kept", step.body, step.headers...)
		if a.use() != step.use {
			t.Errorf("%s %v: %s, want %s", step.body, step.headers, a.use(), step.use)
		}
		if step.use == "hit" && string(a.Data) != `{"key":"k","a":1,"b":"é"}` {
			t.Errorf("%s: %s", step.body, a.Data)
		}
	}
	if n := r.ran("k"); n != 8 {
		t.Errorf("%d runs, want 8", n)
	}
	// The envelope form has no headers; its positional arguments are named first.
	for range 2 {
		a := r.call("kept", `{"type":"rpc_tool_call","rpc_id":`+strconv.Quote(string(rune('a'+r.ran("e"))))+`,"tool_id":"desk.kept","args":[],"kwargs":{"key":"e"}}`)
		if !strings.Contains(string(a.Data), `"result":{"key":"e"}`) {
			t.Error(string(a.Data))
		}
	}
	if n := r.ran("e"); n != 1 {
		t.Errorf("%d runs for envelopes, want 1", n)
	}
	if a := r.call("note", `{"key":"n"}`); a.use() != "" {
		t.Errorf("a tool that keeps nothing says %q", a.use())
	}
	if a := r.call("note", `{"key":"n"}`, "Mesh-Cache", "bypass"); a.use() != "" || a.code() != "ok" {
		t.Errorf("likewise, asked to run: %s %q", a.code(), a.use())
	}
}

// A result is its session's alone, and of the one session that had the name then;
// unless the tool says that all may share.
func TestSessionsDoNotShareResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	shared := keptFor
	shared.CacheShared = true
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	r.keep("shared", host.HandlerFunc(r.note), shared)
	sessionRecord(t, r.nc, "mine", `{"id":"mine","epoch":"1"}`)
	for i, step := range []struct{ session, use, shared string }{
		{"default", "miss", "miss"},
		{"default", "hit", "hit"},
		{"mine", "miss", "hit"},
		{"mine", "hit", "hit"},
		{"nobody", "miss", "hit"}, // never created
		{"nobody", "hit", "hit"},
	} {
		if a := r.ask("tools."+step.session+".desk.kept", `{"key":"k"}`); a.use() != step.use {
			t.Errorf("%d, %s: %s, want %s", i, step.session, a.use(), step.use)
		}
		if a := r.ask("tools."+step.session+".desk.shared", `{"key":"s"}`); a.use() != step.shared {
			t.Errorf("%d, %s, shared: %s, want %s", i, step.session, a.use(), step.shared)
		}
	}
	// The next session of a name begins with an empty cache, whether it was created or not.
	for _, session := range []string{"mine", "nobody"} {
		sessionRecord(t, r.nc, session, `{"id":"`+session+`","epoch":"2"}`)
		ran := r.ran("k")
		meshtest.Until(t, "the node hears of the session", func() bool {
			a := r.ask("tools."+session+".desk.note", `{"key":"n"}`)
			return a.code() == "ok" && (<-r.gate("n").seen).Epoch == "2"
		})
		if a := r.ask("tools."+session+".desk.kept", `{"key":"k"}`); a.use() != "miss" || r.ran("k") != ran+1 {
			t.Errorf("the next session %s: %s", session, a.use())
		}
	}
}

// The cached results of a session are dropped at its end.
func TestResultsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	view := &viewed{}
	view.set("1")
	r := newRig(t, &rigOptions{host: host.Options{Sessions: view}})
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	for _, use := range []string{"miss", "hit"} {
		if a := r.ask("tools.s.desk.kept", `{"key":"k"}`); a.use() != use {
			t.Fatalf("%s, want %s", a.use(), use)
		}
	}
	view.set("2")
	before := view.asked.Load()
	meshtest.Until(t, "the node looks whether the session goes on", func() bool { return view.asked.Load() > before })
	view.set("1")
	if a := r.ask("tools.s.desk.kept", `{"key":"k"}`); a.use() != "miss" {
		t.Errorf("after the session's end: %s", a.use())
	}
}

// A private tool's results belong to its session, even if it declares cache_shared.
func TestSessionToolsShareNothing(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	d := newDesk()
	d.serve(t, broker.Connect(t), &host.Options{Index: "other"}) // makes the registry
	sessionRecord(t, nc, "s", `{"id":"s","epoch":"1"}`)
	h := d.serve(t, broker.Connect(t), &host.Options{Session: "s"})
	r := &rig{desk: d, t: t, broker: broker, h: h, nc: nc}
	r.keep("kept", host.HandlerFunc(d.note), tool.Annotations{CacheTTL: time.Hour, CacheShared: true})
	for _, use := range []string{"miss", "hit"} {
		if a := r.ask("tools.s.kept", `{"key":"k"}`); a.use() != use {
			t.Errorf("%s, want %s", a.use(), use)
		}
	}
}

// Equal calls at the same time run once, and take one answer.
func TestEqualCallsRunOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.keep("kept", host.HandlerFunc(r.hold), keptFor)
	in := r.inbox()
	for i := range 64 {
		r.send(in, "tools.default.desk.kept", `{"key":"k"}`, "Mesh-Rpc-Id", fmt.Sprint("r", i))
	}
	<-r.gate("k").started
	meshtest.Until(t, "all calls wait", func() bool { return r.h.Figures().InFlight == 64 })
	r.gate("k").release <- struct{}{}
	uses := map[string]int{}
	for range 64 {
		a := in.next()
		uses[a.use()]++
		if string(a.Data) != `"released k"` {
			t.Errorf("%s", a.Data)
		}
	}
	if r.ran("k") != 1 || uses["miss"] != 1 || uses["hit"] != 63 {
		t.Errorf("%d runs, %v", r.ran("k"), uses)
	}
}

// If the caller that began an execution gives up, the other waiting callers still get its result.
// The last one to give up ends the execution.
func TestCachedExecutionOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancel", "deadline"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			r.keep("kept", host.HandlerFunc(r.hold), keptFor)
			first, second := r.inbox(), r.inbox()
			budget, want := "20000", "cancelled"
			if how == "deadline" {
				budget, want = "5000", "deadline_exceeded"
			}
			r.send(first, "tools.default.desk.kept", `{"key":"k"}`, "Mesh-Rpc-Id", "first", "Mesh-Timeout-Ms", budget)
			<-r.gate("k").started
			r.send(second, "tools.default.desk.kept", `{"key":"k"}`, "Mesh-Rpc-Id", "second")
			// The second has joined the run by the time at which one behind it has waited.
			if a := r.ask("tools.default.desk.kept", `{"key":"k"}`, "Mesh-Timeout-Ms", "500"); a.code() != "deadline_exceeded" {
				t.Fatalf("the third: %s", a.code())
			}
			if how == "cancel" {
				r.send(nil, "mesh.ctl.default.first", "")
			}
			if a := first.next(); a.code() != want {
				t.Fatalf("the first: %s, want %s", a.code(), want)
			}
			r.gate("k").release <- struct{}{}
			if err := <-r.gate("k").ended; err != nil {
				t.Errorf("the run ended by %v", err)
			}
			if a := second.next(); a.use() != "hit" || string(a.Data) != `"released k"` {
				t.Errorf("the second: %s %s", a.use(), a.Data)
			}

			only := r.inbox()
			r.send(only, "tools.default.desk.kept", `{"key":"l"}`, "Mesh-Rpc-Id", "only", "Mesh-Timeout-Ms", budget)
			<-r.gate("l").started
			if how == "cancel" {
				r.send(nil, "mesh.ctl.default.only", "")
			}
			if a := only.next(); a.code() != want || a.Error.started() != "true" {
				t.Errorf("the only one: %s, started %s", a.code(), a.Error.started())
			}
			if cause := <-r.gate("l").ended; string(toolmesh.CodeOf(cause)) != want {
				t.Errorf("the run ended by %v", cause)
			}
		})
	}
}

// Errors of no kind are kept.
func TestErrorsAreNotKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var ran atomic.Int64
	r.keep("kept", host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		ran.Add(1)
		var in deskArgs
		if err := in.read(call); err != nil {
			return err
		}
		if in.Code == "exit" {
			runtime.Goexit()
		}
		return r.fail(ctx, call, sink)
	}), keptFor)
	for code, want := range map[string]string{
		"plain": "tool_error", "panic": "tool_error", "exit": "tool_error", "busy": "busy", "worker_crashed": "worker_crashed", "cancelled": "cancelled",
	} {
		ran.Store(0)
		for range 2 {
			if a := r.call("kept", `{"code":"`+code+`"}`); a.code() != want || a.Header.Get("Mesh-Cache") != "" {
				t.Errorf("%s: %s %v", code, a.code(), a.Header)
			}
		}
		if n := ran.Load(); n != 2 {
			t.Errorf("%s: %d runs, want 2", code, n)
		}
	}
	exited := r.call("kept", `{"code":"exit"}`)
	if exited.Error.Type != "goexit" {
		t.Errorf("%+v", exited.Error)
	}
}

// Answers from the cache take no slot.
func TestKeptResultsTakeNoSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Slots: 1}})
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	if a := r.call("kept", `{"key":"k"}`); a.use() != "miss" {
		t.Fatal(a.use())
	}
	hold := r.inbox()
	r.send(hold, "tools.default.desk.hold", `{"key":"h"}`)
	<-r.gate("h").started
	if a := r.call("kept", `{"key":"k"}`); a.use() != "hit" {
		t.Errorf("what is kept, with no slot free: %s", a.use())
	}
	if a := r.call("kept", `{"key":"other"}`); a.use() != "busy" {
		t.Errorf("what is not: %s", a.use())
	}
	r.gate("h").release <- struct{}{}
	hold.next()
}

// A tool that replaces another one does not get its results, nor does the same tool when it is
// offered again.
func TestResultsEndWithTheirTool(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	uses := func(when string, want ...string) {
		t.Helper()
		for _, use := range want {
			if a := r.ask("tools.default.x.kept", `{"key":"k"}`); a.use() != use {
				t.Errorf("%s: %s, want %s", when, a.use(), use)
			}
		}
	}
	d := &tool.Descriptor{ID: "x.kept", Name: "kept", Source: tool.SourceGo, Annotations: keptFor}
	publish := func(revision string) {
		t.Helper()
		if err := r.h.Publish(t.Context(), host.Service{Index: "x", Revision: revision, Tools: []host.Tool{{Descriptor: d, Handler: host.HandlerFunc(r.note)}}}); err != nil {
			t.Fatal(err)
		}
	}
	publish("1")
	uses("at first", "miss", "hit")
	publish("2")
	uses("another revision", "miss", "hit")
	if err := r.h.Withdraw(t.Context(), "x", ""); err != nil {
		t.Fatal(err)
	}
	publish("2")
	uses("withdrawn and offered again", "miss", "hit")
	if err := r.h.Add("x", "", host.Tool{Descriptor: d, Handler: host.HandlerFunc(r.note)}); err != nil {
		t.Fatal(err)
	}
	uses("replaced", "miss", "hit")
	// A run that began before its tool was replaced leaves nothing.
	hold := *d
	hold.ID, hold.Name = "x.hold", "hold"
	for _, offered := range []string{"first", "second"} {
		if err := r.h.Add("x", "", host.Tool{Descriptor: &hold, Handler: host.HandlerFunc(r.hold)}); err != nil {
			t.Fatal(err)
		}
		if offered == "first" {
			in := r.inbox()
			r.send(in, "tools.default.x.hold", `{"key":"h"}`)
			<-r.gate("h").started
			defer func() {
				r.gate("h").release <- struct{}{}
				in.next()
				again := r.inbox()
				r.send(again, "tools.default.x.hold", `{"key":"h"}`)
				<-r.gate("h").started
				r.gate("h").release <- struct{}{}
				if a := again.next(); a.use() != "miss" {
					t.Errorf("what an earlier tool returned is kept for a later one: %s", a.use())
				}
			}()
		}
	}
}

// A request that repeats a call gets that call's answer, kept results or not.
func TestRepetitionsBesideKeptResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	for _, step := range []struct{ id, key, use string }{
		{"one", "a", "miss"},
		{"one", "a", "miss"}, // as it was recorded
		{"two", "b", "miss"},
		{"one", "b", "invalid_request"}, // though b is kept
		{"three", "b", "hit"},
		{"three", "b", "hit"},
	} {
		if a := r.call("kept", `{"key":"`+step.key+`"}`, "Mesh-Rpc-Id", step.id); a.use() != step.use {
			t.Errorf("%s %s: %s, want %s", step.id, step.key, a.use(), step.use)
		}
	}
	if a, b := r.ran("a"), r.ran("b"); a != 1 || b != 1 {
		t.Errorf("%d and %d runs", a, b)
	}
}

// A call with an idempotency key gets its key's result, not that of the cache.
func TestKeysTakePrecedenceOverCachedResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var runs atomic.Int64
	r.keep("kept", host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		return sink.Send(ctx, json.RawMessage(strconv.FormatInt(runs.Add(1), 10)))
	}), keptFor)
	for i, step := range []struct {
		headers []string
		value   string
	}{
		{[]string{"Mesh-Idempotency-Key", "a"}, "1"},
		{nil, "1"},
		{[]string{"Mesh-Cache", "bypass"}, "2"},
		{[]string{"Mesh-Idempotency-Key", "a"}, "1"},
		{[]string{"Mesh-Idempotency-Key", "b"}, "2"}, // its one execution is a result that is kept
		{[]string{"Mesh-Cache", "bypass"}, "3"},
		{[]string{"Mesh-Idempotency-Key", "b"}, "2"},
	} {
		if a := r.call("kept", `{}`, step.headers...); string(a.Data) != step.value {
			t.Errorf("%d, %v: %s, want %s", i, step.headers, a.Data, step.value)
		}
	}
}

// The node keeps no more than it may.
func TestKeptResultsHaveABound(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{CacheEntries: 2}})
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	for _, step := range []struct{ key, use string }{{"a", "miss"}, {"b", "miss"}, {"a", "hit"}, {"c", "miss"}, {"a", "hit"}, {"b", "miss"}} {
		if a := r.call("kept", `{"key":"`+step.key+`"}`); a.use() != step.use {
			t.Errorf("%s: %s, want %s", step.key, a.use(), step.use)
		}
	}
}

// Items are not kept: a tool that yields them cannot say so, and a streaming call of
// one that returns is a run.
func TestItemsAreNotKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	yields := host.Stream(func(context.Context, struct{}) iter.Seq2[int, error] { return func(func(int, error) bool) {} })
	if _, err := r.h.Handle("yields", yields, host.Annotate(keptFor)); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "cache_ttl") {
		t.Errorf("a tool that yields: %v", err)
	}
	r.keep("kept", host.HandlerFunc(r.note), keptFor)
	if a := r.call("kept", `{"key":"k"}`); a.use() != "miss" {
		t.Fatal(a.use())
	}
	in := r.inbox()
	r.send(in, "tools.default.desk.kept", `{"key":"k"}`, "Mesh-Stream", "inbox")
	if got := in.chunks(); len(got) != 2 || got[0].body != `{"key":"k"}` || r.ran("k") != 2 {
		t.Errorf("%+v, %d runs", got, r.ran("k"))
	}
}

// An execution has the deadline and the depth of the call that began it; one that calls itself
// with the same arguments ends at the max depth and does not wait for itself.
func TestNestedCallsOfCachedTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{MaxDepth: 3}})
	c := testmesh.Client(t, r.nc, nil)
	r.keep("calls", host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		if deadline, ok := ctx.Deadline(); !ok || !deadline.Equal(call.Deadline) {
			t.Errorf("the context's deadline is %v, the call's %v", deadline, call.Deadline)
		}
		var in struct{ To subjects.ToolID }
		if err := json.Unmarshal(call.Args, &in); err != nil {
			return err
		}
		result, err := c.Call(ctx, in.To, call.Args)
		if err != nil {
			return err
		}
		return sink.Send(ctx, result.Value)
	}), keptFor)
	if a := r.call("calls", `{"to":"desk.note","key":"n"}`, "Mesh-Rpc-Id", "above"); a.use() != "miss" {
		t.Fatalf("%s %s", a.use(), a.Data)
	}
	if seen := <-r.gate("n").seen; seen.Parent != "above" || seen.Depth != 1 {
		t.Errorf("the nested call has parent %q and depth %d", seen.Parent, seen.Depth)
	}
	var a answer
	meshtest.Until(t, "a call is answered that the machine was not too busy for", func() bool {
		a = r.call("calls", `{"to":"desk.calls","key":"m"}`)
		return a.code() != "unavailable"
	})
	if a.code() != "invalid_request" || a.Error.started() != "true" || a.Error.Details["limit"] != "depth" {
		t.Errorf("a tool that calls itself: %+v", a.Error)
	}
}

// A run that others wait for does not end where the caller that began it is gone.
func TestARunThatOthersWaitForIsNotDeserted(t *testing.T) {
	r := newRig(t, nil)
	calls, place := make(chan *host.Call, 8), make(chan struct{})
	var waits, runs atomic.Int64
	r.keep("kept", host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		waits.Add(1)
		calls <- call
		<-place // as the pool's queue
		if call.Deserted() {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "the caller is not there").WithStarted(toolmesh.StartedNo)
		}
		runs.Add(1)
		return sink.Send(ctx, []byte("1"))
	}), keptFor)
	dead := r.broker.Connect(t)
	inbox := dead.NewInbox()
	if _, err := dead.SubscribeSync(inbox); err != nil {
		t.Fatal(err)
	}
	if err := dead.PublishMsg(&nats.Msg{Subject: "tools.default.desk.kept", Reply: inbox, Header: nats.Header{"Mesh-Keepalive": {"1"}}, Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	<-calls
	// Another call of the same caller shows when a keepalive has found no caller.
	r.keep("other", host.HandlerFunc(func(_ context.Context, call *host.Call, _ host.Sink) error {
		calls <- call
		<-place
		return nil
	}), tool.Annotations{})
	if err := dead.PublishMsg(&nats.Msg{Subject: "tools.default.desk.other", Reply: inbox, Header: nats.Header{"Mesh-Keepalive": {"1"}}, Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	call := <-calls
	in := r.inbox()
	for range 3 {
		r.send(in, "tools.default.desk.kept", "{}")
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	dead.Close()
	meshtest.Until(t, "the leader's caller is gone", call.Deserted)
	close(place)
	for range 3 {
		in.next()
	}
	if waits.Load() != 1 || runs.Load() != 1 {
		t.Errorf("the tool waited for a place %d times and ran %d times for callers that share a run", waits.Load(), runs.Load())
	}
}
