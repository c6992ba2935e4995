package registry_test

import (
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

// The clock of this process has no say: it is an hour ahead of the one that dates the token.
func TestTokensExpireByTheBrokersClock(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	view, err := registry.OpenView(t.Context(), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	created := time.Now().Add(-time.Hour)
	if err := store.CreateToken(t.Context(), registry.TokenRecord{ID: "one", Key: public, Session: "mine", Created: created, Expires: created.Add(4 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	valid := func() bool { _, ok := view.Key(public); return ok }
	meshtest.Until(t, "the token is valid", valid)
	meshtest.Until(t, "the token has ended", func() bool { return !valid() })
}
