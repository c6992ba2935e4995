package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"

	"github.com/toolmesh/toolmesh/meshtest"
)

// A NATS server whose users have JWTs, with the permissions that mesh auth template
// prints: an administrator, a node, a router, a caller of one session.
func TestJWT(t *testing.T) {
	t.Parallel()
	owner := newUser(t)
	var rights map[string]jwt.Permissions
	owner.json(t, &rights, "auth", "template", "--jwt", "--session=mine")
	s := meshtest.InOperatorMode(t)
	as := func(role string) *user {
		u := newUser(t, "MESH_NATS_URL="+s.URL)
		file := filepath.Join(u.home, role+".creds")
		if err := os.WriteFile(file, s.Creds(t, rights[role]), 0o600); err != nil {
			t.Fatal(err)
		}
		u.env = append(u.env, "MESH_NATS_CREDS="+file)
		return u
	}
	admin, caller := as("admin"), as("caller")
	as("node").agent(t, s.URL, "a")
	router := as("router")
	running, _ := router.start(t, filepath.Join(router.home, "none"), "mesh-router", "--server="+s.URL)
	running.await(t, running.logs, `msg=ready`)
	admin.mesh(t, 0, "install", "file://"+example(t, "lab"))
	admin.mesh(t, 0, "session", "create", "mine")
	admin.mesh(t, 0, "nodes")
	if r := admin.mesh(t, 3, "session", "create", "keyed", "--key"); !strings.Contains(r.stderr, "does not take the session's key") {
		t.Errorf("a key of a session: %s", r.stderr)
	}

	if out := caller.mesh(t, 0, "call", "--session=mine", "lab.bank.withdraw", "account=alice", "amount=20").stdout; !strings.Contains(out, "100") {
		t.Errorf("call: %s", out)
	}
	if out := caller.mesh(t, 0, "stream", "--session=mine", "lab.streams.words", "text=a b c").stdout; !strings.Contains(out, `"c"`) {
		t.Errorf("stream: %s", out)
	}
	if out := caller.mesh(t, 0, "ls", "--session=mine").stdout; !strings.Contains(out, "lab.bank.withdraw") {
		t.Errorf("ls: %s", out)
	}
	for _, args := range [][]string{
		{"install", "file://" + example(t, "weather")}, {"uninstall", "lab"}, {"nodes"}, {"session", "create", "theirs"},
		{"call", "--session=default", "lab.bank.withdraw", "account=alice", "amount=20"},
	} {
		if r := caller.mesh(t, 3, args...); !strings.Contains(r.stderr, "may not") && !strings.Contains(r.stderr, "--nkey") {
			t.Errorf("mesh %s does not say that it is not allowed: %s", strings.Join(args, " "), r.stderr)
		}
	}
}
