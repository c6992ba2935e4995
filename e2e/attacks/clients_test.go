package attacks_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// trespass is what a client or a node tries with a key, or without one. {node} is
// the node's id.
type trespass struct {
	area, who, what, by string
	// Subjects that it publishes and subscribes, each of which is an attempt that the
	// broker refuses by its name, or an attempt of another kind: its error says what it achieved.
	publish, subscribe []string
	do                 func(m *meshWithKeys) error
	// allowed says that none is refused.
	allowed bool
}

const (
	without   = "no key"
	ofSession = "a session's key"
	ofNode    = "a node's key"
)

var trespasses = []trespass{
	{area: "calls", who: without, what: "call, cancel and ask in the session `default`", allowed: true,
		publish:   []string{"tools.default.small.t.hello", "mesh.ctl.default.rpc_1", "mesh.registry.default.list", "mesh.replay.default.rpc_1"},
		subscribe: []string{"mesh.live.default.>", "mesh.hb.*", "_INBOX.>"}},
	{area: "calls", who: ofSession, what: "the same in its own session", allowed: true,
		publish:   []string{"tools.a.small.t.hello", "mesh.ctl.a.rpc_1", "mesh.registry.a.list", "mesh.node.{node}.tools.a.small.t.hello"},
		subscribe: []string{"mesh.live.a.>", "mesh.hb.*", "_INBOX_a.>"}},
	{area: "calls", who: ofNode, what: "serve and announce itself", allowed: true,
		publish:   []string{"mesh.hb.other", "mesh.chunks.a.rpc_1", "_INBOX_a.x"},
		subscribe: []string{"mesh.node.other.tools.>", "mesh.reg.>"}},
	{area: "calls", who: without, what: "call or cancel in another session", by: broker.name,
		publish: []string{
			"tools.b.small.t.hello", "mesh.node.{node}.tools.b.small.t.hello", "mesh.node.{node}.ctl.b.rpc_1", "mesh.ctl.b.rpc_1",
			"mesh.batch.b", "tools.*.small.t.hello", "anything",
		}},
	{area: "calls", who: ofSession, what: "call or cancel in another session", by: broker.name,
		publish: []string{
			"tools.b.small.t.hello", "tools.default.small.t.hello", "tools.*.small.t.hello", "tools.x--c8.small.t.hello",
			"mesh.node.{node}.tools.b.small.t.hello", "mesh.ctl.b.rpc_1", "mesh.node.{node}.ctl.b.rpc_1", "mesh.batch.b",
		}},
	{area: "calls", who: ofSession, what: "name another session in a header", by: "the node", do: (*meshWithKeys).forgeHeader},
	{area: "calls", who: without, what: "send more than a message may hold", by: "the broker", do: (*meshWithKeys).tooLong},
	{area: "calls", who: without, what: "send what breaks a reader: 100,000 brackets", by: "the node", do: (*meshWithKeys).brackets},

	{area: "sessions", who: without, what: "read answers, streams and chunks of others", by: broker.name,
		publish: []string{"mesh.replay.b.rpc_1"},
		subscribe: []string{
			">", "*.>", "mesh.live.b.>", "mesh.live.>", "mesh.chunks.>", "mesh.evt.>", "mesh.ctl.>", "_INBOX_b.>", "_INBOX_*.>",
			subjects.InboxNode + ".>", subjects.InboxAdmin + ".>",
		}},
	{area: "sessions", who: ofSession, what: "read answers, streams and chunks of others", by: broker.name,
		publish: []string{"mesh.replay.b.rpc_1"},
		subscribe: []string{
			">", "tools.b.>", "tools.a.>", "mesh.live.b.>", "mesh.live.*.>", "mesh.chunks.>", "_INBOX_b.>", "_INBOX_*.>", "_INBOX.>", "mesh.ctl.>",
		}},
	{area: "sessions", who: without, what: "forge chunks, events and heartbeats", by: broker.name,
		publish: []string{"mesh.chunks.default.rpc_1", "mesh.live.default.rpc_1", "mesh.evt.call.default", "mesh.hb.{node}"}},
	{area: "sessions", who: ofSession, what: "forge chunks, events and heartbeats", by: broker.name,
		publish: []string{"mesh.live.b.rpc_1", "mesh.chunks.b.rpc_1", "mesh.chunks.a.rpc_1", "mesh.live.a.rpc_1", "mesh.evt.call.b", "mesh.hb.{node}"}},

	{area: "replies", who: without, what: "send an answer to somebody", by: broker.name,
		publish: []string{"_INBOX.x", "_INBOX_b.x", subjects.InboxNode + ".x"}},
	{area: "replies", who: ofSession, what: "send an answer to somebody", by: broker.name,
		publish: []string{"_INBOX_b.x", "_INBOX.x", subjects.InboxNode + ".x"}},
	{area: "replies", who: ofSession, what: "have a node answer to another session's inbox", by: "the node", do: (*meshWithKeys).aimAtInbox},
	{area: "replies", who: without, what: "have anybody's answer, or the broker's trace, change a record", by: "nodes, the broker", do: (*meshWithKeys).aimAtRecord},

	{area: "registry", who: without, what: "read or change its records", by: broker.name,
		publish: []string{
			"mesh.registry.b.list", "mesh.reg.MESH_NODES.n1", "$KV.MESH_NODES.n1", "$KV.MESH_SESSIONS.default", "$O.MESH_BUNDLES.C.x",
			"$JS.API.DIRECT.GET.KV_MESH_INDEXES", "$KV.MESH_TOOLS.n1.=.i.small", "$KV.MESH_TOOLS.n1.default.t.mine", "$KV.MESH_SCHEMAS.x",
			"$KV.MESH_INDEXES.small", "mesh.reg.MESH_TOOLS.n1.default.t.mine",
		},
		subscribe: []string{"mesh.registry.>", "mesh.reg.>", "$KV.>"}},
	{area: "registry", who: ofSession, what: "read or change its records", by: broker.name,
		publish: []string{
			"mesh.registry.b.list", "mesh.registry.b.describe", "mesh.registry.default.list", "$KV.MESH_SESSIONS.b", "$KV.MESH_NODES.{node}",
			"$JS.API.STREAM.MSG.GET.KV_MESH_SESSIONS", "$JS.API.DIRECT.GET.KV_MESH_INDEXES", "$O.MESH_BUNDLES.C.x",
		},
		subscribe: []string{"mesh.registry.>", "mesh.reg.>", "$KV.>"}},
	{area: "registry", who: without, what: "serve, or seem to", by: broker.name,
		subscribe: []string{"tools.>", "tools.default.small.t.hello", "tools.default.mine", "mesh.>", "mesh.node.{node}.>", "mesh.replay.>", "$SRV.PING"}},
	{area: "registry", who: ofSession, what: "serve, or seem to", by: broker.name,
		subscribe: []string{"tools.*.small.t.hello", "mesh.node.{node}.>", "mesh.replay.>", "$SRV.PING"}},

	{area: "storage", who: without, what: "use JetStream", by: broker.name,
		publish: []string{
			"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.DELETE.MESH_CHUNKS", "$JS.API.CONSUMER.CREATE.KV_MESH_NODES", "$JS.ACK.x",
		},
		subscribe: []string{"$JS.>"}},
	{area: "storage", who: ofSession, what: "use JetStream", by: broker.name,
		publish: []string{"$JS.API.INFO", "$JS.API.STREAM.PURGE.MESH_CHUNKS", "$JS.API.CONSUMER.CREATE.MESH_CHUNKS"}},
	{area: "storage", who: ofNode, what: "change, empty or end the mesh's streams", by: broker.name,
		publish: []string{
			"$JS.API.STREAM.DELETE.MESH_CHUNKS", "$JS.API.STREAM.UPDATE.KV_MESH_NODES", "$JS.API.STREAM.PURGE.KV_MESH_NODES",
			"$JS.API.STREAM.MSG.DELETE.KV_MESH_INDEXES", "$JS.API.STREAM.SNAPSHOT.KV_MESH_INDEXES", "$JS.API.STREAM.RESTORE.KV_MESH_INDEXES",
			"$JS.API.STREAM.LEADER.STEPDOWN.MESH_CHUNKS", "$JS.API.ACCOUNT.PURGE.x",
		}},

	{area: "administration", who: without, what: "install, uninstall, drain, label", by: broker.name,
		publish: []string{"mesh.admin.install", "mesh.admin.uninstall", "mesh.node.{node}.admin.drain", "mesh.node.{node}.admin.label"}},
	{area: "administration", who: ofSession, what: "install, uninstall, drain, label", by: broker.name,
		publish: []string{"mesh.admin.install", "mesh.admin.uninstall", "mesh.node.{node}.admin.drain", "mesh.node.{node}.admin.label"}},
	{area: "administration", who: ofNode, what: "install, uninstall, drain, label", by: broker.name,
		publish: []string{"mesh.admin.install", "mesh.admin.uninstall", "mesh.node.{node}.admin.drain", "mesh.node.{node}.admin.label"}},
	{area: "administration", who: without, what: "ask the NATS server", by: broker.name,
		publish: []string{"$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING"}, subscribe: []string{"$SYS.>"}},
	{area: "administration", who: ofSession, what: "ask the NATS server, or answer who may come in", by: broker.name,
		publish: []string{"$SYS.REQ.USER.AUTH", "$SYS.REQ.USER.INFO"}, subscribe: []string{"$SYS.REQ.USER.AUTH"}},
	{area: "administration", who: ofNode, what: "let others in", by: broker.name, subscribe: []string{"$SYS.REQ.USER.AUTH"}},

	{area: "keys", who: "another key", what: "come in by a key that nobody has given it", by: "the broker", do: (*meshWithKeys).inventKey},
	{area: "keys", who: "a password", what: "come in as an administrator", by: "the broker", do: func(m *meshWithKeys) error {
		return m.unauthorized(nats.UserInfo("admin", "admin"))
	}},
	{area: "keys", who: "a token", what: "come in as an administrator", by: "the broker", do: func(m *meshWithKeys) error {
		return m.unauthorized(nats.Token("admin"))
	}},
	{area: "keys", who: "a JWT", what: "administer by what it has signed itself", by: broker.name, do: (*meshWithKeys).inventJWT},
	{area: "keys", who: ofSession, what: "come in by the public half of another's key", by: "the broker", do: func(m *meshWithKeys) error { return m.forgeSignature(m.pair("a").Sign) }},
	{area: "keys", who: ofSession, what: "the same, with an older signature of its own", by: "the broker", do: func(m *meshWithKeys) error {
		return m.forgeSignature(func([]byte) ([]byte, error) { return m.pair("b").Sign([]byte("nonce")) })
	}},
	{area: "keys", who: ofSession, what: "go on after the session's end", by: "the broker", do: (*meshWithKeys).outlive},
	{area: "keys", who: ofSession, what: "come in after the session's end", by: "the broker", do: (*meshWithKeys).comeBack},
}

// meshWithKeys is a mesh of two sessions that have a key each.
type meshWithKeys struct {
	*mesh
	t    *testing.T
	node string
	keys map[string]string // of a session, or of who tries
}

// What the holders of a key try beyond its rights.
func TestClients(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(shared, "")
	if err != nil {
		t.Fatal(err)
	}
	m := &meshWithKeys{t: t, mesh: upAsUs(t, dir)}
	write(t, filepath.Join(dir, "small", "tools.toml"), "[index]\ntools = [\"t.hello\"]\n", 0o644)
	write(t, filepath.Join(dir, "small", "t.py"), "def hello(nested: object = None) -> str:\n    return \"hello\"\n", 0o644)
	m.do(t, 0, "install", "./small")
	m.node = m.mesh.node(t).ID
	m.keys = map[string]string{without: "", ofNode: access.File(m.data, access.Node)}
	for _, session := range []string{"a", "b"} {
		_, file, _ := strings.Cut(m.do(t, 0, "session", "create", session, "--key"), "its key is in ")
		file, _, _ = strings.Cut(file, ":")
		m.keys[session] = filepath.Join(dir, file)
	}
	m.keys[ofSession] = m.keys["a"]
	for _, one := range trespasses {
		t.Run(one.area+"/"+one.who+"/"+one.what, func(t *testing.T) {
			within := *m
			within.t = t
			if one.do != nil {
				if err := one.do(&within); err != nil {
					t.Error(err)
				}
				return
			}
			within.subjects(one)
		})
	}
}

// subjects publishes and subscribes, and wants the broker to name each in a violation.
func (m *meshWithKeys) subjects(one trespass) {
	refused := make(chan error, 64)
	nc := m.connect(m.t, m.keys[one.who], nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	left, all := map[string]bool{}, map[string]bool{}
	for i, subject := range append(append([]string{}, one.publish...), one.subscribe...) {
		subject = strings.ReplaceAll(subject, "{node}", m.node)
		left[subject], all[subject] = true, true
		var err error
		if i < len(one.publish) {
			err = nc.Publish(subject, nil)
		} else {
			_, err = nc.SubscribeSync(subject)
		}
		if err != nil {
			m.t.Fatalf("%s: %v", subject, err)
		}
	}
	if err := nc.Flush(); err != nil {
		m.t.Fatal(err)
	}
	if one.allowed {
		nc.Close() // no handler runs behind it
		select {
		case err := <-refused:
			m.t.Error(err)
		default:
		}
		return
	}
	for len(left) > 0 {
		select {
		case err := <-refused:
			_, subject, _ := strings.Cut(err.Error(), `"`)
			subject, _, _ = strings.Cut(subject, `"`)
			if !all[subject] { // each is reported more than once
				m.t.Errorf("refused is %v", err)
			}
			delete(left, subject)
		case <-time.After(20 * time.Second):
			m.t.Fatalf("not refused: %v", left)
		}
	}
}

func (m *meshWithKeys) as(session string) *nats.Conn {
	return m.connect(m.t, m.keys[session], nats.CustomInboxPrefix("_INBOX_"+session))
}

func (m *meshWithKeys) pair(session string) nkeys.KeyPair {
	pair, err := access.Read(m.keys[session])
	if err != nil {
		m.t.Fatal(err)
	}
	return pair
}

// hello calls the tool of a session, to see that all is well and to be behind what was sent before.
func (m *meshWithKeys) hello(nc *nats.Conn, session string) error {
	answer, err := nc.Request("tools."+session+".small.t.hello", nil, time.Minute)
	if err == nil && string(answer.Data) != `"hello"` {
		err = fmt.Errorf("%s", answer.Data)
	}
	return err
}

func (m *meshWithKeys) forgeHeader() error {
	r, err := m.as("a").RequestMsg(&nats.Msg{Subject: "tools.a.small.t.hello", Header: nats.Header{"Mesh-Session": {"b"}}}, time.Minute)
	if err == nil && r.Header.Get("Mesh-Error-Code") != "invalid_request" {
		err = fmt.Errorf("answered %v %s", r.Header, r.Data)
	}
	return err
}

func (m *meshWithKeys) tooLong() error {
	c, err := net.Dial("tcp", strings.TrimPrefix(m.url, "nats://"))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it is the broker's to close
	fmt.Fprintf(c, "CONNECT {}\r\nPUB tools.default.small.t.hello %d\r\n", 1<<30)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the broker waits for it")
	}
	return m.hello(m.connect(m.t, ""), "default")
}

func (m *meshWithKeys) brackets() error {
	nc := m.connect(m.t, "")
	body := []byte(`{"nested":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}")
	r, err := nc.Request("tools.default.small.t.hello", body, time.Minute)
	if err == nil && !strings.HasPrefix(r.Header.Get("Mesh-Error-Code"), "invalid_") {
		err = fmt.Errorf("answered %v %.100s", r.Header, r.Data)
	}
	return errors.Join(err, m.hello(nc, "default"))
}

func (m *meshWithKeys) aimAtInbox() error {
	a, b := m.as("a"), m.as("b")
	heard, err := b.SubscribeSync("_INBOX_b.guess")
	if err != nil {
		return err
	}
	err = errors.Join(b.Flush(), a.PublishRequest("tools.a.small.t.hello", "_INBOX_b.guess", nil), m.hello(a, "a"), m.hello(b, "b"), b.Flush())
	if n, _, pending := heard.Pending(); n > 0 {
		err = errors.Join(err, pending, errors.New("the answer came"))
	}
	return err
}

func (m *meshWithKeys) aimAtRecord() error {
	js, err := m.connect(m.t, m.admin).JetStream()
	if err != nil {
		return err
	}
	records, err := js.KeyValue(subjects.BucketSessions)
	if err != nil {
		return err
	}
	before, err := records.Get("b")
	if err != nil {
		return err
	}
	nc, target := m.connect(m.t, ""), "$KV."+subjects.BucketSessions+".b"
	for _, subject := range []string{subjects.UserInfo, "$SRV.PING", "$SRV.INFO", "tools.default.small.t.hello", "tools.default.none", "mesh.registry.default.list", "mesh.replay.default.x"} {
		err = errors.Join(err, nc.PublishRequest(subject, target, nil))
	}
	traced := nats.NewMsg("tools.default.none")
	traced.Header.Set("Nats-Trace-Dest", target)
	err = errors.Join(err, nc.PublishMsg(traced), m.hello(nc, "default"))
	if _, put := records.PutString("later", "x"); put != nil { // stored behind whatever those have caused
		err = errors.Join(err, put)
	}
	after, got := records.Get("b")
	if got == nil && after.Revision() != before.Revision() {
		got = fmt.Errorf("it is changed: %s", after.Value())
	}
	return errors.Join(err, got, records.Delete("later"))
}

func (m *meshWithKeys) inventKey() error {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	public, err := pair.PublicKey()
	if err != nil {
		return err
	}
	return m.unauthorized(nats.Nkey(public, pair.Sign))
}

func (m *meshWithKeys) inventJWT() error {
	account, err := nkeys.CreateAccount()
	if err != nil {
		return err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	public, err := user.PublicKey()
	if err != nil {
		return err
	}
	claims := jwt.NewUserClaims(public)
	claims.Pub.Allow.Add(">")
	token, err := claims.Encode(account)
	if err != nil {
		return err
	}
	// It is let in, as one without a key.
	refused := make(chan error, 8)
	nc := m.connect(m.t, "", nats.UserJWT(func() (string, error) { return token, nil }, user.Sign),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err := errors.Join(nc.Publish("mesh.admin.install", nil), nc.Flush()); err != nil {
		return err
	}
	select {
	case <-refused:
		return nil
	case <-time.After(20 * time.Second):
		return errors.New("it administers")
	}
}

func (m *meshWithKeys) forgeSignature(sign func([]byte) ([]byte, error)) error {
	public, err := m.pair("b").PublicKey()
	if err != nil {
		return err
	}
	return m.unauthorized(nats.Nkey(public, sign))
}

func (m *meshWithKeys) unauthorized(key nats.Option) error {
	nc, err := nats.Connect(m.url, key)
	if errors.Is(err, nats.ErrAuthorization) {
		return nil
	}
	if err == nil {
		nc.Close()
	}
	return fmt.Errorf("not refused: %v", err)
}

func (m *meshWithKeys) outlive() error {
	nc := m.as("a")
	m.do(m.t, 0, "session", "end", "a")
	meshtest.Until(m.t, "its connection is closed", nc.IsClosed)
	return nil
}

func (m *meshWithKeys) comeBack() error {
	key, err := nats.NkeyOptionFromSeed(m.keys["a"])
	if err != nil {
		return err
	}
	err = m.unauthorized(key)
	if said := m.do(m.t, 0, "session", "ls"); strings.Contains(said, "a ") || !strings.Contains(said, "b") {
		err = errors.Join(err, fmt.Errorf("sessions are %s", said))
	}
	return err
}
