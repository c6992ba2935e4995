package registry

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// SparingMax is the largest mesh, in nodes, in which a sparing view subscribes to the
// heartbeats of all nodes.
const SparingMax = 64

const (
	// sparingMin is the size at which a sparing view subscribes to all heartbeats again. It
	// is below SparingMax, so that a mesh at the limit does not switch all the time.
	sparingMin = SparingMax * 3 / 4
	// singlesMax bounds the subscriptions to single nodes. Each ends singleFor after the
	// last question about its node.
	singlesMax = 64
	singleFor  = time.Minute
)

// heartbeats are a view's subscriptions to heartbeats. The view's lock guards them.
type heartbeats struct {
	all     *nats.Subscription // of all nodes; nil: only nodes with a single one are heard
	since   time.Time          // of all
	singles int                // nodes with a subscription of their own
	needs   int                // callers of refreshLoads that need all of them now
}

// single is a subscription to the heartbeats of one node.
type single struct {
	sub   *nats.Subscription
	since time.Time
	asked time.Time // time of the last question about the node
}

// heardSince returns since when the view receives a node's heartbeats, and false where it
// does not receive them.
func (v *View) heardSince(n *nodeEntry) (since time.Time, ok bool) {
	switch {
	case v.heartbeats.all != nil:
		return v.heartbeats.since, true
	case n.single != nil:
		return n.single.since, true
	}
	return time.Time{}, false
}

func (v *View) subscribeAll() error {
	sub, err := v.bus.Conn().Subscribe(subjects.AllHeartbeats, v.heartbeat)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "subscribe to the heartbeats of all nodes: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	v.heartbeats.all, v.heartbeats.since = sub, time.Now()
	return nil
}

// followSize adapts a sparing view's subscriptions to the number of nodes.
func (v *View) followSize() {
	switch {
	case !v.sparing:
	case v.heartbeats.all != nil && v.leased > SparingMax && v.heartbeats.needs == 0:
		_ = v.heartbeats.all.Unsubscribe()
		v.heartbeats.all = nil
	case v.heartbeats.all == nil && v.leased <= sparingMin && !v.closed:
		_ = v.subscribeAll() // of a connection that is closed
	}
}

// KnowsLoads reports whether the view receives the loads of all nodes.
func (v *View) KnowsLoads() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.heartbeats.all != nil && v.heartbeats.needs == 0
}

// beatsWithin is how long it takes until every live node has sent a heartbeat.
const beatsWithin = 1300 * time.Millisecond

// refreshLoads makes the view's loads current: unless it receives all heartbeats anyway, it
// subscribes to them, waits until each live node has sent one, and stays subscribed until
// done is called.
func (v *View) refreshLoads() (done func()) {
	began := time.Now()
	v.mu.Lock()
	if v.heartbeats.all != nil && v.heartbeats.needs == 0 {
		v.mu.Unlock()
		return func() {}
	}
	if v.heartbeats.all == nil && !v.closed {
		_ = v.subscribeAll()
	}
	v.heartbeats.needs++
	v.mu.Unlock()
	time.Sleep(beatsWithin)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heartbeats.since = began.Add(-Silence) // a node without a heartbeat since then is silent
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.heartbeats.needs--
		v.followSize()
	}
}

// subscribeTo subscribes to the heartbeats of one node, within singlesMax.
func (v *View) subscribeTo(id subjects.NodeID, n *nodeEntry, now time.Time) {
	if n.single != nil {
		n.single.asked = now
		return
	}
	subject, err := subjects.Heartbeat(id)
	if err != nil || v.heartbeats.singles >= singlesMax || v.closed {
		return
	}
	if sub, err := v.bus.Conn().Subscribe(subject, v.heartbeat); err == nil {
		n.single = &single{sub: sub, since: now, asked: now}
		v.heartbeats.singles++
	}
}

// dropSingles ends the subscriptions to nodes without a question for singleFor.
func (v *View) dropSingles(now time.Time) {
	for _, n := range v.nodes {
		if n.single != nil && now.Sub(n.single.asked) > singleFor {
			_ = n.single.sub.Unsubscribe()
			n.single = nil
			v.heartbeats.singles--
		}
	}
}

// unsubscribeAll ends all subscriptions to heartbeats for good.
func (v *View) unsubscribeAll() {
	v.closed = true
	if v.heartbeats.all != nil {
		_ = v.heartbeats.all.Unsubscribe()
	}
	v.dropSingles(time.Now().Add(2 * singleFor))
}
