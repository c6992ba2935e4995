package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// A NATS server of one's own, configured by mesh auth template: the machine's owner
// administers with a key, the agent joins with another, and a guest without
// a key calls and can do nothing more.
func TestKeys(t *testing.T) {
	t.Parallel()
	owner := newUser(t)
	config := owner.mesh(t, 0, "auth", "template", "--nats-conf").stdout
	if again := owner.mesh(t, 0, "auth", "template", "--nats-conf").stdout; again != config {
		t.Errorf("the second time it prints other keys:\n%s", again)
	}
	keys := filepath.Join(owner.home, "data", "toolmesh", "keys")
	s := meshtest.Broker(t, meshtest.Config(config))
	owner.env = append(owner.env, "MESH_NATS_URL="+s.URL)
	guest := newUser(t, "MESH_NATS_URL="+s.URL)

	agent := *owner
	agent.env = append(owner.env[:len(owner.env):len(owner.env)], "MESH_NATS_NKEY="+filepath.Join(keys, "node.nk"))
	agent.agent(t, s.URL, "a")
	owner.env = append(owner.env, "MESH_NATS_NKEY="+filepath.Join(keys, "admin.nk"))
	owner.mesh(t, 0, "install", "file://"+example(t, "lab"))

	for what, u := range map[string]*user{
		"owner": owner, "guest": guest,
		"guest with the caller's key": {home: guest.home, env: append(guest.env[:len(guest.env):len(guest.env)], "MESH_NATS_NKEY="+filepath.Join(keys, "caller.nk"))},
	} {
		if out := u.mesh(t, 0, "call", "lab.bank.withdraw", "account=alice", "amount=20").stdout; !strings.Contains(out, "100") {
			t.Errorf("%s: call: %s", what, out)
		}
		if out := u.mesh(t, 0, "stream", "lab.streams.words", "text=a b c").stdout; !strings.Contains(out, `"c"`) {
			t.Errorf("%s: stream: %s", what, out)
		}
		if out := u.mesh(t, 0, "ls").stdout; !strings.Contains(out, "lab.bank.withdraw") {
			t.Errorf("%s: ls: %s", what, out)
		}
	}
	owner.mesh(t, 0, "nodes")
	owner.mesh(t, 0, "session", "create", "mine")
	owner.mesh(t, 0, "call", "--session", "mine", "lab.bank.withdraw", "account=alice", "amount=20")
	for _, args := range [][]string{
		{"install", "file://" + example(t, "weather")}, {"uninstall", "lab"}, {"nodes"}, {"session", "create", "theirs"},
		{"call", "--session", "mine", "lab.bank.withdraw", "account=alice", "amount=20"},
	} {
		r := guest.mesh(t, 3, args...)
		if !strings.Contains(r.stderr, "--nkey") || strings.Contains(r.stderr, "run mesh up") {
			t.Errorf("mesh %s does not say how to be allowed: %s", strings.Join(args, " "), r.stderr)
		}
		t.Log(args, r.stderr)
	}
}
