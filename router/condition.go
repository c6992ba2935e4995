package router

import (
	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router/standby"
)

// Stuck returns an error while the router is blocked, whatever the broker does. See
// [host.Host.Stuck]. It may be called at any time.
func (r *Router) Stuck() error {
	return r.member.Stuck()
}

// Condition is the reason why the router is not ready: it has not joined the mesh, has lost its
// connection, or is stopping; or the error of [host.Host.Unready] for its functions. The note is
// always empty. It may be called at any time.
func (r *Router) Condition() (note string, err error) {
	h := r.member.Node()
	switch {
	case r.leaving.Load():
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the router is stopping")
	case r.member.Seen() == nil:
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the router is starting")
	case h != nil:
		return "", h.Unready()
	case !r.member.Bus.State().Connected: // nats.Conn.Status would wait for a goroutine that writes to it
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "there is no connection to the NATS server")
	}
	return "", nil
}

// Figures are those of the node that the router is; nil while it serves no functions.
func (r *Router) Figures() *host.Figures {
	return r.member.Figures()
}

// Seen returns the router's view of the mesh; nil before it has joined and once it leaves. Unlike
// [Router.View] it does not wait.
func (r *Router) Seen() *registry.View {
	if r.leaving.Load() {
		return nil
	}
	return r.member.Seen()
}

// Standby counts the outcomes of the calls that waited here for a node; nil without a standby.
func (r *Router) Standby() *standby.Outcomes {
	if s := r.standby.Load(); s != nil {
		f := s.Outcomes()
		return &f
	}
	return nil
}
