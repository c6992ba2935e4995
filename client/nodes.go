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

const maxNodes = 1024

// node is one start of a node, as this client sees it.
type node struct {
	id     subjects.NodeID
	boot   subjects.BootID
	before subjects.BootID // the boot that this one replaced here, if any

	outstanding atomic.Int64 // our own calls on it
	reported    atomic.Int64 // in flight, by its own word
	slots       atomic.Int64
	heard       atomic.Int64 // last heartbeat of this boot, unix ns
	met         atomic.Int64 // last answer of this boot that named it, unix ns
	beats       atomic.Int64 // heartbeats of this boot in a row without a pause
	other       atomic.Bool  // another boot has been heard of
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
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// replaced reports whether the node was started again: its calls are lost.
func (n *node) replaced() bool { return n.other.Load() }

// usable reports whether new calls may go there.
func (n *node) usable() bool {
	if n.other.Load() || n.draining.Load() {
		return false
	}
	heard := n.heard.Load()
	return heard == 0 || time.Since(time.Unix(0, heard)) < silence
}

// wellSince reports whether the node has been beating for d without a pause.
func (n *node) wellSince(d time.Duration) bool {
	return !n.other.Load() && n.beats.Load() >= int64(d/time.Second)+1 && time.Since(n.lastHeard()) < silence
}

// nodes are the nodes that the client uses, each with a subscription to its
// heartbeat.
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

// get returns the node of a boot that has itself been heard of, and listens to
// its heartbeat from now on.
func (ns *nodes) get(id subjects.NodeID, boot subjects.BootID) *node { return ns.find(id, boot, true) }

// told is get for a boot that the registry names: what it says may be old, so
// that it does not replace another boot that is well.
func (ns *nodes) told(id subjects.NodeID, boot subjects.BootID) *node {
	return ns.find(id, boot, false)
}

func (ns *nodes) find(id subjects.NodeID, boot subjects.BootID, heard bool) *node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	now := time.Now()
	old := ns.byID[id]
	if old != nil && (old.boot == boot || boot == old.before && boot != "") {
		if heard {
			old.met.Store(now.UnixNano())
		}
		return old
	}
	n := &node{id: id, boot: boot}
	if heard {
		n.met.Store(now.UnixNano())
	}
	n.slots.Store(1)
	if old != nil {
		if !heard && !old.other.Load() && now.UnixNano()-max(old.heard.Load(), old.met.Load()) < int64(silence) {
			return old
		}
		old.other.Store(true)
		n.before = old.boot
	}
	if ns.closed {
		return n
	}
	if len(ns.byID) >= maxNodes {
		ns.evict()
	}
	ns.byID[id] = n
	if ns.subs[id] == nil {
		if subject, err := subjects.Heartbeat(id); err == nil {
			if sub, err := ns.bus.Conn().Subscribe(subject, ns.beat); err == nil {
				ns.subs[id] = sub
			}
		}
	}
	return n
}

// evict lets go of a node that has gone, or else of any without calls of ours.
func (ns *nodes) evict() {
	for pass := range 2 {
		for id, n := range ns.byID {
			if n.outstanding.Load() == 0 && (pass == 1 || !n.usable()) {
				delete(ns.byID, id)
				if sub := ns.subs[id]; sub != nil {
					_ = sub.Unsubscribe()
					delete(ns.subs, id)
				}
				return
			}
		}
	}
}

// load notes what a reply says of its node.
func (ns *nodes) load(id subjects.NodeID, boot subjects.BootID, l codec.Load) {
	ns.mu.Lock()
	n := ns.byID[id]
	ns.mu.Unlock()
	if n != nil && n.boot == boot {
		n.setLoad(l)
	}
}

func (ns *nodes) beat(m *nats.Msg) {
	var b codec.Heartbeat
	if json.Unmarshal(m.Data, &b) != nil {
		return
	}
	ns.mu.Lock()
	n := ns.byID[subjects.NodeID(b.Node)]
	ns.mu.Unlock()
	if n == nil {
		return
	}
	if string(n.boot) != b.Boot {
		if string(n.before) != b.Boot { // else it was long on its way
			n.other.Store(true)
		}
		return
	}
	now := time.Now()
	if now.Sub(n.lastHeard()) > silence {
		n.beats.Store(0)
	}
	n.beats.Add(1)
	n.heard.Store(now.UnixNano())
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
