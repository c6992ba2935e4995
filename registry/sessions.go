package registry

import (
	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// AdmitSession decides whether a session exists, from what a view knows, and
// returns its epoch: empty for one that nobody created, which exists unless
// strict. The default session always does. The error is session_not_found. It
// does not block.
func AdmitSession(view *View, id subjects.SessionID, strict bool) (epoch string, err error) {
	r, ok := view.Session(id)
	switch {
	case ok && r.Ended:
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q has ended", id)
	case ok:
		return r.Epoch, nil
	case strict && id != subjects.DefaultSession:
		return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q does not exist: create it first", id)
	}
	return "", nil
}
