package presence

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// BeatEvery is how often a heartbeat is sent.
	BeatEvery = time.Second
	// AttemptWait is how long one attempt at the registry may take. What does not
	// succeed in that time goes on in the background.
	AttemptWait = 5 * time.Second

	retryEvery  = time.Second     // without a lease, and for what is yet to be written
	releaseWait = 3 * time.Second // for the last writes of a node that leaves
)

// Options are the functions through which a [Presence] sees its node. All of them are
// needed, and may be called concurrently.
type Options struct {
	// Prepare makes what the lease needs, before each attempt to take it.
	Prepare func(context.Context) error
	// Record is the node's record, as it is now.
	Record func() registry.NodeRecord
	// Heartbeat is what the node says of itself, as it is now.
	Heartbeat func() codec.Heartbeat
	// Write has the registry follow what the node serves. It is called once there is a
	// lease, then each second and after [Presence.Wake]. What failed is tried again.
	Write func(context.Context) error
	// Logger takes what happens.
	Logger *slog.Logger
}

// Presence is a process's claim to one node. Its methods may be called concurrently.
type Presence struct {
	bus     *bus.Bus
	opts    Options
	log     *slog.Logger
	boot    string // of this process
	subject string // of the node's heartbeats

	gone     chan struct{} // closed when the process has to stop: see Lost
	done     chan struct{} // closed by Stop
	wake     chan struct{} // something is to be written
	announce chan struct{} // a heartbeat is to be sent now
	question chan struct{} // asking was set
	wg       sync.WaitGroup

	// What each request looks at; changed under mu.
	until  atomic.Pointer[time.Time] // up to when this process is the node for certain
	lost   atomic.Bool               // another process is the node
	joined atomic.Bool               // there has been a lease

	// speaking is held while a heartbeat is noted and handed to the connection, and
	// while a new connection is noted, so that sent is in the connection's order.
	speaking sync.Mutex // taken before mu

	mu       sync.Mutex // guards what follows; nothing is sent and nothing waits under it
	started  bool
	cancel   context.CancelFunc
	sub      *nats.Subscription // of the node's heartbeats
	unlisten func()
	lease    *registry.Lease
	err      error         // why the process has to stop
	without  error         // why the lease could not be taken yet
	doubts   uint64        // how often another boot was heard in the node's name
	beat     time.Time     // when the last heartbeat was sent
	sent     []time.Time   // of the heartbeats that have not come back, in order
	asking   chan struct{} // closed when the registry has been asked; nil: nobody waits
}

// New returns the presence of a node, whose heartbeats have a subject. Nothing is sent before
// [Presence.Start].
func New(b *bus.Bus, subject string, boot subjects.BootID, opts *Options) *Presence {
	return &Presence{
		bus: b, opts: *opts, log: opts.Logger, boot: string(boot), subject: subject,
		gone: make(chan struct{}), done: make(chan struct{}),
		wake: make(chan struct{}, 1), announce: make(chan struct{}, 1), question: make(chan struct{}, 1),
	}
}

// Start takes the lease, and begins to beat. Only what the operator must hear of is an
// error: a node id in use, a stream that stores requests, a registry that is not ours.
// A registry that is not reachable is tried again in the background. After an error
// nothing runs. It is called once.
func (p *Presence) Start(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, AttemptWait)
	err := p.acquire(attempt)
	cancel()
	if err != nil {
		if ctx.Err() != nil || !passes(err) {
			return err
		}
		p.log.Warn("the registry is not reachable: calls are served, and it is tried again", slog.String("error", err.Error()))
	}
	sub, bad := p.bus.Conn().Subscribe(p.subject, p.heard)
	if bad != nil {
		p.release(ctx)
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", p.subject, bad)
	}
	unlisten := p.bus.OnState(func(s bus.State) {
		if s.Connected {
			p.reconnected()
		}
	})
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.mu.Lock()
	p.started, p.without, p.sub, p.unlisten, p.cancel = true, err, sub, unlisten, stop
	p.extend(time.Now())
	p.mu.Unlock()
	p.wg.Go(func() { p.follow(running) })
	p.wg.Go(func() { p.speak(running) })
	p.Announce()
	return nil
}

// passes reports whether what kept a node from its lease may be over a moment
// later, the attempt's own time included.
func passes(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || store.IsUnavailable(err) && toolmesh.AsError(err).Retryable
}

func (p *Presence) acquire(ctx context.Context) error {
	if err := p.opts.Prepare(ctx); err != nil {
		return err
	}
	lease, err := registry.Acquire(ctx, p.bus, p.opts.Record(), p.log)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.lease, p.without = lease, nil
	p.joined.Store(true)
	p.mu.Unlock()
	return nil
}

// follow is the goroutine that takes the lease once the registry can be reached, has
// written what could not be written before, and hears of the lease's loss.
func (p *Presence) follow(ctx context.Context) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		lease := p.Lease()
		var lost <-chan struct{}
		if lease != nil {
			lost = lease.Lost()
		}
		select {
		case <-ctx.Done():
			return
		case <-lost:
			p.lose(lease.Err())
			close(p.gone)
			return
		case <-p.wake:
		case <-ticker.C:
		}
		if lease == nil {
			attempt, cancel := context.WithTimeout(ctx, AttemptWait)
			err := p.acquire(attempt)
			cancel()
			switch {
			case err == nil:
			case passes(err) || ctx.Err() != nil:
				continue
			default:
				p.mu.Lock()
				p.err = err
				p.mu.Unlock()
				p.log.Error("the node cannot join the registry", slog.String("error", err.Error()))
				close(p.gone)
				return
			}
		}
		attempt, cancel := context.WithTimeout(ctx, AttemptWait)
		if err := p.opts.Write(attempt); err != nil && ctx.Err() == nil {
			p.log.Warn("the registry does not have all that the node serves", slog.String("error", err.Error()))
		}
		cancel()
	}
}

// Wake has [Options.Write] called soon.
func (p *Presence) Wake() { wake.Up(p.wake) }

// Lease is the node's lease; nil as long as there is none, and after Stop.
func (p *Presence) Lease() *registry.Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lease
}

// Joined reports whether there has been a lease, and with it all that Prepare makes.
func (p *Presence) Joined() bool { return p.joined.Load() }

// Lost is closed when the process has to stop, as another one has become the node or
// the registry will never take it: see [Presence.Err].
func (p *Presence) Lost() <-chan struct{} { return p.gone }

// Err is why the process has to stop; nil while it has not.
func (p *Presence) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Missing is why the registry does not know this node yet; nil once it does.
func (p *Presence) Missing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.without
}

// Update changes the node's record. The error is unavailable without a lease, and what
// [registry.Lease.Update] says.
func (p *Presence) Update(ctx context.Context, change func(*registry.NodeRecord)) error {
	lease := p.Lease()
	if lease == nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node has no lease: the registry is not reachable")
	}
	return lease.Update(ctx, change)
}

// Held is from when and until when the node's lease is held for certain, zero without one:
// see [registry.Lease.Held].
func (p *Presence) Held() (since, until time.Time) {
	if lease := p.Lease(); lease != nil {
		return lease.Held()
	}
	return since, until
}

// Rely has the node's lease, if there is one, end soon after the node: see
// [registry.Lease.Rely].
func (p *Presence) Rely(ctx context.Context) error {
	if lease := p.Lease(); lease != nil {
		return lease.Rely(ctx)
	}
	return nil
}

// NodeLost reports whether a start of a node has no lease any more, and whether that has
// expired. What a node has granted may still be valid if its lease was given back or taken
// over.
func (p *Presence) NodeLost(ctx context.Context, node subjects.NodeID, boot subjects.BootID) (lost, expired bool, err error) {
	name, err := subjects.NodeKey(node)
	if err != nil {
		return true, true, nil //nolint:nilerr // no such node can exist
	}
	entry, err := store.Of(p.bus).Latest(ctx, store.Key{Bucket: subjects.BucketNodes, Name: name})
	switch {
	case errors.Is(err, store.ErrNoKey):
		return true, !errors.Is(err, store.ErrDeleted), nil
	case err != nil:
		return false, false, err
	}
	var lease struct {
		Boot subjects.BootID `json:"boot"`
	}
	return json.Unmarshal(entry.Value, &lease) != nil || lease.Boot != boot, false, nil
}

// State says a new state of the node at once, in its heartbeat and in its lease, if
// it has one. It waits for the lease, at most for 3 s.
func (p *Presence) State(ctx context.Context, state registry.NodeState) {
	p.Announce()
	if p.Lease() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	if err := p.Update(ctx, func(r *registry.NodeRecord) { r.State = state }); err != nil {
		p.log.Warn("the lease does not have the node's state", slog.String("error", err.Error()))
	}
}

// Stop ends the heartbeats and takes the node out of the registry. It is called once;
// without a Start that succeeded it does nothing.
func (p *Presence) Stop(ctx context.Context) {
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	if !started {
		return
	}
	close(p.done)
	p.cancel()
	p.wg.Wait()
	p.unlisten()
	_ = p.sub.Unsubscribe()
	p.release(ctx)
}

func (p *Presence) release(ctx context.Context) {
	p.mu.Lock()
	lease := p.lease
	p.lease = nil
	p.mu.Unlock()
	if lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		p.log.Warn("the node's records stay until they expire", slog.String("error", err.Error()))
	}
}
