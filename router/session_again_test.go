package router_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// A session's name that is used again at once is a new session: tools of the old one are
// withdrawn and tools of the new one stay, whichever change the router's view shows first, or
// none.
func TestSessionThatIsCreatedAgainAtOnce(t *testing.T) {
	t.Parallel()
	r := testmesh.Router(t, meshtest.Broker(t).Connect(t), nil)
	one := host.Func(func(context.Context, struct{}) (int, error) { return 1, nil })
	create := func(id subjects.SessionID) *router.Session {
		s, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	handle := func(s *router.Session, name string) {
		if _, err := s.Handle(name, one); err != nil {
			t.Fatal(err)
		}
	}
	var all []*router.Session
	for i := range 300 {
		id := subjects.SessionID(fmt.Sprintf("again-%d", i))
		s := create(id)
		handle(s, "old")
		if err := s.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		s = create(id)
		if i%2 == 0 {
			handle(s, "new")
		}
		all = append(all, s)
	}
	for i, s := range all {
		meshtest.Until(t, "the old session's tool is gone", func() bool {
			_, err := s.Call(t.Context(), "old", nil, client.ViaQueue())
			return toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound
		})
		if _, err := s.Call(t.Context(), "new", nil, client.ViaQueue()); i%2 == 0 && err != nil {
			t.Errorf("session %s: the new session's tool: %v", s.ID(), err)
		}
	}
}
