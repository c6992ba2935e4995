package natsadmin_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/natsadmin"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// TestLoadContext changes the environment, so it is not parallel.
func TestLoadContext(t *testing.T) {
	s := meshtest.Broker(t, meshtest.Config(`authorization { users: [{user: u, password: p}] }`))
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	if _, err := natsadmin.LoadContext(""); !errors.Is(err, natsadmin.ErrNoContext) {
		t.Fatalf("without a selected context: %v", err)
	}
	save := func(name string, settings map[string]any) {
		t.Helper()
		data, err := json.Marshal(settings)
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
	}
	save("prod", map[string]any{"url": s.URL, "user": "u", "password": "p", "jetstream_domain": "hub", "inbox_prefix": "_INBOX_s1"})
	save("broken", map[string]any{"url": s.URL, "nkey": filepath.Join(config, "missing.nk")})
	if err := os.WriteFile(filepath.Join(config, "nats", "context.txt"), []byte("prod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"prod", ""} {
		c, err := natsadmin.LoadContext(name)
		if err != nil {
			t.Fatal(err)
		}
		if c.Name != "prod" || c.URL != s.URL || c.Domain != "hub" || strings.Contains(c.String(), "p)") {
			t.Fatalf("context %+v", c)
		}
		nc, err := nats.Connect(c.URL, append(bus.ConnectOptions(nil), c.Options...)...)
		if err != nil {
			t.Fatal(err)
		}
		if inbox := nc.NewInbox(); !strings.HasPrefix(inbox, "_INBOX_s1.") {
			t.Errorf("inbox %s", inbox)
		}
		nc.Close()
	}
	for _, name := range []string{"missing", "broken", "../prod"} {
		if _, err := natsadmin.LoadContext(name); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("context %q: %v", name, err)
		}
	}
}

// levels counts findings and returns the texts of those that are not ok.
func levels(found []natsadmin.Finding) (ok int, rest string) {
	for _, f := range found {
		if f.Level == natsadmin.LevelOK {
			ok++
			continue
		}
		rest += string(f.Level) + " " + f.Subject + " " + f.Text + " -> " + f.Fix + "\n"
	}
	return ok, rest
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	b, err := bus.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	all := len((bus.Layout{}).Streams())

	found, err := natsadmin.Check(t.Context(), nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, rest := levels(found); ok != 0 || strings.Count(rest, "is not there") != all {
		t.Fatalf("an empty broker: %d ok, rest:\n%s", ok, rest)
	}
	if err := b.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if found, err = natsadmin.Check(t.Context(), nc, nil); err != nil {
		t.Fatal(err)
	}
	if ok, rest := levels(found); ok != all || rest != "" {
		t.Fatalf("a mesh as it should be: %d ok, rest:\n%s", ok, rest)
	}
	// Break three of them and add a stranger.
	js := b.JetStream()
	update := func(stream string, change func(*jetstream.StreamConfig)) {
		t.Helper()
		info, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		config := info.CachedInfo().Config
		change(&config)
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	update(subjects.StreamChunks, func(c *jetstream.StreamConfig) { c.RePublish = nil; c.MaxBytes = 2000 })
	update(subjects.KVStream(subjects.BucketTools), func(c *jetstream.StreamConfig) { c.AllowDirect = false })
	if err := js.DeleteStream(t.Context(), subjects.KVStream(subjects.BucketNodes)); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{subjects.AllTools}}); err != nil {
		t.Fatal(err)
	}
	chunk, err := subjects.Chunks("s1", "rpc_1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), chunk, make([]byte, 1800)); err != nil {
		t.Fatal(err)
	}
	if found, err = natsadmin.Check(t.Context(), nc, &natsadmin.CheckOptions{Layout: bus.Layout{Copies: 3}}); err != nil {
		t.Fatal(err)
	}
	_, rest := levels(found)
	for _, text := range []string{
		"error MESH_CHUNKS does not republish", "warning MESH_CHUNKS is 9", "error KV_MESH_TOOLS does not allow direct reads",
		"error KV_MESH_NODES is not there", "error AUDIT stores requests", "has 1 copies, the settings ask for 3",
	} {
		if !strings.Contains(rest, text) {
			t.Errorf("nothing says %q:\n%s", text, rest)
		}
	}
}

func TestCheckOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	t.Parallel()
	servers := meshtest.Cluster(t, 2)
	nc := servers[0].Connect(t)
	b, err := bus.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	found, err := natsadmin.Check(t.Context(), nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, rest := levels(found); !strings.Contains(rest, "warning MESH_CHUNKS has 1 of at most 3 copies") {
		t.Fatalf("a cluster of two:\n%s", rest)
	}
}

func TestCheckWithoutJetStream(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.Config(`accounts { A { users: [{user: a, password: a}] } }`))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := natsadmin.Check(ctx, s.Connect(t, nats.UserInfo("a", "a")), nil)
	if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || !strings.Contains(err.Error(), "JetStream") {
		t.Fatalf("%v, want unavailable that names JetStream", err)
	}
}
