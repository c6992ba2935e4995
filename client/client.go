package client

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/singleflight"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// ConnectOptions is the connection policy of the mesh for nats.Connect:
// reconnect for ever with jitter, keep nothing back while disconnected, never
// wait for a broker that does not read. On any other connection, calls wait for
// such a broker until nats.go gives the write up (nats.FlusherTimeout).
func ConnectOptions() []nats.Option { return bus.ConnectOptions(nil) }

// Options adjusts a [Client].
type Options struct {
	// Session is the session of calls that name none. Defaults to "default".
	Session subjects.SessionID
	// QueueOnly leaves every choice of node to the broker, as plain NATS clients
	// do. Defaults to false.
	QueueOnly bool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Env is the environment that [Connect] finds the mesh with, in most programs
	// os.Environ(): MESH_NATS_URL, MESH_NATS_CONTEXT, MESH_NATS_CREDS and MESH_NATS_NKEY,
	// each else without MESH_, and the folders of saved NATS contexts and of `mesh up`.
	// This package reads no environment of its own, so a program with settings of its own
	// writes []string{"MESH_NATS_NKEY=" + file}. Defaults to none.
	Env []string
}

// Client calls tools. Its methods may be called concurrently; one Client serves
// a whole process.
type Client struct {
	bus     *bus.Bus
	ownBus  bool
	ownConn bool // of Connect
	child   bool // of In: another client closes the shared part
	foreign bool // the connection may buffer while it is disconnected
	session subjects.SessionID
	queue   bool
	log     *slog.Logger
	shared  *shared
}

// shared is common to the clients of all sessions of one connection.
type shared struct {
	routes routes
	asked  singleflight.Group // which nodes serve a tool
	tasks  sync.WaitGroup
	base   context.Context // ends with Close
	end    context.CancelFunc
}

// New makes a client on a connection, made with [ConnectOptions] or any other.
// An inbox prefix of its own (nats.CustomInboxPrefix) must be one that nodes
// answer to, _INBOX_<session> or one that begins with _INBOX_mesh_: to any other
// they say nothing, and calls end as node_lost.
// Nothing is sent or read yet. Close it. The error is unavailable for a closed
// connection.
func New(nc *nats.Conn, opts *Options) (*Client, error) {
	return newIn(nc, "", opts)
}

// newIn is [New] for a mesh in a JetStream domain.
func newIn(nc *nats.Conn, domain string, opts *Options) (*Client, error) {
	o := cmp.Or(opts, &Options{})
	b, err := bus.New(nc, &bus.Options{Domain: domain, Caller: cmp.Or(o.Session, subjects.DefaultSession), Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	c, err := NewOn(b, o)
	if err != nil {
		b.Close()
		return nil, err
	}
	c.ownBus = true
	return c, nil
}

// NewOn is [New] on a connection that others share, which has one inbox for all of them. It
// outlives the client.
func NewOn(conn registry.Conn, opts *Options) (*Client, error) {
	b := bus.Of(conn)
	if err := b.Check(); err != nil {
		return nil, err
	}
	o := *cmp.Or(opts, &Options{})
	o.Session = cmp.Or(o.Session, subjects.DefaultSession)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if _, err := subjects.EncodeToken(string(o.Session)); err != nil {
		return nil, invalid("Session", err)
	}
	c := &Client{bus: b, foreign: b.Conn().Opts.ReconnectBufSize >= 0, session: o.Session, queue: o.QueueOnly, log: o.Logger, shared: &shared{routes: routes{known: make(map[routeKey]*route)}}}
	c.shared.base, c.shared.end = context.WithCancel(context.Background())
	return c, nil
}

// invalid is the error of an option that cannot be used.
func invalid(option string, err error) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "client.Options.%s: %w", option, err).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

// In returns a client for another session, on the same connection. It needs no
// Close of its own.
func (c *Client) In(session subjects.SessionID) *Client {
	other := *c
	other.session, other.child = session, true
	return &other
}

// Session is the session of calls that name none.
func (c *Client) Session() subjects.SessionID { return c.session }

// Close ends the client's background work. Calls in flight fail. A connection that the
// caller made stays open; one that [Connect] made is closed.
func (c *Client) Close() {
	if c.child {
		return
	}
	c.shared.end()
	c.shared.tasks.Wait()
	if c.ownBus {
		c.bus.Close()
	}
	if c.ownConn {
		c.bus.Conn().Close()
	}
}

// CallOption adjusts one call or stream.
type CallOption interface{ apply(*settings) }

type optionFunc func(*settings)

func (f optionFunc) apply(s *settings) { f(s) }

// settings are the options of one call: those that travel, and those for this process.
type settings struct {
	codec.Call // Timeout is that of the options

	idempotent bool
	queue      bool
	noWait     bool
	parallel   bool
	again      time.Duration // since another process first sent it; 0: none did
	boot       subjects.BootID
	first      *bus.Peer // has arguments that are no body at hand
	referred   func()    // nil for most
	admit      func(bytes int64) error
	keepRef    bool                 // a result that comes by reference is left where it is
	deserted   func() bool          // of a call that is passed on: whether its callers are gone; nil for others
	progress   func(codec.Progress) // nil for most
}

// WithIdempotencyKey gives a unary call a key that is valid in the session for a day. The
// first call with the key runs, and each later one gets its result or error, on any node and
// after restarts. Tool and arguments must be the same. If the node of the first call is lost,
// the result is node_lost, and the call runs again only if the tool is declared idempotent.
// The client repeats the request by itself when its node is lost. A key has 1 to 512 bytes;
// it needs JetStream.
func WithIdempotencyKey(key string) CallOption {
	return optionFunc(func(s *settings) { s.IdempotencyKey = key })
}

// WithSession calls in another session than the client's.
func WithSession(session subjects.SessionID) CallOption {
	return optionFunc(func(s *settings) { s.Session = session })
}

// WithRPCID names the call. Defaults to a new id. The same id again is the same
// call: it runs once.
func WithRPCID(id subjects.RPCID) CallOption { return optionFunc(func(s *settings) { s.RPCID = id }) }

// WithTimeout is the call's total time; the context's deadline counts if it is shorter. Defaults
// to the time that the tool declares, else 30 s for a unary call and no total for a stream.
func WithTimeout(d time.Duration) CallOption { return optionFunc(func(s *settings) { s.Timeout = d }) }

// bound ends ctx a moment after the call's total time, to leave time for the node's own error. It
// ends no call with [Outlive]: a caller that lost its connection joins such a call again and
// learns its outcome.
func (s *settings) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout <= 0 || s.Outlive {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.Timeout+time.Second)
}

// WithRevision asks for one revision of the tool's index.
func WithRevision(revision string) CallOption {
	return optionFunc(func(s *settings) { s.Revision = revision })
}

// WithIsolation asks for a tighter isolation than the tool declares: session,
// fork or fresh. A looser one is ignored, as is any by a tool that is a function
// of a service.
func WithIsolation(isolation toolmesh.Isolation) CallOption {
	return optionFunc(func(s *settings) { s.Isolation = isolation })
}

// WithLineage sets the calls above this one. Defaults to those of the context.
func WithLineage(above Lineage) CallOption {
	return optionFunc(func(s *settings) { s.Parent, s.Depth, s.Lanes = above.Parent, above.Depth, above.Lanes })
}

// Idempotent permits sending the call again when its node was lost. A tool that is declared
// idempotent does not need it.
func Idempotent() CallOption { return optionFunc(func(s *settings) { s.idempotent = true }) }

// ViaQueue leaves the choice of node to the broker for this call.
func ViaQueue() CallOption { return optionFunc(func(s *settings) { s.queue = true }) }

// NoCache runs the tool even if its node keeps the result of an equal call; the new result
// replaces the kept one.
func NoCache() CallOption { return optionFunc(func(s *settings) { s.NoCache = true }) }

// NoWait ends a call as busy at once if no node has room for it, without another attempt.
func NoWait() CallOption { return optionFunc(func(s *settings) { s.noWait = true }) }

// Parallel declares the calls of a batch independent: they run at the same time, also those of
// tools that declare nothing. Calls with equal resource keys do not, nor calls of tools that
// declare parallel_safe = false or compute their key. It has no effect on other calls.
func Parallel() CallOption { return optionFunc(func(s *settings) { s.parallel = true }) }

// Outlive lets a call go on when this process dies, for another process that joins it; see
// [Client.Join]. Other calls end then.
func Outlive() CallOption { return optionFunc(func(s *settings) { s.Outlive = true }) }

// ByReference does not read a result that came by reference: [Result.Ref] names it.
// [Client.Forget] deletes it; otherwise it expires in 15 minutes.
func ByReference() CallOption { return optionFunc(func(s *settings) { s.keepRef = true }) }

// Admit calls admit with the size in bytes of each result of a call or a batch, and of each item of a stream, that
// came by reference, before it is read. The call, which has run, or the reading of the stream ends with the error of
// admit. Calls that share one admit call it concurrently.
func Admit(admit func(bytes int64) error) CallOption {
	return optionFunc(func(s *settings) { s.admit = admit })
}

// WhenReferred calls f once the arguments are in the object store, from where the node reads
// them: this process does not hold them any longer. Small ones are held until the call ends.
func WhenReferred(f func()) CallOption { return optionFunc(func(s *settings) { s.referred = f }) }

// WithProgress calls f with the progress that a call reports, about once a second while it
// runs. The goroutine that reads the connection calls f, never concurrently; f must not block.
func WithProgress(f func(codec.Progress)) CallOption {
	return optionFunc(func(s *settings) { s.progress = f })
}

// WithLiveProgress is [WithProgress] with each report of the tool forwarded at once, but at most
// one in 50 ms: then the latest one.
func WithLiveProgress(f func(codec.Progress)) CallOption {
	return optionFunc(func(s *settings) { s.progress, s.WantProgress = f, f != nil })
}

// WithTrace adds the call to a trace; see [codec.NewTrace].
func WithTrace(t codec.Trace) CallOption { return optionFunc(func(s *settings) { s.Trace = t }) }

// Lineage is the call that makes a nested call, and the number of calls above the nested one.
type Lineage struct {
	Parent subjects.RPCID
	Depth  int
	// Lanes are the lanes that the calls above the new one hold: Mesh-Lanes.
	Lanes string
}

// LineageKey is the context key of a *[Lineage]. A host sets it for a handler, so that calls with
// the handler's context are nested calls, and calls in a circle end. [WithLineage] takes
// precedence.
type LineageKey struct{}

func (c *Client) settings(ctx context.Context, opts []CallOption, prefix string) (*settings, error) {
	s := &settings{Call: codec.Call{Session: c.session, Keepalive: true, Answers: true, AcceptRef: true}, queue: c.queue}
	if above, ok := ctx.Value(LineageKey{}).(*Lineage); ok && above != nil {
		WithLineage(*above).apply(s)
	}
	for _, o := range opts {
		if o != nil {
			o.apply(s)
		}
	}
	if s.RPCID == "" {
		s.RPCID = subjects.NewRPCID(prefix)
	}
	// Another text would arrive: the call would run, and could not be found by its caller's.
	switch rpc, key := string(s.RPCID), s.IdempotencyKey; {
	case rpc != strings.TrimSpace(rpc) || strings.ContainsFunc(rpc, unicode.IsControl):
		return s, callerError(toolmesh.CodeInvalidRequest, "the rpc_id %q has space around it, or a control character: it travels in a header", rpc)
	case key != strings.TrimSpace(key) || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }):
		return s, callerError(toolmesh.CodeInvalidRequest, "the idempotency key %q has space around it, or a character that is not ASCII: it travels in a header", key)
	case s.Timeout < 0:
		return s, callerError(toolmesh.CodeInvalidRequest, "the timeout is %v: it cannot be negative", s.Timeout)
	}
	s.Timeout = min(s.Timeout, toolmesh.MaxTime)
	return s, nil
}

// prepare reads the options and the arguments of a call; body is what its request carries.
func (c *Client) prepare(ctx context.Context, id subjects.ToolID, args any, opts []CallOption, prefix string) (s *settings, body []byte, err error) {
	if s, err = c.settings(ctx, opts, prefix); err != nil {
		return nil, nil, err
	}
	if body, err = encodeArgs(args); err == nil {
		body, err = c.refer(ctx, id, s, body)
	}
	return s, body, err
}

func callerError(code toolmesh.Code, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(code, format, args...).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

// encodeArgs makes the arguments object: of nil an empty one, of raw JSON itself.
func encodeArgs(args any) ([]byte, error) {
	switch a := args.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return a, nil
	case []byte:
		return a, nil
	}
	body, err := tool.MarshalPlain(args)
	if err != nil {
		return nil, callerError(toolmesh.CodeInvalidArguments, "the arguments cannot be written as JSON: %w", err)
	}
	if string(body) == "null" {
		return nil, nil // a nil map or pointer
	}
	if len(body) == 0 || body[0] != '{' {
		return nil, callerError(toolmesh.CodeInvalidArguments, "the arguments are %.40s: they are an object, by parameter name", body)
	}
	return body, nil
}
