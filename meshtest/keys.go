package meshtest

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/access"
)

// Keyed is a broker that lets in the keys of a mesh, each with the rights of its
// role, and clients without a key as callers.
type Keyed struct {
	*Server
	// DataDir is where the keys are.
	DataDir string
}

// WithKeys starts a broker with keys.
func WithKeys(t testing.TB, options ...Option) *Keyed {
	t.Helper()
	dir := t.TempDir()
	keys, err := access.OpenKeys(dir)
	if err != nil {
		t.Fatalf("make keys: %v", err)
	}
	config, err := keys.Config(nil)
	if err != nil {
		t.Fatalf("configure keys: %v", err)
	}
	return &Keyed{Broker(t, append([]Option{Config(config)}, options...)...), dir}
}

// As connects with the key of a role and the inbox that it may use.
func (k *Keyed) As(t testing.TB, role access.Role, options ...nats.Option) *nats.Conn {
	t.Helper()
	key, err := access.Option(access.File(k.DataDir, role))
	if err != nil {
		t.Fatalf("read the key: %v", err)
	}
	return k.Connect(t, append([]nats.Option{key, nats.CustomInboxPrefix(role.Inbox())}, options...)...)
}
