package router

import (
	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router/standby"
)

// joined is the parts of a router that has joined the mesh. Those who look on take
// them from here: the router's lock is held for as long as joining lasts.
type joined struct {
	view *registry.View
	host *host.Host // nil while no functions are served
	// standby is nil where no calls wait.
	standby *standby.Standby
}

// Stuck is why the router does not get on, whatever the broker does; nil while it does.
// See [host.Host.Stuck]. It may be called at any time.
func (r *Router) Stuck() error {
	if j := r.joined.Load(); j != nil && j.host != nil {
		return j.host.Stuck()
	}
	return nil
}

// Condition is why the router is not to be counted on: it has not joined the mesh, has
// lost its connection, or is stopping; or what [host.Host.Unready] says of the functions
// that it serves. There is nothing for people to note. It may be called at any time.
func (r *Router) Condition() (note string, err error) {
	j := r.joined.Load()
	switch {
	case r.leaving.Load():
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the router is stopping")
	case j == nil:
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the router is starting")
	case j.host != nil:
		return "", j.host.Unready()
	case !r.bus.State().Connected: // the connection's own word waits for whoever writes to it
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "there is no connection to the NATS server")
	}
	return "", nil
}

// Figures are those of the node that the router is; nil while it serves no functions.
func (r *Router) Figures() *host.Figures {
	if j := r.joined.Load(); j != nil && j.host != nil {
		return j.host.Figures()
	}
	return nil
}

// Seen is what the router knows of the mesh; nil before it has joined and once it
// leaves. Unlike [Router.View] it waits for nothing.
func (r *Router) Seen() *registry.View {
	if j := r.joined.Load(); j != nil && !r.leaving.Load() {
		return j.view
	}
	return nil
}

// Standby is what has become of the calls that waited here for a node; nil where none do.
func (r *Router) Standby() *standby.Figures {
	if j := r.joined.Load(); j != nil && j.standby != nil {
		f := j.standby.Figures()
		return &f
	}
	return nil
}
