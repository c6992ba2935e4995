package bus_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// All missing rights of a connection are named at once, by the broker's list if it has one, and
// otherwise by trying the subscriptions.
func TestCheckRights(t *testing.T) {
	t.Parallel()
	keyed := meshtest.WithKeys(t)
	narrow := meshtest.Broker(t, meshtest.Config(`authorization { users: [{ user: a, password: a, permissions: {
		publish: { allow: ["$SYS.REQ.USER.INFO", "mesh.hb.*"] }, subscribe: { allow: ["_INBOX.>", "mesh.node.n.>"], deny: ["mesh.node.n.ctl.>"] }
	}}]}`))
	unkeyed := meshtest.Broker(t)
	need := subjects.Rights{
		Publish:   []string{"mesh.hb.n", "mesh.chunks.>"},
		Subscribe: []string{"mesh.node.n.tools.>", "mesh.node.n.ctl.>", "mesh.ctl.>", "tools.> mesh"},
	}
	for name, test := range map[string]struct {
		nc      *nats.Conn
		missing []string
	}{
		"no keys": {unkeyed.Connect(t), nil},
		"node":    {keyed.As(t, access.Node), nil},
		"admin":   {keyed.As(t, access.Admin), nil},
		"caller":  {keyed.Connect(t), []string{"subscribe mesh.node.n.tools.>", "subscribe mesh.node.n.ctl.>", "subscribe mesh.ctl.>", "subscribe tools.> mesh"}},
		"narrow":  {narrow.Connect(t, nats.UserInfo("a", "a")), []string{"publish mesh.chunks.>", "subscribe mesh.node.n.ctl.>", "subscribe mesh.ctl.>", "subscribe tools.> mesh"}},
	} {
		err := open(t, test.nc, nil).CheckRights(t.Context(), "be a node: it needs the key of one", need)
		if len(test.missing) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		_, after, _ := strings.Cut(toolmesh.AsError(err).Message, "it may not ")
		if toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied || !slices.Equal(strings.Split(after, ", "), test.missing) {
			t.Errorf("%s: %v, want missing %q", name, err, test.missing)
		}
	}
}
