package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolmesh/toolmesh/meshtest"
)

// An operator's NATS server, configured by mesh auth template: its owner administers with one key, the agent joins
// with another, and a guest without a key can only call.
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

// The steps of docs/operations/nats.md work in their order, with another address of the server and another folder
// of its files.
func TestNATSPage(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	if err := os.CopyFS(filepath.Join(u.home, "examples", "indexes"), os.DirFS(filepath.Join(root, "examples", "indexes"))); err != nil {
		t.Fatal(err)
	}
	var address string
	ran := 0
	for _, block := range fencedBlocks(t, filepath.Join("docs", "operations", "nats.md")) {
		if block.language == "" {
			address = natsServer(t, u, block.text)
			ran++
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(block.text, "HOST:4222", address)) {
			line = strings.TrimSpace(line)
			if name, url, ok := strings.Cut(strings.TrimPrefix(line, "export "), "="); ok && strings.HasPrefix(line, "export ") {
				u.env = append(u.env, name+"="+url)
			} else if strings.HasPrefix(line, "mesh-") {
				command := strings.Fields(line)
				p, _ := u.start(t, filepath.Join(u.home, "none"), command[0], command[1:]...)
				p.await(t, p.logs, "msg=ready")
			} else if r := u.do(t, "sh", "-c", line); r.status != 0 {
				t.Fatalf("%s: %v", line, r)
			} else if strings.Contains(line, "mesh call") && !strings.Contains(r.stdout, `"Oslo: `) {
				t.Errorf("%s: %v", line, r)
			}
			ran++
		}
	}
	if ran != 10 {
		t.Errorf("%d steps of the page were done", ran)
	}
	meshtest.Until(t, "the key of the ended session is refused", func() bool {
		r := u.do(t, "mesh", "call", "weather.forecast.today", "city=Oslo", "--nkey=bob.nk", "--session=bob")
		return r.status == 3 && strings.Contains(r.stderr, "refuses the credentials")
	})
}

// natsServer starts nats-server with a configuration file in a user's folder, on any
// port, and returns its address.
func natsServer(t *testing.T, u *user, config string) string {
	t.Helper()
	config = strings.NewReplacer("0.0.0.0:4222", "127.0.0.1:-1", "/var/lib/nats", filepath.Join(u.home, "nats")).Replace(config)
	file := filepath.Join(u.home, "server.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	meshtest.Until(t, "the server listens", func() bool { return s.ReadyForConnections(time.Millisecond) })
	return s.Addr().String()
}
