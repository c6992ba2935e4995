package payloads_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

const waitTimeout = 60 * time.Second

// rig is a payload server and a caller.
type rig struct {
	*payloads.Server
	t    *testing.T
	node *bus.Bus
	bus  *bus.Bus      // the caller's
	slow chan struct{} // closed: the session "slow" is known
}

func newRig(t *testing.T, most int64) *rig {
	t.Helper()
	broker := meshtest.Broker(t)
	open := func() *bus.Bus {
		b := testmesh.Bus(t, broker.Connect(t), nil)
		return b
	}
	r := &rig{t: t, node: open(), bus: open(), slow: make(chan struct{})}
	if err := store.Of(r.node).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	base, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	r.Server = payloads.NewServer(payloads.ServerOptions{
		Node: "n", Bus: store.Of(r.node), Base: base, Max: most, Log: slog.New(slog.DiscardHandler),
		Go: func(f func()) { running.Go(f) },
		Admit: func(session subjects.SessionID) error {
			if session == "none" {
				return toolmesh.Errorf(toolmesh.CodeSessionNotFound, "there is none")
			}
			if session == "slow" {
				<-r.slow
			}
			return nil
		},
		Account: func(session subjects.SessionID) subjects.SessionID { return session },
	})
	t.Cleanup(func() { end(); running.Wait() })
	pieces, err := subjects.NodePayloads("n")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"mesh.payload.*.*", pieces} {
		if _, err := r.node.Conn().Subscribe(subject, r.Serve); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.node.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	return r
}

// ask sends one request and returns the first answer.
func (r *rig) ask(subject string, body []byte, pairs ...string) *nats.Msg {
	r.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = body
	for i := 0; i < len(pairs); i += 2 {
		m.Header.Set(pairs[i], pairs[i+1])
	}
	a, err := r.bus.Conn().RequestMsg(m, waitTimeout)
	if err != nil {
		r.t.Fatalf("%s: %v", subject, err)
	}
	return a
}

// left is how many messages the store has.
func (r *rig) left() uint64 {
	r.t.Helper()
	stream, err := r.node.JetStream().Stream(r.t.Context(), "OBJ_MESH_PAYLOADS")
	if err != nil {
		r.t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

func (r *rig) put(value []byte) *codec.Ref {
	r.t.Helper()
	ref, err := payloads.Put(r.t.Context(), r.bus, "s", "", bytes.NewReader(value), int64(len(value)))
	if err != nil {
		r.t.Fatal(err)
	}
	return ref
}

func TestPutGetDelete(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	for _, size := range []int{0, 1, 512 << 10, 512<<10 + 1, 5 << 20} {
		value := bytes.Repeat([]byte("x"), size)
		for i := range value {
			value[i] = byte(i * i >> 8)
		}
		ref := r.put(value)
		got, err := payloads.GetBytes(t.Context(), r.bus, "s", "", ref)
		if err != nil || !bytes.Equal(got, value) {
			t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
		}
		loaded, err := payloads.Load(t.Context(), store.Of(r.node), "s", ref, 1<<30, nil)
		if err != nil || !bytes.Equal(loaded, value) {
			t.Errorf("%d bytes: the node reads %d, %v", size, len(loaded), err)
		}
		payloads.Delete(r.bus, "s", "", ref)
		meshtest.Until(t, "it is deleted", func() bool { return r.left() == 0 })
		if err := payloads.Get(t.Context(), r.bus, "s", "", ref, &bytes.Buffer{}); toolmesh.AsError(err).Details["reason"] != payloads.ReasonGone {
			t.Errorf("deleted: %v", err)
		}
	}
}

// An object that another client has stored in any sizes of parts is read, too.
func TestGetOfManyParts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	js, err := jetstream.New(r.node.Conn())
	if err != nil {
		t.Fatal(err)
	}
	store, err := js.ObjectStore(t.Context(), "MESH_PAYLOADS")
	if err != nil {
		t.Fatal(err)
	}
	value := bytes.Repeat([]byte("0123456789"), 9000)
	var info *jetstream.ObjectInfo
	meshtest.Until(t, "all parts are put", func() bool { // the library gives up where a slow broker lets 4,000 of them wait for 0.2 s
		info, err = store.Put(t.Context(), jetstream.ObjectMeta{Name: "s.parts", Opts: &jetstream.ObjectMetaOptions{ChunkSize: 10}}, bytes.NewReader(value))
		return !errors.Is(err, jetstream.ErrTooManyStalledMsgs)
	})
	if err != nil {
		t.Fatal(err)
	}
	ref := &codec.Ref{Name: "s.parts", Digest: info.Digest}
	got, err := payloads.GetBytes(t.Context(), r.bus, "s", "", ref)
	if err != nil || !bytes.Equal(got, value) {
		t.Errorf("%d bytes of %d, %v", len(got), len(value), err)
	}
}

// A payload that a node stored can be read as an object by any NATS client.
func TestStoredAsAnObject(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	value := bytes.Repeat([]byte("y"), 3<<20)
	ref, err := payloads.Store(t.Context(), store.Of(r.node), "s", "s", bytes.NewReader(value), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	store, err := r.node.JetStream().ObjectStore(t.Context(), "MESH_PAYLOADS")
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.GetBytes(t.Context(), ref.Name)
	info, infoErr := store.GetInfo(t.Context(), ref.Name)
	if err != nil || infoErr != nil || !bytes.Equal(got, value) || info.Digest != ref.Digest {
		t.Errorf("%d bytes, %v, %v", len(got), err, infoErr)
	}
	if err := store.Delete(t.Context(), ref.Name); err != nil {
		t.Error(err)
	}
	if err := payloads.Get(t.Context(), r.bus, "s", "", ref, &bytes.Buffer{}); toolmesh.AsError(err).Details["reason"] != payloads.ReasonGone {
		t.Errorf("deleted as an object: %v", err)
	}
}

// An invalid upload gets an error, and nothing of it stays stored.
func TestBadUploads(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000)
	const shared, direct = "mesh.payload.s.x", "mesh.node.n.payload.s.x"
	begin := func(size int) {
		t.Helper()
		if a := r.ask(shared, fmt.Appendf(nil, `{"size":%d}`, size), "Mesh-Payload", "put"); string(a.Data) != `{"node":"n"}` {
			t.Fatalf("put: %v %s", a.Header, a.Data)
		}
	}
	for what, tc := range map[string]struct {
		do   func() *nats.Msg
		code toolmesh.Code
	}{
		"no verb":         {func() *nats.Msg { return r.ask(shared, nil) }, toolmesh.CodeInvalidRequest},
		"a piece to all":  {func() *nats.Msg { return r.ask(shared, nil, "Mesh-Payload", "piece") }, toolmesh.CodeInvalidRequest},
		"a put to one":    {func() *nats.Msg { return r.ask(direct, nil, "Mesh-Payload", "put") }, toolmesh.CodeInvalidRequest},
		"no size":         {func() *nats.Msg { return r.ask(shared, []byte(`{}`), "Mesh-Payload", "put") }, toolmesh.CodeInvalidRequest},
		"a negative size": {func() *nats.Msg { return r.ask(shared, []byte(`{"size":-1}`), "Mesh-Payload", "put") }, toolmesh.CodeInvalidRequest},
		"too large":       {func() *nats.Msg { return r.ask(shared, []byte(`{"size":1001}`), "Mesh-Payload", "put") }, toolmesh.CodePayloadTooLarge},
		"no session":      {func() *nats.Msg { return r.ask("mesh.payload.none.x", []byte(`{"size":1}`), "Mesh-Payload", "put") }, toolmesh.CodeSessionNotFound},
		"required": {func() *nats.Msg {
			return r.ask(shared, nil, "Mesh-Payload", "delete", "Mesh-Require", "later")
		}, toolmesh.CodeProtocolError},
		"nothing begun": {func() *nats.Msg {
			return r.ask("mesh.node.n.payload.s.y", []byte("x"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
		}, toolmesh.CodeInvalidRequest},
		"twice": {func() *nats.Msg {
			begin(5)
			return r.ask(shared, []byte(`{"size":5}`), "Mesh-Payload", "put")
		}, toolmesh.CodeInvalidRequest},
		"out of order": {func() *nats.Msg {
			begin(5)
			return r.ask(direct, []byte("12345"), "Mesh-Payload", "piece", "Mesh-Seq", "2")
		}, toolmesh.CodeInvalidRequest},
		"more than announced": {func() *nats.Msg {
			begin(5)
			return r.ask(direct, []byte("123456"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
		}, toolmesh.CodeInvalidRequest},
		"less than announced": {func() *nats.Msg {
			begin(5)
			r.ask(direct, []byte("1234"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
			return r.ask(direct, nil, "Mesh-Payload", "end", "Mesh-Digest", "SHA-256=x")
		}, toolmesh.CodeInvalidRequest},
		"another digest": {func() *nats.Msg {
			begin(5)
			r.ask(direct, []byte("12345"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
			return r.ask(direct, nil, "Mesh-Payload", "end", "Mesh-Digest", "SHA-256=x")
		}, toolmesh.CodeInvalidRequest},
		"get from nowhere": {func() *nats.Msg { return r.ask(shared, []byte(`{"from_seq":0}`), "Mesh-Payload", "get") }, toolmesh.CodeInvalidRequest},
		"get of nothing":   {func() *nats.Msg { return r.ask(shared, []byte(`{"from_seq":1}`), "Mesh-Payload", "get") }, toolmesh.CodeInvalidRequest},
		"no JSON":          {func() *nats.Msg { return r.ask(shared, []byte(`{`), "Mesh-Payload", "get") }, toolmesh.CodeInvalidRequest},
	} {
		a := tc.do()
		if got := a.Header.Get("Mesh-Error-Code"); got != string(tc.code) || a.Header.Get("Mesh-Started") != "false" {
			t.Errorf("%s: %v %s", what, a.Header, a.Data)
		}
		r.Sweep(time.Now().Add(time.Minute)) // callers that are gone
	}
	meshtest.Until(t, "nothing stays", func() bool { return r.left() == 0 })
}

// A caller that is gone leaves nothing behind.
func TestUploadGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	r.ask("mesh.payload.s.x", []byte(`{"size":10}`), "Mesh-Payload", "put")
	r.ask("mesh.node.n.payload.s.x", []byte("12345"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
	if r.left() == 0 {
		t.Error("the piece is not in the store")
	}
	r.Sweep(time.Now())
	if a := r.ask("mesh.node.n.payload.s.x", []byte("67890"), "Mesh-Payload", "piece", "Mesh-Seq", "2"); a.Header.Get("Mesh-Seq") != "2" {
		t.Errorf("a caller that is slow: %v %s", a.Header, a.Data)
	}
	r.Sweep(time.Now().Add(time.Minute))
	meshtest.Until(t, "nothing stays", func() bool { return r.left() == 0 })
	r.ask("mesh.payload.s.z", []byte(`{"size":10}`), "Mesh-Payload", "put")
	r.ask("mesh.node.n.payload.s.z", []byte("12345"), "Mesh-Payload", "piece", "Mesh-Seq", "1")
	r.Close()
	meshtest.Until(t, "nothing stays", func() bool { return r.left() == 0 })
	if a := r.ask("mesh.payload.s.x", []byte(`{"size":10}`), "Mesh-Payload", "put"); a.Header.Get("Mesh-Error-Code") != "unavailable" {
		t.Errorf("a node that stops: %v %s", a.Header, a.Data)
	}
}

// A piece that is lost on its way back is asked for again, and one that is altered shows.
func TestGetOverLosses(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	value := bytes.Repeat([]byte("z"), 3<<20)
	ref := r.put(value)
	lossy(t)
	got, err := payloads.GetBytes(t.Context(), r.bus, "s", "", ref)
	if err != nil || !bytes.Equal(got, value) {
		t.Fatalf("%v", err)
	}
	altered := *ref
	altered.Digest = codec.DigestText(bytes.Repeat([]byte{1}, 32))
	if _, err := payloads.GetBytes(t.Context(), r.bus, "s", "", &altered); toolmesh.AsError(err).Details["reason"] != payloads.ReasonAltered {
		t.Errorf("altered: %v", err)
	}
	if _, err := payloads.GetBytes(t.Context(), r.bus, "other", "", ref); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Errorf("another session: %v", err)
	}
}

// lossy reads a value through a node that loses the second piece of its first answer.
func lossy(t *testing.T) {
	t.Helper()
	asked := 0
	broker := meshtest.Broker(t)
	node := broker.Connect(t)
	_, err := node.Subscribe("mesh.payload.lossy.*", func(m *nats.Msg) {
		asked++
		piece := func(n int, data string) {
			if asked > 1 || n != 2 {
				_ = node.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Mesh-Seq": {fmt.Sprint(n)}}, Data: []byte(data)})
			}
		}
		piece(1, "one")
		piece(2, "two")
		piece(3, "three")
		_ = node.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Mesh-High": {"9;terminal"}, "Mesh-Count": {"3"}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Flush(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("onetwothree"))
	got, err := payloads.GetBytes(t.Context(), testmesh.Bus(t, broker.Connect(t), nil), "lossy", "", &codec.Ref{Name: "lossy.x", Digest: codec.DigestText(sum[:])})
	if err != nil || string(got) != "onetwothree" || asked != 2 {
		t.Errorf("%q after %d questions, %v", got, asked, err)
	}
}

// A writer that fails, a reader that fails and a context that ends end the transfer.
func TestTransfersThatEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<30)
	ref := r.put(bytes.Repeat([]byte("z"), 3<<20))
	if err := payloads.Get(t.Context(), r.bus, "s", "", ref, failing{}); !errors.Is(err, errDisk) {
		t.Errorf("a writer that fails: %v", err)
	}
	if _, err := payloads.Put(t.Context(), r.bus, "s", "", failing{}, 10); !errors.Is(err, errDisk) {
		t.Errorf("a reader that fails: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := payloads.Get(over, r.bus, "s", "", ref, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a get that is given up: %v", err)
	}
	if _, err := payloads.Put(over, r.bus, "s", "", bytes.NewReader(nil), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a put that is given up: %v", err)
	}
}

var errDisk = errors.New("the disk is full")

type failing struct{}

func (failing) Read([]byte) (int, error)       { return 0, errDisk }
func (failing) Write([]byte) (int, error)      { return 0, errDisk }
func (failing) Seek(int64, int) (int64, error) { return 0, nil }
