package bus

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	maxPeers = 1024
	// maxHeard is the max number of nodes whose heartbeats are subscribed. Nodes with calls
	// that last come first. Calls on other nodes rely on their keepalives alone, which come
	// as often.
	maxHeard = 64
	// established is the number of heartbeats in a row that make a start the node: a
	// heartbeat of an earlier start that comes later was delayed. Before, the last heartbeat
	// counts.
	established = 2
)

// Peer is one start of a node, as this process sees it. Its methods may be called
// concurrently.
type Peer struct {
	ID   subjects.NodeID
	Boot subjects.BootID

	// Outstanding counts the calls of this process on it.
	Outstanding atomic.Int64

	before    *Peer        // the start that this one replaced, if any; guarded by peers.mu
	back      bool         // it replaced the start that had replaced it: both live; guarded by peers.mu
	reported  atomic.Int64 // calls in flight, by its own word
	slots     atomic.Int64
	heard     atomic.Int64 // last heartbeat of this start, as [Mono]; 0 = none
	listened  atomic.Int64 // since when its heartbeats are subscribed, likewise
	met       atomic.Int64 // last answer of this start that named it, likewise
	beats     atomic.Int64 // heartbeats of this start in a row, without a pause
	attended  atomic.Bool  // its heartbeats are subscribed
	restarted atomic.Bool  // another start is the node: the calls of this one are lost
	draining  atomic.Bool
}

func newPeer(id subjects.NodeID, boot subjects.BootID) *Peer {
	n := &Peer{ID: id, Boot: boot}
	n.slots.Store(1)
	return n
}

// Name is the node's id; empty of nil.
func (n *Peer) Name() subjects.NodeID {
	if n == nil {
		return ""
	}
	return n.ID
}

// SetLoad records the node's reported calls in flight.
func (n *Peer) SetLoad(l codec.Load) {
	n.reported.Store(int64(l.InFlight))
	n.slots.Store(int64(max(l.Slots, 1)))
}

// Load is the share of the node's slots that are taken: by its own word, or by the calls
// that this process has sent it since.
func (n *Peer) Load() float64 {
	taken := max(n.reported.Load(), n.Outstanding.Load())
	return float64(taken) / float64(max(n.slots.Load(), 1))
}

// Heard reports whether a heartbeat of this start has come.
func (n *Peer) Heard() bool { return n.heard.Load() != 0 }

// Unheard reports whether its heartbeats are subscribed, and none has come.
func (n *Peer) Unheard() bool { return n.attended.Load() && !n.Heard() }

// Usable reports whether new calls may go to it: unless it drains, has been replaced, or
// its heartbeats have stopped.
func (n *Peer) Usable() bool {
	return !n.restarted.Load() && !n.draining.Load() && (!n.Heard() || n.beating(time.Now()))
}

func (n *Peer) beating(now time.Time) bool { return Mono(now)-n.heard.Load() < int64(Silence) }

// well reports whether it has been beating for [Silence] without a pause.
func (n *Peer) well() bool {
	return !n.restarted.Load() && n.beats.Load() >= int64(Silence/time.Second)+1 && n.beating(time.Now())
}

// peers are the nodes that a connection deals with, up to maxHeard of them with a
// subscription to their heartbeats.
type peers struct {
	nc *nats.Conn

	mu     sync.Mutex
	byID   map[subjects.NodeID]*Peer
	subs   map[subjects.NodeID]*nats.Subscription
	closed bool
}

func (ps *peers) init(nc *nats.Conn) {
	ps.nc = nc
	ps.byID = make(map[subjects.NodeID]*Peer)
	ps.subs = make(map[subjects.NodeID]*nats.Subscription)
}

// Answered returns the start of a node that an answer names. Only the node's own heartbeats
// say which start is the node: while they name another one, the result is on its own, and
// no heartbeat vouches for it.
func (b *Bus) Answered(id subjects.NodeID, boot subjects.BootID) *Peer {
	n := b.peers.find(id, boot, true)
	if n.Boot != boot {
		return newPeer(id, boot)
	}
	return n
}

// Listed returns the node that the registry names. The registry's word may be old: it
// replaces no start that has answered or is heard, so the result may be another start.
func (b *Bus) Listed(id subjects.NodeID, boot subjects.BootID) *Peer {
	return b.peers.find(id, boot, false)
}

// Watch subscribes to the heartbeats of a node that the registry names, as a call on it that lasts
// does.
func (b *Bus) Watch(id subjects.NodeID, boot subjects.BootID) {
	b.peers.attend(b.Listed(id, boot))
}

// Silent reports whether the heartbeats of a start of a node are subscribed, and none has come for
// [Silence] while this process was connected and ran.
func (b *Bus) Silent(id subjects.NodeID, boot subjects.BootID) bool {
	b.peers.mu.Lock()
	n := b.peers.byID[id]
	b.peers.mu.Unlock()
	if n == nil || n.Boot != boot || !n.attended.Load() {
		return false
	}
	last := MonoTime(max(n.heard.Load(), n.listened.Load()))
	s, now := b.State(), time.Now()
	return now.Sub(last) >= Silence && s.Connected && now.Sub(s.Since) >= Silence && !b.StalledSince(now.Add(-Silence))
}

func (ps *peers) find(id subjects.NodeID, boot subjects.BootID, answered bool) *Peer {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	now := time.Now()
	n := ps.byID[id]
	switch {
	case n == nil:
		n = newPeer(id, boot)
		if ps.closed {
			return n
		}
		if len(ps.byID) >= maxPeers {
			ps.evict()
		}
		ps.byID[id] = n
		ps.listen(id)
	case n.Boot == boot || n.before != nil && n.before.Boot == boot:
	case n.beating(now) || !answered && Mono(now)-n.met.Load() < int64(Silence):
		return n
	default:
		n = ps.replace(n, boot)
	}
	if answered {
		n.met.Store(Mono(now))
	}
	return n
}

// replace makes another start the node; ps.mu is held.
func (ps *peers) replace(old *Peer, boot subjects.BootID) *Peer {
	n := old.before
	if n != nil && n.Boot == boot {
		n.back = true
	} else {
		n = newPeer(old.ID, boot)
	}
	n.before, old.before = old, nil
	n.attended.Store(ps.subs[n.ID] != nil)
	n.listened.Store(Mono(time.Now()))
	n.restarted.Store(false)
	old.restarted.Store(true)
	ps.byID[n.ID] = n
	return n
}

// attend subscribes to the heartbeats of a node with a call that lasts. If too many are
// subscribed, it takes the place of a node without calls.
func (ps *peers) attend(n *Peer) {
	if n == nil || n.attended.Load() {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.subs[n.ID] != nil || ps.byID[n.ID] == nil {
		return
	}
	if len(ps.subs) >= maxHeard {
		for id := range ps.subs {
			if n := ps.byID[id]; n == nil || n.Outstanding.Load() == 0 {
				ps.ignore(id)
				break
			}
		}
	}
	ps.listen(n.ID)
}

// listen subscribes to a node's heartbeats, unless too many are subscribed; ps.mu is held.
func (ps *peers) listen(id subjects.NodeID) {
	if ps.subs[id] != nil || ps.closed || len(ps.subs) >= maxHeard {
		return
	}
	subject, err := subjects.Heartbeat(id)
	if err != nil {
		return
	}
	if sub, err := ps.nc.Subscribe(subject, func(m *nats.Msg) { ps.beat(id, m) }); err == nil {
		ps.subs[id] = sub
		ps.byID[id].listened.Store(Mono(time.Now()))
		ps.byID[id].attended.Store(true)
	}
}

// ignore ends the subscription to a node's heartbeats; ps.mu is held.
func (ps *peers) ignore(id subjects.NodeID) {
	if sub := ps.subs[id]; sub != nil {
		_ = sub.Unsubscribe()
		delete(ps.subs, id)
	}
	if n := ps.byID[id]; n != nil {
		n.attended.Store(false)
		n.heard.Store(0) // silence means nothing from now on
		n.beats.Store(0)
		n.draining.Store(false)
	}
}

// doubt makes a node that was lost unusable until its next heartbeat.
func (ps *peers) doubt(n *Peer) {
	ps.attend(n)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.subs[n.ID] != nil && !n.Heard() {
		n.heard.Store(Mono(time.Now().Add(-Silence)))
	}
}

// evict forgets a node that is not usable, or else any without calls; ps.mu is held.
func (ps *peers) evict() {
	for pass := range 2 {
		for id, n := range ps.byID {
			if n.Outstanding.Load() == 0 && (pass == 1 || !n.Usable()) {
				ps.ignore(id)
				delete(ps.byID, id)
				return
			}
		}
	}
}

// beat takes a message on a node's heartbeat subject. The subject says whose it is; the
// name in the body counts for nothing.
func (ps *peers) beat(id subjects.NodeID, m *nats.Msg) {
	var b codec.Heartbeat
	if json.Unmarshal(m.Data, &b) != nil || b.Boot == "" {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	n := ps.byID[id]
	if n == nil || ps.subs[id] == nil {
		return
	}
	now := time.Now()
	if boot := subjects.BootID(b.Boot); n.Boot != boot {
		if n.before != nil && n.before.Boot == boot && !n.back && n.beats.Load() >= established && n.beating(now) {
			return
		}
		n = ps.replace(n, boot)
	}
	if !n.beating(now) {
		n.beats.Store(0)
	}
	n.beats.Add(1)
	n.heard.Store(Mono(now))
	n.draining.Store(b.State == "draining")
	n.SetLoad(codec.Load{InFlight: b.InFlight, Slots: b.Slots})
}

func (ps *peers) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.closed = true
	for id, sub := range ps.subs {
		_ = sub.Unsubscribe()
		delete(ps.subs, id)
	}
}
