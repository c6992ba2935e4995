package registry

import (
	"sync/atomic"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Sessions decides which sessions exist, from what a view knows. Its methods may be
// called concurrently.
type Sessions struct {
	// Strict refuses sessions that nobody created. Set it before the first use.
	Strict bool
	view   atomic.Pointer[View]
}

// Use has a view decide from now on; until then every session exists.
func (s *Sessions) Use(v *View) { s.view.Store(v) }

// Admit returns a session's epoch: empty for one that nobody created, which exists
// unless Strict. The default session always does. The error is session_not_found.
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
	case s.Strict && id != subjects.DefaultSession:
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q does not exist: create it first", id)
	}
	return "", nil
}
