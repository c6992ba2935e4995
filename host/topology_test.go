package host_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A plain client that only knows the protocol works in every topology: on another server of a
// cluster than the host, and in another account.
func TestPlainClientInEveryTopology(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		d := newDesk()
		serving := top.ServeOn(t, 0)
		h := d.serve(t, serving, &host.Options{Node: "desk-1"})
		r := &rig{desk: d, t: t, h: h, nc: top.Call(t), session: top.Session}
		top.Known(t, serving, r.nc)
		meshtest.Until(t, "the tool is served", func() bool {
			_, err := r.nc.Request(r.within("tools.default.desk.note"), []byte(`{"key":"warm"}`), time.Second)
			return err == nil
		})
		for what, f := range map[string]func(t *testing.T, r *rig, sure bool){
			"calls": plainCalls, "streams": plainStreams, "credit": plainCredit, "cancel": plainCancel,
		} {
			// In a cluster a server may hear of a subscription late.
			sure := len(top.Brokers) == 1
			t.Run(what, func(t *testing.T) {
				f(t, &rig{desk: d, t: t, h: h, nc: r.nc, session: r.session}, sure)
			})
		}
	})
}

func plainCalls(t *testing.T, r *rig, _ bool) {
	if a := r.call("add", `{"a":1,"b":2}`, "Mesh-Want-Load", "1"); string(a.Data) != "3" || a.Header.Get("Mesh-Node") != "desk-1" || a.Header.Get("Mesh-Load") == "" {
		t.Errorf("plain: %v %s", a.Header, a.Data)
	}
	if a := r.ask(directed(r.h, "default", "desk.add"), `{"a":1,"b":2}`); string(a.Data) != "3" {
		t.Errorf("directed: %v %s", a.Header, a.Data)
	}
	a := r.call("add", `{"type":"rpc_tool_call","rpc_id":"e","tool_id":"desk.add","args":[1,2]}`)
	if want := `{"type":"rpc_tool_response","rpc_id":"e","status":"ok","result":3}`; string(a.Data) != want {
		t.Errorf("envelope: %s", a.Data)
	}
	if a := r.call("add", `{"a":1}`); a.code() != "invalid_arguments" || a.Header.Get("Nats-Service-Error-Code") != "422" {
		t.Errorf("a failure: %v %s", a.Header, a.Data)
	}
	if _, err := r.nc.Request(r.within("tools.default.desk.none"), nil, waitTimeout); err != nats.ErrNoResponders {
		t.Errorf("a tool that nobody serves: %v", err)
	}
	for range 2 {
		if m := openInbox(t, r.nc, "mesh.hb.desk-1").next(); !strings.Contains(string(m.Data), `"state":"serving"`) {
			t.Errorf("heartbeat: %s", m.Data)
		}
	}
}

func plainStreams(t *testing.T, r *rig, sure bool) {
	const n = 300
	in := r.inbox()
	r.send(in, genSubject, fmt.Sprintf(`{"n":%d}`, n), "Mesh-Stream", "inbox", "Mesh-Rpc-Id", "inbox")
	if all := in.chunks(); len(all) != n+1 || all[n].count != strconv.Itoa(n) || !isEmpty(in.next().Msg) {
		t.Errorf("inbox: %d chunks", len(all))
	}
	e := r.inbox()
	r.send(e, genSubject, `{"type":"rpc_tool_stream","rpc_id":"env","tool_id":"desk.gen","kwargs":{"n":2}}`)
	var got []string
	for range 3 {
		got = append(got, string(e.next().Data))
	}
	want := []string{
		`{"type":"rpc_stream_chunk","rpc_id":"env","chunk_type":"data","data":1,"seq":1}`,
		`{"type":"rpc_stream_chunk","rpc_id":"env","chunk_type":"data","data":2,"seq":2}`,
		`{"type":"rpc_stream_chunk","rpc_id":"env","chunk_type":"complete","seq":3}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("envelope (-want +got):\n%s", diff)
	}
	// Live delivery may miss any chunk, the terminal included: its chunks are true, and a replay
	// has the rest.
	live := openInbox(t, r.nc, r.within("mesh.live.default.live"))
	if a := r.ask(genSubject, fmt.Sprintf(`{"n":%d}`, n), "Mesh-Stream", "1", "Mesh-Rpc-Id", "live"); string(a.Data) != `{"rpc_id":"live","node":"desk-1"}` {
		t.Fatalf("acknowledgement: %s", a.Data)
	}
	replayed := r.replayed("live", 1)
	if len(replayed) != n+1 || replayed[n].kind != "complete" {
		t.Errorf("replay: %d chunks", len(replayed))
	}
	if tail := r.replayed("live", n); len(tail) != 2 || tail[0].seq != n {
		t.Errorf("replay from the last item: %+v", tail)
	}
	came := 0
	for m, ok := live.has(); ok; m, ok = live.has() {
		c, err := readChunk(m.Msg)
		if err != nil {
			t.Fatal(err)
		}
		if c.seq > n || replayed[c.seq-1] == c {
			came++
			continue
		}
		t.Errorf("live brought %+v, the replay %+v", c, replayed[c.seq-1])
	}
	if sure && came == 0 {
		t.Error("nothing came live")
	}
}

// replayed asks for stored chunks, page by page, until the terminal is there.
func (r *rig) replayed(rpc string, from int) []chunk {
	r.t.Helper()
	var all []chunk
	for range 1000 {
		in := r.inbox()
		r.send(in, "mesh.replay.default."+rpc, fmt.Sprintf(`{"from_seq":%d,"max_bytes":200}`, from))
		for m := in.next(); ; m = in.next() {
			if m.Header.Get("Mesh-High") != "" {
				break
			}
			c, err := readChunk(m.Msg)
			if err != nil || c.seq != from {
				r.t.Fatalf("asked for %d, got %+v, %v", from, c, err)
			}
			from++
			if all = append(all, c); c.kind != "data" {
				return all
			}
		}
	}
	r.t.Fatalf("1000 replays did not bring the end: %d chunks", len(all))
	return nil
}

func plainCredit(t *testing.T, r *rig, sure bool) {
	live := openInbox(t, r.nc, r.within("mesh.live.default.credit"))
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r.ask(genSubject, `{"key":"credit","n":5}`, "Mesh-Stream", "1", "Mesh-Rpc-Id", "credit", "Mesh-Credit", "2", "Mesh-Keepalive", "1")
	meshtest.Until(t, "two items are stored", func() bool {
		return r.ask("mesh.replay.default.credit", `{"from_seq":3}`).Header.Get("Mesh-High") == "2"
	})
	r.send(nil, "mesh.node.desk-1.ctl.default.credit", `{"type":"credit","seq":5}`)
	if all := r.replayedSoon("credit"); len(all) != 6 {
		t.Errorf("with credit: %+v", all)
	}
	if _, ok := live.has(); sure && !ok {
		t.Error("nothing came live")
	}
}

// replayedSoon is replayed for a stream that has yet to end.
func (r *rig) replayedSoon(rpc string) []chunk {
	r.t.Helper()
	meshtest.Until(r.t, "the stream has ended", func() bool {
		in := r.inbox()
		r.send(in, "mesh.replay.default."+rpc, `{"from_seq":1}`)
		for {
			if high := in.next().Header.Get("Mesh-High"); high != "" {
				return strings.HasSuffix(high, ";terminal")
			}
		}
	})
	return r.replayed(rpc, 1)
}

func plainCancel(t *testing.T, r *rig, _ bool) {
	in := r.inbox()
	r.send(in, "tools.default.desk.hold", `{"key":"cancel"}`, "Mesh-Rpc-Id", "cancel", "Mesh-Keepalive", "1")
	if m := in.next(); m.Header.Get("Mesh-Keepalive") != "1" || m.Header.Get("Mesh-Node") != "desk-1" {
		t.Errorf("a sign of life: %v %s", m.Header, m.Data)
	}
	if a := r.ask("mesh.ctl.default.cancel", `{"type":"cancel"}`); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("cancel: %v %s", a.Header, a.Data)
	}
	m := in.next()
	for m.Header.Get("Mesh-Keepalive") != "" {
		m = in.next()
	}
	if m.code() != "cancelled" || m.Error.Origin != "caller" {
		t.Errorf("the call ends with %s", m.Data)
	}
}
