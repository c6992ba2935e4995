package client

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	maxNodes = 1024
	// maxHeard is how many nodes are listened to at once: all, where the client knows no
	// more, else those with calls that last come first. Calls on others rest on their
	// keepalives, which come as often.
	maxHeard = 64
)

// node is one start of a node, as this client sees it.
type node struct {
	id     subjects.NodeID
	boot   subjects.BootID
	before *node // the boot that this one replaced here, if any; guarded by nodes.mu
	back   bool  // it replaced the one that had replaced it: both live; guarded by nodes.mu

	outstanding atomic.Int64 // our own calls on it
	noBatches   atomic.Bool  // a batch found nobody there
	reported    atomic.Int64 // in flight, by its own word
	slots       atomic.Int64
	heard       atomic.Int64 // last heartbeat of this boot, as [bus.Mono]; 0 = none
	met         atomic.Int64 // last answer of this boot that named it, likewise
	beats       atomic.Int64 // heartbeats of this boot in a row without a pause
	attended    atomic.Bool  // its heartbeats are listened to
	other       atomic.Bool  // another boot is the node: the calls of this one are lost
	draining    atomic.Bool
}

func (n *node) setLoad(l codec.Load) {
	n.reported.Store(int64(l.InFlight))
	n.slots.Store(int64(max(l.Slots, 1)))
}

// load is the share of the node's slots that are taken, by its own word and by
// what we have sent since.
func (n *node) load() float64 {
	taken := max(n.reported.Load(), n.outstanding.Load())
	return float64(taken) / float64(max(n.slots.Load(), 1))
}

func (n *node) lastHeard() time.Time {
	if ns := n.heard.Load(); ns != 0 {
		return bus.MonoTime(ns)
	}
	return time.Time{}
}

// beating reports whether the last heartbeat is no older than a node may be silent.
func (n *node) beating(now time.Time) bool { return bus.Mono(now)-n.heard.Load() < int64(silence) }

// usable reports whether new calls may go there.
func (n *node) usable() bool {
	return !n.other.Load() && !n.draining.Load() && (n.heard.Load() == 0 || n.beating(time.Now()))
}

// name is the node's id; empty for none.
func (n *node) name() subjects.NodeID {
	if n == nil {
		return ""
	}
	return n.id
}

// wellSince reports whether the node has been beating for d without a pause.
func (n *node) wellSince(d time.Duration) bool {
	return !n.other.Load() && n.beats.Load() >= int64(d/time.Second)+1 && n.beating(time.Now())
}

// nodes are the nodes that the client uses, up to maxHeard of them with a subscription to
// their heartbeat.
type nodes struct {
	bus *bus.Bus

	mu     sync.Mutex
	byID   map[subjects.NodeID]*node
	subs   map[subjects.NodeID]*nats.Subscription
	closed bool
}

func (ns *nodes) init(b *bus.Bus) {
	ns.bus = b
	ns.byID = make(map[subjects.NodeID]*node)
	ns.subs = make(map[subjects.NodeID]*nats.Subscription)
}

// get returns the node that an answer names. It is of another boot while that is heard: an answer says which process made
// it, and only the node's own subject says which one is the node.
func (ns *nodes) get(id subjects.NodeID, boot subjects.BootID) *node { return ns.find(id, boot, true) }

// told is get for a boot that the registry names. What it says may be old, so that
// it does not replace a boot that has answered either.
func (ns *nodes) told(id subjects.NodeID, boot subjects.BootID) *node {
	return ns.find(id, boot, false)
}

func (ns *nodes) find(id subjects.NodeID, boot subjects.BootID, answered bool) *node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	now := time.Now()
	n := ns.byID[id]
	switch {
	case n == nil:
		n = newNode(id, boot)
		if ns.closed {
			return n
		}
		if len(ns.byID) >= maxNodes {
			ns.evict()
		}
		ns.byID[id] = n
		ns.listen(id)
	case n.boot == boot || n.before != nil && n.before.boot == boot:
	case n.beating(now) || !answered && bus.Mono(now)-n.met.Load() < int64(silence):
		return n
	default:
		n = ns.replace(n, boot)
	}
	if answered {
		n.met.Store(bus.Mono(now))
	}
	return n
}

func newNode(id subjects.NodeID, boot subjects.BootID) *node {
	n := &node{id: id, boot: boot}
	n.slots.Store(1)
	return n
}

// replace makes another boot the node; ns.mu is held.
func (ns *nodes) replace(old *node, boot subjects.BootID) *node {
	n := old.before
	if n != nil && n.boot == boot {
		n.back = true
	} else {
		n = newNode(old.id, boot)
	}
	n.before, old.before = old, nil
	n.attended.Store(ns.subs[n.id] != nil)
	n.other.Store(false)
	old.other.Store(true)
	ns.byID[n.id] = n
	return n
}

// attend listens to a node that has a call which lasts, in place of one that has none if
// that many are listened to.
func (ns *nodes) attend(n *node) {
	if n == nil || n.attended.Load() {
		return
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.subs[n.id] == nil && ns.byID[n.id] != nil {
		ns.makeRoom()
		ns.listen(n.id)
	}
}

// makeRoom lets go of the heartbeats of a node without calls of ours, if there are too
// many; ns.mu is held.
func (ns *nodes) makeRoom() {
	if len(ns.subs) < maxHeard {
		return
	}
	for id := range ns.subs {
		if n := ns.byID[id]; n == nil || n.outstanding.Load() == 0 {
			ns.deafen(id)
			return
		}
	}
}

// deafen lets go of a node's heartbeats; ns.mu is held.
func (ns *nodes) deafen(id subjects.NodeID) {
	if sub := ns.subs[id]; sub != nil {
		_ = sub.Unsubscribe()
		delete(ns.subs, id)
	}
	if n := ns.byID[id]; n != nil {
		n.attended.Store(false)
		n.heard.Store(0) // that it is not heard any more says nothing
		n.beats.Store(0)
		n.draining.Store(false)
	}
}

// doubt has no new calls go to a node that was lost, until it is heard again.
func (ns *nodes) doubt(n *node) {
	ns.attend(n)
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.subs[n.id] != nil && n.heard.Load() == 0 {
		n.heard.Store(bus.Mono(time.Now().Add(-silence)))
	}
}

// listen subscribes a node's heartbeats, unless there are too many; ns.mu is held.
func (ns *nodes) listen(id subjects.NodeID) {
	if ns.subs[id] != nil || ns.closed || ns.byID[id] == nil || len(ns.subs) >= maxHeard {
		return
	}
	subject, err := subjects.Heartbeat(id)
	if err != nil {
		return
	}
	if sub, err := ns.bus.Conn().Subscribe(subject, func(m *nats.Msg) { ns.beat(id, m) }); err == nil {
		ns.subs[id] = sub
		ns.byID[id].attended.Store(true)
	}
}

// evict lets go of a node that has gone, or else of any without calls of ours.
func (ns *nodes) evict() {
	for pass := range 2 {
		for id, n := range ns.byID {
			if n.outstanding.Load() == 0 && (pass == 1 || !n.usable()) {
				ns.deafen(id)
				delete(ns.byID, id)
				return
			}
		}
	}
}

// established is how many heartbeats of a boot in a row settle that it is the node:
// one of an earlier boot was then long on its way. Before, the last one counts.
const established = 2

// beat takes a message on a node's heartbeat subject, which says whose it is: the
// name in its body counts for nothing.
func (ns *nodes) beat(id subjects.NodeID, m *nats.Msg) {
	var b codec.Heartbeat
	if json.Unmarshal(m.Data, &b) != nil || b.Boot == "" {
		return
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.byID[id]
	if n == nil || ns.subs[id] == nil {
		return
	}
	now := time.Now()
	if boot := subjects.BootID(b.Boot); n.boot != boot {
		if n.before != nil && n.before.boot == boot && !n.back && n.beats.Load() >= established && n.beating(now) {
			return
		}
		n = ns.replace(n, boot)
	}
	if !n.beating(now) {
		n.beats.Store(0)
	}
	n.beats.Add(1)
	n.heard.Store(bus.Mono(now))
	n.draining.Store(b.State == "draining")
	n.setLoad(codec.Load{InFlight: b.InFlight, Slots: b.Slots})
}

func (ns *nodes) close() {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.closed = true
	for id, sub := range ns.subs {
		_ = sub.Unsubscribe()
		delete(ns.subs, id)
	}
}
