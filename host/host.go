package host

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	tickEvery = 250 * time.Millisecond
	beatEvery = time.Second
	// retireAfter is how long requests that have been received may wait for
	// somebody to look at them.
	retireAfter = 2 * time.Second
)

// Host makes a process a node. Its methods may be called concurrently.
type Host struct {
	opts     Options
	bus      *bus.Bus
	ownBus   bool
	log      *slog.Logger
	node     subjects.NodeID
	boot     subjects.BootID
	identity *codec.Identity // of answers that belong to no tool
	calls    *admit.Table[*inflight]
	quota    *quota
	replayer *chunks.Replayer
	routes   routes
	lease    lease
	standing standing
	lookups  *lookups
	followed *registry.Sessions // of a host that was given no Sessions; else nil

	base    context.Context // ends with the host, as every call's context does
	end     context.CancelCauseFunc
	intake  *intake        // calls
	running runners        // replays
	replays chan struct{}  // one element for each replay that is being answered
	workers sync.WaitGroup // ticker and the like
	quit    chan struct{}

	mu        sync.Mutex // guards what follows
	state     state
	services  map[serviceKey]*service
	shared    []*nats.Subscription // of the node, not of a tool
	directed  *nats.Subscription
	micro     *bus.Service
	unlisten  func()
	stopOnce  sync.Once
	stopErr   error
	replaySub *nats.Subscription
	retired   []*retiredRoute // to be taken out of routes by the ticker

	unsentMu  sync.Mutex
	unsent    []*nats.Msg
	unsentLen int
	holding   atomic.Bool // unsent is not empty; changes under unsentMu

	drainOnce sync.Once
	drained   chan struct{} // closed when the drain is over
	drainErr  error

	draining       atomic.Bool
	lastDirected   atomic.Int64
	refusedReplies atomic.Uint64
	handled        atomic.Uint64
	failed         atomic.Uint64
	took           atomic.Int64 // ns, of all calls handled
}

type state uint8

const (
	stateNew state = iota
	stateServing
	stateStopped
)

// serviceKey names what is published and withdrawn as one: an index, or a
// session's own tools.
type serviceKey struct {
	index   subjects.IndexName
	session subjects.SessionID
}

// service is one published [Service].
type service struct {
	Service
	routes map[routeKey]*served
	subs   map[routeKey]*nats.Subscription
}

// Service is what a host offers under one name: an index at one revision, or
// the own tools of a session.
type Service struct {
	// Index is the index's name; empty for a session's own tools.
	Index subjects.IndexName
	// Session limits the service to one session; empty means all, which only an
	// index can be.
	Session  subjects.SessionID
	Revision string
	// Claim is the source that the index's name is claimed for in the registry;
	// a name that another source has is refused. Empty claims nothing: whoever
	// installed the index has.
	Claim string
	Tools []Tool
	// Unavailable are tools that are known and not served.
	Unavailable []Unavailable

	tenure *tenure // of Session; nil before it is served
}

// Tool is one tool of a [Service].
type Tool struct {
	Descriptor *tool.Descriptor
	Handler    Handler
	// Notice is what callers have to expect of the tool for a while, for people.
	// It is served all the same. Defaults to nothing.
	Notice string
}

// Unavailable is a tool that is declared and not served, with the reason.
type Unavailable struct {
	ID     subjects.ToolID
	Reason string
	// Descriptor is what is known of it all the same; nil: nothing.
	Descriptor *tool.Descriptor
}

// New makes a host on a connection, made with [client.ConnectOptions] or any
// other. Nothing is sent before [Host.Start]. The errors are invalid_request
// for options that cannot be, and unavailable for a closed connection.
func New(nc *nats.Conn, opts *Options) (*Host, error) {
	o := opts.withDefaults()
	b, err := bus.New(nc, &bus.Options{Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	h, err := NewOn(b, &o)
	if err != nil {
		b.Close()
		return nil, err
	}
	h.ownBus = true
	return h, nil
}

// NewOn is [New] for packages of this module that share one bus.
func NewOn(b *bus.Bus, opts *Options) (*Host, error) {
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	boot := subjects.BootID(uuid.NewString())
	h := &Host{
		opts: o, bus: b, log: o.Logger, node: o.Node, boot: boot,
		identity: codec.NewIdentity(o.Node, boot, ""),
		calls:    admit.NewTable[*inflight](o.Slots, time.Now),
		quota:    newQuota(o.StreamQuota, time.Now),
		replayer: chunks.NewReplayer(b, o.Logger),
		services: make(map[serviceKey]*service),
		quit:     make(chan struct{}),
		replays:  make(chan struct{}, maxReplays),
		drained:  make(chan struct{}),
	}
	h.lookups = newLookups(h.registered, h.running.run)
	if h.opts.Sessions == nil {
		h.followed = &registry.Sessions{}
		h.opts.Sessions = h.followed
	}
	h.intake = newIntake(h.receive)
	h.base, h.end = context.WithCancelCause(context.Background())
	return h, nil
}

// Node is the node's id.
func (h *Host) Node() subjects.NodeID { return h.node }

// Boot is the id of this start of the node.
func (h *Host) Boot() subjects.BootID { return h.boot }

// ToolOption adjusts one function of [Host.Handle].
type ToolOption func(*tool.Descriptor)

// Description is the text that people and models read.
func Description(text string) ToolOption {
	return func(d *tool.Descriptor) { d.Description = text }
}

// Annotate says how the tool behaves. Whether it streams follows from the
// handler and need not be said.
func Annotate(a tool.Annotations) ToolOption {
	return func(d *tool.Descriptor) {
		a.Streaming = a.Streaming || d.Annotations.Streaming
		d.Annotations = a
	}
}

// Schema sets the input and output schema of a handler that has no Go types, or
// whose types do not say them; nil leaves one as it is.
func Schema(input, output json.RawMessage) ToolOption {
	return func(d *tool.Descriptor) {
		if input != nil {
			d.InputSchema = input
		}
		if output != nil {
			d.OutputSchema = output
		}
	}
}

// Metadata is the author's own JSON object, passed through.
func Metadata(object json.RawMessage) ToolOption {
	return func(d *tool.Descriptor) { d.Metadata = object }
}

// Handle registers a function under the index or session of the options; an
// empty name becomes a generated one (tool_<uuid>). It returns the full id. The
// same name again replaces the function. Before Start the function waits for
// it; afterwards it is served when Handle returns. The errors are invalid_request
// for a name or a function that cannot be served, a type without a schema
// included, or an index that somebody else has, and unavailable without a
// connection.
func (h *Host) Handle(name string, handler Handler, opts ...ToolOption) (subjects.ToolID, error) {
	return h.HandleIn(h.opts.Index, h.opts.Session, name, handler, opts...)
}

// takesObject reports whether a schema's type, if it has one, can be an object.
func takesObject(schema json.RawMessage) bool {
	var root struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(schema, &root) != nil {
		return true // what is wrong with it is said when it is compiled
	}
	switch t := root.Type.(type) {
	case string:
		return t == "object"
	case []any:
		return slices.Contains(t, any("object"))
	}
	return true
}

// HandleIn is [Host.Handle] for an index or session of one's own choice: one of
// them is empty.
func (h *Host) HandleIn(index subjects.IndexName, session subjects.SessionID, name string, handler Handler, opts ...ToolOption) (subjects.ToolID, error) {
	if name == "" {
		name = "tool_" + uuid.NewString()
	}
	if handler == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "function %q has no handler", name)
	}
	d := tool.Descriptor{Source: tool.SourceGo}
	var noInput, noOutput error
	if t, ok := handler.(described); ok {
		d, noInput, noOutput = t.describe()
	}
	d.Name = name
	switch {
	case index != "":
		d.ID = subjects.ToolID(string(index) + "." + name)
		d.Index = &tool.IndexRef{Name: index, Revision: h.opts.Revision}
	case session != "":
		d.ID = subjects.ToolID(name)
		if _, dotted := d.ID.Index(); dotted {
			return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q has a dot: a session's own tool has one name", name)
		}
	default:
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "host.Options has neither Index nor Session: functions need one of them to be called by")
	}
	for _, opt := range opts {
		opt(&d)
	}
	if noInput != nil && d.InputSchema == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the arguments of %q: %w", name, noInput)
	}
	if noOutput != nil && d.OutputSchema == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the result of %q: %w", name, noOutput)
	}
	if err := d.Check(); err != nil {
		return "", err
	}
	if !takesObject(d.InputSchema) {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"the arguments of %q are not an object, which arguments are: take a struct or a map", name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	next := Service{Index: index, Session: session, Revision: h.opts.Revision}
	if index != "" {
		next.Claim = registry.ServiceSource + string(index)
	}
	if old := h.current(serviceKey{index, session}); old != nil {
		next = old.Service
		next.Tools = nil
		for _, t := range old.Tools {
			if t.Descriptor.ID != d.ID {
				next.Tools = append(next.Tools, t)
			}
		}
	}
	next.Tools = append(next.Tools, Tool{Descriptor: &d, Handler: handler})
	return d.ID, h.publish(h.base, next)
}

// Publish offers a service, or replaces the one of the same index and session:
// tools that stay are never without a server in between. When it returns, the
// node's connection has told the broker; the registry follows. The errors are
// invalid_request for a descriptor that cannot be served and unavailable
// without a connection.
func (h *Host) Publish(ctx context.Context, s Service) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.publish(ctx, s)
}

// publish does the work of Publish; h.mu is held.
func (h *Host) publish(ctx context.Context, s Service) error {
	if h.state == stateStopped || h.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the host has stopped")
	}
	key := serviceKey{s.Index, s.Session}
	next := &service{Service: s, routes: make(map[routeKey]*served), subs: make(map[routeKey]*nats.Subscription)}
	identity := codec.NewIdentity(h.node, h.boot, s.Revision)
	for _, t := range s.Tools {
		v, err := tool.Compile(t.Descriptor.InputSchema)
		if err != nil {
			return err
		}
		wire, err := subjects.WireTool(t.Descriptor.ID)
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
		}
		next.routes[routeKey{subjects.WireName(s.Session), wire}] = &served{
			descriptor: t.Descriptor, validator: v, handler: t.Handler, identity: identity, session: s.Session,
		}
	}
	var before map[routeKey]*served
	old := h.services[key]
	if old != nil {
		before = old.routes
	}
	if h.state == stateNew {
		if old != nil {
			next.subs = old.subs
		}
		h.services[key] = next
		return nil
	}
	if err := h.activate(ctx, next, old, before); err != nil {
		return err
	}
	h.services[key] = next
	return nil
}

// activate subscribes what a service adds and lets go what it no longer has.
func (h *Host) activate(ctx context.Context, next, old *service, before map[routeKey]*served) error {
	if err := h.claim(ctx, next.Service); err != nil {
		return err
	}
	if err := h.bind(ctx, next); err != nil {
		h.log.Warn("the session of the tools is not known yet", slog.String("session", string(next.Session)), slog.String("error", err.Error()))
	}
	gone := make(map[routeKey]*served)
	for k, t := range before {
		if next.routes[k] == nil {
			gone[k] = t
		}
	}
	h.routes.swap(next.routes, nil)
	for k := range next.routes {
		if old != nil && old.subs[k] != nil {
			next.subs[k] = old.subs[k]
			continue
		}
		sub, err := h.subscribe(k)
		if err != nil {
			return err
		}
		next.subs[k] = sub
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	for k, t := range gone {
		t.withdrawn.Store(true)
		if old != nil && old.subs[k] != nil {
			h.retire(old.subs[k], k, t)
		}
	}
	h.lease.record(ctx, next, old)
	return nil
}

// claim makes the index's name the service's own, and refuses one that is
// somebody else's. Where the registry cannot be reached it is tried again with
// what else has to be written.
func (h *Host) claim(ctx context.Context, s Service) error {
	err := h.lease.claim(ctx, s)
	if err != nil && toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		h.log.Warn("the index's name is not claimed yet", slog.String("index", string(s.Index)), slog.String("error", err.Error()))
		return nil
	}
	return err
}

func (h *Host) subscribe(k routeKey) (*nats.Subscription, error) {
	var subject string
	var err error
	if k.session == "" {
		subject, err = subjects.ToolAnySession(k.tool)
	} else {
		subject, err = subjects.Tool(k.session, k.tool)
	}
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	sub, err := h.bus.Conn().ChanQueueSubscribe(subject, subjects.QueueGroup, h.intake.requests)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "tool %q cannot be offered: %w", k.tool, err)
	}
	return sub, nil
}

// retiredRoute is a tool that is no longer offered. What the broker has already
// sent is still served, so its route stays for a while.
type retiredRoute struct {
	key  routeKey
	tool *served
	at   atomic.Int64 // when its subscription was drained, unix ns; 0 = not yet
}

// retire drains one tool's subscription; h.mu is held.
func (h *Host) retire(sub *nats.Subscription, k routeKey, t *served) {
	r := &retiredRoute{key: k, tool: t}
	h.retired = append(h.retired, r)
	sub.SetClosedHandler(func(string) { r.at.Store(time.Now().UnixNano()) })
	if err := sub.Drain(); err != nil {
		r.at.Store(time.Now().UnixNano())
	}
}

// sweepRoutes takes the routes of retired tools away.
func (h *Host) sweepRoutes(now time.Time) {
	if !h.mu.TryLock() {
		return // something is being published: next time
	}
	defer h.mu.Unlock()
	kept := h.retired[:0]
	for _, r := range h.retired {
		if at := r.at.Load(); at == 0 || now.UnixNano()-at < int64(retireAfter) {
			kept = append(kept, r)
			continue
		}
		h.routes.swap(nil, map[routeKey]*served{r.key: r.tool})
	}
	clear(h.retired[len(kept):])
	h.retired = kept
}

// flush makes sure that the broker knows the subscriptions. Without a
// connection there is nothing to wait for: they are sent with the next one.
func (h *Host) flush(ctx context.Context) error {
	if !h.bus.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := h.bus.Ping(ctx); err != nil && h.bus.Connected() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the broker did not confirm the subscriptions: %w", err)
	}
	return nil
}

// Withdraw takes a service back. Requests that have reached the node are still
// served.
func (h *Host) Withdraw(ctx context.Context, index subjects.IndexName, session subjects.SessionID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.withdraw(ctx, serviceKey{index, session})
}

// withdraw does the work of Withdraw; h.mu is held.
func (h *Host) withdraw(ctx context.Context, key serviceKey) error {
	s := h.services[key]
	if s == nil {
		return nil
	}
	delete(h.services, key)
	h.lease.withdraw(ctx, s)
	for k, t := range s.routes {
		t.withdrawn.Store(true)
		if sub := s.subs[k]; sub != nil {
			h.retire(sub, k, t)
		}
	}
	return h.flush(ctx)
}

// Services lists what is published.
func (h *Host) Services() []Service {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]Service, 0, len(h.services))
	for _, s := range h.services {
		all = append(all, s.Service)
	}
	return all
}

// Start makes the process a node: it takes the lease, subscribes, and beats its
// heart. It refuses where another live process has the node's id, and where a
// stream stores the requests of tools. Without JetStream it serves unary calls
// and catches up when JetStream is there.
func (h *Host) Start(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateNew || h.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the host was started, drained or stopped before: a host starts once")
	}
	if err := h.lease.start(ctx, h); err != nil {
		return err
	}
	h.standing.extend(time.Now())
	h.state = stateServing
	h.intake.listen()
	if err := h.open(ctx); err != nil {
		h.state = stateStopped
		h.intake.close()
		h.closeSubscriptions()
		h.lease.stop(ctx)
		return err
	}
	h.unlisten = h.bus.OnState(func(s bus.State) {
		if s.Connected {
			h.standing.forget()
			h.resend()
		}
	})
	h.workers.Go(h.tick)
	h.workers.Go(h.followSessions)
	h.beat()
	return nil
}

// open subscribes the node's own subjects and those of its tools; h.mu is held.
func (h *Host) open(ctx context.Context) error {
	nc := h.bus.Conn()
	tools, err := subjects.NodeTools(h.node)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	ctls, err := subjects.NodeCtls(h.node)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	beats, err := subjects.Heartbeat(h.node)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	if h.directed, err = nc.ChanSubscribe(tools, h.intake.requests); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node's subject cannot be subscribed: %w", err)
	}
	for _, shared := range []struct {
		subject string
		handle  nats.MsgHandler
	}{{ctls, h.control}, {subjects.AllCtl, h.control}, {beats, h.echo}, {subjects.AllReplay, h.replayed}} {
		sub, err := nc.Subscribe(shared.subject, shared.handle)
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", shared.subject, err)
		}
		h.shared = append(h.shared, sub)
	}
	if h.replaySub, err = nc.QueueSubscribe(subjects.AllReplay, subjects.QueueGroup, h.replay); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", subjects.AllReplay, err)
	}
	for _, s := range h.services {
		if err := h.activate(ctx, s, nil, nil); err != nil {
			return err
		}
	}
	if h.opts.Service != "-" {
		h.micro, err = h.bus.StartService(bus.ServiceConfig{
			Name: h.opts.Service, Version: h.opts.Version, Description: "a node of the mesh",
			Metadata: map[string]string{"node": string(h.node), "boot": string(h.boot), "proto": "1"},
			Endpoint: "calls", Subject: tools,
			Stats: func() bus.ServiceStats {
				all := h.Stats()
				return bus.ServiceStats{Requests: all.Calls, Errors: all.Errors, Took: time.Duration(h.took.Load()), Data: all}
			},
		})
		if err != nil {
			return err
		}
	}
	return h.flush(ctx)
}

// Stats are a node's figures.
type Stats struct {
	Node           subjects.NodeID `json:"node"`
	InFlight       int             `json:"in_flight"`
	Slots          int             `json:"slots"`
	Queued         int             `json:"queued"`
	Calls          uint64          `json:"calls"`
	Errors         uint64          `json:"errors"`
	RefusedReplies uint64          `json:"refused_replies"`
	Tools          int             `json:"tools"`
	// Joined: the registry and the store of chunks have been found. Until then the
	// node is on no list and has no streams.
	Joined bool `json:"-"`
}

// Stats returns the node's figures of now.
func (h *Host) Stats() Stats {
	s := Stats{
		Node: h.node, InFlight: h.calls.InFlight(), Slots: h.opts.Slots,
		Calls: h.handled.Load(), Errors: h.failed.Load(), RefusedReplies: h.refusedReplies.Load(),
		Joined: h.lease.joined.Load(),
	}
	if h.opts.Queued != nil {
		s.Queued = h.opts.Queued()
	}
	if table := h.routes.table.Load(); table != nil {
		s.Tools = len(*table)
	}
	return s
}

// Label changes the node's labels: set ones are put, empty values removed.
func (h *Host) Label(ctx context.Context, labels map[string]string) error {
	return h.lease.update(ctx, func(r *registry.NodeRecord) {
		next := maps.Clone(r.Labels)
		if next == nil {
			next = make(map[string]string)
		}
		for k, v := range labels {
			if next[k] = v; v == "" {
				delete(next, k)
			}
		}
		r.Labels = next
	})
}

// Lost is closed when another process has taken the node's id: the node must
// stop, its callers count it as lost. [Host.Run] does so by itself.
func (h *Host) Lost() <-chan struct{} { return h.lease.lost() }

// Err is why the node is lost; nil while it is not.
func (h *Host) Err() error { return h.lease.failure() }

// Unregistered is why the registry could not be reached, or not be made, when the
// host started; nil once the node is in it. Unary calls are served meanwhile.
func (h *Host) Unregistered() error { return h.lease.missing() }

// Run starts the host, serves until ctx ends, then drains for as long as its
// calls need, at most half a minute. That ctx ends, also during the start, is no
// error.
func (h *Host) Run(ctx context.Context) error {
	if err := h.Start(ctx); err != nil {
		_ = h.Stop(context.WithoutCancel(ctx)) // nothing runs: there is nothing to wait for
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		return err
	}
	select {
	case <-ctx.Done():
	case <-h.lease.lost():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(h.lease.failure(), h.Stop(stop))
}

// send publishes a reply and reports whether the connection takes its size. What
// cannot leave because the connection is down is kept and sent when it is back:
// the work is done, its answer should not be lost.
func (h *Host) send(reply string, header codec.Header, body []byte) bool {
	return h.sendMsg(&nats.Msg{Subject: reply, Header: nats.Header(header), Data: body})
}

// Bounds of what is kept for the connection to come back.
const (
	maxUnsent      = 10_000
	maxUnsentBytes = 64 << 20
)

// sendMsg is send for a whole message; its header is the host's from then on.
func (h *Host) sendMsg(m *nats.Msg) bool {
	if h.holding.Load() && h.hold(m, false) {
		return true // behind those that wait: chunks stay in order
	}
	err := h.bus.Conn().PublishMsg(m)
	switch {
	case err == nil:
		codec.Recycle(codec.Header(m.Header))
	case errors.Is(err, nats.ErrMaxPayload):
		return false
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrConnectionClosed):
		h.log.Error("reply could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
	default:
		h.hold(m, true)
		if h.bus.Connected() {
			h.resend() // it came back in this instant, perhaps before it could wake us
		}
	}
	return true
}

// hold keeps a message until the connection is back. Unless first, it does so
// only behind others, and reports whether it did.
func (h *Host) hold(m *nats.Msg, first bool) bool {
	h.unsentMu.Lock()
	defer h.unsentMu.Unlock()
	if !first && !h.holding.Load() {
		return false
	}
	if len(h.unsent) >= maxUnsent || h.unsentLen+len(m.Data) > maxUnsentBytes {
		h.log.Error("reply lost: the connection is down and too many wait", slog.String("subject", m.Subject))
		return true
	}
	h.unsent = append(h.unsent, m)
	h.unsentLen += len(m.Data)
	h.holding.Store(true)
	return true
}

// resend sends what waited for the connection, in order.
func (h *Host) resend() {
	h.unsentMu.Lock()
	defer h.unsentMu.Unlock()
	n := 0
	for _, m := range h.unsent {
		if err := h.bus.Conn().PublishMsg(m); err != nil {
			if !h.bus.Connected() {
				break
			}
			h.log.Error("reply could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
		}
		h.unsentLen -= len(m.Data)
		n++
	}
	h.unsent = h.unsent[n:]
	if len(h.unsent) == 0 {
		h.unsent = nil
		h.holding.Store(false)
	}
}
