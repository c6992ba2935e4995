package payloads_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

func (r *rig) begin(session string, n, size int) *nats.Msg {
	r.t.Helper()
	return r.ask("mesh.payload."+session+"."+strconv.Itoa(n), fmt.Appendf(nil, `{"size":%d}`, size), "Mesh-Payload", "put")
}

// limit bounds the store, in bytes.
func (r *rig) limit(bytes int64) {
	r.t.Helper()
	stream, err := r.node.JetStream().Stream(r.t.Context(), "OBJ_MESH_PAYLOADS")
	if err != nil {
		r.t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxBytes = bytes
	if _, err := r.node.JetStream().UpdateStream(r.t.Context(), config); err != nil {
		r.t.Fatal(err)
	}
}

// A session that sends as many values at once as it may leaves places to another.
func TestUploadsAreShared(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	n := 0
	for ; n < 300; n++ {
		a := r.begin("s", n, 10)
		if a.Header.Get("Mesh-Error-Code") == "" {
			continue
		}
		if e := codec.ParseReply(codec.Header(a.Header), a.Data).Err; e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo || e.Details["limit"] != "uploads" {
			t.Fatalf("one more: %+v", e)
		}
		break
	}
	if n != 128 {
		t.Errorf("one session sends %d values at once", n)
	}
	if a := r.begin("t", 0, 10); string(a.Data) != `{"node":"n"}` {
		t.Errorf("another session: %v %s", a.Header, a.Data)
	}
	r.Close()
}

// A session that has its part of the store puts no more there, and another one does.
func TestTheStoreIsShared(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	r.limit(32 << 20)
	value := make([]byte, 1<<20)
	put := func(session string) (stored int) {
		for ; ; stored++ {
			name := "mesh.node.n.payload." + session + "." + strconv.Itoa(stored)
			a := r.begin(session, stored, len(value))
			if a.Header.Get("Mesh-Error-Code") != "" {
				if e := codec.ParseReply(codec.Header(a.Header), a.Data).Err; e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo || e.Details["limit"] != "payloads_share" {
					t.Fatalf("one more of session %s: %+v", session, e)
				}
				return stored
			}
			for i := range 4 {
				r.ask(name, value[:256<<10], "Mesh-Payload", "piece", "Mesh-Seq", strconv.Itoa(i+1))
			}
			if a := r.ask(name, nil, "Mesh-Payload", "end", "Mesh-Digest", codec.DigestText(make([]byte, 32))); a.Header.Get("Mesh-Ref") == "" {
				t.Fatalf("end: %v %s", a.Header, a.Data)
			}
		}
	}
	if n := put("s"); n < 14 || n > 16 {
		t.Errorf("the first session stores %d of 32 MiB", n)
	}
	if n := put("t"); n < 6 || n > 9 {
		t.Errorf("the second session stores %d of 32 MiB", n)
	}
	if _, err := r.Keep(t.Context(), "s", "s", value); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
		t.Errorf("a result of the first session: %v", err)
	}
	_, stored, err := r.Begin(t.Context(), "u", "u", 3<<20)
	if err != nil {
		t.Fatalf("a result of a third session: %v", err)
	}
	if _, _, err := r.Begin(t.Context(), "u", "u", 3<<20); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
		t.Errorf("a result of the third session next to one that is being stored: %v", err)
	}
	stored()
	// An announced upload counts.
	if a := r.begin("u", 0, 3<<20); a.Header.Get("Mesh-Error-Code") != "" {
		t.Errorf("a third session: %s", a.Data)
	}
	if a := r.begin("u", 1, 3<<20); a.Header.Get("Mesh-Error-Code") != "busy" {
		t.Errorf("the third session has announced its part: %v", a.Header)
	}
	r.Close()
}

// Objects without bytes count for their session, too.
func TestEmptyObjectsAreShared(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	r.limit(64 << 10)
	digest := codec.DigestText(make([]byte, 32))
	for n := 0; r.begin("s", n, 0).Header.Get("Mesh-Error-Code") == ""; n++ {
		if n == 100 {
			t.Fatalf("one session stores %d empty objects", n)
		}
		r.ask("mesh.node.n.payload.s."+strconv.Itoa(n), nil, "Mesh-Payload", "end", "Mesh-Digest", digest)
	}
	if a := r.begin("t", 0, 1); a.Header.Get("Mesh-Error-Code") != "" {
		t.Errorf("another session: %s", a.Data)
	}
	r.Close()
}

// The memory of uploads in progress is bounded.
func TestUploadsInProgressAreBounded(t *testing.T) {
	r := newRig(t, 1<<30)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	piece := bytes.Repeat([]byte("x"), 256<<10)
	const uploads, pieces = 10, 80 // of 20 MiB
	for u := range uploads {
		r.begin("s", u, pieces*len(piece)+1)
		for i := range pieces {
			a := r.ask("mesh.node.n.payload.s."+strconv.Itoa(u), piece, "Mesh-Payload", "piece", "Mesh-Seq", strconv.Itoa(i+1))
			if a.Header.Get("Mesh-Error-Code") != "" {
				t.Fatalf("piece: %s", a.Data)
			}
		}
	}
	if grown := heap() - before; grown > 128<<20 {
		t.Errorf("%d values of 20 MiB that are being sent hold %d MB", uploads, grown>>20)
	}
	r.Close()
}

// The room of a payload that a node holds is free again after it has expired, also if another node
// deleted it, and its name was used again.
func TestRoomOfHeldPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	name, err := subjects.PayloadName("s", "0")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a := r.begin("s", 0, 3); a.Header.Get("Mesh-Error-Code") != "" {
			t.Fatalf("put: %s", a.Data)
		}
		if r.HoldsNothing() {
			t.Error("a payload that is being stored takes no room")
		}
		r.ask("mesh.node.n.payload.s.0", []byte("abc"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
		if a := r.ask("mesh.node.n.payload.s.0", nil, "Mesh-Payload", "end", "Mesh-Digest", codec.DigestText(make([]byte, 32))); a.Header.Get("Mesh-Ref") == "" {
			t.Fatalf("end: %v %s", a.Header, a.Data)
		}
		if err := store.Of(r.node).DeletePayload(t.Context(), name); err != nil { // as another node does
			t.Fatal(err)
		}
	}
	if r.Sweep(time.Now().Add(time.Minute)); !r.HoldsNothing() {
		t.Error("room is lost for ever")
	}
}

// Requests of a session that do not get on hold up no other one's.
func TestRequestsOfOneSessionHoldUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	ref := r.put([]byte("value"))
	inbox := r.bus.Conn().NewInbox()
	answers := make(chan *nats.Msg, 100)
	if _, err := r.bus.Conn().ChanSubscribe(inbox, answers); err != nil {
		t.Fatal(err)
	}
	const stuck = 40
	for n := range stuck {
		m := nats.NewMsg("mesh.payload.slow." + strconv.Itoa(n))
		m.Header.Set("Mesh-Payload", "put")
		m.Data, m.Reply = []byte(`{"size":1}`), inbox
		if err := r.bus.Conn().PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := payloads.GetBytes(t.Context(), r.bus, "s", "", ref); err != nil || string(got) != "value" {
		t.Errorf("another session reads %s, %v", got, err)
	}
	close(r.slow)
	for range stuck {
		if a := <-answers; string(a.Data) != `{"node":"n"}` {
			t.Errorf("a request that was stuck: %v %s", a.Header, a.Data)
		}
	}
	r.Close()
}

// A node stores an object in a bounded number of pieces of a bounded size, with at most 8 of them in transit.
func TestPiecesAreBounded(t *testing.T) {
	t.Parallel()
	const subject = "mesh.node.n.payload.s."
	r := newRig(t, 1<<30)
	n, size := 0, 100_000
	r.begin("s", 0, size)
	for n < 1000 && r.ask(subject+"0", []byte("x"), "Mesh-Payload", "piece", "Mesh-Seq", strconv.Itoa(n+1)).Header.Get("Mesh-Error-Code") == "" {
		n++
	}
	if n != size/1024+8 {
		t.Errorf("an object of %d bytes may have %d pieces", size, n)
	}
	r.begin("s", 1, 600<<10)
	if a := r.ask(subject+"1", make([]byte, 600<<10), "Mesh-Payload", "piece", "Mesh-Seq", "1"); a.Header.Get("Mesh-Error-Code") != "invalid_request" {
		t.Errorf("a piece of 600 KB: %v", a.Header)
	}

	// The acknowledgements of the store wait behind a reply that is not handed out.
	release := make(chan struct{})
	blocked := make(chan struct{})
	inbox, err := r.node.Open(func(*nats.Msg, error) { close(blocked); <-release })
	if err != nil {
		t.Fatal(err)
	}
	defer inbox.Close()
	r.begin("s", 2, 10<<10)
	if err := r.bus.Conn().Publish(inbox.Subject(), nil); err != nil {
		t.Fatal(err)
	}
	<-blocked
	answers := make(chan *nats.Msg, 10)
	reply := r.bus.Conn().NewInbox()
	if _, err := r.bus.Conn().ChanSubscribe(reply, answers); err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		m := &nats.Msg{Subject: subject + "2", Reply: reply, Header: nats.Header{"Mesh-Payload": {"piece"}, "Mesh-Seq": {strconv.Itoa(i + 1)}}, Data: make([]byte, 1<<10)}
		if err := r.bus.Conn().PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	// The answer to this request follows those to the pieces.
	if a := r.ask(subject+"3", nil, "Mesh-Payload", "none"); a.Header.Get("Mesh-Error-Code") != "invalid_request" {
		t.Errorf("an unknown verb: %v", a.Header)
	}
	select {
	case a := <-answers:
		if a.Header.Get("Mesh-Error-Code") != "invalid_request" {
			t.Errorf("the 9th piece in transit: %v", a.Header)
		}
	default:
		t.Error("9 pieces of an object are in transit")
	}
	close(release)
	r.Close()
}
