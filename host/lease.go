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
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// How long the registry may hold the host up; what does not succeed in that
// time goes on in the background, and unary calls are served meanwhile.
const (
	registryWait  = 5 * time.Second
	registryRetry = time.Second
	releaseWait   = 3 * time.Second
)

// lease keeps what the registry knows of this node: the lease itself, and what
// the node serves.
type lease struct {
	h     *Host
	store *registry.Store
	gone  chan struct{} // closed when another process took the node's id
	kick  chan struct{}
	done  chan struct{}
	wg    sync.WaitGroup

	sessions *registry.View // of the host's followed; nil before the first acquire

	joined atomic.Bool // the mesh's streams have been found

	writing sync.Mutex // one writer at a time

	mu      sync.Mutex
	held    *registry.Lease
	wanted  map[serviceKey]*service // what is to be written, by service
	stale   map[serviceKey]bool     // of wanted: not written yet
	remove  map[subjects.ToolsKey]bool
	claimed map[serviceKey]bool
	err     error
	without error // why the lease could not be taken yet
}

// start takes the lease. Only what the operator must hear of is an error: a
// node id in use, a stream that stores requests, a registry that is not ours.
func (l *lease) start(ctx context.Context, h *Host) error {
	l.h = h
	l.store = registry.NewStore(h.bus, nil)
	l.gone, l.kick, l.done = make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	l.wanted, l.stale, l.remove = make(map[serviceKey]*service), make(map[serviceKey]bool), make(map[subjects.ToolsKey]bool)
	l.claimed = make(map[serviceKey]bool)
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
		l.mu.Lock()
		held := l.held
		l.mu.Unlock()
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
		if err := l.write(attempt); err != nil && ctx.Err() == nil {
			l.h.log.Warn("the registry does not have all that the node serves", slog.String("error", err.Error()))
		}
		cancel()
	}
}

// write sends what is new to the registry: the descriptors before the routes
// that name them.
func (l *lease) write(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	held := l.held
	var todo []*service
	for key := range l.stale {
		todo = append(todo, l.wanted[key])
	}
	remove := make([]subjects.ToolsKey, 0, len(l.remove))
	for key := range l.remove {
		remove = append(remove, key)
	}
	l.mu.Unlock()
	if held == nil {
		return nil
	}
	for _, key := range remove {
		if err := held.Withdraw(ctx, key); err != nil {
			return err
		}
		l.mu.Lock()
		delete(l.remove, key)
		l.mu.Unlock()
	}
	for _, s := range todo {
		if err := l.writeService(ctx, held, s); err != nil {
			return err
		}
		l.mu.Lock()
		key := serviceKey{s.Index, s.Session}
		if l.wanted[key] == s {
			delete(l.stale, key)
		}
		l.mu.Unlock()
	}
	return nil
}

// claim claims the name of an index for its source, once for each.
func (l *lease) claim(ctx context.Context, s Service) error {
	if s.Claim == "" || l.h == nil {
		return nil
	}
	key := serviceKey{s.Index, s.Session}
	l.mu.Lock()
	done := l.held == nil || l.claimed[key]
	l.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, registryWait)
	defer cancel()
	err := l.store.ClaimIndex(ctx, registry.IndexRecord{
		Name: s.Index, Session: s.Session, Source: s.Claim, Revision: s.Revision, State: registry.IndexInstalled,
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.claimed[key] = true
	l.mu.Unlock()
	return nil
}

func (l *lease) writeService(ctx context.Context, held *registry.Lease, s *service) error {
	if err := l.claim(ctx, s.Service); err != nil {
		return err
	}
	all := registry.ToolsRecord{Session: s.Session, Index: s.Index, Revision: s.Revision}
	if s.Session != "" {
		if err := l.h.bind(ctx, s); err != nil {
			return err
		}
		all.Epoch = *s.tenure.epoch.Load()
	}
	for _, t := range s.Tools {
		route, err := l.describe(ctx, t.Descriptor)
		if err != nil {
			return err
		}
		route.Notice = t.Notice
		all.Tools = append(all.Tools, route)
	}
	for _, u := range s.Unavailable {
		route := registry.ToolRoute{ID: u.ID}
		if u.Descriptor != nil {
			var err error
			if route, err = l.describe(ctx, u.Descriptor); err != nil {
				return err
			}
		}
		route.State, route.Reason = registry.ToolUnavailable, u.Reason
		all.Tools = append(all.Tools, route)
	}
	if s.Index != "" {
		return held.Publish(ctx, all)
	}
	for _, route := range all.Tools {
		one := all
		one.Tools = []registry.ToolRoute{route}
		if err := held.Publish(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// describe stores a descriptor and returns the route to its tool.
func (l *lease) describe(ctx context.Context, d *tool.Descriptor) (registry.ToolRoute, error) {
	digest, err := l.store.PutDescriptor(ctx, d)
	if err != nil {
		return registry.ToolRoute{}, err
	}
	a := d.Annotations
	return registry.ToolRoute{
		ID: d.ID, Digest: digest, Streaming: a.Streaming, Idempotent: a.Idempotent, ParallelSafe: a.ParallelSafe,
	}, nil
}

// record has a service written, and waits a moment for it.
func (l *lease) record(ctx context.Context, s *service, before *service) {
	if l.h == nil {
		return
	}
	key := serviceKey{s.Index, s.Session}
	l.mu.Lock()
	l.wanted[key] = s
	l.stale[key] = true
	for _, old := range toolsKeys(before) {
		l.remove[old] = true
	}
	for _, now := range toolsKeys(s) {
		delete(l.remove, now)
	}
	l.mu.Unlock()
	l.settle(ctx)
}

// again has a service written once more, if it is still served.
func (l *lease) again(s *service) {
	key := serviceKey{s.Index, s.Session}
	l.mu.Lock()
	if l.wanted[key] == s {
		l.stale[key] = true
	}
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// withdraw has a service's records deleted.
func (l *lease) withdraw(ctx context.Context, s *service) {
	if l.h == nil {
		return
	}
	key := serviceKey{s.Index, s.Session}
	l.mu.Lock()
	delete(l.wanted, key)
	delete(l.stale, key)
	for _, old := range toolsKeys(s) {
		l.remove[old] = true
	}
	l.mu.Unlock()
	l.settle(ctx)
}

func (l *lease) settle(ctx context.Context) {
	attempt, cancel := context.WithTimeout(ctx, registryWait)
	defer cancel()
	if err := l.write(attempt); err != nil {
		l.h.log.Warn("the registry is not up to date: it is tried again", slog.String("error", err.Error()))
		select {
		case l.kick <- struct{}{}:
		default:
		}
	}
}

// toolsKeys are the keys of a service's records.
func toolsKeys(s *service) []subjects.ToolsKey {
	if s == nil {
		return nil
	}
	if s.Index != "" {
		return []subjects.ToolsKey{{Session: s.Session, Index: s.Index}}
	}
	var keys []subjects.ToolsKey
	for _, t := range s.Tools {
		keys = append(keys, subjects.ToolsKey{Session: s.Session, Tool: t.Descriptor.ID})
	}
	return keys
}

// state writes the node's state into the lease.
func (l *lease) state(ctx context.Context) {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
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
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held == nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node has no lease: the registry is not reachable")
	}
	return held.Update(ctx, change)
}

// confirm renews the lease, if there is one, and notes where it is lost.
func (l *lease) confirm(ctx context.Context) error {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
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
