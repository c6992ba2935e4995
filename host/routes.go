package host

import (
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/sessions"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// served is one tool that the host offers.
type served struct {
	descriptor *tool.Descriptor
	validator  *tool.Validator
	handler    Handler
	secrets    Redactor // the tool's own handler, without the host's wrappers; nil: it knows none
	cached     *cached  // the handler of a tool that keeps results; nil for most
	identity   *codec.Identity
	tenure     *sessions.Tenure // of a session's own tool; nil: every session's
	sessions   string           // see [Tool.Sessions]
	maxArgs    int64            // see [Tool.MaxArgs]
	withdrawn  atomic.Bool
	pace       pace
	at         routeKey

	// Guarded by publisher.mu.
	entry *entry             // its record in the registry
	sub   *nats.Subscription // nil before the host's start
}

// routeKey names a tool as its subject does. An empty session means every session.
type routeKey struct {
	session subjects.SessionID
	tool    subjects.ToolID
}

// routes are the tools that the host serves: a *served by its routeKey. They are read on every call
// and changed rarely.
type routes struct{ sync.Map }

// find returns the tool of a request, by the names that [subjects.Parse] returns, or nil.
func (r *routes) find(session subjects.SessionID, id subjects.ToolID) *served {
	t, ok := r.Load(routeKey{"", id})
	if !ok {
		t, _ = r.Load(routeKey{session, id})
	}
	found, _ := t.(*served)
	return found
}

func (r *routes) count() (n int) {
	for range r.Range {
		n++
	}
	return n
}
