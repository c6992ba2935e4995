package registry

import (
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Sessions decides from a view which sessions exist. Its methods may be called concurrently.
type Sessions struct {
	strict bool // refuse sessions that were not created
	view   atomic.Pointer[View]
}

// NewSessions returns the sessions of a policy: "open" or empty, by which any exists,
// or "strict", by which only those do that were created.
func NewSessions(policy string) (*Sessions, error) {
	switch policy {
	case "", "open", "strict":
		return &Sessions{strict: policy == "strict"}, nil
	}
	return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the session policy is %q: open or strict", policy)
}

// Use has a view decide from now on; until then every session exists.
func (s *Sessions) Use(v *View) { s.view.Store(v) }

// Admit returns a session's epoch: empty for one that was not created, which exists
// unless the policy is strict. The default session always does. The error is session_not_found.
// It does not block.
func (s *Sessions) Admit(id subjects.SessionID) (epoch string, err error) {
	view := s.view.Load()
	if view == nil {
		return "", nil
	}
	r, ok := view.Session(id)
	switch {
	case ok:
		return r.Epoch, nil
	case s.strict && id != subjects.DefaultSession:
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q does not exist: create it first", id)
	}
	return "", nil
}

// Ended reports whether a session of a name is known to have ended since a time, which is at
// most some seconds ago.
func (s *Sessions) Ended(id subjects.SessionID, since time.Time) bool {
	view := s.view.Load()
	if view == nil {
		return false
	}
	view.mu.RLock()
	defer view.mu.RUnlock()
	return view.ended[canonical(id)].After(since)
}
