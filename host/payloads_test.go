package host_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// large is arguments of the tool "note" that no message of a broker carries.
func large(key string, size int) json.RawMessage {
	return json.RawMessage(`{"key":"` + key + `","text":"` + strings.Repeat("0123456789abcdef", size/16) + `"}`)
}

// payloadsLeft is how many messages there are in the store of large values.
func payloadsLeft(t *testing.T, nc *nats.Conn) uint64 {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subjects.ObjectStream(subjects.ObjectPayloads))
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// objects is the store of large values as any NATS client with JetStream sees it.
func objects(t *testing.T, nc *nats.Conn) jetstream.ObjectStore {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := js.ObjectStore(t.Context(), subjects.ObjectPayloads)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func clientOf(t *testing.T, nc *nats.Conn, session subjects.SessionID) *client.Client {
	t.Helper()
	c := testmesh.Client(t, nc, &client.Options{Session: session})
	return c
}

// Values that are larger than a message arrive in both directions, with any rights of the caller
// on the broker, and leave no object behind.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		d := newDesk()
		serving := top.ServeOn(t, 0)
		d.serve(t, serving, &host.Options{Node: "desk-1"})
		caller := top.Call(t)
		c := clientOf(t, caller, top.Session)
		args := large("k", 3<<20)
		r, err := c.Call(t.Context(), "desk.note", args)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(r.Value, args) {
			t.Errorf("%d bytes came back, %d were sent", len(r.Value), len(args))
		}
		meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, serving) == 0 })
	})
}

// A client that knows the protocol and may use JetStream puts and gets the objects itself.
func TestLargeValuesOfAPlainClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	store := objects(t, r.nc)
	args := large("plain", 2<<20)
	info, err := store.PutBytes(t.Context(), "default.mine/1.json", args)
	if err != nil {
		t.Fatal(err)
	}
	a := r.call("note", "", "Mesh-Ref", info.Name, "Mesh-Digest", info.Digest, "Mesh-Accept-Ref", "1", "Mesh-Rpc-Id", "plain")
	if a.code() != "ok" || len(a.Data) > 0 {
		t.Fatalf("the answer: %v %s", a.Header, a.Data)
	}
	name := a.Header.Get("Mesh-Ref")
	if !strings.HasPrefix(name, "default.") {
		t.Errorf("Mesh-Ref = %q", name)
	}
	got, err := store.GetBytes(t.Context(), name)
	if err != nil || !bytes.Equal(got, args) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	sum := sha256.Sum256(args)
	if want := "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:]); a.Header.Get("Mesh-Digest") != want {
		t.Errorf("Mesh-Digest = %q, want %q", a.Header.Get("Mesh-Digest"), want)
	}
	meshtest.Until(t, "the arguments are deleted", func() bool {
		_, err := store.GetInfo(t.Context(), info.Name)
		return err != nil
	})

	// Sent again, the call has the same digest: its record answers, and nothing is read.
	again := r.call("note", "", "Mesh-Ref", info.Name, "Mesh-Digest", info.Digest, "Mesh-Accept-Ref", "1", "Mesh-Rpc-Id", "plain")
	if got, err := store.GetBytes(t.Context(), again.Header.Get("Mesh-Ref")); err != nil || !bytes.Equal(got, args) || r.ran("plain") != 1 {
		t.Errorf("again: %d bytes, %v, %d runs", len(got), err, r.ran("plain"))
	}
	// A caller without references gets payload_too_large, as ever.
	info, err = store.PutBytes(t.Context(), "default.2", args)
	if err != nil {
		t.Fatal(err)
	}
	if a := r.call("note", "", "Mesh-Ref", info.Name, "Mesh-Digest", info.Digest); a.code() != "payload_too_large" || a.Error.started() != "true" {
		t.Errorf("without Mesh-Accept-Ref: %v %s", a.Header, a.Data)
	}
}

// A repeated call gets its result, also when the first caller has read and deleted it.
func TestLargeResultAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := clientOf(t, r.nc, "")
	args := large("again", 2<<20)
	for range 2 {
		got, err := c.Call(t.Context(), "desk.note", args, client.WithRPCID("again"), client.ViaQueue())
		if err != nil || !bytes.Equal(got.Value, args) {
			t.Fatalf("%v", err)
		}
		meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
	}
	if n := r.ran("again"); n != 1 {
		t.Errorf("%d runs", n)
	}
	// One that is too large for a record is there once.
	args = large("once", 9<<20)
	if _, err := c.Call(t.Context(), "desk.note", args, client.WithRPCID("once")); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
	_, err := c.Call(t.Context(), "desk.note", args, client.WithRPCID("once"))
	if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || e.Started != toolmesh.StartedYes || r.ran("once") != 1 {
		t.Errorf("read, and asked for again: %v", err)
	}
}

// A reference is checked against the session, its own size and digest, and the node's bound,
// before the call starts.
func TestBadReferences(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{PayloadMax: 1 << 20}})
	store := objects(t, r.nc)
	put := func(name string, value []byte) (string, string) {
		t.Helper()
		info, err := store.PutBytes(t.Context(), name, value)
		if err != nil {
			t.Fatal(err)
		}
		return info.Name, info.Digest
	}
	args := []byte(`{"key":"bad"}`)
	mine, digest := put("default.mine", args)
	other, _ := put("other.theirs", args)
	bare, _ := put("bare", args)
	wide, wideDigest := put("default.wide", large("bad", 2<<20))
	const damaged = "default.damaged"
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "OBJ_MESH_PAYLOADS")
	if err != nil {
		t.Fatal(err)
	}
	// A refused request may have its payload deleted: each one has a payload of its own.
	fresh, last := map[string][]byte{mine: args, wide: large("bad", 2<<20), damaged: args}, 0
	named := func(name string) string {
		t.Helper()
		value := fresh[name]
		if value == nil {
			return name
		}
		last++
		own, _ := put(fmt.Sprint(name, last), value)
		if name != damaged {
			return own
		}
		// The stored object differs from its description: it has another part.
		info, err := store.GetInfo(t.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("$O.MESH_PAYLOADS.C."+info.NUID)); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "$O.MESH_PAYLOADS.C."+info.NUID, []byte(`{"key":"mad"}`)); err != nil {
			t.Fatal(err)
		}
		return own
	}
	wrong := sha256.Sum256([]byte("something else"))
	for what, tc := range map[string]struct {
		name, digest, body string
		header             []string
		code               toolmesh.Code
		reason             string
	}{
		"gone":                 {"default.none", digest, "", nil, toolmesh.CodeInvalidRequest, "payload_gone"},
		"of another session":   {other, digest, "", nil, toolmesh.CodePermissionDenied, ""},
		"of no session":        {bare, digest, "", nil, toolmesh.CodePermissionDenied, ""},
		"of an empty session":  {".x", digest, "", nil, toolmesh.CodePermissionDenied, ""},
		"an alias":             {"Default.mine", digest, "", nil, toolmesh.CodePermissionDenied, ""},
		"nothing of a session": {"default.", digest, "", nil, toolmesh.CodePermissionDenied, ""},
		"another digest":       {mine, "SHA-256=" + base64.URLEncoding.EncodeToString(wrong[:]), "", nil, toolmesh.CodeInvalidRequest, "payload_altered"},
		"altered in the store": {damaged, digest, "", nil, toolmesh.CodeInvalidRequest, "payload_altered"},
		"no digest":            {mine, "", "", nil, toolmesh.CodeInvalidRequest, ""},
		"another algorithm":    {mine, "MD5=AAAA", "", nil, toolmesh.CodeInvalidRequest, ""},
		"a body as well":       {mine, digest, `{}`, nil, toolmesh.CodeInvalidRequest, ""},
		"MessagePack":          {mine, digest, "", []string{"Content-Type", "application/msgpack"}, toolmesh.CodeInvalidRequest, ""},
		"zstd":                 {mine, digest, "", []string{"Content-Encoding", "zstd"}, toolmesh.CodeInvalidRequest, ""},
		"too large":            {wide, wideDigest, "", nil, toolmesh.CodePayloadTooLarge, ""},
	} {
		for _, form := range [][]string{nil, {"Mesh-Stream", "inbox"}} {
			header := append([]string{"Mesh-Ref", named(tc.name), "Mesh-Digest", tc.digest}, tc.header...)
			a := r.call("note", tc.body, append(header, form...)...)
			if a.Header.Get("Mesh-Error-Code") != string(tc.code) || a.Header.Get("Mesh-Started") != "false" {
				t.Errorf("%s: %v %s", what, a.Header, a.Data)
			}
			if tc.reason != "" && !strings.Contains(string(a.Data), tc.reason) {
				t.Errorf("%s: no reason %s in %s", what, tc.reason, a.Data)
			}
		}
	}
	if n := r.ran("bad"); n != 0 {
		t.Errorf("%d calls ran", n)
	}
	for _, name := range []string{other, bare} { // those of the session itself may be deleted: no call of theirs can follow
		if _, err := store.GetInfo(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	mine, digest = put("default.again", args)
	if a := r.call("note", "", "Mesh-Ref", mine, "Mesh-Digest", digest); a.code() != "ok" {
		t.Errorf("the right one: %v %s", a.Header, a.Data)
	}
	// A result over the node's bound, and arguments that are announced as such.
	c := clientOf(t, r.nc, "")
	_, err = c.Call(t.Context(), "desk.note", large("bad", 2<<20))
	if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge || e.Started != toolmesh.StartedNo || e.Details["limit"] == nil {
		t.Errorf("arguments over the bound: %v", err)
	}
	_, err = c.Call(t.Context(), "desk.wide", map[string]any{"size": 2 << 20})
	if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge || e.Started != toolmesh.StartedYes {
		t.Errorf("a result over the bound: %v", err)
	}
}

// A full store refuses an object with a clear error, and keeps no part of it.
func TestLargeValuesInAFullStore(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{StoreOptions: host.StoreOptions{PayloadsMax: 3 << 20}}})
	c := clientOf(t, r.nc, "")
	_, err := c.Call(t.Context(), "desk.note", large("full", 4<<20))
	if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo || e.Details["limit"] != "payloads_max" {
		t.Errorf("arguments: %v", err)
	}
	_, err = c.Call(t.Context(), "desk.wide", map[string]any{"size": 4 << 20})
	if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedYes || e.Details["limit"] != "payloads_max" {
		t.Errorf("a result: %v", err)
	}
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
	if got, err := c.Call(t.Context(), "desk.wide", map[string]any{"size": 2 << 20}); err != nil || len(got.Value) != 2<<20 {
		t.Errorf("what fits: %v", err)
	}
}

// A connection that is cut while a value moves costs time, not the value.
func TestLargeValuesOverACutConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	proxy := meshtest.NewProxy(t, r.broker)
	nc := proxy.Connect(t)
	// The third piece that arrives at the node has the caller's connection cut, once.
	watch, err := r.broker.Connect(t).SubscribeSync("mesh.node.*.payload.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	done := make(chan outcome, 1)
	args := large("cut", 24<<20)
	go func() {
		got, err := clientOf(t, nc, "").Call(t.Context(), "desk.note", args)
		done <- outcome{got, err}
	}()
	for range 3 {
		if _, err := watch.NextMsg(waitTimeout); err != nil {
			t.Fatal(err)
		}
	}
	proxy.Cut(false)
	select {
	case o := <-done:
		if o.err != nil || !bytes.Equal(o.result.Value, args) {
			t.Errorf("%v", o.err)
		}
	case <-time.After(waitTimeout):
		t.Fatal("the call does not end")
	}
	if n := r.ran("cut"); n != 1 {
		t.Errorf("%d runs", n)
	}
}

type outcome struct {
	result *client.Result
	err    error
}

// A session's key reads its own objects only, and the broker refuses its messages under another
// session's name.
func TestLargeValuesOfAnotherSession(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	d := newDesk()
	serving := k.As(t, "node")
	d.serve(t, serving, &host.Options{})
	store := objects(t, serving)
	info, err := store.PutBytes(t.Context(), "theirs.x", []byte(`{"key":"stolen"}`))
	if err != nil {
		t.Fatal(err)
	}
	nc := k.AsSession(t, "mine")
	violations := make(chan string, 100)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err.Error() })
	inbox := openInbox(t, nc, nc.NewInbox())
	for _, subject := range []string{"mesh.payload.theirs.x", "mesh.node.n.payload.theirs.x", "$O.MESH_PAYLOADS.C.x", "$JS.API.STREAM.INFO.OBJ_MESH_PAYLOADS"} {
		m := nats.NewMsg(subject)
		m.Reply = inbox.Subject
		m.Header.Set("Mesh-Payload", "get")
		m.Data = []byte(`{"from_seq":1}`)
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		select {
		case v := <-violations:
			if !strings.Contains(v, subject) {
				t.Errorf("%s: %s", subject, v)
			}
		case <-time.After(waitTimeout):
			t.Errorf("%s: the broker let it pass", subject)
		}
	}
	m := nats.NewMsg("tools.mine.desk.note")
	m.Header = headers("Mesh-Ref", info.Name, "Mesh-Digest", info.Digest)
	a, err := nc.RequestMsg(m, waitTimeout)
	if err != nil || a.Header.Get("Mesh-Error-Code") != "permission_denied" || d.ran("stolen") != 0 {
		t.Errorf("a reference to another session's: %v %v", a, err)
	}
}

// Items that are larger than a message are yielded, live and to a later reader.
func TestLargeItems(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		d := newDesk()
		d.serve(t, top.ServeOn(t, 0), &host.Options{Node: "desk-1"})
		c := clientOf(t, top.Call(t), top.Session)
		for range 2 {
			n := 0
			for item, err := range c.Stream(t.Context(), "desk.gen", json.RawMessage(`{"key":"items","n":3,"size":2097152,"pad":"`+strings.Repeat("p", 2<<20)+`"}`), client.WithRPCID("rpc_stream_large")) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; len(item.Data) != 2<<20 || item.Seq != int64(n) || !strings.HasPrefix(string(item.Data), strconv.Quote(strconv.Itoa(n))[:2]) {
					t.Errorf("item %d has %d bytes, seq %d", n, len(item.Data), item.Seq)
				}
			}
			if n != 3 || d.ran("items") != 1 {
				t.Errorf("%d items, %d runs", n, d.ran("items"))
			}
		}
	})
}

// A plain client gets an item's reference in the chunk's headers, on its inbox and from
// the store; one that did not ask for that is told that the item is too large.
func TestLargeItemsOfAPlainClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	store := objects(t, r.nc)
	in := r.inbox()
	r.send(in, genSubject, `{"n":1,"size":2097152}`, "Mesh-Stream", "inbox", "Mesh-Accept-Ref", "1", "Mesh-Rpc-Id", "refs")
	first := in.next()
	if got, err := store.GetBytes(t.Context(), first.Header.Get("Mesh-Ref")); err != nil || len(got) != 2<<20 || len(first.Data) > 0 || first.Header.Get("Mesh-Seq") != "1" {
		t.Errorf("%v: %d bytes, %v", first.Header, len(got), err)
	}
	if end := in.next(); end.Header.Get("Mesh-Chunk") != "complete" {
		t.Errorf("%v", end.Header)
	}
	again := openInbox(t, r.nc, r.nc.NewInbox())
	r.send(again, "mesh.replay.default.refs", `{"from_seq":1}`)
	if m := again.next(); m.Header.Get("Mesh-Ref") != first.Header.Get("Mesh-Ref") || m.Header.Get("Mesh-Digest") != first.Header.Get("Mesh-Digest") {
		t.Errorf("stored: %v", m.Header)
	}
	plain := r.inbox()
	r.send(plain, genSubject, `{"n":1,"size":2097152}`, "Mesh-Stream", "inbox")
	if m := plain.next(); m.code() != "payload_too_large" {
		t.Errorf("without Mesh-Accept-Ref: %v %s", m.Header, m.Data)
	}
}

// A node without a slot passes large arguments on as they came, and the result back; one
// under an idempotency key is its first caller's.
func TestLargeValuesOfOtherWays(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	d := newDesk()
	full, view := relaying(t, d, broker.Connect(t), &host.Options{Node: "full", Slots: 1})
	relaying(t, d, broker.Connect(t), &host.Options{Node: "free"})
	r := &rig{desk: d, t: t, broker: broker, h: full, nc: broker.Connect(t)}
	meshtest.Until(t, "both nodes serve the desk", func() bool {
		route, _ := view.Route("default", "desk.note")
		return len(route.Nodes) == 2
	})
	occupied := r.inbox()
	r.send(occupied, directed(full, "default", "desk.hold"), `{"key":"occupied"}`)
	wait(t, "start", r.gate("occupied").started)
	c := clientOf(t, r.nc, "")
	args := large("passed", 2<<20)
	for full.Figures().Relayed == 0 { // the queue group chooses
		got, err := c.Call(t.Context(), "desk.note", args, client.ViaQueue())
		if err != nil || !bytes.Equal(got.Value, args) {
			t.Fatal(err)
		}
		<-d.gate("passed").seen
		<-d.gate("passed").started
	}
	close(r.gate("occupied").release)
	if a := occupied.next(); a.code() != "ok" {
		t.Errorf("the call that ran: %s", a.Data)
	}

	for i := range 2 {
		got, err := c.Call(t.Context(), "desk.note", large("keyed", 2<<20), client.WithIdempotencyKey("k"))
		switch e := toolmesh.AsError(err); {
		case i == 0 && (err != nil || len(got.Value) < 2<<20):
			t.Errorf("the first call: %v", err)
		case i == 1 && (toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge || e.Started != toolmesh.StartedYes):
			t.Errorf("the second call: %v", err)
		}
	}
	if n := d.ran("keyed"); n != 1 {
		t.Errorf("%d runs under the key", n)
	}
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
}

// A Go client moves files by path, within its session.
func TestFilesOfAGoClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := clientOf(t, r.nc, "")
	path := filepath.Join(t.TempDir(), "a report.txt")
	text := bytes.Repeat([]byte("0123456789"), 300_000)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := c.PutFile(t.Context(), path)
	if err != nil || file.Name != "a report.txt" || file.Size != int64(len(text)) {
		t.Fatalf("%+v, %v", file, err)
	}
	got, err := c.Call(t.Context(), "desk.note", map[string]any{"key": "file", "file": file})
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ File json.RawMessage }
	if err := got.Decode(&back); err != nil {
		t.Fatal(err)
	}
	same, ok := tool.AsFile(back.File)
	if !ok || same != file {
		t.Errorf("%+v", same)
	}
	if err := c.In("other").GetFile(t.Context(), same, io.Discard); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Errorf("in another session: %v", err)
	}
	var read bytes.Buffer
	if err := c.GetFile(t.Context(), same, &read); err != nil || !bytes.Equal(read.Bytes(), text) {
		t.Errorf("%d bytes, %v", read.Len(), err)
	}
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
	if file, err = c.PutFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	c.DropFile(file)
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
	for _, bad := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		if _, err := c.PutFile(t.Context(), bad); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// A large result is written as it comes.
	wide, err := c.Call(t.Context(), "desk.wide", map[string]any{"size": 3 << 20}, client.ByReference())
	if err != nil || wide.Ref == nil || len(wide.Value) > 0 {
		t.Fatalf("%+v, %v", wide, err)
	}
	read.Reset()
	if err := c.WriteResult(t.Context(), wide, &read); err != nil || read.Len() != 3<<20 {
		t.Errorf("%d bytes, %v", read.Len(), err)
	}
}
