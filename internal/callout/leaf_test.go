package callout_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// A leaf node has the rights of its key, and so do the clients behind it. One without a key is
// refused, although a client without a key is admitted.
func TestLeafNodes(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t, meshtest.Config("leafnodes { listen: 127.0.0.1:-1 }"))
	varz, err := k.Server.Server().Varz(&server.VarzOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", varz.LeafNode.Port)
	k.AsSession(t, "mine")
	// All that callers ask of nodes, by the patterns by which these hear it.
	echoes, rights := k.As(t, access.Node), subjects.NodeRights()
	for _, pattern := range rights.Subscribe {
		if pattern, queue, ok := strings.Cut(pattern, " "); ok && pattern != "tools.>" || strings.HasPrefix(pattern, "mesh.node.") || pattern == subjects.AllReplay || pattern == subjects.AllCtl {
			if _, err := echoes.QueueSubscribe(pattern, queue, func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	serveWait(t, k)()
	stranger, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string]nkeys.KeyPair{"no key": nil, "another key": stranger} {
		if said := knock(t, address, key); !strings.Contains(said, "Authorization Violation") {
			t.Errorf("a leaf node with %s: %s", what, said)
		}
	}
	for name, c := range map[string]struct {
		key     string
		session subjects.SessionID
		inbox   string
		other   subjects.SessionID
	}{
		"caller":        {access.File(k.DataDir, access.Caller), subjects.DefaultSession, subjects.SharedInbox, "mine"},
		"session's key": {k.DataDir + "/session0.nk", "mine", "_INBOX_mine", subjects.DefaultSession},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed, err := os.ReadFile(c.key)
			if err != nil {
				t.Fatal(err)
			}
			leaf := meshtest.Broker(t, meshtest.Config(fmt.Sprintf("server_name: leaf-%s\nleafnodes { remotes: [ { url: \"nats-leaf://%s\", nkey: %s } ] }",
				c.session, address, regexp.MustCompile("(?m)^SU.*").Find(seed))))
			behind := leaf.Connect(t, nats.CustomInboxPrefix(c.inbox))
			mesh := testmesh.Client(t, behind, &client.Options{Session: c.session})
			meshtest.Until(t, "a call is answered", func() bool {
				_, err = mesh.Call(t.Context(), "slow.wait", nil)
				return err == nil
			})
			for _, subject := range []string{"mesh.node.n.tools.%s.a.b", "mesh.node.n.batch.%s", "mesh.node.n.ctl.%s.a", "mesh.node.n.payload.%s.a.b", "mesh.ctl.%s.a",
				"mesh.registry.%s.list", "mesh.replay.%s.a", "mesh.batch.%s", "mesh.task.%s.submit"} {
				if _, err := behind.Request(fmt.Sprintf(subject, c.session), nil, time.Minute); err != nil {
					t.Errorf("%s: %v", subject, err)
				}
			}
			for _, subject := range []string{"tools." + string(c.other) + ".slow.wait", "$KV.MESH_SESSIONS.mine"} {
				if _, err := behind.Request(subject, []byte("{}"), time.Minute); !errors.Is(err, nats.ErrNoResponders) {
					t.Errorf("%s goes out: %v", subject, err)
				}
			}
		})
	}
}

// knock connects as a leaf node does, and returns the server's answer.
func knock(t *testing.T, address string, key nkeys.KeyPair) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Nonce string }
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		t.Fatal(err)
	}
	connect := map[string]string{"server_id": "stranger", "name": "stranger"}
	if key != nil {
		sig, err := key.Sign([]byte(info.Nonce))
		if err != nil {
			t.Fatal(err)
		}
		if connect["nkey"], err = key.PublicKey(); err != nil {
			t.Fatal(err)
		}
		connect["sig"] = base64.RawURLEncoding.EncodeToString(sig)
	}
	data, err := json.Marshal(connect)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s\r\nPING\r\n", data); err != nil {
		t.Fatal(err)
	}
	if line, err = lines.ReadString('\n'); err != nil {
		return err.Error()
	}
	return line
}
