package host_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/host"
)

// alive reads one keepalive of a call, and everything before it.
func (r *rig) alive(in *inbox, rpc, high string) {
	r.t.Helper()
	m := in.next()
	for m.Header.Get("Mesh-Keepalive") == "" {
		m = in.next()
	}
	want := headers("Mesh-Keepalive", "1", "Mesh-Rpc-Id", rpc, "Mesh-Node", string(r.h.Node()), "Mesh-Boot", string(r.h.Boot()), "Mesh-Proto", "1")
	if high != "" {
		want.Set("Mesh-High", high)
	}
	if diff := cmp.Diff(want, m.Header); diff != "" || len(m.Data) > 0 {
		r.t.Errorf("keepalive with %q (-want +got):\n%s", m.Data, diff)
	}
}

// item reads one item, and the keepalives before it.
func (in *inbox) item(want int) {
	in.t.Helper()
	m := in.next()
	for m.Header.Get("Mesh-Keepalive") != "" {
		m = in.next()
	}
	if m.Header.Get("Mesh-Seq") != strconv.Itoa(want) || m.Header.Get("Mesh-Chunk") != "data" || string(m.Data) != strconv.Itoa(want) {
		in.t.Fatalf("got %v %s, want item %d", m.Header, m.Data, want)
	}
}

// finish reads from an item on to the end, which is one empty message.
func (in *inbox) finish(from, count int) {
	in.t.Helper()
	for seq := from; seq <= count; seq++ {
		in.item(seq)
	}
	m := in.next()
	for m.Header.Get("Mesh-Keepalive") != "" {
		m = in.next()
	}
	if m.Header.Get("Mesh-Chunk") != "complete" || m.Header.Get("Mesh-Count") != strconv.Itoa(count) {
		in.t.Errorf("got %v %s, want the end of %d items", m.Header, m.Data, count)
	}
	if m := in.next(); !isEmpty(m.Msg) {
		in.t.Errorf("got %v %s, want the empty message", m.Header, m.Data)
	}
}

// A caller that joins a call and asks for keepalives gets them on its own inbox, until it is
// answered.
func TestJoinersAreKeptAlive(t *testing.T) {
	t.Parallel()
	t.Run("unary", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		const subject, body = "tools.default.desk.hold", `{"key":"u"}`
		first, asks, other, silent := r.inbox(), r.inbox(), r.inbox(), r.inbox()
		r.send(first, subject, body, "Mesh-Rpc-Id", "u", "Mesh-Keepalive", "1")
		wait(t, "start", r.gate("u").started)
		r.send(asks, subject, body, "Mesh-Rpc-Id", "u", "Mesh-Keepalive", "1")
		r.send(other, directed(r.h, "default", "desk.hold"), body, "Mesh-Rpc-Id", "u", "Mesh-Keepalive", "1")
		r.send(silent, subject, body, "Mesh-Rpc-Id", "u")
		for range 3 {
			for _, in := range []*inbox{first, asks, other} {
				r.alive(in, "u", "")
			}
		}
		silent.none("to a caller that asked for no keepalives")
		close(r.gate("u").release)
		for _, in := range []*inbox{first, asks, other, silent} {
			m := in.next()
			for m.Header.Get("Mesh-Keepalive") != "" {
				m = in.next()
			}
			if string(m.Data) != `"released u"` {
				t.Errorf("answer = %v %s", m.Header, m.Data)
			}
		}
		if n := r.ran("u"); n != 1 {
			t.Errorf("it ran %d times", n)
		}
	})
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		const body = `{"key":"l","n":2,"gate":true}`
		first, joined := r.inbox(), r.inbox()
		r.send(first, genSubject, body, "Mesh-Rpc-Id", "l", "Mesh-Stream", "1", "Mesh-Keepalive", "1")
		wait(t, "start", r.gate("l").started)
		r.send(joined, genSubject, body, "Mesh-Rpc-Id", "l", "Mesh-Stream", "1", "Mesh-Keepalive", "1")
		r.alive(joined, "l", "0")
		r.gate("l").release <- struct{}{}
		m := joined.next()
		for m.Header.Get("Mesh-Keepalive") != "" {
			m = joined.next()
		}
		if want := fmt.Sprintf(`{"rpc_id":"l","node":%q}`, r.h.Node()); string(m.Data) != want {
			t.Errorf("acknowledgement %s, want %s", m.Data, want)
		}
		r.alive(joined, "l", "1")
		r.alive(first, "l", "0")
		close(r.gate("l").release)
		wait(t, "end", r.gate("l").ended)
	})
	// The callers of a handler that does not return still get an answer.
	t.Run("ignoring", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		release := make(chan struct{})
		defer close(release)
		const unary = `{"key":"d","ignoring":true}`
		first, joined, late := r.inbox(), r.inbox(), r.inbox()
		defer close(r.gate("d").release)
		for _, in := range []*inbox{first, joined} {
			r.send(in, "tools.default.desk.hold", unary, "Mesh-Rpc-Id", "d", "Mesh-Timeout-Ms", "100")
		}
		want := string(first.next().Data)
		if got := string(joined.next().Data); got != want || !strings.Contains(want, "deadline_exceeded") {
			t.Errorf("joined: %s, first: %s", got, want)
		}
		r.send(late, "tools.default.desk.hold", unary, "Mesh-Rpc-Id", "d")
		if got := string(late.next().Data); got != want {
			t.Errorf("joined late: %s, first: %s", got, want)
		}
	})
}

// A caller that joins a stream with its own inbox gets the earlier items and then the new ones,
// each once and in order.
func TestJoinersGetTheItems(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const body = `{"key":"i","n":4,"gate":true}`
	pairs := []string{"Mesh-Rpc-Id", "i", "Mesh-Stream", "inbox", "Mesh-Keepalive", "1"}
	g := r.gate("i")
	first, early, joined, live := r.inbox(), r.inbox(), r.inbox(), r.inbox()
	r.send(first, genSubject, body, pairs...)
	wait(t, "start", g.started)
	r.send(early, genSubject, body, pairs...) // before there is an item
	r.settled()
	for i := range 2 {
		g.release <- struct{}{}
		first.item(i + 1)
		early.item(i + 1)
	}
	r.send(joined, genSubject, body, pairs...)
	r.send(live, genSubject, body, "Mesh-Rpc-Id", "i", "Mesh-Stream", "1")
	joined.item(1)
	joined.item(2)
	live.next()
	for _, in := range []*inbox{first, early, joined} {
		r.alive(in, "i", "2")
	}
	g.release <- struct{}{}
	for _, in := range []*inbox{first, early, joined} {
		in.item(3)
	}
	// Again on an inbox that has joined: all of it once more, and the rest once.
	r.send(joined, genSubject, body, pairs...)
	r.send(first, genSubject, body, pairs...)
	for seq := range 3 {
		joined.item(seq + 1)
		first.item(seq + 1)
	}
	r.settled()
	close(g.release)
	for _, in := range []*inbox{first, early, joined} {
		in.finish(4, 4)
	}
	late := r.inbox()
	r.send(late, genSubject, body, pairs...)
	late.finish(1, 4)
	r.settled()
	for _, in := range []*inbox{first, early, joined, live, late} {
		in.none("after the end")
	}
	if n := r.ran("i"); n != 1 {
		t.Errorf("it ran %d times", n)
	}

	// The envelope form.
	const env = `{"type":"rpc_tool_stream","rpc_id":"e","tool_id":"desk.gen","kwargs":{"key":"e","n":2,"gate":true}}`
	one, two := r.inbox(), r.inbox()
	r.send(one, genSubject, env)
	r.gate("e").release <- struct{}{}
	one.next()
	r.send(two, genSubject, env)
	for i, want := range []string{
		`{"type":"rpc_stream_chunk","rpc_id":"e","chunk_type":"data","data":1,"seq":1}`,
		`{"type":"rpc_stream_chunk","rpc_id":"e","chunk_type":"data","data":2,"seq":2}`,
		`{"type":"rpc_stream_chunk","rpc_id":"e","chunk_type":"complete","seq":3}`,
	} {
		if got := string(two.next().Data); got != want {
			t.Errorf("envelope: %s, want %s", got, want)
		}
		if i == 0 {
			close(r.gate("e").release)
		}
	}
}

// Joiners of a fast stream read pages of the store while it grows, and there may
// be more of them than the node looks after.
func TestManyJoiners(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ joiners, count, size int }{{70, 100, 10}, {4, 2500, 1000}} {
		t.Run(fmt.Sprint(c.joiners), func(t *testing.T) {
			t.Parallel()
			manyJoiners(t, c.joiners, c.count, c.size)
		})
	}
}

func manyJoiners(t *testing.T, joiners, count, size int) {
	r := newRig(t, nil)
	body := fmt.Sprintf(`{"key":"many","n":%d,"size":%d}`, count, size)
	var all []*inbox
	for i := range joiners {
		in := r.inbox()
		all = append(all, in)
		r.send(in, genSubject, body, "Mesh-Rpc-Id", "many", "Mesh-Stream", "inbox")
		if i%10 == 0 {
			wait(t, "an item", r.gate("many").sent)
		}
	}
	for i, in := range all {
		if got := in.chunks(); len(got) != count+1 || got[count].kind != "complete" {
			t.Errorf("reader %d: %d chunks, the last one %+v", i, len(got), got[len(got)-1])
		}
		if !isEmpty(in.next().Msg) {
			t.Errorf("reader %d: no empty message", i)
		}
	}
	if n := r.ran("many"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// A stream that fails also fails for the callers that have joined it.
func TestJoinersOfAFailingStream(t *testing.T) {
	t.Parallel()
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		for _, how := range []string{"1", "inbox"} {
			body := fmt.Sprintf(`{"key":%q,"n":1,"gate":true}`, "once"+how)
			first, joined := r.inbox(), r.inbox()
			r.send(first, genSubject, body, "Mesh-Rpc-Id", "once"+how, "Mesh-Stream", how)
			wait(t, "start", r.gate("once"+how).started)
			r.send(joined, genSubject, body, "Mesh-Rpc-Id", "once"+how, "Mesh-Stream", how)
			r.settled()
			r.ask("mesh.ctl.default.once"+how, "")
			if a, b := first.next(), joined.next(); a.code() != "cancelled" || string(a.Data) != string(b.Data) {
				t.Errorf("%s: %s, joined: %s", how, a.Data, b.Data)
			}
		}
	})
	t.Run("store full", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, &rigOptions{host: host.Options{StoreOptions: host.StoreOptions{ChunksMax: 100_000}}})
		const body = `{"key":"full","n":1000,"size":10000,"gate":true}`
		g := r.gate("full")
		first, joined := r.inbox(), r.inbox()
		r.send(first, genSubject, body, "Mesh-Rpc-Id", "full", "Mesh-Stream", "inbox")
		g.release <- struct{}{}
		first.next()
		r.send(joined, genSubject, body, "Mesh-Rpc-Id", "full", "Mesh-Stream", "inbox")
		joined.next()
		close(g.release)
		for _, in := range []*inbox{first, joined} {
			m := in.next()
			for m.Header.Get("Mesh-Chunk") == "data" {
				m = in.next()
			}
			if !strings.Contains(string(m.Data), "chunks_max") || !isEmpty(in.next().Msg) {
				t.Errorf("it ends with %v %s", m.Header, m.Data)
			}
		}
	})
}

// A repetition of a stream that has just ended may be answered by a server that does not have its
// last chunks yet: found in a cluster of three, 6 of 900 times.
func TestARepetitionWaitsForAStoreThatLags(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const body, subject = `{"key":"lag","n":3}`, "mesh.chunks.default.lag"
	pairs := []string{"Mesh-Rpc-Id", "lag", "Mesh-Stream", "inbox"}
	first, again := r.inbox(), r.inbox()
	r.send(first, genSubject, body, pairs...)
	first.finish(1, 3)
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "MESH_CHUNKS")
	if err != nil {
		t.Fatal(err)
	}
	end, err := stream.GetLastMsgForSubject(t.Context(), subject)
	if err == nil {
		err = stream.DeleteMsg(t.Context(), end.Sequence)
	}
	if err != nil {
		t.Fatal(err)
	}
	looks, err := r.nc.SubscribeSync("$JS.API.DIRECT.GET.MESH_CHUNKS")
	if err != nil {
		t.Fatal(err)
	}
	r.send(again, genSubject, body, pairs...)
	for seq := range 3 {
		again.item(seq + 1)
	}
	for range 20 { // more than it takes to find the three items, and nothing behind them
		if _, err := looks.NextMsg(waitTimeout); err != nil {
			t.Fatal(err)
		}
	}
	end.Header.Del("Nats-Expected-Last-Subject-Sequence")
	end.Header.Del("Nats-Msg-Id")
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: end.Header, Data: end.Data}); err != nil {
		t.Fatal(err)
	}
	again.finish(4, 3)
	if n := r.ran("lag"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// A stream goes on as long as one of the callers that asked for it is there.
func TestAJoinerKeepsItsStream(t *testing.T) {
	t.Parallel()
	t.Run("new inbox", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		const body = `{"key":"n","n":1000000,"gate":true}`
		pairs := []string{"Mesh-Rpc-Id", "n", "Mesh-Stream", "inbox"}
		g := r.gate("n")
		first, back := r.inbox(), r.inbox()
		r.send(first, genSubject, body, pairs...)
		g.release <- struct{}{}
		first.item(1)
		left := time.Now()
		if err := first.sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		r.send(back, genSubject, body, pairs...)
		back.item(1)
		seq := 1
		for ; time.Since(left) < 14*time.Second; time.Sleep(50 * time.Millisecond) {
			select {
			case g.release <- struct{}{}:
				seq++
				back.item(seq)
			case err := <-g.ended:
				t.Fatalf("the stream ended after %v: %v", time.Since(left), err)
			}
		}
		left = time.Now()
		if err := back.sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		g.deserted(t, left)
	})
	t.Run("without credit", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		const body = `{"key":"c","n":1000}`
		first, back := r.inbox(), r.inbox()
		r.send(first, genSubject, body, "Mesh-Rpc-Id", "c", "Mesh-Stream", "1", "Mesh-Credit", "3")
		first.next() // and then it gives no more credit
		r.send(back, genSubject, body, "Mesh-Rpc-Id", "c", "Mesh-Stream", "inbox")
		back.finish(1, 1000)
	})
	t.Run("with credit", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		const body = `{"key":"w","n":1000000,"gate":true}`
		g := r.gate("w")
		first, back := r.inbox(), r.inbox()
		r.send(first, genSubject, body, "Mesh-Rpc-Id", "w", "Mesh-Stream", "inbox")
		g.release <- struct{}{}
		first.item(1)
		left := time.Now()
		if err := first.sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		r.send(back, genSubject, body, "Mesh-Rpc-Id", "w", "Mesh-Stream", "inbox", "Mesh-Credit", "1")
		back.item(1)
		seq, credited := 1, time.Now()
		for ; time.Since(left) < 14*time.Second; time.Sleep(50 * time.Millisecond) {
			if time.Since(credited) > time.Second {
				credited = time.Now()
				r.send(nil, "mesh.ctl.default.w", `{"type":"credit","seq":5}`)
			}
			select {
			case g.release <- struct{}{}:
				seq++
				back.item(seq) // the caller that asked first, without credit, sets the pace
			case err := <-g.ended:
				t.Fatalf("the stream ended after %v: %v", time.Since(left), err)
			}
		}
		g.deserted(t, credited)
	})
}
