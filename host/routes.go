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
	drained    atomic.Int64 // when sub was, as [bus.Mono]; 0 = not yet
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

// routes are the tools that the host serves, read on every call and changed rarely.
type routes struct {
	mu    sync.RWMutex // taken before pace.mu
	table map[routeKey]*served
}

// find returns the tool of a request, by the names that [subjects.Parse] returns, or nil.
func (r *routes) find(session subjects.SessionID, id subjects.ToolID) *served {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t := r.table[routeKey{"", id}]; t != nil {
		return t
	}
	return r.table[routeKey{session, id}]
}

func (r *routes) count() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.table)
}

// put has a tool serve a name.
func (r *routes) put(k routeKey, t *served) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table == nil {
		r.table = make(map[routeKey]*served)
	}
	r.table[k] = t
}

// drop takes a name away, if the tool still serves it.
func (r *routes) drop(k routeKey, t *served) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table[k] == t {
		delete(r.table, k)
	}
}
