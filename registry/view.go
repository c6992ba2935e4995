package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// ViewOptions adjusts a [View].
type ViewOptions struct {
	// CheckEvery is how often the view asks whether it missed the end of what is
	// stored, which nothing else tells. Defaults to 30 s.
	CheckEvery time.Duration
	// SessionsOnly has the view know sessions and nothing else.
	SessionsOnly bool
	// Logger takes what happens; nil discards it.
	Logger *slog.Logger
}

// View is what one process knows of the mesh: nodes, what they serve, indexes
// and sessions. Only agents and routers hold one; other hosts hold one of the
// sessions alone. Reads cost no message and may
// be concurrent; what they return is the caller's, except where it says shared.
type View struct {
	bus     *bus.Bus
	log     *slog.Logger
	every   time.Duration
	buckets []string

	mu       sync.RWMutex // guards what follows
	follows  map[string]*follow
	table    *table
	nodes    map[subjects.NodeID]*nodeEntry
	indexes  map[string]IndexRecord
	sessions map[subjects.SessionID]SessionRecord
	// over is when this view saw sessions end that it has no record of any more.
	over     map[subjects.SessionID]time.Time
	grace    time.Time // silence before it means nothing: we were not listening
	fresh    time.Time // when everything was last known to be there
	events   []NodeEvent
	changed  bool // tools, nodes, indexes or sessions, since listeners were told
	watchers map[uint64]watcher
	nextID   uint64

	subs   []*nats.Subscription
	kick   chan struct{} // a bucket is to be read
	tell   chan struct{} // listeners are to be told
	ready  chan struct{} // closed after the first reading of all buckets
	stop   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	cancel []func()
}

// nodeEntry is one node.
type nodeEntry struct {
	record NodeRecord
	raw    []byte // of the record: most renewals change nothing
	leased bool
	// unleased is when the lease went; only while leased is false.
	unleased time.Time
	since    time.Time // when this boot was first seen
	beat     codec.Heartbeat
	beatAt   time.Time
	up       bool // as listeners were told
}

type watcher struct {
	node  func(NodeEvent)
	tools func()
}

// NodeEvent says that a node can be called, or that one boot of it is gone.
type NodeEvent struct {
	Node subjects.NodeID
	Boot subjects.BootID
	// Up is false when the boot is gone: its calls are lost.
	Up bool
	// Reason says why it is gone.
	Reason string
}

// Reasons of a [NodeEvent].
const (
	ReasonSilent   = "no heartbeat"
	ReasonLease    = "lease gone"
	ReasonRestart  = "started anew"
	watchEvery     = 250 * time.Millisecond
	readAgainAfter = 500 * time.Millisecond
)

// followed are the buckets of a view. Descriptors are fetched when needed.
func (o *ViewOptions) followed() []string {
	if o.SessionsOnly {
		return []string{subjects.BucketSessions}
	}
	return []string{subjects.BucketNodes, subjects.BucketTools, subjects.BucketIndexes, subjects.BucketSessions}
}

// OpenView reads the registry and follows it until [View.Close]. It returns when
// all of it was read once, or with an error when ctx ends first or the buckets
// are not there.
func OpenView(ctx context.Context, b *bus.Bus, options *ViewOptions) (*View, error) {
	var o ViewOptions
	if options != nil {
		o = *options
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CheckEvery <= 0 {
		o.CheckEvery = 30 * time.Second
	}
	now := time.Now()
	v := &View{
		bus: b, log: o.Logger, every: o.CheckEvery, buckets: o.followed(),
		follows: make(map[string]*follow), table: newTable(),
		nodes: make(map[subjects.NodeID]*nodeEntry), indexes: make(map[string]IndexRecord),
		sessions: make(map[subjects.SessionID]SessionRecord),
		over:     make(map[subjects.SessionID]time.Time),
		watchers: make(map[uint64]watcher), grace: now, fresh: now,
		kick: make(chan struct{}, 1), tell: make(chan struct{}, 1),
		ready: make(chan struct{}), stop: make(chan struct{}),
	}
	if err := v.subscribe(ctx, !o.SessionsOnly); err != nil {
		v.Close()
		return nil, err
	}
	v.cancel = append(v.cancel, b.OnState(func(s bus.State) {
		if !s.Connected {
			return
		}
		v.mu.Lock()
		v.grace = time.Now()
		for _, f := range v.follows {
			f.whole = true
		}
		v.mu.Unlock()
		wake(v.kick)
	}))
	failed := make(chan error, 1)
	v.wg.Go(func() { v.readLoop(failed) })
	v.wg.Go(v.watch)
	wake(v.kick)
	select {
	case <-v.ready:
		return v, nil
	case err := <-failed:
		v.Close()
		return nil, err
	case <-ctx.Done():
		v.Close()
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the registry was not read in time: %w", ctx.Err()).WithOrigin(toolmesh.OriginMesh)
	}
}

func (v *View) subscribe(ctx context.Context, nodes bool) error {
	fail := func(err error) error {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "follow the registry: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	for _, bucket := range v.buckets {
		f := newFollow(bucket)
		v.follows[bucket] = f
		sub, err := v.bus.Conn().Subscribe(subjects.RegistryChanges(bucket), func(m *nats.Msg) { v.change(f, m) })
		if err != nil {
			return fail(err)
		}
		v.subs = append(v.subs, sub)
	}
	if nodes {
		sub, err := v.bus.Conn().Subscribe(subjects.AllHeartbeats, v.heartbeat)
		if err != nil {
			return fail(err)
		}
		v.subs = append(v.subs, sub)
	}
	// What is read from here on is older than what is heard.
	return v.bus.Ping(ctx)
}

// Close stops following. It may be called more than once.
func (v *View) Close() {
	v.once.Do(func() {
		close(v.stop)
		for _, cancel := range v.cancel {
			cancel()
		}
		for _, sub := range v.subs {
			_ = sub.Unsubscribe()
		}
	})
	v.wg.Wait()
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// change takes one republished change.
func (v *View) change(f *follow, m *nats.Msg) {
	c, ok := parseChange(f, m)
	if !ok {
		return
	}
	v.mu.Lock()
	if f.heard(c.seq, c.at) {
		wake(v.kick)
	}
	v.apply(f, c)
	v.mu.Unlock()
}

// apply brings one stored message into the view, unless the key is known at a
// later revision already. The lock is held.
func (v *View) apply(f *follow, c change) {
	if f.accept(c) {
		v.applyTo(f.bucket, c)
	}
}

func (v *View) applyTo(bucket string, c change) {
	switch bucket {
	case subjects.BucketNodes:
		v.applyNode(c)
	case subjects.BucketTools:
		v.applyTools(c)
	case subjects.BucketIndexes:
		v.applyIndex(c)
	case subjects.BucketSessions:
		v.applySession(c)
	}
}

// touched has listeners told of a change. The lock is held.
func (v *View) touched() {
	v.changed = true
	wake(v.tell)
}

func (v *View) event(e NodeEvent) {
	v.events = append(v.events, e)
	v.touched()
}

func (v *View) applyNode(c change) {
	token := c.key
	name, err := subjects.DecodeToken(token)
	if err != nil {
		return
	}
	id := subjects.NodeID(name)
	n := v.nodes[id]
	if c.gone {
		if n != nil && n.leased {
			// No new calls. Those that run are lost only if it falls silent or gets
			// no new lease: JetStream may have been away, which calls do not need.
			n.leased, n.raw, n.unleased = false, nil, time.Now()
			v.assess(n, n.unleased)
			v.touched()
		}
		return
	}
	if n == nil {
		n = &nodeEntry{}
		v.nodes[id] = n
	}
	if n.leased && bytes.Equal(n.raw, c.data) {
		return
	}
	var r NodeRecord
	if err := json.Unmarshal(c.data, &r); err != nil {
		v.log.Warn("a lease is not readable", slog.String("node", name))
		return
	}
	r.Node = trusted(r.Node, id)
	if n.record.Boot != r.Boot {
		v.down(n, ReasonRestart)
	}
	if n.record.Boot != r.Boot {
		n.since = time.Now()
	}
	n.record, n.raw, n.leased = r, c.data, true
	v.assess(n, time.Now())
	v.touched()
}

// down tells listeners that a boot is gone, if they were told that it is there.
func (v *View) down(n *nodeEntry, reason string) {
	if n.up {
		n.up = false
		v.event(NodeEvent{Node: n.record.Node, Boot: n.record.Boot, Reason: reason})
	}
}

// assess tells listeners whether a node is up or down now, if that has changed.
func (v *View) assess(n *nodeEntry, now time.Time) {
	switch {
	case !v.heard(n, now):
		v.down(n, ReasonSilent)
	case n.leased && !n.up:
		n.up = true
		v.event(NodeEvent{Node: n.record.Node, Boot: n.record.Boot, Up: true})
	case !n.leased && now.Sub(n.unleased) >= LeaseTTL:
		v.down(n, ReasonLease)
	}
}

// heard reports whether the boot of a node's record is heard.
func (v *View) heard(n *nodeEntry, now time.Time) bool {
	last := n.since
	if n.beat.Boot == string(n.record.Boot) && n.beatAt.After(last) {
		last = n.beatAt
	}
	if v.grace.After(last) {
		last = v.grace
	}
	return now.Sub(last) < Silence
}

// alive reports whether a node has a lease and is heard.
func (v *View) alive(n *nodeEntry, now time.Time) bool { return n.leased && v.heard(n, now) }

// callable reports whether a node takes new calls.
func (v *View) callable(n *nodeEntry, now time.Time) bool {
	if n == nil || !v.alive(n, now) || n.record.State == StateDraining {
		return false
	}
	return n.beat.Boot != string(n.record.Boot) || NodeState(n.beat.State) != StateDraining
}

// heartbeat takes a message on a node's heartbeat subject, which says whose it is:
// the name in its body counts for nothing.
func (v *View) heartbeat(m *nats.Msg) {
	var beat codec.Heartbeat
	if json.Unmarshal(m.Data, &beat) != nil || beat.Boot == "" {
		return
	}
	s, err := subjects.Parse(m.Subject)
	if err != nil || s.Kind != subjects.KindHeartbeat {
		return
	}
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.nodes[s.Node]
	if n == nil {
		n = &nodeEntry{}
		v.nodes[s.Node] = n
	}
	if leased := string(n.record.Boot); n.leased && beat.Boot != leased && n.beat.Boot == leased && v.heard(n, now) {
		return // the lease says which boot is the node, and that one lives
	}
	before := n.beat.State
	n.beat, n.beatAt = beat, now
	v.assess(n, now)
	if before != beat.State {
		v.touched()
	}
}

func (v *View) applyTools(c change) {
	if c.gone {
		v.table.remove(c.key)
		v.touched()
		return
	}
	key, err := subjects.ParseToolsKey(c.key)
	if err != nil {
		return
	}
	var r ToolsRecord
	if err := json.Unmarshal(c.data, &r); err != nil {
		v.log.Warn("a record of tools is not readable", slog.String("key", c.key))
		v.table.remove(c.key)
		return
	}
	// The key is what a credential is held to, so it is what counts; the record
	// only has the real names behind hashed ones.
	r.Node = trusted(r.Node, key.Node)
	r.Session = trusted(r.Session, key.Session)
	r.Index = trusted(r.Index, key.Index)
	v.table.set(key, c.key, c.seq, r)
	v.touched()
}

// trusted returns what a record says of a name if its key says the same, else the key's.
func trusted[T ~string](said, key T) T {
	if key != "" && subjects.SameName(said, key) {
		return said
	}
	return key
}

func (v *View) applyIndex(c change) {
	if c.gone {
		delete(v.indexes, c.key)
	} else {
		var r IndexRecord
		name, session, err := subjects.ParseIndexKey(c.key)
		if err != nil || json.Unmarshal(c.data, &r) != nil {
			return
		}
		r.Name, r.Session = trusted(r.Name, name), trusted(r.Session, session)
		v.indexes[c.key] = r
	}
	v.touched()
}

func (v *View) applySession(c change) {
	name, err := subjects.DecodeToken(c.key)
	if err != nil {
		return
	}
	id := subjects.SessionID(name)
	if c.gone {
		delete(v.sessions, id)
		v.isOver(id, time.Now())
	} else {
		var r SessionRecord
		if json.Unmarshal(c.data, &r) != nil {
			return
		}
		r.ID = trusted(r.ID, id)
		v.sessions[id] = r
		delete(v.over, id)
	}
	v.touched()
}

// watch sees silence, and tells listeners.
func (v *View) watch() {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-v.stop:
			return
		case <-v.tell:
			v.tellWatchers()
			continue
		case <-ticker.C:
		}
		now := time.Now()
		stalled := v.bus.StalledSince(last) || !v.bus.Connected()
		last = now
		v.mu.Lock()
		if stalled {
			v.grace = now
		} else if v.whole() {
			v.fresh = now
		}
		for id, n := range v.nodes {
			v.assess(n, now)
			if !n.leased && !n.up && now.Sub(n.beatAt) > LeaseTTL && now.Sub(n.since) > LeaseTTL {
				delete(v.nodes, id)
			}
		}
		v.mu.Unlock()
	}
}

// whole reports whether no bucket is waiting to be read. The lock is held.
func (v *View) whole() bool {
	for _, f := range v.follows {
		if f.needsReading() {
			return false
		}
	}
	return true
}

func (v *View) tellWatchers() {
	v.mu.Lock()
	events, changed := v.events, v.changed
	v.events, v.changed = nil, false
	all := make([]watcher, 0, len(v.watchers))
	for _, w := range v.watchers {
		all = append(all, w)
	}
	v.mu.Unlock()
	for _, w := range all {
		if w.node != nil {
			for _, e := range events {
				w.node(e)
			}
		}
		if w.tools != nil && changed {
			w.tools()
		}
	}
}

// OnNode calls fn, in order and from one goroutine, when a boot of a node can be
// called and when it is gone; first for each node that is there. fn must not block.
func (v *View) OnNode(fn func(NodeEvent)) (cancel func()) {
	v.mu.Lock()
	for _, n := range v.nodes {
		if n.up {
			// The others hear it once more, which tells them nothing new.
			v.event(NodeEvent{Node: n.record.Node, Boot: n.record.Boot, Up: true})
		}
	}
	v.mu.Unlock()
	return v.watchWith(watcher{node: fn})
}

// OnChange calls fn after nodes, tools, indexes or sessions changed; many changes
// may be one call. fn must not block.
func (v *View) OnChange(fn func()) (cancel func()) { return v.watchWith(watcher{tools: fn}) }

func (v *View) watchWith(w watcher) (cancel func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id := v.nextID
	v.nextID++
	v.watchers[id] = w
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.watchers, id)
	}
}

// Stale returns for how long the view may have missed something: 0 while the
// connection is there and nothing is missing.
func (v *View) Stale() time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.bus.Connected() && v.whole() {
		return 0
	}
	return time.Since(v.fresh)
}

// NodeStatus is a node as the view knows it.
type NodeStatus struct {
	NodeRecord
	// Alive says that it is heard. One that is not and has no lease any more is
	// not listed.
	Alive    bool
	InFlight int
	Queued   int
	// Indexes are the names of the indexes it serves to every session, sorted.
	Indexes []subjects.IndexName
}

// Nodes returns the nodes that have a lease, by id.
func (v *View) Nodes() []NodeStatus {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := make([]NodeStatus, 0, len(v.nodes))
	for _, n := range v.nodes {
		if n.leased {
			all = append(all, v.status(n, now))
		}
	}
	slices.SortFunc(all, func(a, b NodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Node returns one node that has a lease.
func (v *View) Node(id subjects.NodeID) (NodeStatus, bool) {
	id = canonical(id)
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := v.nodes[id]
	if n == nil || !n.leased {
		return NodeStatus{}, false
	}
	return v.status(n, time.Now()), true
}

func (v *View) status(n *nodeEntry, now time.Time) NodeStatus {
	s := NodeStatus{NodeRecord: n.record, Alive: v.alive(n, now)}
	if n.beat.Boot == string(n.record.Boot) {
		s.InFlight, s.Queued = n.beat.InFlight, n.beat.Queued
		if NodeState(n.beat.State) == StateDraining {
			s.State = StateDraining
		}
	}
	for key := range v.table.byNode[canonical(n.record.Node)] {
		if e := v.table.records[key]; e.record.Index != "" && e.record.Session == "" && e.record.Boot == n.record.Boot {
			s.Indexes = append(s.Indexes, e.record.Index)
		}
	}
	slices.Sort(s.Indexes)
	s.Indexes = slices.Compact(s.Indexes) // an index of many tools has several records
	return s
}

// Indexes returns the installed indexes and claimed names, by name and session.
func (v *View) Indexes() []IndexRecord {
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := make([]IndexRecord, 0, len(v.indexes))
	for _, r := range v.indexes {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b IndexRecord) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Session, b.Session))
	})
	return all
}

// Sessions returns the sessions that somebody created, by id.
func (v *View) Sessions() []SessionRecord {
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := make([]SessionRecord, 0, len(v.sessions))
	for _, r := range v.sessions {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b SessionRecord) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Session returns a session that somebody created. It does not block.
func (v *View) Session(id subjects.SessionID) (SessionRecord, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.sessions[canonical(id)]
	return r, ok
}

// keepOver is for how long a view knows that a session has ended.
const keepOver = time.Minute

// isOver remembers a session's end, and forgets old ones now and then. The lock
// is held.
func (v *View) isOver(id subjects.SessionID, now time.Time) {
	if len(v.over) >= 256 && len(v.over)&(len(v.over)-1) == 0 {
		maps.DeleteFunc(v.over, func(_ subjects.SessionID, at time.Time) bool { return now.Sub(at) > keepOver })
	}
	v.over[id] = now
}

// SessionOver returns when this view saw a session's record go, by the local
// clock, if there is no new record: it ended, or its time was up. It is known for
// a minute at least.
func (v *View) SessionOver(id subjects.SessionID) (at time.Time, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	at, ok = v.over[canonical(id)]
	return at, ok
}

// candidate is a node as one that can be called. The lock is held.
func (n *nodeEntry) candidate() Candidate {
	c := Candidate{Node: n.record.Node, Boot: n.record.Boot, Slots: n.record.Slots}
	if n.beat.Boot == string(n.record.Boot) {
		c.InFlight, c.Slots = n.beat.InFlight+n.beat.Queued, n.beat.Slots
	}
	return c
}
