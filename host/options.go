package host

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Defaults of [Options].
const (
	DefaultSlots       = 128
	DefaultMaxTimeout  = time.Hour
	DefaultStreamQuota = 256_000_000 // bytes, as the binaries' 256MB
	DefaultMaxDepth    = 8

	DefaultCacheBytes   = 64_000_000
	DefaultCacheEntries = 10_000

	DefaultPayloadMax = 1_000_000_000 // bytes
)

// StoreOptions configure the mesh's streams. A zero value keeps the existing setting. Any other
// value changes it for all nodes; the storage cannot be changed, and a different one is an error.
type StoreOptions struct {
	// Replicas is the number of copies of each stream. Defaults to the most that the broker's
	// cluster allows, up to 3.
	Replicas int
	// ChunksStorage is "file" or "memory". Defaults to file.
	ChunksStorage string
	// ChunksMax bounds the stored chunks of streams, in bytes. Defaults to 1 GB.
	ChunksMax int64
	// PayloadsMax bounds the object store of payloads, in bytes. Defaults to 2 GB.
	PayloadsMax int64
	// Audit stores the events of calls in MESH_AUDIT. Defaults to false: events then only reach
	// their subscribers.
	Audit bool
}

// Options adjusts a [Host].
type Options struct {
	// Index is the name under which Handle registers functions: they are called
	// as <index>.<name> from every session. All processes of one service share
	// it. Defaults to none: Handle then needs Session.
	Index subjects.IndexName
	// Session makes the functions of Handle tools of that one session, until it ends: the next
	// session of its name does not get them. Defaults to none.
	Session subjects.SessionID
	// Revision is the revision of the functions of Handle. Defaults to none.
	Revision string
	// Node is the node's id. Defaults to the index or "host", and a random end.
	Node subjects.NodeID
	// Version is the version of the program, for people. Defaults to none.
	Version string
	// Slots is how many calls the node runs at once; further ones are refused with busy. Nested
	// calls have as many places of their own, and one more for each depth, so that a tool never
	// waits for its own slot: the node runs at most 2*Slots+MaxDepth calls. Defaults to
	// DefaultSlots.
	Slots int
	// MaxTimeout bounds calls of tools that declare no timeout. Defaults to
	// DefaultMaxTimeout.
	MaxTimeout time.Duration
	// MaxDepth is how deep calls may be nested: a request with more calls above it
	// is refused. Defaults to DefaultMaxDepth.
	MaxDepth int
	// StreamQuota is how many bytes of chunks one session may store through this
	// node in 15 minutes. Defaults to DefaultStreamQuota.
	StreamQuota int64
	// CacheBytes and CacheEntries bound the results that the node caches for all its tools with a
	// cache_ttl together. Default to DefaultCacheBytes and DefaultCacheEntries.
	CacheBytes   int64
	CacheEntries int
	// Labels describe the node to people and to placement rules. Defaults to none.
	Labels map[string]string
	// Memory names the mechanism that enforces the memory limits of tools on this node, for
	// people. Defaults to nothing.
	Memory string
	// Limits apply to calls of tools that declare none, MaxLimits is the most that the node
	// grants; both are announced in the lease. Default to nothing.
	Limits, MaxLimits tool.Limits
	// Reasons say why the node offers less than it was asked for. Defaults to none.
	Reasons []string
	StoreOptions
	// AuditArguments has the events of calls tell the arguments, without the secrets that a
	// [Redactor] knows. Defaults to false: events tell their digest.
	AuditArguments bool
	// PayloadMax is the largest value, in bytes, that the node takes or gives by reference.
	// Defaults to DefaultPayloadMax.
	PayloadMax int64
	// Sandbox is the announced state of the node's sandbox: asked and effective level.
	Sandbox registry.SandboxState
	// Sessions decides which sessions exist. By default all do, except those that the host's own
	// view has seen end.
	Sessions SessionPolicy
	// Service is the name in NATS's service discovery. Defaults to Index, else
	// "mesh-host"; "-" lists no service.
	Service string
	// Queued returns how many admitted calls wait for a worker. Defaults to none.
	Queued func() int
	// Last means that the mesh ends with this node, as with the node of mesh up: a drain does not
	// wait until callers elsewhere know of it.
	Last bool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Env is the environment that [Serve] finds the mesh with: see [client.Options].
	// Defaults to none.
	Env []string
}

// SessionPolicy decides which sessions exist.
type SessionPolicy interface {
	// Admit returns the epoch of a session, empty for one that was never created, or
	// session_not_found. It must not block.
	Admit(session subjects.SessionID) (epoch string, err error)
	// Ended reports whether a session of this name is known to have ended since a time: a call
	// that came before the news of its session ends then. It must not block.
	Ended(session subjects.SessionID, since time.Time) bool
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Node == "" {
		c.Node = subjects.NodeID(cmp.Or(string(c.Index), "host") + "-" + uuid.NewString()[:8])
	}
	c.Slots, c.MaxTimeout, c.MaxDepth = cmp.Or(c.Slots, DefaultSlots), cmp.Or(c.MaxTimeout, DefaultMaxTimeout), cmp.Or(c.MaxDepth, DefaultMaxDepth)
	c.StreamQuota, c.PayloadMax = cmp.Or(c.StreamQuota, DefaultStreamQuota), cmp.Or(c.PayloadMax, DefaultPayloadMax)
	c.CacheBytes, c.CacheEntries = cmp.Or(c.CacheBytes, DefaultCacheBytes), cmp.Or(c.CacheEntries, DefaultCacheEntries)
	c.Service = cmp.Or(c.Service, string(c.Index), "mesh-host")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (o *Options) validate() error {
	bad := func(format string, args ...any) error {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...).WithOrigin(toolmesh.OriginCaller)
	}
	if o.Index != "" && o.Session != "" {
		return bad("host.Options: Index and Session exclude each other: a function is offered to all sessions or to one")
	}
	if o.MaxTimeout < time.Millisecond {
		return bad("host.Options.MaxTimeout is %v, the min is 1ms", o.MaxTimeout)
	}
	for _, c := range []struct {
		name string
		n    int64
	}{
		{"Slots", int64(o.Slots)}, {"MaxDepth", int64(o.MaxDepth)}, {"StreamQuota", o.StreamQuota},
		{"PayloadMax", o.PayloadMax}, {"CacheBytes", o.CacheBytes}, {"CacheEntries", int64(o.CacheEntries)},
	} {
		if c.n < 1 {
			return bad("host.Options.%s is %d, the min is 1", c.name, c.n)
		}
	}
	if _, err := subjects.EncodeToken(string(o.Node)); err != nil {
		return bad("host.Options.Node: %w", err)
	}
	if err := registry.Labels(o.Labels).Check(); err != nil {
		return bad("host.Options.Labels: %w", err)
	}
	return store.Layout(o.StoreOptions).Validate("host.Options")
}
