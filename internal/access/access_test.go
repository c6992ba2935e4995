package access_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// A caller can publish and subscribe nothing beyond its session.
func TestCallersHaveTheirSessionOnly(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	for _, subject := range []string{
		"tools.other.weather.today", "mesh.node.n1.tools.other.weather.today", "mesh.node.n1.ctl.other.rpc_1",
		"mesh.ctl.other.rpc_1", "mesh.registry.other.list", "mesh.replay.other.rpc_1", "mesh.batch.other",
		"mesh.admin.install", "mesh.node.n1.admin.drain", "mesh.hb.n1", "mesh.evt.call.default", "mesh.reg.MESH_NODES.n1",
		"mesh.chunks.default.rpc_1", "mesh.live.default.rpc_1", "_INBOX.x", "_INBOX_default.x", subjects.InboxNode + ".x",
		"$KV.MESH_NODES.n1", "$KV.MESH_SESSIONS.default", "$O.MESH_BUNDLES.C.x", "$JS.API.INFO", "$JS.API.STREAM.NAMES",
		"$JS.API.STREAM.DELETE.MESH_CHUNKS", "$JS.API.CONSUMER.CREATE.KV_MESH_NODES", "$JS.ACK.x", "$SYS.REQ.USER.INFO",
		"$SYS.REQ.SERVER.PING", "anything",
		// Nothing is registered in its stead, neither tools nor what describes them.
		"$KV.MESH_TOOLS.n1.=.i.weather", "$KV.MESH_TOOLS.n1.default.t.mine", "$KV.MESH_SCHEMAS.x", "$KV.MESH_INDEXES.weather",
		"mesh.reg.MESH_TOOLS.n1.default.t.mine", "mesh.node.n1.admin.label",
	} {
		refused(t, k, access.Caller, subject, func(nc *nats.Conn) error { return nc.Publish(subject, nil) })
	}
	for _, subject := range []string{
		">", "tools.>", "tools.default.weather.today", "mesh.>", "mesh.live.other.>", "mesh.live.>", "mesh.chunks.>", "mesh.ctl.>",
		"mesh.registry.>", "mesh.node.n1.>", "mesh.reg.>", "mesh.evt.>", "$KV.>", "$JS.>", "$SYS.>", "$SRV.PING",
		"_INBOX_other.>", "_INBOX_*.>", subjects.InboxNode + ".>", subjects.InboxAdmin + ".>", "*.>",
	} {
		refused(t, k, access.Caller, subject, func(nc *nats.Conn) error { _, err := nc.SubscribeSync(subject); return err })
	}
	refused(t, k, access.Caller, "tools.default.mine", func(nc *nats.Conn) error {
		_, err := nc.QueueSubscribeSync("tools.default.mine", subjects.QueueGroup)
		return err
	})
}

// refused has a new connection of a role do something, and wants the broker to name
// the subject in a violation.
func refused(t *testing.T, k *meshtest.Keyed, role access.Role, subject string, do func(nc *nats.Conn) error) {
	t.Helper()
	errs := make(chan error, 8)
	nc := k.As(t, role, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }))
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

// No server answers to a key of a bucket in a caller's stead: what the caller may
// send has no answer that it could aim there.
func TestRepliesCannotBeAimed(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	b, err := bus.New(k.As(t, access.Node), nil) // a node makes what is missing
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	kv, err := b.JetStream().KeyValue(t.Context(), subjects.BucketNodes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "n1", "lease"); err != nil {
		t.Fatal(err)
	}
	nc := k.Connect(t)
	const target = "$KV." + subjects.BucketNodes + ".n1"
	for _, subject := range []string{subjects.UserInfo, "$SRV.PING", "$SRV.INFO", "tools.default.none", "mesh.registry.default.list"} {
		if err := nc.PublishRequest(subject, target, nil); err != nil {
			t.Fatal(err)
		}
	}
	// A header of the broker's own tracing is held to the sender's rights, too.
	m := nats.NewMsg("tools.default.none")
	m.Header.Set("Nats-Trace-Dest", target)
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	// Another write is stored behind whatever those have caused.
	if _, err := kv.PutString(t.Context(), "n2", "later"); err != nil {
		t.Fatal(err)
	}
	entry, err := kv.Get(t.Context(), "n1")
	if err != nil || string(entry.Value()) != "lease" || entry.Revision() != 1 {
		t.Errorf("the lease is %q at revision %d, %v", entry.Value(), entry.Revision(), err)
	}
}

// A node cannot administer the mesh nor end its streams.
func TestNodesDoNotAdminister(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	for _, subject := range []string{
		"mesh.admin.install", "mesh.node.n2.admin.drain", "$JS.API.STREAM.DELETE.MESH_CHUNKS",
		"$JS.API.STREAM.UPDATE.KV_MESH_NODES", "$JS.API.STREAM.PURGE.KV_MESH_NODES", "$JS.API.STREAM.MSG.DELETE.KV_MESH_INDEXES",
	} {
		refused(t, k, access.Node, subject, func(nc *nats.Conn) error { return nc.Publish(subject, nil) })
	}
}

// The key of a person's indexes is made once, and is that person's alone to read.
func TestOneOwnerIsMade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "owner.nk")
	first, err := access.OpenOwner(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := access.OpenOwner(path)
	if err != nil {
		t.Fatal(err)
	}
	one, errOne := first.PublicKey()
	two, errTwo := again.PublicKey()
	if errOne != nil || errTwo != nil || one != two {
		t.Errorf("%s and %s, %v %v", one, two, errOne, errTwo)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 1 {
		t.Errorf("beside the key: %v, %v", names, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := access.OpenOwner(path); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("one that others read: %v", err)
	}
}

func TestKeysThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := access.OpenKeys(dir); err != nil {
		t.Fatal(err)
	}
	path := access.File(dir, access.Admin)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable by others": {string(whole), 0o644, "chmod 600"},
		"damaged":            {strings.Replace(string(whole), "\nSU", "\nSUA", 1), 0o600, "damaged"},
		"empty":              {"", 0o600, "SU"},
		"a public key":       {"UAAAA\n", 0o600, "SU"},
	} {
		file := filepath.Join(t.TempDir(), "key.nk")
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := access.Read(file)
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", what, err)
		}
		for line := range strings.Lines(string(whole)) {
			if strings.HasPrefix(line, "SU") && strings.Contains(err.Error(), strings.TrimSpace(line)[3:20]) {
				t.Errorf("%s: the error tells the key", what)
			}
		}
	}
	if _, err := access.Read(filepath.Join(dir, "none")); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("missing: %v", err)
	}
	// A start with a key that others may read says so, and makes no other one.
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := access.OpenKeys(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("open: %v", err)
	}
}
