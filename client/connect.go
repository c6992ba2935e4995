package client

import (
	"cmp"
	"context"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/subjects"
)

// Connect makes a client with a connection of its own, which [Client.Close] closes. url
// names the NATS servers, comma-separated; "" leaves it to [Options.Env], as the commands
// of mesh do: the environment's address or NATS context, else the mesh that `mesh up` of
// this user left running, else nats://127.0.0.1:4222.
//
// The error is a [toolmesh.Error]: unavailable where no broker answers, permission_denied
// where it refuses the credentials, invalid_request for an address, a NATS context, or a
// file of credentials that cannot be used.
func Connect(ctx context.Context, url string, opts *Options) (*Client, error) {
	o := cmp.Or(opts, &Options{})
	inboxes, err := connect.Inboxes(access.Admin, o.Session)
	if err != nil {
		return nil, invalid("Session", err)
	}
	found := connect.FromEnv(o.Env)
	if url != "" {
		found.URL = url
	}
	nc, domain, err := connect.Connect(ctx, connect.Options{
		Settings: found, Env: o.Env, Role: access.Admin, Inboxes: inboxes, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	c, err := newIn(nc, domain, o)
	if err != nil {
		nc.Close()
		return nil, err
	}
	c.ownConn = true
	return c, nil
}

// Call is [Client.Call] on a connection of its own, found as by [Connect], for a program that makes
// one call.
func Call(ctx context.Context, url string, opts *Options, id subjects.ToolID, args any, more ...CallOption) (*Result, error) {
	c, err := Connect(ctx, url, opts)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Call(ctx, id, args, more...)
}
