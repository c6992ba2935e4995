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
	"github.com/toolmesh/toolmesh/host/internal/batch"
	"github.com/toolmesh/toolmesh/host/internal/grants"
	"github.com/toolmesh/toolmesh/host/internal/once"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/quota"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/host/internal/sessions"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/cache"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	tickEvery = 250 * time.Millisecond
	// sweepEvery is how often what is remembered of calls is looked through.
	sweepEvery = time.Second
	// retireAfter is how long requests that have been received may wait for
	// somebody to look at them.
	retireAfter = 2 * time.Second
	// chunksFor is how long chunks are kept in their store.
	chunksFor = 15 * time.Minute
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
	streams  stream.Node
	replayer *chunks.Replayer
	chunked  chunked
	room     *chunks.Room
	routes   routes
	cache    *cache.Cache
	presence *presence.Presence
	store    *registry.Store
	records  records
	keys     *once.Keys
	replies  *reply.Replies
	lanes    *grants.Keeper
	payloads *payloads.Server
	args     *fair.Room[subjects.SessionID] // bytes of arguments, by account
	batches  atomic.Pointer[batch.Server]   // nil for a node that runs none
	relay    atomic.Pointer[client.Client]  // passes calls on; nil for a node that does not
	sessions *sessions.Sessions

	base    context.Context // ends with the host, as every call's context does
	end     context.CancelCauseFunc
	intake  *intake        // calls
	running runners        // replays
	workers sync.WaitGroup // ticker and the like
	quit    chan struct{}

	changing   sync.Mutex // held while what is served changes; taken before mu
	mu         sync.Mutex // guards what follows; nothing waits under it, but for the start
	state      state
	services   map[serviceKey]*service
	subs       map[*nats.Subscription]struct{} // of tools, also of such as are yet to be in a service, or to be retired
	shared     []*nats.Subscription            // of the node, not of a tool
	directed   *nats.Subscription
	micro      *bus.Service
	unlisten   func()
	stopOnce   sync.Once
	stopErr    error
	replaySub  *nats.Subscription
	payloadSub *nats.Subscription
	batchSub   *nats.Subscription
	batchOwn   *nats.Subscription
	retired    []*retiredRoute // to be taken out of routes by the ticker

	spentMu sync.Mutex
	spent   []string // names of arguments that nobody reads any more

	drainOnce sync.Once
	drained   chan struct{} // closed when the drain is over
	drainErr  error

	draining       atomic.Bool
	lastDirected   atomic.Int64
	refusedReplies atomic.Uint64
	relayed        atomic.Uint64 // calls that another node ran
	handled        atomic.Uint64
	failed         atomic.Uint64
	took           atomic.Int64 // ns, of all calls handled
	pace           pace         // of all calls
	failures       failures
	labels         atomic.Pointer[map[string]string] // as they were changed; nil while they are those of the options
	busy           atomic.Uint64                     // calls answered busy for want of a slot
	busyFor        atomic.Int64                      // ns, of all these: see [codec.Heartbeat]
	ticked         atomic.Pointer[time.Time]         // when the ticker last came by; nil while it does not run
}

type state uint8

const (
	stateNew state = iota
	stateServing
	stateStopped
)

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
	if err := b.Check(); err != nil {
		return nil, err
	}
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	boot := subjects.BootID(uuid.NewString())
	h := &Host{
		opts: o, bus: b, log: o.Logger, node: o.Node, boot: boot,
		identity: codec.NewIdentity(o.Node, boot, ""),
		calls:    admit.NewTable[*inflight](o.Slots, time.Now),
		replayer: chunks.NewReplayer(b, o.Logger),
		services: make(map[serviceKey]*service),
		subs:     make(map[*nats.Subscription]struct{}),
		quit:     make(chan struct{}),
		failures: newFailures(),
		args:     fair.NewRoom[subjects.SessionID](max(minArgsRoom, int64(o.Slots)*argsPerSlot)),
		drained:  make(chan struct{}),
		store:    registry.NewStore(b),
	}
	p, err := presence.New(b, h.node, boot, &presence.Options{
		Prepare: h.lay, Record: h.nodeRecord, Heartbeat: h.heartbeat, Logger: h.log,
		Write: func(ctx context.Context) error { return h.records.bring(ctx) },
	})
	if err != nil {
		return nil, err
	}
	h.presence = p
	h.intake = newIntake(h.receive)
	h.records.h = h
	h.base, h.end = context.WithCancelCause(context.Background())
	h.lanes = grants.New(grants.Options{Node: h.node, Boot: h.boot, Bus: store.Of(h.bus), Presence: h.presence, Log: h.log, Go: h.running.run})
	h.room = chunks.NewRoom(h.base, b, subjects.StreamChunks, h.running.run)
	known := sessions.Options{Bus: b, Store: h.store, Joined: p.Joined, Base: h.base, Go: h.running.run}
	if o.Sessions != nil {
		known.Admit = o.Sessions.Admit
	}
	h.sessions = sessions.New(known)
	h.payloads = payloads.NewServer(payloads.ServerOptions{
		Node: h.node, Bus: store.Of(b), Base: h.base, Max: o.PayloadMax, SessionCredentials: o.SessionCredentials,
		Go: h.running.run, Admit: func(session subjects.SessionID) error { _, err := h.sessions.Settled(session); return err }, Account: h.sessions.Account, Log: h.log,
	})
	h.replies = reply.New(reply.Options{
		Bus: b, Base: h.base, Log: h.log, Payloads: h.payloads, PayloadMax: o.PayloadMax, Account: h.sessions.Account, Load: h.load, Go: h.running.run,
	})
	h.cache = cache.New(o.CacheBytes, o.CacheEntries, h.replies.Fits)
	h.keys = once.New(once.Options{
		Node: h.node, Boot: boot, Bus: store.Of(b), Presence: p, Base: h.base, Log: h.log, Go: h.running.run, Fit: h.replies.Fit, Exited: errExited,
	})
	h.streams = stream.Node{
		ID: h.node, Base: h.base, Log: h.log, Host: h.replies, Go: h.running.run, Store: chunkStore{b, h.replayer, boot, &h.chunked},
		Quota: quota.New(o.StreamQuota, chunksFor, time.Now), Account: h.sessions.Account, Replays: fair.NewQueue[subjects.SessionID](maxReplays, maxWaiting, h.running.run),
	}
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
	h.settle(ctx)
	return nil
}

// checkRights refuses to begin where the broker would refuse most of what a node
// does: it would seem to serve.
func (h *Host) checkRights(ctx context.Context) error {
	heartbeat, errBeat := subjects.Heartbeat(h.node)
	tools, errTools := subjects.NodeTools(h.node)
	ctls, errCtls := subjects.NodeCtls(h.node)
	if err := errors.Join(errBeat, errTools, errCtls); err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return h.bus.CheckRights(ctx, "be a node: it needs the key of one", subjects.Rights{
		Publish:   []string{heartbeat, subjects.AllChunks, subjects.LiveTransform},
		Subscribe: []string{tools, ctls, subjects.AllCtl, subjects.AllReplay},
	})
}

// start is Start without what is written of the tools.
func (h *Host) start(ctx context.Context) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateNew || h.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the host was started, drained or stopped before: a host starts once")
	}
	if err := h.checkRights(ctx); err != nil {
		return err
	}
	if err := h.presence.Start(ctx); err != nil {
		h.sessions.Close()
		return err
	}
	h.state = stateServing
	h.intake.listen()
	if err := h.open(ctx); err != nil {
		h.state = stateStopped
		h.intake.close()
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
	h.workers.Go(h.followSessions)
	return nil
}

// lay makes what the node's lease and its streams need, and has the host's own
// view of sessions filled.
func (h *Host) lay(ctx context.Context) error {
	o := &h.opts
	err := store.Of(h.bus).Ensure(ctx, &store.Layout{Copies: o.Replicas, ChunksStorage: o.ChunksStorage, ChunksBytes: o.ChunksMax, PayloadsBytes: o.PayloadsMax})
	if err != nil {
		return err
	}
	return h.sessions.Open(ctx, h.log)
}

func (h *Host) nodeRecord() registry.NodeRecord {
	o := &h.opts
	return registry.NodeRecord{
		Node: h.node, Boot: h.boot, Version: o.Version, State: h.nodeState(),
		Slots: o.Slots, Labels: o.Labels, Proto: [2]int{codec.ProtoMin, codec.Proto}, Features: h.features(),
		Sandbox: registry.Sandbox(o.Sandbox), Memory: o.Memory, Limits: o.Limits, MaxLimits: o.MaxLimits, Reasons: o.Reasons, Started: time.Now().UTC(),
	}
}

func (h *Host) heartbeat() codec.Heartbeat {
	beat := codec.Heartbeat{
		Node: string(h.node), Boot: string(h.boot), State: string(h.nodeState()),
		Slots: h.opts.Slots, InFlight: h.calls.InFlight(),
		Calls: h.handled.Load(), Errors: h.failed.Load(), Relayed: h.relayed.Load(), Waiting: h.lanes.Waiting(),
		Busy: h.busy.Load(), BusyMS: uint64(time.Duration(h.busyFor.Load()).Milliseconds()), //nolint:gosec // it only grows
	}
	if now := h.bus.Time(); now.Measured {
		beat.NowMS, beat.BoundMS = now.Millis()
	}
	beat.Paces = h.paces()
	if h.opts.Queued != nil {
		beat.Queued = h.opts.Queued()
	}
	return beat
}

func (h *Host) nodeState() registry.NodeState {
	if h.draining.Load() {
		return registry.StateDraining
	}
	return registry.StateServing
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
	lanes, err := subjects.NodeLanes(h.node)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	pieces, err := subjects.NodePayloads(h.node)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	if h.directed, err = nc.ChanSubscribe(tools, h.intake.requests); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node's subject cannot be subscribed: %w", err)
	}
	for _, shared := range []struct {
		subject string
		handle  nats.MsgHandler
	}{{ctls, h.control}, {subjects.AllCtl, h.control}, {subjects.AllReplay, h.replayed}, {lanes, h.laneAsked}, {pieces, h.payloads.Serve}} {
		sub, err := nc.Subscribe(shared.subject, shared.handle)
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", shared.subject, err)
		}
		h.shared = append(h.shared, sub)
	}
	if h.replaySub, err = nc.QueueSubscribe(subjects.AllReplay, subjects.QueueGroup, h.replay); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", subjects.AllReplay, err)
	}
	if h.payloadSub, err = nc.QueueSubscribe(subjects.AllPayloads, subjects.QueueGroup, h.payloads.Serve); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", subjects.AllPayloads, err)
	}
	for _, s := range h.services {
		if err := h.claim(ctx, s); err != nil {
			return err
		}
		for _, o := range s.tools {
			if err := h.offer(o, nil); err != nil {
				return err
			}
		}
		h.records.replace(s)
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

// Label changes the node's labels: set ones are put, empty values removed.
func (h *Host) Label(ctx context.Context, labels map[string]string) error {
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
