package connect_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// save writes a context as the nats command line does, and returns the environment that
// has it.
func save(t *testing.T, config, name string, context map[string]any) (env []string) {
	t.Helper()
	data, err := json.Marshal(context)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(config, "nats", "context")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"XDG_CONFIG_HOME=" + config}
}

// A context that the library of the nats command line saved gives address, credentials, inbox
// prefix and JetStream domain.
func TestSavedContext(t *testing.T) {
	s := meshtest.Broker(t, meshtest.Config(`authorization { users: [{user: u, password: p}] }`))
	env := []string{"XDG_CONFIG_HOME=" + t.TempDir()}
	t.Setenv("XDG_CONFIG_HOME", strings.TrimPrefix(env[0], "XDG_CONFIG_HOME="))
	saved, err := natscontext.New("prod", false, natscontext.WithServerURL(s.URL), natscontext.WithUser("u"),
		natscontext.WithPassword("p"), natscontext.WithJSDomain("hub"), natscontext.WithInboxPrefix("_INBOX_s1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := saved.Save(""); err != nil {
		t.Fatal(err)
	}
	nc, domain, err := connect.Connect(t.Context(), connect.Options{Settings: connect.FromEnv([]string{"NATS_CONTEXT=prod"}), Env: env})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if inbox := nc.NewInbox(); domain != "hub" || !strings.HasPrefix(inbox, "_INBOX_s1.") || nc.Opts.ReconnectBufSize != -1 {
		t.Errorf("domain %q, inbox %s, reconnect buffer %d", domain, inbox, nc.Opts.ReconnectBufSize)
	}
}

// The key of the role is taken, which mesh up of the user made, for the address that it
// left and for the same one written another way.
func TestKeyOfMeshUp(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	state := t.TempDir()
	env := []string{"XDG_STATE_HOME=" + state}
	for _, r := range []connect.Record{
		{URL: k.URL, PID: os.Getpid(), Process: connect.ProcessID(os.Getpid()), DataDir: k.DataDir, Keys: true},
	} {
		if err := connect.StateOf(env).Write(r, connect.Record{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{"", k.URL, strings.Replace(k.URL, "127.0.0.1", "localhost", 1), strings.Replace(k.URL, "127.0.0.1", "localhost", 1) + ", " + k.URL} {
		nc, _, err := connect.Connect(t.Context(), connect.Options{
			Settings: connect.Settings{URL: at}, Env: env, Role: access.Node, Inboxes: []string{subjects.InboxNode},
		})
		if err != nil {
			t.Fatalf("%q: %v", at, err)
		}
		if inbox := nc.NewInbox(); !strings.HasPrefix(inbox, subjects.InboxNode) {
			t.Errorf("%q: inbox %s is not a node's", at, inbox)
		}
		nc.Close()
	}
	// A server in between would be logged in as the node: it passes the challenge on, and the signature back.
	between := meshtest.NewProxy(t, k.Server)
	nc, _, err := connect.Connect(t.Context(), connect.Options{
		Settings: connect.Settings{URL: between.URL + "," + k.URL}, Env: env, Role: access.Node, Inboxes: []string{subjects.InboxNode},
	})
	if err != nil {
		t.Fatal(err)
	}
	if inbox := nc.NewInbox(); strings.HasPrefix(inbox, subjects.InboxNode) {
		t.Errorf("inbox %s: the key signed for a server that is not the one it was made for", inbox)
	}
	nc.Close()
	_, _, err = connect.Connect(t.Context(), connect.Options{
		Settings: connect.Settings{URL: k.URL, Nkey: access.File(k.DataDir, access.Node)}, Inboxes: []string{subjects.InboxAdmin},
	})
	if toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied || !strings.Contains(err.Error(), "is for none of the inboxes") {
		t.Errorf("the key of another role: %v", err)
	}
}

func TestConnectNamesTheFault(t *testing.T) {
	t.Parallel()
	closed := meshtest.Broker(t, meshtest.Config(`authorization { users: [{user: u, password: p}] }`))
	config := t.TempDir()
	env := save(t, config, "broken", map[string]any{"url": closed.URL, "nkey": filepath.Join(config, "missing.nk")})
	empty := filepath.Join(config, "empty")
	if err := os.WriteFile(empty, []byte("no seed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, fields := range map[string]map[string]any{
		"nsc": {"nsc": "nsc://o/a/u"}, "proxy": {"socks_proxy": "127.0.0.1:1", "user": "u", "password": "p"}, "store": {"windows_cert_store": "user"},
		"seedless": {"nkey": empty}, "creds": {"creds": empty}, "ca": {"ca": empty, "user": "u", "password": "p"}, "cert": {"cert": empty, "key": empty},
		"unset": {"creds": "$PATH"}, // it is set in this process
	} {
		fields["url"] = closed.URL
		save(t, config, name, fields)
	}
	for name, c := range map[string]struct {
		s    connect.Settings
		code toolmesh.Code
		want string
	}{
		"nothing there":       {connect.Settings{URL: "nats://me:secret@127.0.0.1:1"}, toolmesh.CodeUnavailable, "no mesh at nats://127.0.0.1:1: nothing answers there; start one with mesh up, or name another with url or Env"},
		"no address":          {connect.Settings{URL: "http://me:secret@127.0.0.1"}, toolmesh.CodeInvalidRequest, `"http://127.0.0.1" is not the URL of a NATS server`},
		"refused":             {connect.Settings{URL: closed.URL}, toolmesh.CodePermissionDenied, "refuses the credentials"},
		"no context":          {connect.Settings{Context: "nowhere"}, toolmesh.CodeInvalidRequest, `the NATS context "nowhere" cannot be used`},
		"a context elsewhere": {connect.Settings{Context: "../prod"}, toolmesh.CodeInvalidRequest, "a name has no"},
		"key of a context":    {connect.Settings{Context: "broken"}, toolmesh.CodeInvalidRequest, "missing.nk"},
		"proxy":               {connect.Settings{Context: "proxy"}, toolmesh.CodeInvalidRequest, `"proxy" has socks_proxy, which Toolmesh does not read`},
		"certificate store":   {connect.Settings{Context: "store"}, toolmesh.CodeInvalidRequest, `"store" has windows_cert_store`},
		"key without a seed":  {connect.Settings{Context: "seedless"}, toolmesh.CodeInvalidRequest, "the key " + empty + " cannot be used"},
		"creds of a context":  {connect.Settings{Context: "creds"}, toolmesh.CodeInvalidRequest, "the NATS credentials file " + empty},
		"damaged creds":       {connect.Settings{URL: closed.URL, Creds: empty}, toolmesh.CodeInvalidRequest, empty},
		"ca of a context":     {connect.Settings{Context: "ca"}, toolmesh.CodeInvalidRequest, `"ca" cannot be used: ca ` + empty},
		"cert of a context":   {connect.Settings{Context: "cert"}, toolmesh.CodeInvalidRequest, `"cert" cannot be used: cert ` + empty},
		"unset variable":      {connect.Settings{Context: "unset"}, toolmesh.CodeInvalidRequest, `"unset" has creds $PATH: the variable PATH is not set`},
		"nsc":                 {connect.Settings{Context: "nsc"}, toolmesh.CodeInvalidRequest, "has nsc, which Toolmesh does not read"},
		"no credentials file": {connect.Settings{URL: closed.URL, Creds: "no/such.creds"}, toolmesh.CodeInvalidRequest, "file no/such.creds cannot be read"},
		"no key file":         {connect.Settings{URL: closed.URL, Nkey: "no/such.nk"}, toolmesh.CodeInvalidRequest, "the key no/such.nk cannot be used"},
	} {
		nc, _, err := connect.Connect(t.Context(), connect.Options{Settings: c.s, Env: env})
		if err == nil {
			nc.Close()
			t.Errorf("%s: connected", name)
		} else if toolmesh.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %s %v, want %s %q and no secret", name, toolmesh.CodeOf(err), err, c.code, c.want)
		}
	}
}

// A password with a comma looks like two servers: no message has either half of it.
func TestPasswordWithAComma(t *testing.T) {
	t.Parallel()
	const url = "nats://me:hunter2,secret@127.0.0.1:1"
	_, _, err := connect.Connect(t.Context(), connect.Options{Settings: connect.Settings{URL: url}})
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v, want invalid_request without the password", err)
	}
}

// The servers of a connection are without the users and passwords in their addresses.
func TestServers(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.Config(`authorization { users: [{user: u, password: secret}] }`))
	nc, _, err := connect.Connect(t.Context(), connect.Options{Settings: connect.Settings{URL: "u:secret@" + s.Address() + ", nats://u:secret@127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got, want := connect.Servers(nc), "nats://"+s.Address()+",nats://127.0.0.1:1"; got != want {
		t.Errorf("servers are %s, want %s", got, want)
	}
}

// Variables and ~/ of a context's files are those of the environment that was given.
func TestFilesOfContext(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := pair.PublicKey()
	seed, _ := pair.Seed()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "x.nk"), seed, 0o600); err != nil {
		t.Fatal(err)
	}
	s := meshtest.Broker(t, meshtest.Config(`authorization { users: [{nkey: `+public+`}] }`))
	for _, file := range []string{"$TOOLMESH_KEYS/x.nk", "${HOME}/x.nk", "~/x.nk"} {
		env := save(t, t.TempDir(), "prod", map[string]any{"url": s.URL, "nkey": file})
		env = append(env, "HOME="+home, "TOOLMESH_KEYS="+home)
		nc, _, err := connect.Connect(t.Context(), connect.Options{Settings: connect.Settings{Context: "prod"}, Env: env})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		nc.Close()
	}
}

// A key that a context names has the inbox of its role, as one named beside it.
func TestKeyOfAContextHasItsInbox(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	for role, inbox := range map[access.Role]string{access.Node: subjects.InboxNode, access.Admin: subjects.InboxAdmin} {
		env := save(t, t.TempDir(), "prod", map[string]any{"url": k.URL, "nkey": access.File(k.DataDir, role)})
		nc, _, err := connect.Connect(t.Context(), connect.Options{
			Settings: connect.Settings{Context: "prod"}, Env: env, Inboxes: []string{inbox},
		})
		if err != nil {
			t.Fatalf("%s: %v", role, err)
		}
		if got := nc.NewInbox(); !strings.HasPrefix(got, inbox) {
			t.Errorf("%s: inbox %s, want one of %s", role, got, inbox)
		}
		nc.Close()
	}
}

// A context's key is accepted with a user that has only the usual inboxes, as by the nats command
// line.
func TestKeyOfAContextWithUsualInboxes(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := pair.PublicKey()
	seed, _ := pair.Seed()
	file := filepath.Join(t.TempDir(), "u.nk")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	s := meshtest.Broker(t, meshtest.Config(`authorization { users: [{nkey: `+public+`, permissions: {subscribe: ["_INBOX.>"]}}] }`))
	env := save(t, t.TempDir(), "prod", map[string]any{"url": s.URL, "nkey": file})
	inboxes, err := connect.Inboxes(access.Admin, "")
	if err != nil {
		t.Fatal(err)
	}
	nc, _, err := connect.Connect(t.Context(), connect.Options{Settings: connect.Settings{Context: "prod"}, Env: env, Inboxes: inboxes})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := nc.NewInbox(); !strings.HasPrefix(got, nats.InboxPrefix) {
		t.Errorf("inbox %s, want a usual one", got)
	}
}

// A MESH_ variable wins over its NATS_ variable, an empty one too.
func TestFromEnv(t *testing.T) {
	t.Parallel()
	all := []string{"NATS_URL=nats://n", "NATS_CREDS=c", "NATS_NKEY=k"}
	for name, c := range map[string]struct {
		env  []string
		want connect.Settings
	}{
		"theirs":        {all, connect.Settings{URL: "nats://n", Creds: "c", Nkey: "k"}},
		"ours":          {append(all, "MESH_NATS_URL=nats://m", "MESH_NATS_CREDS=d", "MESH_NATS_NKEY=l"), connect.Settings{URL: "nats://m", Creds: "d", Nkey: "l"}},
		"ours, empty":   {append(all, "MESH_NATS_URL=", "MESH_NATS_CREDS=", "MESH_NATS_NKEY="), connect.Settings{}},
		"no URL":        {append(all, "MESH_NATS_URL=", "NATS_CONTEXT=x"), connect.Settings{Context: "x", Creds: "c", Nkey: "k"}},
		"our context":   {[]string{"NATS_URL=nats://n", "MESH_NATS_CONTEXT=x"}, connect.Settings{Context: "x"}},
		"their context": {[]string{"NATS_CONTEXT=x", "MESH_NATS_CONTEXT="}, connect.Settings{}},
		"both":          {[]string{"NATS_URL=nats://n", "NATS_CONTEXT=x"}, connect.Settings{URL: "nats://n"}},
	} {
		if got := connect.FromEnv(c.env); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for servers, want := range map[string]string{
		"nats://127.0.0.1:4222":                "nats://127.0.0.1:4222",
		"nats://me:secret@a:1, nats://token@b": "nats://a:1,nats://b",
		"me:secret@a:1":                        "…@a:1",
		"tls://me:se%cret@a:1":                 "…@a:1",
		"nats://me:hunter2,secret@a:1,b:2":     "nats://a:1,b:2",
	} {
		if got := connect.Redact(servers); got != want || strings.Contains(got, "secret") {
			t.Errorf("Redact(%q) = %q, want %q", servers, got, want)
		}
	}
}

// A record of a process that has ended, or whose pid another process has, is no mesh.
func TestStateOfDeadMeshes(t *testing.T) {
	t.Parallel()
	s := connect.State(t.TempDir())
	self := connect.Record{URL: "nats://127.0.0.1:1", DataDir: "a", PID: os.Getpid(), Process: connect.ProcessID(os.Getpid()), Started: time.Now()}
	if self.Process == "" {
		t.Fatal("this process has no id")
	}
	other := connect.Record{URL: "nats://127.0.0.1:2", DataDir: "b", PID: 1, Process: "an earlier one", Started: time.Now().Add(time.Hour)}
	for _, r := range []connect.Record{self, other} {
		if err := s.Write(r, connect.Record{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Running(); len(got) != 1 || got[0].URL != self.URL {
		t.Errorf("running are %v, want %q alone", got, self.URL)
	}
	if _, err := os.Stat(s.File(other)); err != nil {
		t.Errorf("the record of a mesh whose process cannot be seen from here: %v", err)
	}
	// Two containers with one home may each have a data folder of that name: the folder's content
	// counts.
	other.DataDir = self.DataDir
	unseen := other
	unseen.Process = "one with that pid in another container"
	for _, r := range []connect.Record{unseen, other, self} {
		if err := s.Write(r, connect.Record{}); err != nil {
			t.Fatal(err)
		}
	}
	before, _, err := connect.ReadRecord(s.File(other))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(self, before); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.File(other)); err == nil {
		t.Error("the record of a mesh is kept whose data folder another one has")
	}
	if _, err := os.Stat(s.File(unseen)); err != nil {
		t.Errorf("the record of a mesh with another folder of that name: %v", err)
	}
	s.Remove(self)
	if got := s.Running(); len(got) > 0 {
		t.Errorf("after its end %v are found", got)
	}
}

// A context of a user without a home is in no folder of the process.
func TestContextWithoutAHome(t *testing.T) {
	t.Chdir(t.TempDir())
	save(t, ".config", "prod", map[string]any{"url": meshtest.Broker(t).URL})
	for _, env := range [][]string{nil, {"HOME="}, {"HOME=.", "XDG_CONFIG_HOME=.config"}} {
		_, _, err := connect.Connect(t.Context(), connect.Options{Settings: connect.Settings{Context: "prod"}, Env: env})
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "set HOME") {
			t.Errorf("%q: %v", env, err)
		}
	}
}
