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
	// BeatEvery is the interval of heartbeats.
	BeatEvery = time.Second
	// AttemptWait bounds one attempt at the registry. An attempt that fails is repeated in the
	// background.
	AttemptWait = 5 * time.Second

	retryEvery  = time.Second     // without a lease, and for pending writes
	releaseWait = 3 * time.Second // for the last writes of a node that leaves
)

// Options are the functions of a [Presence]'s node. All are required, and may be called
// concurrently.
type Options struct {
	// Prepare makes the missing streams and buckets: see [registry.Acquire].
	Prepare func(context.Context) error
	// Record is the node's current record.
	Record func() registry.NodeRecord
	// Heartbeat is the node's current heartbeat.
	Heartbeat func() codec.Heartbeat
	// Write updates the registry with the node's tools. It is called once there is a lease,
	// then each second and after [Presence.Wake]. Failures are retried.
	Write func(context.Context) error
	// Logger receives events.
	Logger *slog.Logger
}

// Presence is a process's claim to one node. Its methods may be called concurrently.
type Presence struct {
	bus     *bus.Bus
	opts    Options
	log     *slog.Logger
	boot    string // of this process
	subject string // of the node's heartbeats

	gone     chan struct{} // closed when the process must stop: see Lost
	done     chan struct{} // closed by Stop
	wake     chan struct{} // a write is pending
	announce chan struct{} // a heartbeat is due now
	question chan struct{} // asking was set
	wg       sync.WaitGroup

	// Read by each request; changed under mu.
	until atomic.Pointer[time.Time]      // this process is certainly the node until then
	lost  atomic.Bool                    // another process is the node
	lease atomic.Pointer[registry.Lease] // nil until it is taken, and from the end on

	// speaking is held while a heartbeat is recorded and passed to the connection, and
	// while a new connection is recorded, so that sent is in the connection's order.
	speaking sync.Mutex // taken before mu

	mu       sync.Mutex // guards the fields below; never held while sending or waiting
	started  bool
	cancel   context.CancelFunc
	sub      *nats.Subscription // of the node's heartbeats
	unlisten func()
	err      error         // why the process must stop
	without  error         // why the start did not take the lease
	doubts   uint64        // heartbeats of other boots in the node's name
	beat     time.Time     // when the last heartbeat was sent
	sent     []time.Time   // of the heartbeats that have not come back, in order
	asking   chan struct{} // closed when the registry has answered; nil without a waiter
}

// New returns the presence of a node with this subject for heartbeats. It sends nothing before
// [Presence.Start].
func New(b *bus.Bus, subject string, boot subjects.BootID, opts *Options) *Presence {
	return &Presence{
		bus: b, opts: *opts, log: opts.Logger, boot: string(boot), subject: subject,
		gone: make(chan struct{}), done: make(chan struct{}),
		wake: make(chan struct{}, 1), announce: make(chan struct{}, 1), question: make(chan struct{}, 1),
	}
}

// Start takes the lease and starts heartbeats. It fails only if the operator must act: a node id
// in use, a stream that stores requests, or a foreign registry. An unreachable registry is
// retried in the background. After an error nothing runs. Call it once.
func (p *Presence) Start(ctx context.Context) error {
	err := p.acquire(ctx)
	for errors.Is(err, registry.ErrRunning) && passes(err) && ctx.Err() == nil {
		p.log.Warn("it is unknown whether another process has the node id: it is listened for again", slog.String("error", err.Error()))
		err = p.acquire(ctx) // the other may only be frozen: nothing is served in its name
	}
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

// passes reports whether the cause that kept a node from its lease may be over a moment
// later, including the attempt's own time.
func passes(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || store.IsUnavailable(err) && toolmesh.AsError(err).Retryable
}

// acquire is one attempt to take the lease.
func (p *Presence) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, AttemptWait)
	defer cancel()
	lease, err := registry.Acquire(ctx, p.bus, p.opts.Record(), p.opts.Prepare, p.log)
	if err != nil {
		return err
	}
	p.lease.Store(lease)
	return nil
}

// follow takes the lease once the registry can be reached, repeats failed writes, and notices
// the lease's loss. It is a goroutine.
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
			err := p.acquire(ctx)
			switch {
			case err == nil:
			case passes(err) || ctx.Err() != nil:
				continue
			default:
				p.mu.Lock()
				p.err = err
				p.mu.Unlock()
				p.lost.Store(errors.Is(err, registry.ErrRunning))
				p.log.Error("node could not join the registry", slog.String("error", err.Error()))
				close(p.gone)
				return
			}
		}
		attempt, cancel := context.WithTimeout(ctx, AttemptWait)
		if err := p.opts.Write(attempt); err != nil && ctx.Err() == nil {
			p.log.Warn("tools of the node could not be written to the registry: it is tried again", slog.String("error", err.Error()))
		}
		cancel()
	}
}

// Wake makes [Options.Write] be called soon.
func (p *Presence) Wake() { wake.Up(p.wake) }

// Lease is the node's lease; nil until it is taken, and after Stop.
func (p *Presence) Lease() *registry.Lease { return p.lease.Load() }

// Joined reports whether the lease was taken, and so Prepare succeeded.
func (p *Presence) Joined() bool { return p.Lease() != nil }

// Lost is closed when the process must stop, because another one has become the node or the
// registry will never accept it: see [Presence.Err].
func (p *Presence) Lost() <-chan struct{} { return p.gone }

// Err is why the process must stop; nil otherwise.
func (p *Presence) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Missing is why the registry does not know this node yet; nil once it does.
func (p *Presence) Missing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Joined() {
		return nil
	}
	return p.without
}

// Update changes the node's record. The error is unavailable without a lease, otherwise that of
// [registry.Lease.Update].
func (p *Presence) Update(ctx context.Context, change func(*registry.NodeRecord)) error {
	lease := p.Lease()
	if lease == nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node has no lease: the registry is not reachable")
	}
	return lease.Update(ctx, change)
}

// Held returns from when and until when the node certainly holds its lease, zero without one: see
// [registry.Lease.Held].
func (p *Presence) Held() (since, until time.Time) {
	if lease := p.Lease(); lease != nil {
		return lease.Held()
	}
	return since, until
}

// Rely makes the node's lease, if it has one, end soon after the node: see
// [registry.Lease.Rely].
func (p *Presence) Rely(ctx context.Context) error {
	if lease := p.Lease(); lease != nil {
		return lease.Rely(ctx)
	}
	return nil
}

// NodeLost reports whether a start of a node has lost its lease, and whether by expiry. Grants
// of the node may still be valid if its lease was released or taken over.
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

// State announces a new state of the node at once, in its heartbeat and in its lease, if it has
// one. It waits for the lease, at most 3 s.
func (p *Presence) State(ctx context.Context, state registry.NodeState) {
	p.Announce()
	if p.Lease() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	if err := p.Update(ctx, func(r *registry.NodeRecord) { r.State = state }); err != nil {
		p.log.Warn("state of the node could not be written to its lease", slog.String("error", err.Error()))
	}
}

// Stop ends the heartbeats and removes the node from the registry. Call it once; it does nothing
// without a successful Start.
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
	lease := p.lease.Swap(nil)
	if lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		p.log.Warn("records of the node could not be removed: they stay until they expire", slog.String("error", err.Error()))
	}
}
