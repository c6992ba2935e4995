package registry_test

import (
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

// A session whose inboxes could be those of nodes gets neither a key nor a token.
func TestSessionNamedAsAMemberHasNoKeys(t *testing.T) {
	t.Parallel()
	store := testmesh.Store(t, ready(t, meshtest.Broker(t).Connect(t)))
	for what, err := range map[string]error{
		"a key":   store.CreateSession(t.Context(), registry.SessionRecord{ID: "mesh_node", Epoch: "e", Key: "UX"}),
		"a token": store.CreateToken(t.Context(), registry.TokenRecord{ID: "one", Session: "mesh_node", Key: "UX", Created: time.Now()}),
	} {
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := store.CreateSession(t.Context(), registry.SessionRecord{ID: "mesh_node", Epoch: "e"}); err != nil {
		t.Errorf("without a key: %v", err)
	}
}

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
