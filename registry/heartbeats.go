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

// sparingMin is the size at which a sparing view subscribes to all heartbeats again. It
// is below SparingMax, so that a mesh at the limit does not switch all the time.
const sparingMin = SparingMax * 3 / 4

// heartbeats are a view's subscriptions to heartbeats. The view's lock guards them.
type heartbeats struct {
	all   *nats.Subscription // of all nodes; nil: only those that the connection watches are heard
	since time.Time          // of all
	needs int                // callers of refreshLoads that need all of them now
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
