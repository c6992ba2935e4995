package host

import (
	"sync"
	"sync/atomic"

	"github.com/toolmesh/toolmesh/subjects"
)

// routeKey names a tool as it is read off a subject. An empty session stands
// for every session.
type routeKey struct {
	session subjects.SessionID
	tool    subjects.ToolID
}

// routes is what the host serves, read on every call and changed rarely: a
// change copies the map.
type routes struct {
	mu    sync.Mutex // serialises changes
	table atomic.Pointer[map[routeKey]*served]
}

// find returns the tool of a request, whose names are as [subjects.Parse] gives
// them, or nil.
func (r *routes) find(session subjects.SessionID, id subjects.ToolID) *served {
	table := r.table.Load()
	if table == nil {
		return nil
	}
	if t := (*table)[routeKey{"", id}]; t != nil {
		return t
	}
	return (*table)[routeKey{session, id}]
}

// swap puts tools in place and takes gone away, if they are still what serves
// their name.
func (r *routes) swap(put map[routeKey]*served, gone map[routeKey]*served) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := make(map[routeKey]*served)
	if table := r.table.Load(); table != nil {
		for k, t := range *table {
			next[k] = t
		}
	}
	for k, t := range gone {
		if next[k] == t {
			delete(next, k)
		}
	}
	for k, t := range put {
		next[k] = t
	}
	r.table.Store(&next)
}
