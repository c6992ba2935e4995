package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// ViewOptions adjusts a [View].
type ViewOptions struct {
	// SessionsOnly makes a view that has sessions and tokens only. It excludes Sparing and Reaps.
	SessionsOnly bool
	// Sparing limits the subscription to all heartbeats to meshes of at most [SparingMax]
	// nodes. In a larger mesh the view knows no loads, and a dead node counts as alive until
	// its lease ends, unless [View.Alive] was asked about it.
	Sparing bool
	// Reaps makes the view remove what dead processes leave in the registry: leases, in a mesh so
	// large that they would be valid for minutes, and other records. A sparing view waits a day.
	Reaps bool
	// Logger receives log records; nil discards them.
	Logger *slog.Logger

	// checkEvery is how often the view asks the store whether it missed the last changes, which no
	// later change would show. Defaults to 30 s; tests set it.
	checkEvery time.Duration
}

// View is one process's knowledge of the mesh: nodes, their tools, indexes and sessions. Only
// agents and routers have a whole one; other hosts have one of the sessions alone. Its methods send
// no message, may be called concurrently, and return values that the caller owns.
type View struct {
	bus     store.Store
	log     *slog.Logger
	every   time.Duration
	sparing bool

	mu         sync.RWMutex       // guards the fields below
	follows    map[string]*follow // by bucket
	table      *table
	wanted     map[listSum]*wantedList
	nodes      map[subjects.NodeID]*nodeEntry
	indexes    map[string]IndexRecord
	sessions   map[subjects.SessionID]SessionRecord
	ended      map[subjects.SessionID]time.Time // sessions that have ended within endedKept, and some others
	swept      time.Time                        // when others were last removed from ended
	tokens     map[string]TokenRecord           // by key in MESH_SESSIONS
	keys       map[string]string                // public keys to the keys in MESH_SESSIONS of their sessions and tokens
	leased     int                              // how many of nodes have a lease
	heartbeats heartbeats                       // the subscriptions to them
	closed     bool
	listening  time.Time // since when we do: silence before it means nothing; zero: there is no connection
	fresh      time.Time // when everything was last known to be there
	listeners  map[chan<- struct{}]Change

	subs   []*nats.Subscription
	kick   chan struct{}      // a bucket is to be read
	end    context.CancelFunc // of the reading goroutine
	forget func()             // the listener on the connection
	wg     sync.WaitGroup
}

type nodeEntry struct {
	record NodeRecord
	raw    []byte // of the record: most renewals change nothing
	leased bool
	since  time.Time // when this boot was first seen
	beat   codec.Heartbeat
	beatAt time.Time
	busy   refusals
}

// refusals counts the busy answers of a node between two of its heartbeats.
type refusals struct {
	total, totalMS uint64 // at the later one
	at             time.Time
	calls          int
	wanting        float64
}

// refusalsOver is the min time between two heartbeats that are compared: a heartbeat for a
// change of the node's state comes soon after another one.
const refusalsOver = 500 * time.Millisecond

// take takes a heartbeat. another: the one before was of another boot.
func (r *refusals) take(beat codec.Heartbeat, another bool, now time.Time) {
	over := now.Sub(r.at)
	switch {
	case another || beat.Busy < r.total || beat.BusyMS < r.totalMS:
		*r = refusals{} // how much of it is of now is not known
	case over < refusalsOver:
		return
	default:
		r.calls = int(min(beat.Busy-r.total, math.MaxInt32)) //nolint:gosec // it is bounded
		r.wanting = float64(beat.BusyMS-r.totalMS) / float64(over.Milliseconds())
	}
	r.total, r.totalMS, r.at = beat.Busy, beat.BusyMS, now
}

const (
	readAgainAfter = 500 * time.Millisecond
	// endedKept is how long a view remembers that a session has ended: nodes look four times a
	// second whether the sessions of their calls go on.
	endedKept = 10 * time.Second
	// openTimeout bounds the first reading: in a cluster a new bucket is without a leader for
	// a while.
	openTimeout = 30 * time.Second
)

// OpenView reads the registry and follows it until [View.Close]. It returns once everything
// was read, or with an error if ctx ends first or the buckets do not exist.
func OpenView(ctx context.Context, c Conn, options *ViewOptions) (*View, error) {
	b := bus.Of(c)
	if err := b.Check(); err != nil {
		return nil, err
	}
	o := *cmp.Or(options, &ViewOptions{})
	if o.SessionsOnly && (o.Sparing || o.Reaps) {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "registry.ViewOptions: SessionsOnly excludes Sparing and Reaps, which need the nodes").
			WithOrigin(toolmesh.OriginCaller)
	}
	running, end := context.WithCancel(context.Background())
	v := &View{
		bus: store.Of(b), log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), every: cmp.Or(o.checkEvery, 30*time.Second), sparing: o.Sparing,
		table:  &table{records: make(map[string]*toolsEntry), scopes: make(map[scopeKey]*scope), lists: make(map[listKey]*toolList)},
		wanted: make(map[listSum]*wantedList), follows: make(map[string]*follow),
		nodes: make(map[subjects.NodeID]*nodeEntry), indexes: make(map[string]IndexRecord),
		sessions: make(map[subjects.SessionID]SessionRecord), ended: make(map[subjects.SessionID]time.Time), tokens: make(map[string]TokenRecord), keys: make(map[string]string),
		listening: time.Now(), listeners: make(map[chan<- struct{}]Change), kick: make(chan struct{}, 1), end: end,
	}
	v.forget = b.OnState(v.connection)
	err := v.subscribe(ctx, o.SessionsOnly)
	if err == nil {
		err = v.readFirst(ctx)
	}
	if err != nil {
		v.Close()
		return nil, err
	}
	v.wg.Go(func() { v.readLoop(running) })
	if o.Reaps {
		v.wg.Go(func() { v.reapLoop(running) })
	}
	return v, nil
}

func (v *View) subscribe(ctx context.Context, sessionsOnly bool) error {
	// Descriptors are fetched when needed.
	buckets := []string{subjects.BucketSessions}
	if !sessionsOnly {
		buckets = append(buckets, subjects.BucketNodes, subjects.BucketTools, subjects.BucketIndexes)
		v.mu.Lock()
		err := v.subscribeAll()
		v.mu.Unlock()
		if err != nil {
			return err
		}
	}
	for _, bucket := range buckets {
		f := newFollow(bucket)
		v.mu.Lock()
		v.follows[bucket] = f
		v.mu.Unlock()
		sub, err := v.bus.Conn().Subscribe(subjects.RegistryChanges(bucket), func(m *nats.Msg) { v.change(f, m) })
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "follow the registry: %w", err).WithOrigin(toolmesh.OriginMesh)
		}
		v.subs = append(v.subs, sub)
	}
	// From here on nothing is missed: later reads are older than later messages.
	return v.bus.Ping(ctx)
}

// connection has the missed changes read after a reconnect.
func (v *View) connection(s bus.State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if !s.Connected {
		v.listening, v.fresh = time.Time{}, now
		return
	}
	v.listening = now
	for _, f := range v.follows {
		f.away(now.Sub(v.fresh))
	}
	wake.Up(v.kick)
}

// Close stops following. It may be called more than once.
func (v *View) Close() {
	v.end()
	v.forget()
	for _, sub := range v.subs {
		_ = sub.Unsubscribe()
	}
	v.mu.Lock()
	if v.closed = true; v.heartbeats.all != nil {
		_ = v.heartbeats.all.Unsubscribe()
	}
	v.mu.Unlock()
	v.wg.Wait()
}

// change takes one republished change.
func (v *View) change(f *follow, m *nats.Msg) {
	c, ok := parseChange(f, m)
	if !ok {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	whole := v.whole()
	if f.heard(c.seq, c.at) {
		if whole {
			v.fresh = time.Now()
		}
		wake.Up(v.kick)
	}
	v.apply(f, c)
}

// apply takes one stored message, unless a later revision of its key is known. The lock is
// held.
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

// Change is a set of kinds of changes in a view.
type Change uint8

// The kinds of changes.
const (
	ChangedNodes Change = 1 << iota
	ChangedTools
	ChangedIndexes
	ChangedSessions

	changedAny = ChangedNodes | ChangedTools | ChangedIndexes | ChangedSessions
)

// touched tells listeners of a change. The lock is held.
func (v *View) touched(what Change) {
	for ch, of := range v.listeners {
		if of&what != 0 {
			wake.Up(ch)
		}
	}
}

func (v *View) applyNode(c change) {
	name, err := subjects.DecodeToken(c.key)
	if err != nil {
		return
	}
	id := subjects.NodeID(name)
	n := v.nodes[id]
	if c.gone {
		if n != nil && n.leased {
			n.leased, n.raw = false, nil
			v.leased--
			v.followSize()
			v.touched(ChangedNodes)
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
		n.since = time.Now()
	}
	if !n.leased {
		v.leased++
	}
	n.record, n.raw, n.leased = r, c.data, true
	v.followSize()
	v.touched(ChangedNodes)
}

// longestLease is how long the longest lease is valid after a renewal. The lock is held.
func (v *View) longestLease() time.Duration {
	longest := LeaseTTL
	for _, n := range v.nodes {
		if n.leased {
			longest = max(longest, n.record.validFor())
		}
	}
	return longest
}

// heard reports whether heartbeats of the boot in a node's record come, or this process
// cannot tell: while it has no connection, and after it was frozen.
func (v *View) heard(n *nodeEntry, now time.Time) bool {
	if v.heartbeats.all == nil {
		return !v.bus.Silent(n.record.Node, n.record.Boot) // else its lease counts
	}
	last := n.since
	if since := v.heartbeats.since; since.After(last) {
		last = since
	}
	if n.beat.Boot == string(n.record.Boot) && n.beatAt.After(last) {
		last = n.beatAt
	}
	if v.listening.After(last) {
		last = v.listening
	}
	return now.Sub(last) < Silence || v.listening.IsZero() || v.bus.StalledSince(now.Add(-Silence))
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

// heartbeat takes a message on a node's heartbeat subject. The subject names the node; the
// name in the body is not trusted.
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
	n.busy.take(beat, n.beat.Boot != beat.Boot, now)
	before := n.beat.State
	n.beat, n.beatAt = beat, now
	if before != beat.State {
		v.touched(ChangedNodes)
	}
}

func (v *View) applyTools(c change) {
	v.unwant(c.key)
	if c.gone {
		v.table.remove(c.key)
	} else {
		v.setTools(c, nil)
	}
	v.touched(ChangedTools)
}

// setTools takes a record of a node's tools. tools is the list that the record names, once it was
// read. A record with an unknown list waits for it; meanwhile the earlier record of its key counts.
func (v *View) setTools(c change, tools []byte) {
	key, err := subjects.ParseToolsKey(c.key)
	if err != nil {
		return
	}
	var said storedTools
	err = json.Unmarshal(c.data, &said)
	r := said.ToolsRecord
	// The names in the key count, as credentials are limited to keys. The record only adds
	// the real names of hashed ones.
	r.Node = trusted(r.Node, key.Node)
	r.Session = trusted(r.Session, key.Session)
	r.Index = trusted(r.Index, key.Index)
	var sum listSum
	if err == nil {
		sum, err = said.sum()
	}
	if err == nil {
		if said.List == "" {
			if tools = said.Tools; tools == nil {
				tools = []byte("[]")
			}
		}
		err = v.table.set(key, c.key, c.seq, r, sum, tools)
	}
	switch {
	case errors.Is(err, errNoList):
		v.want(sum, c)
	case err != nil:
		v.log.Warn("a record of tools is not readable", slog.String("key", c.key))
		v.table.remove(c.key)
	}
}

// trusted returns a record's value if it agrees with the key, else the key's.
func trusted[T ~string](said, key T) T {
	if key != "" && subjects.SameName(said, key) {
		return said
	}
	return key
}

func (v *View) applyIndex(c change) {
	declared := declaredBy + c.key
	if c.gone {
		delete(v.indexes, c.key)
		v.table.remove(declared)
	} else {
		var said struct {
			IndexRecord
			Tools json.RawMessage `json:"tools"`
		}
		name, session, err := subjects.ParseIndexKey(c.key)
		if err != nil || json.Unmarshal(c.data, &said) != nil {
			return
		}
		r := said.IndexRecord
		r.Name, r.Session = trusted(r.Name, name), trusted(r.Session, session)
		v.table.remove(declared)
		if len(said.Tools) > 0 {
			// As a record of no node: those of nodes are believed before it.
			if v.table.set(subjects.ToolsKey{Session: session, Index: name}, declared, 0,
				ToolsRecord{Session: r.Session, Epoch: r.Epoch, Index: r.Name, Revision: r.Revision}, sha256.Sum256(said.Tools), said.Tools) != nil {
				return
			}
			r.Tools = v.table.records[declared].record.Tools
		}
		v.indexes[c.key] = r
	}
	v.touched(ChangedIndexes | ChangedTools)
}

func (v *View) applySession(c change) {
	name, err := subjects.DecodeToken(c.key)
	if err != nil {
		v.applyToken(c)
		return
	}
	id := subjects.SessionID(name)
	var r SessionRecord
	if !c.gone && json.Unmarshal(c.data, &r) != nil {
		return
	}
	if now, old := time.Now(), v.sessions[id]; old.Epoch != "" && old.Epoch != r.Epoch {
		if now.Sub(v.swept) > endedKept {
			maps.DeleteFunc(v.ended, func(_ subjects.SessionID, at time.Time) bool { return now.Sub(at) > endedKept })
			v.swept = now
		}
		v.ended[id] = now
	}
	delete(v.keys, v.sessions[id].Key)
	delete(v.sessions, id)
	if !c.gone {
		r.ID = trusted(r.ID, id)
		v.sessions[id] = r
		v.keys[r.Key] = c.key
	}
	what := ChangedSessions
	for _, r := range v.indexes {
		if r.Session != "" && canonical(r.Session) == id {
			what |= ChangedIndexes // those that are private to it come or go with it
			break
		}
	}
	v.touched(what)
}

// forgetOld forgets the nodes that have no lease and are not heard.
func (v *View) forgetOld() {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.nodes, func(_ subjects.NodeID, n *nodeEntry) bool {
		return !n.leased && time.Since(n.beatAt) > LeaseTTL
	})
}

// whole reports whether nothing is waiting to be read. The lock is held.
func (v *View) whole() bool {
	for _, f := range v.follows {
		if f.needsReading() {
			return false
		}
	}
	return !v.wants()
}

// Notify sends on ch, without blocking, when something of the given kinds has changed, or of
// any kind without one. Many changes may be one message.
func (v *View) Notify(ch chan<- struct{}, of ...Change) (cancel func()) {
	all := changedAny
	for i, one := range of {
		if i == 0 {
			all = 0
		}
		all |= one
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listeners[ch] = all
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.listeners, ch)
	}
}

// Stale returns since how long the view may have missed something: 0 while it is connected
// and complete.
func (v *View) Stale() time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.listening.IsZero() && v.whole() {
		return 0
	}
	return time.Since(v.fresh)
}

// NodeStatus is a node as the view knows it.
type NodeStatus struct {
	NodeRecord
	// Alive says that heartbeats of the node come. A silent node without a lease is not listed.
	Alive bool
	NodeLoad
	// Busy counts the calls that the node rejected with busy, for want of a slot, between its last
	// two heartbeats. Wanting is how many callers waited for a slot then, each weighed by the time
	// that it was told to wait.
	Busy    int
	Wanting float64
	// Indexes are the names of the indexes it serves to every session, sorted.
	Indexes []subjects.IndexName
	// Users are the users that the tools of these run as, by number, sorted. The tools of an
	// index may have several, in different sandbox levels.
	Users map[subjects.IndexName][]string
}

// Nodes returns the nodes that have a lease, by id.
func (v *View) Nodes() []NodeStatus {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	served := make(map[subjects.NodeID][]subjects.IndexName)
	users := make(map[subjects.NodeID]map[subjects.IndexName][]string)
	for _, e := range v.table.records {
		n := v.nodes[e.key.Node]
		if e.record.Index != "" && e.record.Session == "" && n != nil && e.record.Boot == n.record.Boot {
			served[e.key.Node] = append(served[e.key.Node], e.record.Index)
			if len(e.list.users) == 0 {
				continue
			}
			if users[e.key.Node] == nil {
				users[e.key.Node] = make(map[subjects.IndexName][]string)
			}
			all := slices.Concat(users[e.key.Node][e.record.Index], e.list.users)
			slices.Sort(all)
			users[e.key.Node][e.record.Index] = slices.Compact(all)
		}
	}
	return v.loads(now, func(id subjects.NodeID, s *NodeStatus) {
		s.Indexes, s.Users = served[id], users[id]
		slices.Sort(s.Indexes)
		s.Indexes = slices.Compact(s.Indexes) // an index of many tools has several records
	})
}

// Loads is [View.Nodes] without the tools, at a cost that does not depend on them.
func (v *View) Loads() []NodeStatus {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.loads(time.Now(), func(subjects.NodeID, *NodeStatus) {})
}

// loads is Loads; more completes a status by the node's id in the view. The lock is held.
func (v *View) loads(now time.Time, more func(subjects.NodeID, *NodeStatus)) []NodeStatus {
	var all []NodeStatus
	for id, n := range v.nodes {
		if !n.leased {
			continue
		}
		s := NodeStatus{NodeRecord: n.record, Alive: v.alive(n, now)}
		if n.beat.Boot == string(n.record.Boot) {
			s.NodeLoad = NodeLoad{n.beat.InFlight, n.beat.Queued, n.beat.Waiting, n.beat.Calls, n.beat.Errors, n.beat.Relayed}
			s.Busy, s.Wanting = n.busy.calls, n.busy.wanting
			if NodeState(n.beat.State) == StateDraining {
				s.State = StateDraining
			}
		}
		more(id, &s)
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b NodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// limitsOf returns the limits in effect on nodes for calls of a tool with declared ones.
func (v *View) limitsOf(nodes []subjects.NodeID, declared tool.Limits) []LimitsOnNodes {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var all []LimitsOnNodes
	for _, id := range nodes {
		n := v.nodes[id]
		if n == nil || n.record.Limits.IsZero() {
			continue
		}
		limits := declared.Within(n.record.Limits, n.record.MaxLimits)
		at := slices.IndexFunc(all, func(one LimitsOnNodes) bool { return one.Limits == limits })
		if at < 0 {
			at, all = len(all), append(all, LimitsOnNodes{Limits: limits})
		}
		all[at].Nodes = append(all[at].Nodes, id)
	}
	return all
}

// Indexes returns the installed indexes and claimed names, by name and session.
func (v *View) Indexes() []IndexRecord {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.SortedFunc(maps.Values(v.indexes), func(a, b IndexRecord) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Session, b.Session))
	})
}

// Sessions returns the sessions that were created, by id.
func (v *View) Sessions() []SessionRecord {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.SortedFunc(maps.Values(v.sessions), func(a, b SessionRecord) int { return cmp.Compare(a.ID, b.ID) })
}

// Session returns a session that was created. It does not block.
func (v *View) Session(id subjects.SessionID) (SessionRecord, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.sessions[canonical(id)]
	return r, ok
}

// candidate returns the node as a target of calls. The lock is held.
func (n *nodeEntry) candidate(now time.Time) Candidate {
	c := Candidate{Node: n.record.Node, Boot: n.record.Boot, Slots: n.record.Slots}
	if n.beat.Boot == string(n.record.Boot) && now.Sub(n.beatAt) < Silence {
		c.InFlight, c.Slots = n.beat.InFlight+n.beat.Queued, n.beat.Slots
	}
	return c
}

// Owner returns the owner of something among the callable nodes with a feature: see
// [subjects.Owner]. Nodes of preferred with the feature come first. ok is false if no node
// has it.
func (v *View) Owner(feature string, preferred []Candidate, of ...string) (owner Candidate, ok bool) {
	now := time.Now()
	var able []subjects.NodeID
	add := func(id subjects.NodeID) {
		if n := v.nodes[id]; v.callable(n, now) && slices.Contains(n.record.Features, feature) {
			able = append(able, id)
		}
	}
	v.mu.RLock()
	for _, c := range preferred {
		add(c.Node)
	}
	if len(able) == 0 {
		for id := range v.nodes {
			add(id)
		}
	}
	id := subjects.Owner(able, of...)
	if n := v.nodes[id]; n != nil {
		owner, ok = n.candidate(now), true
	}
	v.mu.RUnlock()
	if ok {
		v.Alive(id) // if it is not, it will be known
	}
	return owner, ok
}

// Alive reports whether a node is alive. A view without the heartbeats of all nodes has the
// connection watch this one, and knows within 2.5 s.
func (v *View) Alive(id subjects.NodeID) bool {
	v.mu.RLock()
	n := v.nodes[id]
	alive := n != nil && v.alive(n, time.Now())
	watch := alive && v.heartbeats.all == nil && v.sparing
	var boot subjects.BootID
	if watch {
		boot = n.record.Boot
	}
	v.mu.RUnlock()
	if watch {
		v.bus.Watch(id, boot)
	}
	return alive
}
