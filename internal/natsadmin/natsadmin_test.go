package natsadmin_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/natsadmin"
	"github.com/toolmesh/toolmesh/meshtest"
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
		if c.Name != "prod" || c.URL != s.URL || c.Domain != "hub" {
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
