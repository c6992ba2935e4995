package host

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/grants"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/host/internal/sessions"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/cache"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	tickEvery = 250 * time.Millisecond
	// sweepEvery is the interval of the sweep of records of ended calls.
	sweepEvery = time.Second
	// retireAfter is how long requests that have been received may wait
	// until the host reads them.
	retireAfter = 2 * time.Second
	// chunksFor is how long chunks are kept in their store.
	chunksFor = 15 * time.Minute
)

// Host makes a process a node. Its methods may be called concurrently.
type Host struct {
	*core
	ownBus    bool
	intake    *intake    // requests become calls
	runner    *runner    // calls run, and are answered
	publisher *publisher // services, and their records in the registry
	listeners *listeners // the goroutines of requests
	workers   sync.WaitGroup
	quit      chan struct{} // closed when no call is in flight

	// Subscriptions of the node, not of a tool; publisher.mu guards them.
	shared   []*nats.Subscription // until the end
	directed []*nats.Subscription // of requests to this node: until the drain is over
	stored   []*nats.Subscription // for stored chunks and files; drained after the calls
	micro    *bus.Service

	unlisten  func()
	stopOnce  sync.Once
	stopErr   error
	drainOnce sync.Once
	drainErr  error

	labels atomic.Pointer[map[string]string] // as they were changed; nil while they are those of the options
	ticked atomic.Pointer[time.Time]         // when the ticker last came by; nil while it does not run
}

// core is shared by all parts of a host: the node's identity, and the packages that own state.
// Its fields are set before the host starts.
type core struct {
	opts     Options
	bus      *bus.Bus
	log      *slog.Logger
	node     subjects.NodeID
	boot     subjects.BootID
	identity *codec.Identity // of answers that belong to no tool

	base       context.Context // ends with the host, as every call's context does
	end        context.CancelCauseFunc
	background background

	presence *presence.Presence
	store    *registry.Store
	sessions *sessions.Sessions
	calls    *admit.Table[*inflight]
	routes   routes
	lanes    *grants.Lanes
	payloads *payloads.Server
	replies  *reply.Replies
	cache    *cache.Cache
	relay    atomic.Pointer[client.Client] // passes calls on; nil for a node that does not
	counts   counts
	draining atomic.Bool
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

// NewOn is [New] on a connection that others share, which has one inbox for all of them. It
// outlives the host.
func NewOn(conn registry.Conn, opts *Options) (*Host, error) {
	b := bus.Of(conn)
	if err := b.Check(); err != nil {
		return nil, err
	}
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	records, err := registry.NewStore(b)
	if err != nil {
		return nil, err
	}
	boot := subjects.BootID(uuid.NewString())
	k := &core{
		opts: o, bus: b, log: o.Logger, node: o.Node, boot: boot, identity: codec.NewIdentity(o.Node, boot, ""),
		calls: admit.NewTable[*inflight](o.Slots, time.Now), store: records, counts: counts{failures: newFailures()},
	}
	h := &Host{core: k, quit: make(chan struct{})}
	k.presence = presence.New(b, k.own(subjects.Heartbeat), boot, &presence.Options{
		Prepare: h.lay, Record: h.nodeRecord, Heartbeat: h.heartbeat, Logger: k.log,
		Write: func(ctx context.Context) error { return h.publisher.records.bring(ctx) },
	})
	k.base, k.end = context.WithCancelCause(context.Background())
	k.lanes = grants.New(grants.Options{Node: o.Node, Boot: boot, Bus: store.Of(b), Presence: k.presence, Log: k.log, Go: k.background.Go})
	known := sessions.Options{Bus: b, Store: k.store, Joined: k.presence.Joined, Base: k.base, Go: k.background.Go}
	if o.Sessions != nil {
		known.Admit, known.Ended = o.Sessions.Admit, o.Sessions.Ended
	}
	k.sessions = sessions.New(known)
	k.payloads = payloads.NewServer(payloads.ServerOptions{
		Node: o.Node, Bus: store.Of(b), Base: k.base, Max: o.PayloadMax,
		Go: k.background.Go, Admit: func(session subjects.SessionID) error { _, err := k.sessions.Settled(session); return err }, Account: k.sessions.Account, Log: k.log,
	})
	k.replies = reply.New(reply.Options{
		Bus: b, Base: k.base, Log: k.log, Payloads: k.payloads, Account: k.sessions.Account, Load: k.load, Go: k.background.Go,
	})
	k.cache = cache.New(o.CacheBytes, o.CacheEntries, k.replies.Fits)
	h.runner = newRunner(k)
	h.intake = &intake{core: k, run: h.runner, streams: newStreams(k)}
	h.listeners = newListeners(h.intake.receive)
	h.publisher = newPublisher(k, h.listeners.requests)
	return h, nil
}

// Node is the node's id.
func (h *Host) Node() subjects.NodeID { return h.node }

// Boot is the id of this start of the node.
func (h *Host) Boot() subjects.BootID { return h.boot }

// Start makes the process a node: it takes the lease, subscribes, and beats its
// heart. It refuses where another live process has the node's id, and where a
// stream stores the requests of tools. Without JetStream it serves unary calls
// and catches up when JetStream is there.
func (h *Host) Start(ctx context.Context) error {
	if err := h.start(ctx); err != nil {
		return err
	}
	h.publisher.settle(ctx)
	return nil
}

// checkRights refuses to start if the broker denies most of a node's subjects: the node would
// seem to serve.
func (h *Host) checkRights(ctx context.Context) error {
	return h.bus.CheckRights(ctx, "be a node: it needs the key of one", subjects.Rights{
		Publish:   []string{h.own(subjects.Heartbeat), subjects.AllChunks, subjects.LiveTransform},
		Subscribe: []string{h.own(subjects.NodeTools), h.own(subjects.NodeCtls), subjects.AllCtl, subjects.AllReplay},
	})
}

// own returns a subject of the node. [Options.validate] has checked its id.
func (k *core) own(of func(subjects.NodeID) (string, error)) string {
	subject, _ := of(k.node)
	return subject
}

// start is Start without the tools' records.
func (h *Host) start(ctx context.Context) error {
	h.publisher.changing.Lock()
	defer h.publisher.changing.Unlock()
	h.publisher.mu.Lock()
	defer h.publisher.mu.Unlock()
	if h.publisher.state != stateNew || h.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the host was started, drained or stopped before: a host starts once")
	}
	if err := h.checkRights(ctx); err != nil {
		return err
	}
	if err := h.presence.Start(ctx); err != nil {
		h.sessions.Close()
		return err
	}
	h.publisher.state = stateServing
	h.listeners.listen()
	if err := h.open(ctx); err != nil {
		h.publisher.state = stateStopped
		h.listeners.close()
		h.closeSubscriptions()
		h.presence.Stop(ctx)
		h.sessions.Close()
		return err
	}
	h.unlisten = h.bus.OnState(func(s bus.State) {
		if s.Connected {
			h.replies.Resend()
		}
	})
	h.workers.Go(h.tick)
	h.workers.Go(func() { h.publisher.followSessions(h.quit) })
	return nil
}

// lay creates the buckets and streams that a node needs, and fills the host's own view of
// sessions. After the first time it only makes what is missing.
func (h *Host) lay(ctx context.Context) error {
	layout, lay := store.Layout(h.opts.StoreOptions), store.Of(h.bus).Ensure
	if h.presence.Joined() {
		lay = store.Of(h.bus).Restore
	}
	if err := lay(ctx, &layout); err != nil {
		return err
	}
	return h.sessions.Open(ctx, h.log)
}

func (h *Host) nodeRecord() registry.NodeRecord {
	o := &h.opts
	return registry.NodeRecord{
		Node: h.node, Boot: h.boot, Version: o.Version, State: h.nodeState(),
		Slots: o.Slots, Labels: o.Labels, Proto: [2]int{codec.ProtoMin, codec.Proto}, Features: h.features(),
		Sandbox: o.Sandbox, Memory: o.Memory, Limits: o.Limits, MaxLimits: o.MaxLimits, Reasons: o.Reasons, Started: time.Now().UTC(),
	}
}

func (h *Host) heartbeat() codec.Heartbeat {
	f := h.Figures()
	beat := codec.Heartbeat{
		Node: string(h.node), Boot: string(h.boot), State: string(h.nodeState()), Slots: f.Slots, InFlight: f.InFlight, Queued: f.Queued,
		Calls: f.Calls, Errors: f.Errors, Relayed: f.Relayed, Waiting: f.Waiting, Paces: h.paces(),
		Busy: f.Busy, BusyMS: uint64(time.Duration(h.counts.busyFor.Load()).Milliseconds()), //nolint:gosec // it only grows
	}
	if now := h.bus.Time(); now.Measured {
		beat.NowMS, beat.BoundMS = now.Millis()
	}
	return beat
}

func (k *core) nodeState() registry.NodeState {
	if k.draining.Load() {
		return registry.StateDraining
	}
	return registry.StateServing
}

// open subscribes the node's own subjects and those of its tools; publisher.mu is held.
func (h *Host) open(ctx context.Context) error {
	nc, tools := h.bus.Conn(), h.own(subjects.NodeTools)
	group := func(subject string, f nats.MsgHandler) (*nats.Subscription, error) {
		return nc.QueueSubscribe(subject, subjects.QueueGroup, f)
	}
	for _, s := range []struct {
		to        *[]*nats.Subscription
		subject   string
		subscribe func(string, nats.MsgHandler) (*nats.Subscription, error)
		handle    nats.MsgHandler
	}{
		{&h.directed, tools, h.subscribeRequests, nil},
		{&h.shared, h.own(subjects.NodeCtls), nc.Subscribe, h.intake.control},
		{&h.shared, subjects.AllCtl, nc.Subscribe, h.intake.control},
		{&h.shared, subjects.AllReplay, nc.Subscribe, h.intake.streams.replayed},
		{&h.shared, h.own(subjects.NodeLanes), nc.Subscribe, h.laneAsked},
		{&h.shared, h.own(subjects.NodePayloads), nc.Subscribe, h.payloads.Serve},
		{&h.stored, subjects.AllReplay, group, h.intake.streams.replay},
		{&h.stored, subjects.AllPayloads, group, h.payloads.Serve},
	} {
		sub, err := s.subscribe(s.subject, s.handle)
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "subscribe %s: %w", s.subject, err)
		}
		*s.to = append(*s.to, sub)
	}
	if err := h.publisher.open(ctx); err != nil {
		return err
	}
	if h.opts.Service != "-" {
		var err error
		h.micro, err = h.bus.StartService(bus.ServiceConfig{
			Name: h.opts.Service, Version: h.opts.Version, Description: "a node of the mesh",
			Metadata: map[string]string{"node": string(h.node), "boot": string(h.boot), "proto": "1"},
			Endpoint: "calls", Subject: tools,
			Stats: func() bus.ServiceStats {
				all := h.Figures()
				return bus.ServiceStats{Requests: all.Calls, Errors: all.Errors, Took: time.Duration(h.counts.took.Load()), Data: all}
			},
		})
		if err != nil {
			return err
		}
	}
	return h.publisher.flush(ctx)
}

// subscribeRequests has the listeners take the requests on a subject of this node.
func (h *Host) subscribeRequests(subject string, _ nats.MsgHandler) (*nats.Subscription, error) {
	return h.bus.Conn().ChanSubscribe(subject, h.listeners.requests)
}

// Label changes the node's labels: set ones are put, empty values removed.
func (h *Host) Label(ctx context.Context, labels map[string]string) error {
	set := registry.Labels(maps.Clone(labels))
	maps.DeleteFunc(set, func(_, value string) bool { return value == "" })
	if err := set.Check(); err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return h.presence.Update(ctx, func(r *registry.NodeRecord) {
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
		h.labels.Store(&next)
	})
}

// Labels are the node's labels as they are now. They are shared: do not change them.
func (h *Host) Labels() map[string]string {
	if now := h.labels.Load(); now != nil {
		return *now
	}
	return h.opts.Labels
}

// Lost is closed when another process has taken the node's id: the node must
// stop, its callers count it as lost. [Host.Run] does so by itself.
func (h *Host) Lost() <-chan struct{} { return h.presence.Lost() }

// Err is why the node is lost; nil while it is not.
func (h *Host) Err() error { return h.presence.Err() }

// Unregistered is why the registry could not be reached, or not be made, when the
// host started; nil once the node is in it. Unary calls are served meanwhile.
func (h *Host) Unregistered() error { return h.presence.Missing() }

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
	case <-h.presence.Lost():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(h.presence.Err(), h.Stop(stop))
}
