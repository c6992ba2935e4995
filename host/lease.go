package host

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
)

// How long the registry may hold the host up; what does not succeed in that
// time goes on in the background, and unary calls are served meanwhile.
const (
	registryWait  = 5 * time.Second
	registryRetry = time.Second
	releaseWait   = 3 * time.Second
)

// lease keeps the node's lease, and has what the node serves written once there is
// one: see [records].
type lease struct {
	h     *Host
	store *registry.Store
	gone  chan struct{} // closed when another process took the node's id
	kick  chan struct{}
	done  chan struct{}
	wg    sync.WaitGroup

	sessions *registry.View // of the host's followed; nil before the first acquire

	joined atomic.Bool // the mesh's streams have been found

	mu      sync.Mutex
	held    *registry.Lease
	err     error
	without error // why the lease could not be taken yet
}

// start takes the lease. Only what the operator must hear of is an error: a
// node id in use, a stream that stores requests, a registry that is not ours.
func (l *lease) start(ctx context.Context, h *Host) error {
	l.h = h
	l.store = registry.NewStore(h.bus, nil)
	l.gone, l.kick, l.done = make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	attempt, cancel := context.WithTimeout(ctx, registryWait)
	err := l.acquire(attempt)
	cancel()
	if err != nil {
		if ctx.Err() != nil || !passes(err) {
			l.closeSessions()
			return err
		}
		l.without = err
		h.log.Warn("the registry is not reachable: calls are served, and it is tried again", slog.String("error", err.Error()))
	}
	l.wg.Go(l.loop)
	return nil
}

// passes reports whether what kept a node from its lease may be over a moment
// later, the attempt's own time included.
func passes(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || bus.IsUnavailable(err) && toolmesh.AsError(err).Retryable
}

func (l *lease) acquire(ctx context.Context) error {
	o := &l.h.opts
	err := l.h.bus.Ensure(ctx, &bus.Layout{Copies: o.Replicas, ChunksStorage: o.ChunksStorage, ChunksBytes: o.ChunksMax})
	if err != nil {
		return err
	}
	if l.h.followed != nil && l.sessions == nil {
		view, err := registry.OpenView(ctx, l.h.bus, &registry.ViewOptions{SessionsOnly: true, Logger: l.h.log})
		if err != nil {
			return err
		}
		l.sessions = view
		l.h.followed.Use(view)
	}
	held, err := registry.Acquire(ctx, l.h.bus, l.nodeRecord(), &registry.LeaseOptions{Logger: l.h.log})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.held, l.without = held, nil
	l.mu.Unlock()
	l.joined.Store(true)
	return nil
}

func (l *lease) nodeRecord() registry.NodeRecord {
	o := &l.h.opts
	return registry.NodeRecord{
		Node: l.h.node, Boot: l.h.boot, Version: o.Version, State: registry.NodeState(l.h.stateText()),
		Slots: o.Slots, Labels: o.Labels, Proto: [2]int{codec.ProtoMin, codec.Proto}, Features: codec.Features(),
		Sandbox: registry.Sandbox(o.Sandbox), Memory: o.Memory, Reasons: o.Reasons, Started: time.Now().UTC(),
	}
}

// loop takes the lease once the registry can be reached, writes what could not
// be written before, and hears of the lease's loss.
func (l *lease) loop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.wg.Go(func() {
		<-l.done
		cancel()
	})
	ticker := time.NewTicker(registryRetry)
	defer ticker.Stop()
	for {
		held := l.current()
		var lost <-chan struct{}
		if held != nil {
			lost = held.Lost()
		}
		select {
		case <-l.done:
			return
		case <-lost:
			l.mu.Lock()
			l.err = held.Err()
			l.mu.Unlock()
			l.h.standing.lost.Store(true)
			close(l.gone)
			return
		case <-l.kick:
		case <-ticker.C:
		}
		if held == nil {
			attempt, cancel := context.WithTimeout(ctx, registryWait)
			err := l.acquire(attempt)
			cancel()
			switch {
			case err == nil:
			case passes(err) || ctx.Err() != nil:
				continue
			default:
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
				l.h.log.Error("the node cannot join the registry", slog.String("error", err.Error()))
				close(l.gone)
				return
			}
		}
		attempt, cancel := context.WithTimeout(ctx, registryWait)
		if err := l.h.records.bring(attempt); err != nil && ctx.Err() == nil {
			l.h.log.Warn("the registry does not have all that the node serves", slog.String("error", err.Error()))
		}
		cancel()
	}
}

// wake has the loop try at once.
func (l *lease) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// current is the lease; nil as long as there is none.
func (l *lease) current() *registry.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// state writes the node's state into the lease.
func (l *lease) state(ctx context.Context) {
	held := l.current()
	if held == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	text := l.h.stateText()
	if err := held.Update(ctx, func(r *registry.NodeRecord) { r.State = registry.NodeState(text) }); err != nil {
		l.h.log.Warn("the lease does not have the node's state", slog.String("error", err.Error()))
	}
}

// update changes the labels in the lease.
func (l *lease) update(ctx context.Context, change func(*registry.NodeRecord)) error {
	held := l.current()
	if held == nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node has no lease: the registry is not reachable")
	}
	return held.Update(ctx, change)
}

// confirm renews the lease, if there is one, and notes where it is lost.
func (l *lease) confirm(ctx context.Context) error {
	held := l.current()
	if held == nil {
		return nil
	}
	err := held.Update(ctx, func(*registry.NodeRecord) {})
	if held.Err() != nil {
		l.h.standing.lost.Store(true)
	}
	return err
}

func (l *lease) lost() <-chan struct{} { return l.gone }

// missing is why the registry does not know this node yet.
func (l *lease) missing() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.without
}

func (l *lease) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lease) closeSessions() {
	if l.sessions != nil {
		l.sessions.Close()
		l.sessions = nil
	}
}

// stop takes the node out of the registry.
func (l *lease) stop(ctx context.Context) {
	if l.h == nil {
		return
	}
	close(l.done)
	l.wg.Wait()
	l.closeSessions()
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	if held == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWait)
	defer cancel()
	if err := held.Release(ctx); err != nil {
		l.h.log.Warn("the node's records stay until they expire", slog.String("error", err.Error()))
	}
}
