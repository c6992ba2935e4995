package router

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/member"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router/standby"
	"github.com/toolmesh/toolmesh/subjects"
)

// joinWait bounds the join of the mesh, on a router's first use.
const joinWait = 15 * time.Second

// Options adjusts a [Router].
type Options struct {
	// Session is the session of calls that name none. Defaults to "default".
	Session subjects.SessionID
	// Node is the node's id, once functions are served. Defaults to "router" and
	// a random end.
	Node subjects.NodeID
	// Service is the name in NATS's service discovery. Defaults to
	// "mesh-router".
	Service string
	// Version is the version of the program, for people. Defaults to none.
	Version string
	// SessionPolicy is "open" (the default: any session exists) or "strict" (only created ones),
	// for the functions that this router serves.
	SessionPolicy string
	// Slots is how many calls of its functions run at once. Defaults to
	// host.DefaultSlots.
	Slots             int
	host.StoreOptions // how the mesh's streams are made
	// PayloadMax bounds one payload; see [host.Options].
	PayloadMax int64
	// Standby has calls of installed indexes that no node serves wait here for one. Defaults
	// to nil: they do not. It takes the rights of a node.
	Standby *standby.Options
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// caller makes the calls of a [Router] or a [Session].
type caller struct{ client *client.Client }

// Call runs a tool; see [client.Client.Call].
func (c caller) Call(ctx context.Context, id subjects.ToolID, args any, opts ...client.CallOption) (*client.Result, error) {
	return c.client.Call(ctx, id, args, opts...)
}

// Stream calls a tool and yields its items; see [client.Client.Stream].
func (c caller) Stream(ctx context.Context, id subjects.ToolID, args any, opts ...client.CallOption) iter.Seq2[client.Chunk, error] {
	return c.client.Stream(ctx, id, args, opts...)
}

// Batch makes several calls at once; see [client.Client.Batch].
func (c caller) Batch(ctx context.Context, calls []client.BatchCall, opts ...client.CallOption) ([]client.BatchResult, error) {
	return c.client.Batch(ctx, calls, opts...)
}

// Submit submits a durable task; see [client.Client.Submit].
func (c caller) Submit(ctx context.Context, id subjects.ToolID, args any, options *client.SubmitOptions) (*client.Task, error) {
	return c.client.Submit(ctx, id, args, options)
}

// Client is the client that makes the calls.
func (c caller) Client() *client.Client { return c.client }

// Router is one member of the mesh. Its methods may be called concurrently.
type Router struct {
	caller
	opts    Options
	log     *slog.Logger
	member  *member.Member
	standby atomic.Pointer[standby.Standby]
	leaving atomic.Bool

	mu     sync.Mutex // guards the fields below, and the member's changes
	micro  *bus.Service
	closed bool

	stopOnce sync.Once
	stopErr  error
}

// New makes a router on a connection, which it leaves open. Nothing is sent
// before it is used; [Router.Start] joins the mesh at once. Close it.
func New(nc *nats.Conn, opts *Options) (*Router, error) {
	o := *cmp.Or(opts, &Options{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Service = cmp.Or(o.Service, "mesh-router")
	o.Node = cmp.Or(o.Node, subjects.NodeID("router-"+uuid.NewString()[:8]))
	if err := o.validate(); err != nil {
		return nil, err
	}
	m, err := member.New(nc, member.Options{
		Type: "router.Options", Session: o.Session, SessionPolicy: o.SessionPolicy, Store: o.StoreOptions, View: registry.ViewOptions{Reaps: true}, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Router{opts: o, log: o.Logger, member: m, caller: caller{m.Client}}, nil
}

// validate refuses options that their first use would refuse.
func (o *Options) validate() error {
	held := cmp.Or(o.Standby, &standby.Options{})
	for option, n := range map[string]int64{
		"Slots": int64(o.Slots), "PayloadMax": o.PayloadMax, "Standby.Calls": int64(held.Calls), "Standby.Timeout": int64(held.Timeout),
	} {
		if n < 0 {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "router.Options.%s is %d, the min is 1, and 0 is the default", option, n).WithOrigin(toolmesh.OriginCaller)
		}
	}
	_, err := subjects.EncodeToken(string(o.Node))
	option := "Node"
	if err == nil {
		option, err = "Service", bus.CheckServiceName(o.Service)
	}
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "router.Options.%s: %w", option, err).WithOrigin(toolmesh.OriginCaller)
	}
	return nil
}

// Node is the node's id.
func (r *Router) Node() subjects.NodeID { return r.opts.Node }

// Start joins the mesh: it opens the view, and answers the registry's questions
// from it. Functions that were handed over are served from now on.
func (r *Router) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.join(ctx); err != nil {
		return err
	}
	if err := r.member.RunTasks(ctx); err != nil {
		return err
	}
	if err := r.standBy(); err != nil {
		return err
	}
	if r.micro == nil && r.member.Host == nil {
		var err error
		r.micro, err = r.member.Bus.StartService(bus.ServiceConfig{
			Name: r.opts.Service, Version: r.opts.Version, Description: "a router of the mesh",
			Metadata: map[string]string{"node": string(r.opts.Node), "proto": "1"},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// join joins the mesh, once; r.mu is held.
func (r *Router) join(ctx context.Context) error {
	if r.closed {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the router is closed")
	}
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	return r.member.Join(ctx)
}

// standBy starts, once, to publish which calls wait for a node, and to hold calls itself if the
// options ask for it; r.mu is held.
func (r *Router) standBy() error {
	switch {
	case r.opts.Standby == nil:
		r.member.TellAwaited()
	case r.standby.Load() == nil:
		o := *r.opts.Standby
		o.Logger = cmp.Or(o.Logger, r.log)
		s, err := standby.New(r.member.Bus, r.member.View, r.opts.Node, &o, r.member.Tasks.Awaited)
		if err != nil {
			return err
		}
		r.standby.Store(s)
	}
	return nil
}

// serve starts the host, once; r.mu is held.
func (r *Router) serve(ctx context.Context) error {
	if err := r.join(ctx); err != nil {
		return err
	}
	return r.member.Serve(ctx, host.Options{
		Node: r.opts.Node, Version: r.opts.Version, Slots: r.opts.Slots, Service: r.serviceName(), PayloadMax: r.opts.PayloadMax,
	})
}

// serviceName lists the process once: by the host, unless Start already did.
func (r *Router) serviceName() string {
	if r.micro != nil {
		return "-"
	}
	return r.opts.Service
}

// Handle serves a Go function as <index>.<name> to every session, from now on.
// An empty name becomes a generated one. It returns the full id.
func (r *Router) Handle(index subjects.IndexName, name string, handler host.Handler, opts ...host.ToolOption) (subjects.ToolID, error) {
	return r.handle(index, "", name, handler, opts)
}

func (r *Router) handle(index subjects.IndexName, session subjects.SessionID, name string, handler host.Handler, opts []host.ToolOption) (subjects.ToolID, error) {
	ctx, cancel := context.WithTimeout(context.Background(), joinWait)
	defer cancel()
	r.mu.Lock()
	err := r.serve(ctx)
	h := r.member.Host
	r.mu.Unlock()
	if err != nil {
		return "", err
	}
	return h.HandleIn(index, session, name, handler, opts...)
}

// View returns the router's view of the mesh: nodes, indexes and sessions. It joins the mesh if
// the router has not yet.
func (r *Router) View(ctx context.Context) (*registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.join(ctx); err != nil {
		return nil, err
	}
	return r.member.View, nil
}

// Run starts the router, stays until ctx ends, and stops it, also where it cannot
// be started. That ctx ends, also during the start, is no error.
func (r *Router) Run(ctx context.Context) error {
	if err := r.Start(ctx); err != nil {
		_ = r.Stop(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		return err
	}
	<-ctx.Done()
	return r.Close()
}

// Stop drains the router's functions and leaves the mesh. It may be called more than once; every
// call waits, so that the connection may be closed after it.
func (r *Router) Stop(ctx context.Context) error {
	r.stopOnce.Do(func() { r.stopErr = r.leave(ctx) })
	return r.stopErr
}

// leave does the work of Stop.
func (r *Router) leave(ctx context.Context) error {
	r.leaving.Store(true)
	r.mu.Lock()
	r.closed = true
	micro := r.micro
	r.mu.Unlock()
	if tasks := r.member.Tasks; tasks != nil {
		tasks.Stop(ctx) // before the holders of calls: other runners go on with them
	}
	if held := r.standby.Load(); held != nil {
		held.Stop(ctx)
	}
	err := r.member.Leave(ctx)
	if micro != nil {
		micro.Stop()
	}
	r.member.Close()
	return err
}

// Close is Stop with half a minute for the calls in flight.
func (r *Router) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return r.Stop(ctx)
}
