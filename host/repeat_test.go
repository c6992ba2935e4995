package host_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

func bodies(all []chunk) []string {
	var texts []string
	for _, c := range all {
		texts = append(texts, fmt.Sprint(c.kind, c.count, c.body))
	}
	return texts
}

func TestRepetitionOfAUnaryCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Slots: 2}})
	const hold = "tools.default.desk.hold"
	first, again, other := r.inbox(), r.inbox(), r.inbox()
	r.send(first, hold, `{"key":"one"}`, "Mesh-Rpc-Id", "one")
	wait(t, "start", r.gate("one").started)
	r.send(again, hold, `{"key":"one"}`, "Mesh-Rpc-Id", "one", "Mesh-Want-Load", "1")
	r.send(other, directed(r.h, "default", "desk.hold"), `{"key":"one"}`, "Mesh-Rpc-Id", "one")
	for name, refused := range map[string]answer{
		"another body": r.ask(hold, `{"key":"two"}`, "Mesh-Rpc-Id", "one"),
		"another tool": r.ask("tools.default.desk.note", `{"key":"one"}`, "Mesh-Rpc-Id", "one"),
		"a stream":     r.ask(hold, `{"key":"one"}`, "Mesh-Rpc-Id", "one", "Mesh-Stream", "1"),
	} {
		want := "false"
		if name == "another body" {
			want = "" // it may be the call in another form
		}
		if refused.code() != "invalid_request" || refused.Header.Get("Mesh-Started") != want {
			t.Errorf("%s under a running call's id: %s", name, refused.Data)
		}
	}
	r.settled()
	close(r.gate("one").release)
	a, b, c := first.next(), again.next(), other.next()
	if string(a.Data) != `"released one"` || string(b.Data) != string(a.Data) || string(c.Data) != string(a.Data) {
		t.Errorf("answers = %s, %s and %s, want three times the same", a.Data, b.Data, c.Data)
	}
	if b.Header.Get("Mesh-Load") == "" || a.Header.Get("Mesh-Load") != "" {
		t.Errorf("the load goes to the caller that asked: %v, %v", a.Header, b.Header)
	}
	// It has ended now.
	if late := r.ask(hold, `{"key":"one"}`, "Mesh-Rpc-Id", "one"); string(late.Data) != string(a.Data) {
		t.Errorf("afterwards: %s", late.Data)
	}
	if late := r.ask(hold, `{"key":"two"}`, "Mesh-Rpc-Id", "one"); late.code() != "invalid_request" {
		t.Errorf("another body afterwards: %s", late.Data)
	}
	if n := r.ran("one"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	first.none("the first caller")
}

// The same id in two sessions is two calls, whatever is done to them.
func TestSameIDInTwoSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	inboxes := make(map[string]*inbox)
	for _, session := range []string{"default", "s2"} {
		in := r.inbox()
		inboxes[session] = in
		r.send(in, "tools."+session+".desk.hold", fmt.Sprintf(`{"key":%q}`, session), "Mesh-Rpc-Id", "one")
		wait(t, session+": start", r.gate(session).started)
		// A stream with that id is another call, and its chunks are the session's own.
		items := r.inbox()
		r.send(items, "tools."+session+".desk.gen", fmt.Sprintf(`{"key":"%s stream","n":2}`, session), "Mesh-Rpc-Id", "many", "Mesh-Stream", "inbox")
		if diff := cmp.Diff([]string{"data1", "data2", "complete2"}, bodies(items.chunks())); diff != "" {
			t.Errorf("%s: stream (-want +got):\n%s", session, diff)
		}
	}
	if a := r.ask("mesh.ctl.s2.one", ""); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("cancel: %s", a.Data)
	}
	if a := inboxes["s2"].next(); a.code() != "cancelled" {
		t.Errorf("the call that was cancelled: %s", a.Data)
	}
	joined := r.inbox()
	r.send(joined, "tools.default.desk.hold", `{"key":"default"}`, "Mesh-Rpc-Id", "one")
	r.settled()
	close(r.gate("default").release)
	for _, in := range []*inbox{inboxes["default"], joined} {
		if a := in.next(); string(a.Data) != `"released default"` {
			t.Errorf("the call of the other session: %s", a.Data)
		}
	}
	for session, code := range map[string]string{"default": "ok", "s2": "cancelled"} {
		if a := r.ask("tools."+session+".desk.hold", fmt.Sprintf(`{"key":%q}`, session), "Mesh-Rpc-Id", "one"); a.code() != code {
			t.Errorf("%s, repeated: %s", session, a.Data)
		}
		if n := r.ran(session); n != 1 {
			t.Errorf("%s: it ran %d times", session, n)
		}
	}
}

// The node forgets results, and no name that may yet be repeated.
func TestNamesOutliveResults(t *testing.T) {
	t.Parallel()
	const others = 10_500
	r := newRig(t, &rigOptions{host: host.Options{Slots: others}})
	if a := r.call("note", `{"key":"first"}`, "Mesh-Rpc-Id", "first"); a.code() != "ok" {
		t.Fatalf("%s", a.Data)
	}
	in := r.inbox()
	for i := range others {
		r.send(in, "tools.default.desk.add", `{"a":1,"b":2}`, "Mesh-Rpc-Id", fmt.Sprint(i))
	}
	for range others {
		if a := in.next(); a.code() != "ok" {
			t.Fatalf("%s", a.Data)
		}
	}
	for _, again := range [][]string{nil, {"Mesh-Again", "2500"}} {
		a := r.call("note", `{"key":"first"}`, append(again, "Mesh-Rpc-Id", "first")...)
		if a.code() != "invalid_request" || a.Error.started() != "true" {
			t.Errorf("after %d other calls, with %v: %s", others, again, a.Data)
		}
	}
	if a := r.call("add", `{"a":1,"b":2}`, "Mesh-Rpc-Id", fmt.Sprint(others-1), "Mesh-Again", "2500"); a.code() != "ok" {
		t.Errorf("a result that is kept: %s", a.Data)
	}
	if n := r.ran("first"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// A node that was not there when a request was first sent cannot know whether it
// ran, and neither runs it nor says that it did not.
func TestRepetitionThatIsOlderThanTheNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, how := range []string{"", "1", "inbox"} {
		pairs := []string{"Mesh-Rpc-Id", "old" + how, "Mesh-Again", "3600000"}
		if how != "" {
			pairs = append(pairs, "Mesh-Stream", how)
		}
		a := r.call("gen", `{"key":"old","n":1}`, pairs...)
		if a.code() != "node_lost" || a.Error.started() != "unknown" || a.Header.Get("Mesh-Started") != "" {
			t.Errorf("stream %q: %v %s", how, a.Header, a.Data)
		}
		// Nor when it would not be run anyway.
		if a := r.call("gen", `{"key":"old","n":1}`, append(pairs, "Mesh-Timeout-Ms", "0")...); a.code() != "node_lost" || a.Error.started() != "unknown" {
			t.Errorf("stream %q, with no time left: %s", how, a.Data)
		}
	}
	if n := r.ran("old"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	// One that was first sent while the node remembers, and never arrived, is new.
	if a := r.call("note", `{"key":"new"}`, "Mesh-Rpc-Id", "new", "Mesh-Again", "0"); a.code() != "ok" || r.ran("new") != 1 {
		t.Errorf("a repetition of what got lost: %s", a.Data)
	}
	for _, bad := range [][]string{{"Mesh-Again", "5"}, {"Mesh-Again", "-1", "Mesh-Rpc-Id", "bad"}, {"Mesh-Again", "soon", "Mesh-Rpc-Id", "bad"}} {
		if a := r.call("note", `{"key":"bad"}`, bad...); a.code() != "invalid_request" || r.ran("bad") != 0 {
			t.Errorf("%v: %s", bad, a.Data)
		}
	}
}

// A call belongs to its session: messages of another session about its id have no effect on it,
// while it runs or before.
func TestOtherSessionsCannotCancel(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.inbox()
	r.send(nil, "mesh.ctl.s2.early", "")
	r.settled()
	if a := r.call("note", `{"key":"early"}`, "Mesh-Rpc-Id", "early"); a.code() != "ok" {
		t.Errorf("a call that another session has cancelled before it came: %s", a.Data)
	}
	r.send(in, "tools.default.desk.hold", `{"key":"mine"}`, "Mesh-Rpc-Id", "mine")
	wait(t, "start", r.gate("mine").started)
	other := r.inbox()
	r.send(other, "mesh.ctl.s2.mine", "")
	r.send(other, "mesh.node."+string(r.h.Node())+".ctl.s2.mine", `{"type":"cancel"}`)
	r.settled()
	other.none("to a cancel of another session's call")
	close(r.gate("mine").release)
	if a := in.next(); string(a.Data) != `"released mine"` {
		t.Errorf("the call ended with %s", a.Data)
	}
	// The other session's cancel counts for that session only.
	if a := r.ask("tools.s2.desk.note", `{"key":"s2"}`, "Mesh-Rpc-Id", "its own"); a.code() != "ok" {
		t.Errorf("the other session's own call: %s", a.Data)
	}
}

func TestRepetitionAcrossForms(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	body := func(id string) string {
		return `{"type":"rpc_tool_call","rpc_id":` + id + `,"tool_id":"desk.note","kwargs":{"key":"form"}}`
	}
	a, b := r.call("note", body("7")), r.call("note", body("7"))
	if string(a.Data) != string(b.Data) || r.ran("form") != 1 {
		t.Errorf("%s, then %s; it ran %d times", a.Data, b.Data, r.ran("form"))
	}
	// 7 and "7" are one call; as the bodies differ, it is a collision.
	if c := r.call("note", body(`"7"`)); !slices.Contains([]string{"invalid_request"}, envelopeCode(t, c)) {
		t.Errorf(`"7" after 7: %s`, c.Data)
	}
	if r.ran("form") != 1 {
		t.Errorf("it ran %d times", r.ran("form"))
	}
	// An error is an answer like any other.
	for range 2 {
		if a := r.call("fail", `{"code":"plain"}`, "Mesh-Rpc-Id", "bad"); a.code() != "tool_error" || a.Error.Message != "out of order" {
			t.Errorf("a failed call, and again: %s", a.Data)
		}
	}
}

func envelopeCode(t *testing.T, a answer) string {
	t.Helper()
	var e envelope
	mustJSON(t, a.Data, &e)
	if e.Error == nil {
		return "ok"
	}
	return e.Error.Code
}

func TestCallsThatDidNotStartMayBeSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Slots: 1}})
	in := r.inbox()
	r.send(in, "tools.default.desk.hold", `{"key":"full"}`)
	wait(t, "start", r.gate("full").started)
	if a := r.call("note", `{"key":"later"}`, "Mesh-Rpc-Id", "later"); a.code() != "busy" {
		t.Fatalf("with all slots taken: %s", a.Data)
	}
	close(r.gate("full").release)
	in.next()
	meshtest.Until(t, "the slot is free", func() bool { return r.h.Figures().InFlight == 0 })
	if a := r.call("note", `{"key":"later"}`, "Mesh-Rpc-Id", "later"); a.code() != "ok" || r.ran("later") != 1 {
		t.Errorf("the same again: %s, ran %d times", a.Data, r.ran("later"))
	}
	for range 2 {
		if a := r.call("add", `{"a":1}`, "Mesh-Rpc-Id", "bad"); a.code() != "invalid_arguments" {
			t.Errorf("invalid arguments: %s", a.Data)
		}
	}
	if a := r.call("add", `{"a":1,"b":1}`, "Mesh-Rpc-Id", "bad"); a.code() != "ok" {
		t.Errorf("the id of a call that never began, with other arguments: %s", a.Data)
	}
}

func TestRepetitionOfAStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const gen = "tools.default.desk.gen"
	body := `{"key":"inbox","n":3,"gate":true}`
	first, during := r.inbox(), r.inbox()
	r.send(first, gen, body, "Mesh-Rpc-Id", "si", "Mesh-Stream", "inbox")
	r.gate("inbox").release <- struct{}{}
	first.next()
	r.send(during, gen, body, "Mesh-Rpc-Id", "si", "Mesh-Stream", "inbox")
	if a := r.ask(gen, body, "Mesh-Rpc-Id", "si"); a.code() != "invalid_request" {
		t.Errorf("as a unary call: %s", a.Data)
	}
	close(r.gate("inbox").release)
	want := []string{"data1", "data2", "data3", "complete3"}
	if diff := cmp.Diff(want, bodies(during.chunks())); diff != "" {
		t.Errorf("joined (-want +got):\n%s", diff)
	}
	if !isEmpty(during.next().Msg) {
		t.Error("no empty message ends the repetition")
	}
	// And after its end, whatever the delivery of the repetition.
	after := r.inbox()
	r.send(after, gen, body, "Mesh-Rpc-Id", "si", "Mesh-Stream", "inbox")
	if diff := cmp.Diff(want, bodies(after.chunks())); diff != "" || !isEmpty(after.next().Msg) {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
	ack := r.ask(gen, body, "Mesh-Rpc-Id", "si", "Mesh-Stream", "1")
	if diff := cmp.Diff(`{"rpc_id":"si","node":"`+string(r.h.Node())+`"}`, string(ack.Data)); diff != "" {
		t.Errorf("acknowledgement afterwards (-want +got):\n%s", diff)
	}
	if n := r.ran("inbox"); n != 1 {
		t.Errorf("it ran %d times", n)
	}

	// A live one is acknowledged again as soon as it is under way.
	body = `{"key":"live","n":2,"gate":true}`
	live, early, late := r.inbox(), r.inbox(), r.inbox()
	r.send(live, gen, body, "Mesh-Rpc-Id", "sl", "Mesh-Stream", "1")
	wait(t, "start", r.gate("live").started)
	r.send(early, gen, body, "Mesh-Rpc-Id", "sl", "Mesh-Stream", "1")
	r.settled()
	early.none("before the first item")
	r.gate("live").release <- struct{}{}
	live.next()
	early.next()
	r.send(late, gen, body, "Mesh-Rpc-Id", "sl", "Mesh-Stream", "1")
	late.next()
	close(r.gate("live").release)
	wait(t, "end", r.gate("live").ended)
	meshtest.Until(t, "the call is over", func() bool { return r.h.Figures().InFlight == 0 })
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, in := range []*inbox{live, early, late} {
		in.none("after its acknowledgement")
	}

	// The envelope form, as its reader knows it.
	env := `{"type":"rpc_tool_stream","rpc_id":"se","tool_id":"desk.gen","kwargs":{"key":"env","n":1}}`
	for range 2 {
		in := r.inbox()
		r.send(in, gen, env)
		for _, want := range []string{
			`{"type":"rpc_stream_chunk","rpc_id":"se","chunk_type":"data","data":1,"seq":1}`,
			`{"type":"rpc_stream_chunk","rpc_id":"se","chunk_type":"complete","seq":2}`,
		} {
			if diff := cmp.Diff(want, string(in.next().Data)); diff != "" {
				t.Errorf("envelope chunk (-want +got):\n%s", diff)
			}
		}
	}
	if n := r.ran("env"); n != 1 {
		t.Errorf("it ran %d times", n)
	}

	// One that failed before its first item is repeated as that failure.
	for range 2 {
		a := r.ask(gen, `{"key":"early","fail":true}`, "Mesh-Rpc-Id", "sf", "Mesh-Stream", "1")
		if a.code() != "tool_error" {
			t.Errorf("a stream that failed at once: %s", a.Data)
		}
	}
	if n := r.ran("early"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	node := "mesh.node." + string(r.h.Node()) + ".ctl.default."
	for i, c := range []struct{ subject, body string }{
		{"mesh.ctl.default.", ""}, {node, ""}, {"mesh.ctl.default.", `{"type":"cancel"}`}, {node, ` {"type":"cancel","more":1} `},
	} {
		id := fmt.Sprint("c", i)
		in := r.inbox()
		r.send(in, "tools.default.desk.hold", fmt.Sprintf(`{"key":%q}`, id), "Mesh-Rpc-Id", id)
		wait(t, "start", r.gate(id).started)
		if a := r.ask(c.subject+id, c.body); string(a.Data) != `{"cancelled":true}` {
			t.Errorf("%s %q: answer %s", c.subject, c.body, a.Data)
		}
		if a := in.next(); a.code() != "cancelled" || a.Error.started() != "true" {
			t.Errorf("%s %q: the call ends with %s", c.subject, c.body, a.Data)
		}
		if cause := wait(t, "end", r.gate(id).ended); cause == nil {
			t.Errorf("%s %q: the handler was not told", c.subject, c.body)
		}
	}
	// Also one that does not listen: its caller need not wait for it.
	ignoring := r.inbox()
	r.send(ignoring, "tools.default.desk.hold", `{"key":"ignoring","ignoring":true}`, "Mesh-Rpc-Id", "ignoring")
	wait(t, "start", r.gate("ignoring").started)
	r.send(nil, "mesh.ctl.default.ignoring", "")
	if a := ignoring.next(); a.code() != "cancelled" {
		t.Errorf("a call that ignores the cancel: %s", a.Data)
	}
	close(r.gate("ignoring").release)

	// A call that arrives after its cancel is answered and not started.
	r.send(nil, "mesh.ctl.default.early", "")
	running := r.inbox()
	r.send(running, "tools.default.desk.hold", `{"key":"mark"}`, "Mesh-Rpc-Id", "mark")
	wait(t, "start", r.gate("mark").started)
	r.ask("mesh.ctl.default.mark", "") // on the same subscription, so the other one has been seen
	running.next()
	a := r.call("note", `{"key":"early"}`, "Mesh-Rpc-Id", "early")
	if a.code() != "cancelled" || a.Error.started() != "false" || r.ran("early") != 0 {
		t.Errorf("after its cancel: %s, ran %d times", a.Data, r.ran("early"))
	}

	// A node without the call does not answer: another node may have it.
	silent := r.inbox()
	r.send(silent, "mesh.ctl.default.c0", "")      // has ended
	r.send(silent, "mesh.ctl.default.nobody", "")  // never was
	r.send(silent, "mesh.ctl.other.mark2", "")     // of another session
	r.send(silent, "mesh.ctl.default.nobody", "?") // and unreadable
	r.send(running, "tools.default.desk.hold", `{"key":"mark2"}`, "Mesh-Rpc-Id", "mark2")
	wait(t, "start", r.gate("mark2").started)
	if a := r.ask("mesh.ctl.default.mark2", "rubbish"); a.code() != "invalid_request" {
		t.Errorf("an unreadable control message to a running call: %s", a.Data)
	}
	if a := r.ask("mesh.ctl.default.mark2", ""); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("cancel: %s", a.Data)
	}
	silent.none("cancels of what does not run")
	if a := r.call("hold", `{"key":"c0"}`, "Mesh-Rpc-Id", "c0"); a.code() != "cancelled" || a.Error.started() != "true" {
		t.Errorf("a call that was cancelled, repeated: %s", a.Data)
	}
}

// A stream without a name from its caller is cancelled by the name that the node made.
func TestCancelOfAStreamWithoutAName(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.inbox()
	r.send(in, "tools.default.desk.gen", `{"key":"g","n":1000000,"gate":true}`, "Mesh-Stream", "inbox")
	r.gate("g").release <- struct{}{}
	id := in.next().Header.Get("Mesh-Rpc-Id")
	if id == "" {
		t.Fatal("the first chunk names no call")
	}
	if a := r.ask("mesh.ctl.default."+id, ""); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("cancel: %s", a.Data)
	}
	c, err := readChunk(in.next().Msg)
	if err != nil || c.kind != "error" || c.seq != 2 || c.count != "1" {
		t.Errorf("terminal = %+v, %v", c, err)
	}
	if !isEmpty(in.next().Msg) {
		t.Error("no empty message ends it")
	}
	if cause := wait(t, "end", r.gate("g").ended); cause == nil {
		t.Error("the generator was not told")
	}
}

// A request that would be refused now gets the answer of the call that it
// repeats: "not started" would have its caller start it elsewhere.
func TestRepetitionsOfAHostThatDrains(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	to := func(name string) string { return directed(r.h, "default", "desk."+name) }
	if a := r.ask(to("note"), `{"key":"done"}`, "Mesh-Rpc-Id", "done"); a.code() != "ok" {
		t.Fatalf("%s", a.Data)
	}
	running, joined := r.inbox(), r.inbox()
	r.send(running, to("hold"), `{"key":"running"}`, "Mesh-Rpc-Id", "running")
	wait(t, "start", r.gate("running").started)

	drained := make(chan error, 1)
	go func() { drained <- r.h.Drain(t.Context()) }()
	meshtest.Until(t, "new calls are refused", func() bool {
		a := r.ask(to("note"), `{"key":"new"}`)
		return a.code() == "unavailable" && a.Error.started() == "false"
	})
	before := r.ran("new")
	if a := r.ask(to("note"), `{"key":"done"}`, "Mesh-Rpc-Id", "done"); a.code() != "ok" {
		t.Errorf("a call that has ended: %s", a.Data)
	}
	if a := r.ask(to("note"), `{"key":"done"}`, "Mesh-Rpc-Id", "done", "Mesh-Timeout-Ms", "0"); a.code() != "ok" {
		t.Errorf("a call that has ended, and no time left: %s", a.Data)
	}
	if a := r.ask(to("note"), `{"key":"other"}`, "Mesh-Rpc-Id", "done"); a.code() != "invalid_request" {
		t.Errorf("another call of the same id: %s", a.Data)
	}
	r.send(joined, to("hold"), `{"key":"running"}`, "Mesh-Rpc-Id", "running")
	if a := r.ask(to("note"), `{"key":"new"}`); a.code() != "unavailable" || r.ran("new") != before {
		t.Errorf("a new call: %s", a.Data)
	}
	close(r.gate("running").release)
	if a, b := running.next(), joined.next(); string(a.Data) != `"released running"` || string(b.Data) != string(a.Data) {
		t.Errorf("a call that runs: %s, and again: %s", a.Data, b.Data)
	}
	if err := wait(t, "drain", drained); err != nil {
		t.Errorf("drain: %v", err)
	}
	if n := r.ran("done"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// Likewise after the tool itself was withdrawn.
func TestRepetitionsOfAToolThatWasWithdrawn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if a := r.call("note", `{"key":"done"}`, "Mesh-Rpc-Id", "done"); a.code() != "ok" {
		t.Fatalf("%s", a.Data)
	}
	if err := r.h.Withdraw(t.Context(), "desk", ""); err != nil {
		t.Fatal(err)
	}
	again := func() answer {
		return r.ask(directed(r.h, "default", "desk.note"), `{"key":"done"}`, "Mesh-Rpc-Id", "done")
	}
	if a := again(); a.code() != "ok" {
		t.Errorf("repeated: %s", a.Data)
	}
	meshtest.Until(t, "the tool is gone", func() bool {
		a := r.ask(directed(r.h, "default", "desk.note"), `{}`)
		return a.code() == "tool_not_found" && a.Error.started() == "false"
	})
	if a := again(); a.code() != "ok" {
		t.Errorf("repeated after it was gone: %s", a.Data)
	}
}
