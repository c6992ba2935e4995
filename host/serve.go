package host

import (
	"context"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/subjects"
)

// Serve makes this process a node that serves tools until ctx ends, and then drains as
// [Host.Run] does. url is as for [client.Connect]; without other credentials the node
// takes the key of nodes that `mesh up` of this user made for that mesh, if
// [Options.Env] leads to it. For anything else make a connection and a [Host].
//
// The errors are those of [client.Connect], [New], [Host.Handle] and [Host.Start].
func Serve(ctx context.Context, url string, opts *Options, tools ...Registration) error {
	o := opts.withDefaults()
	if len(tools) == 0 {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "host.Serve was given no tools: name some with host.Named").
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	found := connect.FromEnv(o.Env)
	if url != "" {
		found.URL = url
	}
	nc, domain, err := connect.Connect(ctx, connect.Options{
		Settings: found, Env: o.Env, Name: o.Service, Role: access.Node, Inboxes: []string{subjects.InboxNode}, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	defer nc.Close()
	b, err := bus.New(nc, &bus.Options{Domain: domain, Logger: o.Logger})
	if err != nil {
		return err
	}
	defer b.Close()
	h, err := NewOn(b, &o)
	if err != nil {
		return err
	}
	for _, register := range tools {
		if err := register(h); err != nil {
			_ = h.Stop(ctx) // it serves nothing yet
			return err
		}
	}
	return h.Run(ctx)
}

// Registration registers a tool with a host that [Serve] makes.
type Registration func(*Host) error

// Named returns the registration of a function under a name, as [Host.Handle] takes them.
func Named(name string, handler Handler, opts ...ToolOption) Registration {
	return func(h *Host) error {
		_, err := h.Handle(name, handler, opts...)
		return err
	}
}
