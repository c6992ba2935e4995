package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
)

// The handle of an ended session serves nothing in the next one of its name, and does not end it;
// its tools are withdrawn, whichever process ended the session.
func TestHandleOfASessionThatHasEnded(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	routers := make([]*router.Router, 2)
	for i := range routers {
		r := testmesh.Router(t, broker.Connect(t), nil)
		routers[i] = r
	}
	one := host.Func(func(context.Context, struct{}) (int, error) { return 1, nil })
	create := func(r *router.Router) *router.Session {
		s, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "s"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := create(routers[0])
	if _, err := before.Handle("old", one); err != nil {
		t.Fatal(err)
	}
	if err := routers[1].EndSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	now := create(routers[1])
	if _, err := before.Handle("old", one); toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound {
		t.Errorf("a function for the session that has ended: %v", err)
	}
	if err := before.End(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound {
		t.Errorf("the end of the session that has ended: %v", err)
	}
	meshtest.Until(t, "the tool of the session before is gone", func() bool {
		_, err := now.Call(t.Context(), "old", nil, client.ViaQueue())
		return toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound
	})
	// A handle by name alone is of the session that has the name.
	if _, err := routers[0].Session("s").Handle("new", one); err != nil {
		t.Fatal(err)
	}
	if _, err := now.Call(t.Context(), "new", nil, client.ViaQueue()); err != nil {
		t.Errorf("a tool of the session that is there: %v", err)
	}
	if err := now.End(t.Context()); err != nil {
		t.Errorf("the end of the session that is there: %v", err)
	}
}

// A token of a name without a session ends when a session of that name is created, for ever.
func TestTokensOfANameEndWithItsSession(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	r := testmesh.Router(t, nc, nil)
	view, err := r.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records := testmesh.Store(t, testmesh.Bus(t, nc, nil))
	if err := records.CreateToken(t.Context(), registry.TokenRecord{ID: "tok_1", Session: "s", Key: "UX", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	valid := func() bool { _, ok := view.Key("UX"); return ok }
	meshtest.Until(t, "the token is valid", valid)
	if _, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "s", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	exists := func() bool { _, ok := view.Session("s"); return ok }
	meshtest.Until(t, "the session exists", exists)
	meshtest.Until(t, "the session has ended by itself", func() bool { return !exists() })
	if valid() {
		t.Error("the token is valid again")
	}
}
