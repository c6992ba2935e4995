package attacks_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
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

// trespass is an attempt of a client or a node with a key, or without one. {node} stands for the node's id.
type trespass struct {
	area, with, what, by string
	// Each subject that it publishes or subscribes is an attempt, which the broker refuses by name. do
	// is an attempt of another kind: its error names the achievement.
	publish, subscribe []string
	do                 func(m *meshWithKeys) error
	// allowed: none is refused.
	allowed bool
	// asked: it needs a server that asks for the keys of sessions.
	asked bool
}

const (
	without   = "no key"
	ofSession = "a session's key"
	ofNode    = "a node's key"
	ofAnother = "another administrator's key"
)

var trespasses = []trespass{
	{area: "calls", with: without, what: "call, cancel and ask in the session `default`", allowed: true,
		publish:   []string{"tools.default.small.t.hello", "mesh.ctl.default.rpc_1", "mesh.registry.default.list", "mesh.replay.default.rpc_1"},
		subscribe: []string{"mesh.live.default.>", "mesh.hb.*", "_INBOX.>"}},
	{area: "calls", with: ofSession, what: "the same in its own session", allowed: true,
		publish:   []string{"tools.a.small.t.hello", "mesh.ctl.a.rpc_1", "mesh.registry.a.list", "mesh.node.{node}.tools.a.small.t.hello"},
		subscribe: []string{"mesh.live.a.>", "mesh.hb.*", "_INBOX_a.>"}},
	{area: "calls", with: ofNode, what: "serve and announce itself", allowed: true,
		publish:   []string{"mesh.hb.other", "mesh.chunks.a.rpc_1", "_INBOX_a.x"},
		subscribe: []string{"mesh.node.other.tools.>", "mesh.reg.>"}},
	{area: "calls", with: without, what: "call or cancel in another session", by: broker.name,
		publish: []string{
			"tools.b.small.t.hello", "mesh.node.{node}.tools.b.small.t.hello", "mesh.node.{node}.ctl.b.rpc_1", "mesh.ctl.b.rpc_1",
			"mesh.batch.b", "tools.*.small.t.hello", "anything",
		}},
	{area: "calls", with: ofSession, what: "call or cancel in another session", by: broker.name,
		publish: []string{
			"tools.b.small.t.hello", "tools.default.small.t.hello", "tools.*.small.t.hello", "tools.x--c8.small.t.hello",
			"mesh.node.{node}.tools.b.small.t.hello", "mesh.ctl.b.rpc_1", "mesh.node.{node}.ctl.b.rpc_1", "mesh.batch.b", "mesh.node.{node}.lane.a", "mesh.node.{node}.lane.b",
		}},
	{area: "calls", with: ofSession, what: "name another session in a header", by: "the node", do: (*meshWithKeys).forgeHeader},
	{area: "calls", with: without, what: "send a message above the broker's limit", by: "the broker", do: (*meshWithKeys).tooLong},
	{area: "calls", with: without, what: "send 100,000 nested brackets to a parser", by: "the node", do: (*meshWithKeys).brackets},

	{area: "sessions", with: without, what: "read answers, streams and chunks of others", by: broker.name,
		publish: []string{"mesh.replay.b.rpc_1"},
		subscribe: []string{
			">", "*.>", "mesh.live.b.>", "mesh.live.>", "mesh.chunks.>", "mesh.evt.>", "mesh.ctl.>", "_INBOX_b.>", "_INBOX_*.>",
			subjects.InboxNode + ".>", subjects.InboxAdmin + ".>",
		}},
	{area: "sessions", with: ofSession, what: "read answers, streams and chunks of others", by: broker.name,
		publish: []string{"mesh.replay.b.rpc_1"},
		subscribe: []string{
			">", "tools.b.>", "tools.a.>", "mesh.live.b.>", "mesh.live.*.>", "mesh.chunks.>", "_INBOX_b.>", "_INBOX_*.>", "_INBOX.>", "mesh.ctl.>",
		}},
	{area: "sessions", with: without, what: "forge chunks, events and heartbeats", by: broker.name,
		publish: []string{"mesh.chunks.default.rpc_1", "mesh.live.default.rpc_1", "mesh.evt.call.default", "mesh.hb.{node}"}},
	{area: "sessions", with: ofSession, what: "forge chunks, events and heartbeats", by: broker.name,
		publish: []string{"mesh.live.b.rpc_1", "mesh.chunks.b.rpc_1", "mesh.chunks.a.rpc_1", "mesh.live.a.rpc_1", "mesh.evt.call.b", "mesh.hb.{node}"}},

	{area: "replies", with: without, what: "send an answer to another client", by: broker.name,
		publish: []string{"_INBOX.x", "_INBOX_b.x", subjects.InboxNode + ".x"}},
	{area: "replies", with: ofSession, what: "send an answer to another client", by: broker.name,
		publish: []string{"_INBOX_b.x", "_INBOX.x", subjects.InboxNode + ".x"}},
	{area: "replies", with: ofSession, what: "have a node answer to another session's inbox", by: "the node", do: (*meshWithKeys).aimAtInbox},
	{area: "replies", with: without, what: "make a record the target of an answer, or of the broker's trace", by: "nodes, the broker", do: (*meshWithKeys).aimAtRecord},

	{area: "registry", with: without, what: "read or change its records", by: broker.name,
		publish: []string{
			"mesh.registry.b.list", "mesh.reg.MESH_NODES.n1", "$KV.MESH_NODES.n1", "$KV.MESH_SESSIONS.default", "$O.MESH_BUNDLES.C.x",
			"$JS.API.DIRECT.GET.KV_MESH_INDEXES", "$KV.MESH_TOOLS.n1.=.i.small", "$KV.MESH_TOOLS.n1.default.t.mine", "$KV.MESH_SCHEMAS.x",
			"$KV.MESH_INDEXES.small", "mesh.reg.MESH_TOOLS.n1.default.t.mine",
		},
		subscribe: []string{"mesh.registry.>", "mesh.reg.>", "$KV.>"}},
	{area: "registry", with: ofSession, what: "read or change its records", by: broker.name,
		publish: []string{
			"mesh.registry.b.list", "mesh.registry.b.describe", "mesh.registry.default.list", "$KV.MESH_SESSIONS.b", "$KV.MESH_NODES.{node}",
			"$JS.API.STREAM.MSG.GET.KV_MESH_SESSIONS", "$JS.API.DIRECT.GET.KV_MESH_INDEXES", "$O.MESH_BUNDLES.C.x",
		},
		subscribe: []string{"mesh.registry.>", "mesh.reg.>", "$KV.>"}},
	{area: "registry", with: without, what: "serve tools, or appear as a service", by: broker.name,
		subscribe: []string{"tools.>", "tools.default.small.t.hello", "tools.default.mine", "mesh.>", "mesh.node.{node}.>", "mesh.replay.>", "$SRV.PING"}},
	{area: "registry", with: ofSession, what: "serve tools, or appear as a service", by: broker.name,
		subscribe: []string{"tools.*.small.t.hello", "mesh.node.{node}.>", "mesh.replay.>", "$SRV.PING"}},

	{area: "storage", with: without, what: "use JetStream", by: broker.name,
		publish: []string{
			"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.DELETE.MESH_CHUNKS", "$JS.API.CONSUMER.CREATE.KV_MESH_NODES", "$JS.ACK.x",
		},
		subscribe: []string{"$JS.>"}},
	{area: "storage", with: ofSession, what: "use JetStream", by: broker.name,
		publish: []string{"$JS.API.INFO", "$JS.API.STREAM.PURGE.MESH_CHUNKS", "$JS.API.CONSUMER.CREATE.MESH_CHUNKS"}},
	{area: "storage", with: ofNode, what: "change, empty or end the mesh's streams", by: broker.name,
		publish: []string{
			"$JS.API.STREAM.DELETE.MESH_CHUNKS", "$JS.API.STREAM.UPDATE.KV_MESH_NODES", "$JS.API.STREAM.PURGE.KV_MESH_NODES",
			"$JS.API.STREAM.MSG.DELETE.KV_MESH_INDEXES", "$JS.API.STREAM.SNAPSHOT.KV_MESH_INDEXES", "$JS.API.STREAM.RESTORE.KV_MESH_INDEXES",
			"$JS.API.STREAM.LEADER.STEPDOWN.MESH_CHUNKS", "$JS.API.ACCOUNT.PURGE.x",
		}},

	{area: "administration", with: without, what: "install, uninstall, drain, label", by: broker.name,
		publish: []string{"mesh.admin.install", "mesh.admin.uninstall", "mesh.node.{node}.admin.drain", "mesh.node.{node}.admin.label"}},
	{area: "administration", with: ofSession, what: "install, uninstall, drain, label", by: broker.name,
		publish: []string{"mesh.admin.install", "mesh.admin.uninstall", "mesh.node.{node}.admin.drain", "mesh.node.{node}.admin.label"}},
	{area: "administration", with: ofNode, what: "install, uninstall, drain, label", by: broker.name,
		publish: []string{"mesh.admin.install", "mesh.admin.uninstall", "mesh.node.{node}.admin.drain", "mesh.node.{node}.admin.label"}},
	{area: "administration", with: without, what: "ask the NATS server", by: broker.name,
		publish: []string{"$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING"}, subscribe: []string{"$SYS.>"}},
	{area: "administration", with: ofSession, what: "ask the NATS server, or answer its questions about logins", by: broker.name,
		publish: []string{"$SYS.REQ.USER.AUTH", "$SYS.REQ.USER.INFO"}, subscribe: []string{"$SYS.REQ.USER.AUTH"}},
	{area: "administration", with: ofNode, what: "read the server's questions about logins", by: broker.name, subscribe: []string{"$SYS.REQ.USER.AUTH"}},
	{area: "administration", with: ofNode, what: "admit clients by answers that it has signed itself", by: "the broker", do: (*meshWithKeys).forgeAnswers},

	{area: "owners", with: ofAnother, what: "replace another owner's index by a folder of its name", by: "the node", do: (*meshWithKeys).replace},
	{area: "owners", with: ofAnother, what: "by a bundle that claims to be from that folder", by: "the node", do: (*meshWithKeys).claimFolder},
	{area: "owners", with: ofAnother, what: "by one that claims to be from a repository", by: "the node", do: (*meshWithKeys).claimRepository},
	{area: "owners", with: ofAnother, what: "by one that claims the owner's key", by: "the node", do: (*meshWithKeys).claimOwner},

	{area: "keys", with: "another key", what: "connect with a key that the mesh does not know", by: "the broker", do: (*meshWithKeys).inventKey},
	{area: "keys", with: "a password", what: "connect as an administrator", by: "the broker", do: func(m *meshWithKeys) error {
		return m.unauthorized(nats.UserInfo("admin", "admin"))
	}},
	{area: "keys", with: "a token", what: "connect as an administrator", by: "the broker", do: func(m *meshWithKeys) error {
		return m.unauthorized(nats.Token("admin"))
	}},
	{area: "keys", with: "a JWT", what: "administer by rights that it has signed itself", by: broker.name, do: (*meshWithKeys).inventJWT},
	{area: "keys", with: ofSession, what: "connect by the public half of another key", by: "the broker", do: func(m *meshWithKeys) error { return m.forgeSignature(m.pair("a").Sign) }},
	{area: "keys", with: ofSession, what: "the same, with an older signature of its own", by: "the broker", do: func(m *meshWithKeys) error {
		return m.forgeSignature(func([]byte) ([]byte, error) { return m.pair("b").Sign([]byte("nonce")) })
	}},
	{area: "keys", with: ofSession, what: "stay connected after the session's end", asked: true, by: "the broker", do: (*meshWithKeys).outlive},
	{area: "keys", with: ofSession, what: "connect after the session's end", asked: true, by: "the broker", do: (*meshWithKeys).comeBack},
}

// meshWithKeys is a mesh with two sessions, each with a key.
type meshWithKeys struct {
	*mesh
	t    *testing.T
	node string
	keys map[string]string // files, by session or by trespass.with
	jwts bool              // the files are credentials of users with JWTs
}

// renew is how long a connection with a session's key lasts on an operator's server: longer than an attempt.
const renew = "30s"

// Clients exceed the rights of their key, on mesh up and on NATS servers configured by the output of
// mesh auth template.
func TestClients(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, dir string) *meshWithKeys{"mesh up": onMeshUp, "nats.conf": onNatsConf, "JWTs": onJWTs} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp(shared, "")
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "small", "tools.toml"), "[index]\ntools = [\"t.hello\"]\n", 0o644)
			write(t, filepath.Join(dir, "small", "t.py"), "def hello(nested: object = None) -> str:\n    return \"hello\"\n", 0o644)
			m := start(t, dir)
			m.do(t, 0, "install", "./small")
			m.node = m.mesh.node(t).ID
			for _, session := range []string{"a", "b"} {
				if m.jwts {
					m.do(t, 0, "session", "create", session)
					continue
				}
				_, file, _ := strings.Cut(m.do(t, 0, "session", "create", session, "--key"), "its key is in ")
				file, _, _ = strings.Cut(file, ":")
				m.keys[session] = filepath.Join(dir, file)
			}
			m.keys[ofSession] = m.keys["a"]
			for _, one := range trespasses {
				if one.asked && m.jwts {
					continue
				}
				t.Run(one.area+"/"+one.with+"/"+one.what, func(t *testing.T) {
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
		})
	}
}

func onMeshUp(t *testing.T, dir string) *meshWithKeys {
	t.Helper()
	m := upAsUs(t, dir)
	return &meshWithKeys{mesh: m, keys: map[string]string{without: "", ofNode: access.File(m.data, access.Node)}}
}

// onNatsConf starts a NATS server with the configuration for keys, and an agent that answers its questions.
func onNatsConf(t *testing.T, dir string) *meshWithKeys {
	t.Helper()
	m := &mesh{dir: dir, data: filepath.Join(dir, "data")}
	m.url = meshtest.Broker(t, meshtest.Config(template(t, dir, "--nats-conf", "--data-dir="+m.data))).URL
	m.admin = access.File(m.data, access.Admin)
	node := access.File(m.data, access.Node)
	m.agent(t, node, "--auth-issuer="+access.IssuerFile(m.data), "--auth-renew="+renew)
	return &meshWithKeys{mesh: m, keys: map[string]string{without: "", ofNode: node}}
}

// onJWTs starts a NATS server in operator mode. Its users have the permissions of the template. A client
// without a key has a caller's credentials for the default session there.
func onJWTs(t *testing.T, dir string) *meshWithKeys {
	t.Helper()
	s := meshtest.InOperatorMode(t)
	user := func(name, session, role string) string {
		var rights map[string]jwt.Permissions
		if err := json.Unmarshal([]byte(template(t, dir, "--jwt", "--session="+session)), &rights); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".creds")
		write(t, file, string(s.Creds(t, rights[role])), 0o600)
		return file
	}
	m := &mesh{dir: dir, data: filepath.Join(dir, "data"), url: s.URL, admin: user("admin", "default", "admin")}
	keys := map[string]string{
		without: user("caller", "default", "caller"), ofNode: user("node", "default", "node"),
		"a": user("a", "a", "caller"), "b": user("b", "b", "caller"),
	}
	m.agent(t, keys[ofNode])
	return &meshWithKeys{mesh: m, keys: keys, jwts: true}
}

// template returns the output of mesh auth template.
func template(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"auth", "template"}, args...)...)
	cmd.Dir, cmd.Env = dir, environ(dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("mesh auth template: %v", err)
	}
	return string(out)
}

// agent starts an agent with the key or the credentials of a node.
func (m *mesh) agent(t *testing.T, key string, args ...string) {
	t.Helper()
	cmd := exec.Command(agentProgram, append(args, "--server="+m.url, credentials(key), "--data-dir="+m.data)...)
	cmd.Dir, cmd.Env = m.dir, environ(m.dir)
	begin(t, cmd, "msg=ready")
}

// subjects publishes and subscribes, and requires that the broker refuses each by name.
func (m *meshWithKeys) subjects(one trespass) {
	refused := make(chan error, 64)
	nc := m.connect(m.t, m.keys[one.with], nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
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
		nc.Close() // no handler runs after it
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
	var pair nkeys.KeyPair
	var err error
	if m.jwts {
		pair, err = nkeys.ParseDecoratedNKey(m.creds(session))
	} else {
		pair, err = access.Read(m.keys[session])
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return pair
}

func (m *meshWithKeys) creds(session string) []byte {
	text, err := os.ReadFile(m.keys[session])
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// hello calls the tool of a session: the mesh still serves, and has handled all earlier messages.
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
		return errors.New("the broker waits for the message")
	}
	return m.hello(m.connect(m.t, m.keys[without]), "default")
}

func (m *meshWithKeys) brackets() error {
	nc := m.connect(m.t, m.keys[without])
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
		err = errors.Join(err, pending, errors.New("the answer reached the other session"))
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
	nc, target := m.connect(m.t, m.keys[without]), "$KV."+subjects.BucketSessions+".b"
	for _, subject := range []string{subjects.UserInfo, "$SRV.PING", "$SRV.INFO", "tools.default.small.t.hello", "tools.default.none", "mesh.registry.default.list", "mesh.replay.default.x"} {
		err = errors.Join(err, nc.PublishRequest(subject, target, nil))
	}
	traced := nats.NewMsg("tools.default.none")
	traced.Header.Set("Nats-Trace-Dest", target)
	err = errors.Join(err, nc.PublishMsg(traced), m.hello(nc, "default"))
	if _, put := records.PutString("later", "x"); put != nil { // stored after all effects of those
		err = errors.Join(err, put)
	}
	after, got := records.Get("b")
	if got == nil && after.Revision() != before.Revision() {
		got = fmt.Errorf("the record is changed: %s", after.Value())
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
	if m.jwts {
		return m.unauthorized(nats.UserJWT(func() (string, error) { return token, nil }, user.Sign))
	}
	// The server admits it as a client without a key.
	refused := make(chan error, 8)
	nc := m.connect(m.t, m.keys[without], nats.UserJWT(func() (string, error) { return token, nil }, user.Sign),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err := errors.Join(nc.Publish("mesh.admin.install", nil), nc.Flush()); err != nil {
		return err
	}
	select {
	case <-refused:
		return nil
	case <-time.After(20 * time.Second):
		return errors.New("its request to install is not refused")
	}
}

func (m *meshWithKeys) forgeSignature(sign func([]byte) ([]byte, error)) error {
	if m.jwts {
		return m.unauthorized(nats.UserJWT(func() (string, error) { return jwt.ParseDecoratedJWT(m.creds("b")) }, sign))
	}
	public, err := m.pair("b").PublicKey()
	if err != nil {
		return err
	}
	return m.unauthorized(nats.Nkey(public, sign))
}

// forgeAnswers answers the server's questions about keys, where a node may, with a signature of its own.
func (m *meshWithKeys) forgeAnswers() error {
	account, err := nkeys.CreateAccount()
	if err != nil {
		return err
	}
	answered := make(chan error, 64)
	nc := m.connect(m.t, m.keys[ofNode])
	_, err = nc.QueueSubscribe(subjects.UserAuth, subjects.QueueGroup, func(q *nats.Msg) {
		answered <- func() error {
			r, err := jwt.DecodeAuthorizationRequestClaims(string(q.Data))
			if err != nil {
				return err
			}
			user, said := jwt.NewUserClaims(r.UserNkey), jwt.NewAuthorizationResponseClaims(r.UserNkey)
			user.Audience, said.Audience = "$G", r.Server.ID
			if said.Jwt, err = user.Encode(account); err != nil {
				return err
			}
			text, err := said.Encode(account)
			if err != nil {
				return err
			}
			return q.Respond([]byte(text))
		}()
	})
	if err := errors.Join(err, nc.Flush()); err != nil {
		return err
	}
	if errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		return nil // it may not subscribe to the questions
	}
	for range 1000 { // the agent gets about every second question
		if err := m.inventKey(); err != nil {
			return err
		}
		select {
		case err := <-answered:
			return err
		default:
		}
	}
	return errors.New("it was never asked")
}

func (m *meshWithKeys) unauthorized(key nats.Option) error {
	nc, err := nats.Connect(m.url, key, nats.Timeout(time.Minute))
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
