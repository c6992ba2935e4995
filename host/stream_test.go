package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

const genSubject = "tools.default.desk.gen"

func TestInboxStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.inbox()
	r.send(in, genSubject, `{"n":2}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "i1")
	for i, want := range []nats.Header{
		headers("Mesh-Rpc-Id", "i1", "Mesh-Seq", "1", "Mesh-Chunk", "data"),
		headers("Mesh-Rpc-Id", "i1", "Mesh-Seq", "2", "Mesh-Chunk", "data"),
		headers("Mesh-Rpc-Id", "i1", "Mesh-Seq", "3", "Mesh-Chunk", "complete", "Mesh-Count", "2"),
	} {
		m := in.next()
		if diff := cmp.Diff(want, m.Header); diff != "" {
			t.Errorf("chunk %d (-want +got):\n%s", i+1, diff)
		}
		if i < 2 && string(m.Data) != fmt.Sprint(i+1) || i == 2 && len(m.Data) > 0 {
			t.Errorf("chunk %d = %q", i+1, m.Data)
		}
		if m.Reply != "" && i > 0 {
			t.Errorf("chunk %d carries a reply subject: one a second is enough", i+1)
		}
	}
	if m := in.next(); !isEmpty(m.Msg) {
		t.Errorf("the stream ends with %v %q, want an empty message", m.Header, m.Data)
	}
	in.none("after the end")

	// An empty stream, and one that fails after its first items: those are kept.
	r.send(in, genSubject, `{"n":0}`, "Mesh-Stream", "inbox")
	if diff := cmp.Diff([]string{"complete0"}, bodies(in.chunks())); diff != "" || !isEmpty(in.next().Msg) {
		t.Errorf("an empty stream (-want +got):\n%s", diff)
	}
	r.send(in, genSubject, `{"n":2,"fail":true}`, "Mesh-Stream", "inbox")
	all := in.chunks()
	if end := all[len(all)-1]; len(all) != 3 || end.kind != "error" || end.count != "2" ||
		!strings.Contains(end.body, `"code":"tool_error"`) || !strings.Contains(end.body, `"started":true`) || !strings.Contains(end.body, "out of items") {
		t.Errorf("a failing stream: %+v", all)
	}
	if !isEmpty(in.next().Msg) {
		t.Error("no empty message ends a failing stream")
	}
}

func TestStreamThatFailsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.inbox()
	// In place of the acknowledgement.
	r.send(in, genSubject, `{"fail":true}`, "Mesh-Stream", "1", "Mesh-Rpc-Id", "f1")
	if a := in.next(); a.code() != "tool_error" || a.Header.Get("Mesh-Error-Code") != "tool_error" || a.Header.Get("Mesh-Chunk") != "" {
		t.Errorf("live: %v %s", a.Header, a.Data)
	}
	r.send(in, genSubject, `{"fail":true}`, "Mesh-Stream", "inbox")
	if a := in.next(); a.code() != "tool_error" || a.Header.Get("Mesh-Error-Code") != "tool_error" || !isEmpty(in.next().Msg) {
		t.Errorf("inbox: %v %s", a.Header, a.Data)
	}
	r.send(in, genSubject, `{"type":"rpc_tool_stream","rpc_id":5,"tool_id":"desk.gen","kwargs":{"fail":true}}`)
	var e struct {
		Type      string     `json:"type"`
		RPCID     int        `json:"rpc_id"`
		ChunkType string     `json:"chunk_type"`
		Error     *wireError `json:"error"`
	}
	m := in.next()
	mustJSON(t, m.Data, &e)
	if e.Type != "rpc_stream_chunk" || e.RPCID != 5 || e.ChunkType != "error" || e.Error == nil || e.Error.Code != "tool_error" || e.Error.started() != "true" {
		t.Errorf("envelope: %s", m.Data)
	}
	// And in the middle, as an envelope.
	r.send(in, genSubject, `{"type":"rpc_tool_stream","rpc_id":6,"tool_id":"desk.gen","kwargs":{"n":1,"fail":true}}`)
	if got := string(in.next().Data); got != `{"type":"rpc_stream_chunk","rpc_id":6,"chunk_type":"data","data":1,"seq":1}` {
		t.Errorf("envelope, item: %s", got)
	}
	m = in.next()
	mustJSON(t, m.Data, &e)
	if e.ChunkType != "error" || e.Error == nil || e.Error.Code != "tool_error" || !strings.Contains(string(m.Data), `"seq":2`) {
		t.Errorf("envelope, end: %s", m.Data)
	}
	// Nothing of a stream without items is stored.
	if a := r.ask("mesh.replay.default.f1", `{"from_seq":1}`); a.Header.Get("Mesh-High") != "0" {
		t.Errorf("replay of a stream that failed at once: %v", a.Header)
	}
	r.settled()
	in.none("after the end of a stream")
}

// A plain client that subscribed first sees all of a live stream.
func TestLiveStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	live := openInbox(t, r.nc, "mesh.live.default.l1")
	in := r.inbox()
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r.send(in, genSubject, `{"n":300}`, "Mesh-Stream", "1", "Mesh-Rpc-Id", "l1", "Mesh-Want-Load", "1")
	ack := in.next()
	if diff := cmp.Diff(fmt.Sprintf(`{"rpc_id":"l1","node":%q}`, r.h.Node()), string(ack.Data)); diff != "" ||
		ack.Header.Get("Mesh-Rpc-Id") != "l1" || ack.Header.Get("Mesh-Node") != string(r.h.Node()) || ack.Header.Get("Mesh-Load") == "" {
		t.Errorf("acknowledgement %v (-want +got):\n%s", ack.Header, diff)
	}
	if all := live.chunks(); len(all) != 301 || all[300].kind != "complete" || all[300].count != "300" || all[299].body != "300" {
		t.Errorf("%d chunks, the last one %+v", len(all), all[len(all)-1])
	}
	r.settled()
	in.none("after the acknowledgement")
	// And again from the store, by the node, in the queue group of all that can.
	r.send(in, "mesh.replay.default.l1", `{"from_seq":300}`)
	if a, b, c := in.next(), in.next(), in.next(); a.Header.Get("Mesh-Seq") != "300" || b.Header.Get("Mesh-Chunk") != "complete" || c.Header.Get("Mesh-High") != "300;terminal" {
		t.Errorf("replay: %v, %v, %v", a.Header, b.Header, c.Header)
	}
	// A stream of a function that yields nothing is one item.
	r.send(in, "tools.default.desk.add", `{"a":1,"b":2}`, "Mesh-Stream", "inbox")
	if diff := cmp.Diff([]string{"data3", "complete1"}, bodies(in.chunks())); diff != "" {
		t.Errorf("stream of a plain function (-want +got):\n%s", diff)
	}
}

func TestUnaryCallOfAGenerator(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct{ tool, body, want string }{
		{"gen", `{"n":3}`, "3"}, {"gen", `{"n":0}`, "null"}, {"genlist", `{"n":3}`, "[1,2,3]"}, {"genlist", `{"n":0}`, "[]"}, {"genlist", `{"n":1}`, "[1]"},
	} {
		if a := r.call(c.tool, c.body); string(a.Data) != c.want || a.Header.Get("Mesh-Chunk") != "" {
			t.Errorf("%s %s = %v %s, want %s", c.tool, c.body, a.Header, a.Data, c.want)
		}
	}
	if a := r.call("gen", `{"n":3,"fail":true}`); a.code() != "tool_error" {
		t.Errorf("a failing one: %s", a.Data)
	}
	// Of items without end only the last one is kept.
	if a := r.call("gen", `{"key":"endless","n":1000000000}`, "Mesh-Timeout-Ms", "100"); a.code() != "deadline_exceeded" {
		t.Errorf("an endless one: %s", a.Data)
	}
}

func TestCredit(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	node := "mesh.node." + string(r.h.Node()) + ".ctl.default."
	in := r.inbox()
	g := r.gate("c")
	r.send(in, genSubject, `{"key":"c","n":12}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "c", "Mesh-Credit", "2")
	sent := 0
	expect := func(upTo int) {
		t.Helper()
		for sent < upTo {
			sent = wait(t, "an item", g.sent)
		}
	}
	credit := func(seq string) { r.send(nil, node+"c", `{"type":"credit","seq":`+seq+`}`) }
	expect(2)
	credit("5")
	expect(5)
	credit("3") // absolute, and never taken back
	credit("5")
	credit("-1")
	credit("7")
	expect(7)
	// The generator is held: after all that it is before item 8.
	r.settled()
	if n := len(g.sent); n > 0 {
		t.Errorf("%d items more than the credit", n)
	}
	credit("1000")
	if all := in.chunks(); len(all) != 13 {
		t.Errorf("%d chunks", len(all))
	}
	in.next() // the empty one

	// None at first is none at all.
	r.send(in, genSubject, `{"key":"zero","n":1}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "zero", "Mesh-Credit", "0")
	wait(t, "start", r.gate("zero").started)
	r.settled()
	in.none("without credit")
	r.send(nil, node+"zero", `{"type":"credit","seq":1}`)
	in.chunks()
	in.next()

	// A generator that waits for credit ends at once when it is cancelled.
	r.send(in, genSubject, `{"key":"held","n":1000}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "held", "Mesh-Credit", "1")
	wait(t, "the first item", r.gate("held").sent)
	r.ask(node+"held", "")
	if cause := wait(t, "end", r.gate("held").ended); toolmesh.CodeOf(cause) != toolmesh.CodeCancelled {
		t.Errorf("cause = %v", cause)
	}
}

// A handler that only looks at Send's error is stopped as well.
func TestCancelOfAnEndlessStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.inbox()
	r.send(in, genSubject, `{"key":"e","n":1000000000}`, "Mesh-Stream", "1", "Mesh-Rpc-Id", "e")
	in.next()
	r.ask("mesh.ctl.default.e", "")
	if cause := wait(t, "end", r.gate("e").ended); toolmesh.CodeOf(cause) != toolmesh.CodeCancelled {
		t.Errorf("cause = %v", cause)
	}
}

// Nor does the caller of a stream wait for a handler that does not return.
func TestStreamOfAHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	release := make(chan struct{})
	defer close(release)
	ignoring := func(ctx context.Context, call *host.Call, sink host.Sink) error {
		for i := range len(call.Args) - 2 {
			if err := sink.Send(ctx, item(i+1, 0)); err != nil {
				return err
			}
		}
		<-release
		if err := sink.Send(ctx, item(9, 0)); err == nil {
			t.Error("an item is taken after the end of its stream")
		}
		return nil
	}
	if _, err := r.h.Handle("ignoring", host.HandlerFunc(ignoring)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, body string }{{"with an item", "{ }"}, {"without any", "{}"}} {
		in := r.inbox()
		r.send(in, "tools.default.desk.ignoring", c.body, "Mesh-Stream", "inbox", "Mesh-Timeout-Ms", "100")
		m := in.next()
		for m.Header.Get("Mesh-Chunk") == "data" {
			m = in.next()
		}
		if !strings.Contains(string(m.Data), `"deadline_exceeded"`) {
			t.Errorf("%s: it ends with %v %s", c.name, m.Header, m.Data)
		}
		if !isEmpty(in.next().Msg) {
			t.Errorf("%s: no empty message ends it", c.name)
		}
	}
}

func TestStreamWithoutCreditEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.inbox()
	began := time.Now()
	r.send(in, genSubject, `{"key":"g","n":1000}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "g", "Mesh-Credit", "3")
	cause := toolmesh.AsError(wait(t, "end", r.gate("g").ended))
	if cause == nil || cause.Code != toolmesh.CodeCancelled || cause.Details["reason"] != "caller_gone" {
		t.Errorf("cause = %v", cause)
	}
	if took := time.Since(began); took < 10*time.Second {
		t.Errorf("after %v: the caller has 10s to come back", took)
	}
	all := in.chunks()
	if end := all[len(all)-1]; len(all) != 4 || end.kind != "error" || !strings.Contains(end.body, "caller_gone") {
		t.Errorf("chunks = %+v", all)
	}
}

// The same for a reader of mesh.live, or of stored chunks, whichever node answers for those.
func TestLiveReaderGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	newDesk().serve(t, r.broker.Connect(t), &host.Options{Index: "other"}) // answers every other replay
	const reads = 14 * time.Second                                         // longer than the search for readers
	for _, how := range []string{"nobody", "live", "joined", "replays"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g, left := r.gate(how), time.Now()
			live := openInbox(t, r.nc, "mesh.live.default."+how)
			body := fmt.Sprintf(`{"key":%q,"n":1000000,"gate":true}`, how)
			g.release <- struct{}{}
			ack := r.inbox()
			if how == "joined" { // its first caller is gone, and one that repeats it reads
				r.send(ack, genSubject, body, "Mesh-Rpc-Id", how, "Mesh-Stream", "inbox")
				ack.next()
				if err := ack.sub.Unsubscribe(); err != nil {
					t.Fatal(err)
				}
				ack = r.inbox()
			}
			r.send(ack, genSubject, body, "Mesh-Rpc-Id", how, "Mesh-Stream", "1")
			ack.next()
			if how == "nobody" || how == "replays" {
				if err := live.sub.Unsubscribe(); err != nil {
					t.Fatal(err)
				}
			}
			if how != "nobody" {
				ticker := time.NewTicker(50 * time.Millisecond)
				defer ticker.Stop()
				for until := time.Now().Add(reads); time.Now().Before(until); <-ticker.C {
					select {
					case g.release <- struct{}{}:
					case err := <-g.ended:
						t.Fatalf("the stream ended while it was read: %v", err)
					}
					if how == "replays" && time.Since(left) > 4*time.Second {
						left = time.Now()
						r.send(r.inbox(), "mesh.replay.default."+how, `{"max_bytes":1}`)
					}
				}
				if how != "replays" {
					left = time.Now()
					if err := live.sub.Unsubscribe(); err != nil {
						t.Fatal(err)
					}
				}
			}
			g.deserted(t, left)
		})
	}
}

// A chunk that probes for readers of mesh.live is a normal chunk for its reader.
func TestProbesOfLiveReaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	g, live, ack := r.gate("read"), openInbox(t, r.nc, "mesh.live.default.read"), r.inbox()
	g.release <- struct{}{}
	r.send(ack, genSubject, `{"key":"read","n":1000000,"gate":true}`, "Mesh-Rpc-Id", "read", "Mesh-Stream", "1")
	ack.next()
	first := make(map[int]chunk)
	for began, probes := time.Now(), 0; probes < 2; {
		if time.Since(began) > waitTimeout {
			t.Fatalf("%d of 2 probes after %v", probes, waitTimeout)
		}
		m := live.next()
		c, err := readChunk(m.Msg)
		if err != nil {
			t.Fatal(err)
		}
		if old, twice := first[c.seq]; !twice {
			first[c.seq] = c
			g.release <- struct{}{}
		} else if c != old || m.Reply == "" || m.Header.Get("Mesh-Rpc-Id") != "read" {
			t.Fatalf("chunk %d came again as %+v, was %+v", c.seq, c, old)
		} else {
			probes++
		}
		if len(first) > 1 {
			<-time.After(20 * time.Millisecond)
		}
	}
	for seq := range len(first) {
		if _, ok := first[seq+1]; !ok {
			t.Errorf("item %d is missing", seq+1)
		}
	}
	if a := r.ask("mesh.ctl.default.read", ""); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("cancel: %s", a.Data)
	}
}

// A reader of an inbox without credit is found to be gone by the broker's 503.
func TestInboxReaderGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, form := range []string{"inbox", "envelope"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			g := r.gate(form)
			in := r.inbox()
			args := fmt.Sprintf(`{"key":%q,"n":1000000,"gate":true}`, form)
			if form == "inbox" {
				r.send(in, genSubject, args, "Mesh-Stream", "inbox")
			} else {
				r.send(in, genSubject, `{"type":"rpc_tool_stream","rpc_id":"gone","tool_id":"desk.gen","kwargs":`+args+`}`)
			}
			g.release <- struct{}{}
			in.next()
			gone := time.Now()
			if err := in.sub.Unsubscribe(); err != nil {
				t.Fatal(err)
			}
			g.deserted(t, gone)
		})
	}
	// A reader that comes and goes is not gone.
	t.Run("comes back", func(t *testing.T) {
		t.Parallel()
		g := r.gate("back")
		in := r.inbox()
		r.send(in, genSubject, `{"key":"back","n":1000000,"gate":true}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "back")
		g.release <- struct{}{}
		in.next()
		began := time.Now()
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for here := true; time.Since(began) < 14*time.Second; {
			if away := int(time.Since(began)/(3*time.Second))%2 == 1; away == here {
				here = !away
				if away {
					_ = in.sub.Unsubscribe()
				} else {
					in = openInbox(t, r.nc, in.Subject)
				}
			}
			select {
			case g.release <- struct{}{}:
			case err := <-g.ended:
				t.Fatalf("the stream ended after %v: %v", time.Since(began), err)
			}
			<-ticker.C
		}
		r.ask("mesh.ctl.default.back", "")
		wait(t, "end", g.ended)
	})
}

func TestStreamQuota(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{StreamQuota: 2000}}) // three of these items, with the store's overhead
	in := r.inbox()
	for i := range 2 { // of the session, not of the stream
		r.send(in, genSubject, `{"n":10,"size":300}`, "Mesh-Stream", "inbox")
		if i == 1 {
			if a := in.next(); a.code() != "busy" || a.Error.started() != "true" {
				t.Errorf("the next stream: %s", a.Data)
			}
			break
		}
		all := in.chunks()
		if end := all[len(all)-1]; len(all) != 4 || end.kind != "error" || !strings.Contains(end.body, `"busy"`) || !strings.Contains(end.body, "session_stream_quota") {
			t.Errorf("chunks = %+v", all)
		}
		in.next()
	}
	if a := r.call("gen", `{"n":10,"size":300}`); a.code() != "ok" {
		t.Errorf("unary call: %s", a.Data)
	}
	other := r.inbox()
	r.send(other, "tools.s2.desk.gen", `{"n":3,"size":300}`, "Mesh-Stream", "inbox")
	if all := other.chunks(); len(all) != 4 || all[3].kind != "complete" {
		t.Errorf("another session: %+v", all)
	}
	other.next()
	// Names of sessions are free: all that were never created share one quota.
	third := r.inbox()
	r.send(third, "tools.s3.desk.gen", `{"n":3,"size":300}`, "Mesh-Stream", "inbox")
	if a := third.next(); a.code() != "busy" || !strings.Contains(string(a.Data), "mesh session create") {
		t.Errorf("one more session that nobody created: %s", a.Data)
	}
	sessionRecord(t, r.nc, "s4", `{"id":"s4","epoch":"1"}`)
	fourth := r.inbox()
	r.send(fourth, "tools.s4.desk.gen", `{"n":3,"size":300}`, "Mesh-Stream", "inbox")
	if all := fourth.chunks(); len(all) != 4 || all[3].kind != "complete" {
		t.Errorf("a created session: %+v", all)
	}
}

// An envelope has the rpc_id as its caller wrote it, up to six times as long as in the store: an
// item that fits the store only would be missing on the reply subject, in front of a complete
// stream.
func TestItemsThatTheirEnvelopeCannotCarry(t *testing.T) {
	t.Parallel()
	const payload = 64 << 10
	r := newRig(t, &rigOptions{broker: []meshtest.Option{meshtest.MaxPayload(payload)}})
	stream := func(id string, size int) (all []string) {
		t.Helper()
		in := r.inbox()
		r.send(in, genSubject, fmt.Sprintf(`{"type":"rpc_tool_stream","rpc_id":"%s","tool_id":"desk.gen","kwargs":{"n":2,"size":%d}}`, id, size))
		for {
			var e struct {
				RPCID     json.RawMessage `json:"rpc_id"`
				ChunkType string          `json:"chunk_type"`
				Seq       int64           `json:"seq"`
				Error     *wireError      `json:"error"`
			}
			mustJSON(t, in.next().Data, &e)
			if string(e.RPCID) != `"`+id+`"` {
				t.Errorf("the rpc_id came back as %.40s…", e.RPCID)
			}
			text := fmt.Sprintf("%d %s", e.Seq, e.ChunkType)
			if e.Error != nil {
				text += " " + e.Error.Code + " " + e.Error.started()
			}
			if all = append(all, text); e.ChunkType != "data" {
				return all
			}
		}
	}
	complete := []string{"1 data", "2 data", "3 complete"}
	if diff := cmp.Diff(complete, stream(strings.Repeat(`\u0061`, 500), payload-4<<10)); diff != "" {
		t.Errorf("within the limit (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(complete, stream(strings.Repeat("b", 500), payload-2<<10)); diff != "" {
		t.Errorf("a long rpc_id (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1 error payload_too_large true"}, stream(strings.Repeat(`\u0063`, 500), payload-2<<10)); diff != "" {
		t.Errorf("a longer one (-want +got):\n%s", diff)
	}
}

// Items that were not stored, for any reason, do not count in the quota.
func TestStreamQuotaCountsStoredBytes(t *testing.T) {
	t.Parallel()
	const payload, quota = 64 << 10, 105_000
	// sizes yields one item of each size.
	sizes := func(all ...int) host.HandlerFunc {
		return func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			for i, size := range all {
				if err := sink.Send(ctx, item(i+1, size)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	end := func(in *inbox) string {
		t.Helper()
		m := in.next()
		for m.Header.Get("Mesh-Chunk") == "data" {
			m = in.next()
		}
		if !isEmpty(in.next().Msg) {
			t.Error("no empty message ends the stream")
		}
		return string(m.Data)
	}
	t.Run("too large", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, &rigOptions{host: host.Options{StreamQuota: quota}, broker: []meshtest.Option{meshtest.MaxPayload(payload)}})
		for name, handler := range map[string]host.HandlerFunc{
			"large": sizes(10, payload+1), "huge": sizes(10, 2*quota), "first": sizes(payload + 1), "fills": sizes(40_000, 40_000), "more": sizes(15_000, 10_000),
		} {
			if _, err := r.h.Handle(name, handler); err != nil {
				t.Fatal(err)
			}
		}
		stream := func(name string) string {
			in := r.inbox()
			r.send(in, "tools.default.desk."+name, "", "Mesh-Stream", "inbox")
			return end(in)
		}
		for i := range 5 {
			for _, name := range []string{"large", "huge", "first"} {
				if got := stream(name); !strings.Contains(got, `"payload_too_large"`) {
					t.Errorf("%s, time %d: it ends with %s", name, i+1, got)
				}
			}
		}
		// Ten small items are stored by now, with their headers.
		if got := stream("fills"); got != "" {
			t.Errorf("within the quota: %s", got)
		}
		got := stream("more")
		for _, want := range []string{`"busy"`, `"max":105000`, "may store 105000"} {
			if !strings.Contains(got, want) {
				t.Errorf("beyond the quota: %s, want %s", got, want)
			}
		}
		var refused wireError
		mustJSON(t, []byte(got), &refused)
		if stored, _ := strconv.Atoi(fmt.Sprint(refused.Details["stored"])); stored < 95_100 {
			t.Errorf("beyond the quota: %s, and 95,100 bytes of items are stored", got)
		}
	})
	t.Run("small items", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, &rigOptions{host: host.Options{StreamQuota: quota}})
		in := r.inbox()
		r.send(in, genSubject, `{"n":2000,"size":1}`, "Mesh-Stream", "inbox")
		if got := end(in); !strings.Contains(got, "session_stream_quota") {
			t.Errorf("items that need more of the store than the quota: %s", got)
		}
	})
	t.Run("store full", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, &rigOptions{host: host.Options{StreamQuota: 2 * quota, StoreOptions: host.StoreOptions{ChunksMax: quota}}})
		for i := range 10 {
			in := r.inbox()
			r.send(in, genSubject, `{"n":15,"size":10000}`, "Mesh-Stream", "inbox")
			if got := end(in); !strings.Contains(got, "chunks_max") {
				t.Errorf("time %d: it ends with %s", i+1, got)
			}
		}
	})
}

// Two nodes that are sent the same stream: the second one stops before it says
// anything that could be mixed with the first one's items.
func TestSecondNodeUnderOneID(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	other := r.desk.serve(t, r.broker.Connect(t), &host.Options{})
	a, b := r.inbox(), r.inbox()
	const body = `{"key":"twice","n":3,"gate":true}`
	r.send(a, directed(r.h, "default", "desk.gen"), body, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "twice")
	r.gate("twice").release <- struct{}{}
	a.next()
	r.gate("twice").release <- struct{}{} // for either of the two
	r.send(b, directed(other, "default", "desk.gen"), body, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "twice")
	close(r.gate("twice").release)
	if m := b.next(); m.code() != "invalid_request" || m.Error.started() != "true" || m.Header.Get("Mesh-Node") != string(other.Node()) {
		t.Errorf("second node: %v %s", m.Header, m.Data)
	}
	for _, want := range []string{"2", "3", ""} {
		if m := a.next(); string(m.Data) != want {
			t.Errorf("first node: %s, want %q", m.Data, want)
		}
	}
	in := r.inbox()
	r.send(in, "mesh.replay.default.twice", `{"from_seq":1}`)
	if diff := cmp.Diff([]string{"data1", "data2", "data3", "complete3"}, bodies(in.chunks())); diff != "" {
		t.Errorf("the store (-want +got):\n%s", diff)
	}
}

// Without JetStream there are no streams and no idempotency keys, and calls as ever.
func TestWithoutJetStream(t *testing.T) {
	t.Parallel()
	plain := nats.UserInfo("plain", "plain")
	broker := meshtest.Broker(t, meshtest.Config(`accounts {
  PLAIN { users: [ { user: plain, password: plain } ] }
  STORE { jetstream: enabled, users: [ { user: store, password: store } ] }
}`))
	d := newDesk()
	h := d.serve(t, broker.Connect(t, plain), &host.Options{})
	r := &rig{desk: d, t: t, broker: broker, h: h, nc: broker.Connect(t, plain)}
	if a := r.call("add", `{"a":1,"b":2}`); string(a.Data) != "3" {
		t.Errorf("unary call: %s", a.Data)
	}
	for _, how := range []string{"1", "inbox"} {
		if a := r.call("gen", `{"key":"s","n":1}`, "Mesh-Stream", how); a.code() != "unavailable" || a.Error.started() != "false" {
			t.Errorf("stream %s: %s", how, a.Data)
		}
	}
	if a := r.call("note", `{"key":"s"}`, keyHeader, "k"); a.code() != "unavailable" || a.Error.started() != "false" {
		t.Errorf("a call with an idempotency key: %s", a.Data)
	}
	if n := r.ran("s"); n != 0 {
		t.Errorf("run %d times", n)
	}
}

// If the store is gone for good, the stream ends, and its reader learns it on the reply subject.
func TestStoreGoneForGood(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"1", "inbox"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &rigOptions{host: host.Options{StoreOptions: host.StoreOptions{ChunksMax: 100_000}}})
			in := r.inbox()
			r.send(in, genSubject, `{"key":"full","n":1000,"size":10000}`, "Mesh-Stream", how, "Mesh-Rpc-Id", "full")
			m := in.next()
			for m.Header.Get("Mesh-Chunk") == "data" || how == "1" && m.Header.Get("Mesh-Error-Code") == "" {
				m = in.next()
			}
			if !strings.Contains(string(m.Data), `"unavailable"`) || !strings.Contains(string(m.Data), "chunks_max") || !strings.Contains(string(m.Data), `"started":true`) {
				t.Errorf("the stream ends with %v %s", m.Header, m.Data)
			}
			if err := wait(t, "end", r.gate("full").ended); err == nil {
				t.Error("the generator was not told")
			}
			// Repeated, it is the same failure, not a stream without an end.
			meshtest.Until(t, "the call is over", func() bool { return r.h.Figures().InFlight == 0 })
			if a := r.ask(genSubject, `{"key":"full","n":1000,"size":10000}`, "Mesh-Stream", how, "Mesh-Rpc-Id", "full"); a.code() != "unavailable" {
				t.Errorf("repeated: %v %s", a.Header, a.Data)
			}
		})
	}
}

// behind does not know a session yet that was created; strict refuses such sessions.
type behind struct{ strict bool }

func (behind) Ended(subjects.SessionID, time.Time) bool { return false }

func (b behind) Admit(s subjects.SessionID) (string, error) {
	if b.strict && s != subjects.DefaultSession {
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q does not exist", s)
	}
	return "", nil
}

// A stream carries its session's epoch, also from a host that has no view of
// sessions, or that has not heard of this one yet; replays serve no other life of
// the session.
func TestEpochs(t *testing.T) {
	t.Parallel()
	for name, sessions := range map[string]host.SessionPolicy{"asked": nil, "known": strict{}, "behind": behind{}, "behind, strict": behind{strict: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &rigOptions{host: host.Options{Sessions: sessions}})
			js, err := jetstream.New(r.nc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.Publish(t.Context(), "$KV.MESH_SESSIONS.kept", []byte(`{"id":"kept","epoch":"epoch-1"}`)); err != nil {
				t.Fatal(err)
			}
			in := r.inbox()
			r.send(in, "tools.kept.desk.gen", `{"n":1}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "kept")
			if m := in.next(); m.Header.Get("Mesh-Epoch") != "epoch-1" {
				t.Errorf("chunk %v, want the epoch", m.Header)
			}
			in.next()
			in.next()
			r.send(in, "mesh.replay.kept.kept", `{"from_seq":1}`)
			if all := in.chunks(); len(all) != 2 {
				t.Errorf("replay: %+v", all)
			}
			in.next()
			older := &nats.Msg{Subject: "mesh.chunks.kept.older", Data: []byte("1"), Header: headers(
				"Mesh-Rpc-Id", "older", "Mesh-Seq", "1", "Mesh-Chunk", "data", "Mesh-Epoch", "epoch-0")}
			if _, err := js.PublishMsg(t.Context(), older); err != nil {
				t.Fatal(err)
			}
			if a := r.ask("mesh.replay.kept.older", `{"from_seq":1}`); a.Header.Get("Mesh-High") != "0" {
				t.Errorf("replay of an older life: %v %s", a.Header, a.Data)
			}
			if a := r.ask("tools.kept.desk.note", `{"text":"x"}`); string(a.Data) != `{"text":"x"}` {
				t.Errorf("unary call: %s", a.Data)
			}
			r.send(in, genSubject, `{"n":1}`, "Mesh-Stream", "inbox")
			if m := in.next(); m.Header["Mesh-Epoch"] != nil {
				t.Errorf("chunk of a session that nobody created: %v", m.Header)
			}
		})
	}
}

// A function that passes on the failure of a call that it made has itself begun.
func TestPassedOnErrorsHaveStarted(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	inner := toolmesh.Errorf(toolmesh.CodeBusy, "full").WithStarted(toolmesh.StartedNo)
	id, err := r.h.Handle("outer", host.Func(func(context.Context, struct{}) (int, error) { return 0, inner }))
	if err != nil {
		t.Fatal(err)
	}
	if a := r.ask("tools.default."+string(id), ""); a.code() != "busy" || a.Error.started() != "true" {
		t.Errorf("answer = %s, want started:true: its caller must not send it again", a.Data)
	}
	// Behind an item everything has begun, whatever the handler says.
	id, err = r.h.Handle("outerstream", host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
		if err := sink.Send(ctx, item(1, 0)); err != nil {
			return err
		}
		return inner
	}))
	if err != nil {
		t.Fatal(err)
	}
	in := r.inbox()
	r.send(in, "tools.default."+string(id), "", "Mesh-Stream", "inbox")
	if all := in.chunks(); len(all) != 2 || !strings.Contains(all[1].body, `"started":true`) {
		t.Errorf("chunks = %+v", all)
	}
}

// A caller that has read the end of a stream finds its slot free.
func TestTheEndOfAStreamFreesItsSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Slots: 1}})
	for n := range 300 {
		in := r.inbox()
		r.send(in, "tools.default.desk.gen", fmt.Sprintf(`{"key":"s%d","n":%d}`, n, n%3), "Mesh-Stream", "inbox")
		for m := in.next(); !isEmpty(m.Msg); m = in.next() {
		}
		if a := r.call("note", fmt.Sprintf(`{"key":"n%d"}`, n)); a.code() != "ok" {
			t.Fatalf("the call after stream %d: %s", n, a.Data)
		}
	}
}
