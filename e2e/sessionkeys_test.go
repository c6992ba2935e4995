package e2e_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/access"
)

// Two sessions with keys try what they can against each other, by clients that know
// nothing but the protocol.
func TestSessionsAreApart(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	m := u.up(t, filepath.Join(u.home, "the-mesh"))
	u.mesh(t, 0, "install", "file://"+example(t, "lab"))
	node := oneNode(t, u)
	keys := make(map[string]string)
	for _, session := range []string{"a", "b"} {
		said := u.mesh(t, 0, "session", "create", session, "--key").stderr
		_, file, _ := strings.Cut(said, "its key is in ")
		file, _, _ = strings.Cut(file, ":")
		keys[session] = filepath.Join(u.home, file)
	}
	connect := func(session string, errs chan error) *nats.Conn {
		key, err := nats.NkeyOptionFromSeed(keys[session])
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(m.url, key, nats.CustomInboxPrefix("_INBOX_"+session), nats.NoReconnect(),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }))
		if err != nil {
			t.Fatalf("connect as %s: %v", session, err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	call := func(nc *nats.Conn, subject string, header nats.Header) (*nats.Msg, error) {
		return nc.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: []byte(`{"account":"alice","amount":20}`)}, 10*time.Second)
	}
	a, b := connect("a", make(chan error, 64)), connect("b", make(chan error, 64))
	if r, err := call(a, "tools.a.lab.bank.withdraw", nil); err != nil || !strings.Contains(string(r.Data), "100") {
		t.Fatalf("its own tools: %v, %v", r, err)
	}

	for _, subject := range []string{
		"tools.b.lab.bank.withdraw", "tools.default.lab.bank.withdraw", "tools.*.lab.bank.withdraw", "mesh.node." + node + ".tools.b.lab.bank.withdraw",
		"mesh.ctl.b.rpc_1", "mesh.node." + node + ".ctl.b.rpc_1", "mesh.registry.b.list", "mesh.registry.b.describe", "mesh.registry.default.list",
		"mesh.replay.b.rpc_1", "mesh.batch.b", "mesh.live.b.rpc_1", "mesh.chunks.b.rpc_1", "mesh.chunks.a.rpc_1", "mesh.live.a.rpc_1",
		"mesh.admin.install", "mesh.admin.uninstall", "mesh.node." + node + ".admin.drain", "mesh.hb." + node, "mesh.evt.call.b",
		"$KV.MESH_SESSIONS.b", "$KV.MESH_NODES." + node, "$JS.API.INFO", "$JS.API.STREAM.MSG.GET.KV_MESH_SESSIONS", "$O.MESH_BUNDLES.C.x",
		"$SYS.REQ.USER.AUTH", "$SYS.REQ.USER.INFO", "_INBOX_b.guess", "_INBOX.guess", "_INBOX_mesh_node.guess",
	} {
		deniedTo(t, connect, subject, func(nc *nats.Conn) error { return nc.Publish(subject, nil) })
	}
	for _, subject := range []string{
		">", "tools.b.>", "tools.a.>", "mesh.live.b.>", "mesh.live.*.>", "mesh.chunks.>", "_INBOX_b.>", "_INBOX_*.>", "_INBOX.>", "mesh.ctl.>",
		"mesh.registry.>", "$SYS.REQ.USER.AUTH", "mesh.reg.>", "$KV.>",
	} {
		deniedTo(t, connect, subject, func(nc *nats.Conn) error { _, err := nc.SubscribeSync(subject); return err })
	}

	// A forged header, and an answer that is aimed at the other session.
	r, err := call(a, "tools.a.lab.bank.withdraw", nats.Header{"Mesh-Session": {"b"}})
	if err != nil || r.Header.Get("Mesh-Error-Code") != "invalid_request" {
		t.Errorf("a forged session: %v, %v", r, err)
	}
	heard, err := b.SubscribeSync("_INBOX_b.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := a.PublishRequest("tools.a.lab.bank.withdraw", "_INBOX_b.guess", []byte(`{"account":"alice","amount":20}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := call(a, "tools.a.lab.bank.withdraw", nil); err != nil { // behind the one before
		t.Fatal(err)
	}
	if _, err := call(b, "tools.b.lab.bank.withdraw", nil); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := heard.NextMsg(100 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(m.Subject, ".guess") {
			t.Errorf("an answer to another session's request came: %s %s", m.Subject, m.Data)
		}
	}

	// Who knows the public half of a key, which is in the registry, has not got the key.
	pair, err := access.Read(keys["b"])
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := access.Read(keys["a"])
	if err != nil {
		t.Fatal(err)
	}
	for what, sign := range map[string]func([]byte) ([]byte, error){
		"another key":   other.Sign,
		"another nonce": func([]byte) ([]byte, error) { return pair.Sign([]byte("nonce")) },
	} {
		if nc, err := nats.Connect(m.url, nats.Nkey(public, sign), nats.CustomInboxPrefix("_INBOX_b")); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("signed with %s: %v", what, err)
			nc.Close()
		}
	}

	// The end of the session is the end of its key, and of who came in with it.
	closed := make(chan struct{})
	a.SetClosedHandler(func(*nats.Conn) { close(closed) })
	u.mesh(t, 0, "session", "end", "a")
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("the connection outlives its session")
	}
	key, err := nats.NkeyOptionFromSeed(keys["a"])
	if err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect(m.url, key, nats.CustomInboxPrefix("_INBOX_a")); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("the key after its session: %v", err)
		nc.Close()
	}
	var listed struct {
		Sessions []struct {
			ID string `json:"id"`
		} `json:"sessions"`
	}
	if err := json.Unmarshal([]byte(u.mesh(t, 0, "session", "ls", "--json").stdout), &listed); err != nil || len(listed.Sessions) != 1 || listed.Sessions[0].ID != "b" {
		t.Errorf("sessions: %v, %v", listed, err)
	}
}

// deniedTo has session a do something on a connection of its own, and wants the broker
// to name the subject in a violation.
func deniedTo(t *testing.T, connect func(string, chan error) *nats.Conn, subject string, do func(nc *nats.Conn) error) {
	t.Helper()
	errs := make(chan error, 8)
	nc := connect("a", errs)
	defer nc.Close()
	if err := do(nc); err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	select {
	case err := <-errs:
		if !strings.Contains(err.Error(), `"`+subject+`"`) {
			t.Errorf("%s: %v", subject, err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("%s: not refused", subject)
	}
}
