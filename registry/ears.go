package registry

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// HearsAll is up to how many nodes a sparing view hears the heartbeats of all.
const HearsAll = 64

const (
	// hearsAgain is down to how many nodes a mesh must shrink for all of them to be heard
	// again: one at the limit is not to change its mind all the time.
	hearsAgain = HearsAll * 3 / 4
	// earsMost is how many nodes are heard that are asked about, and attends for how long
	// after they were.
	earsMost = 64
	attends  = time.Minute
)

// ears are the heartbeats that a view hears. They are guarded by the view's lock.
type ears struct {
	all   *nats.Subscription // of all nodes; nil: only those are heard that have an ear
	since time.Time          // all are heard
	some  int                // nodes that have an ear
	needs int                // how many need all of them for a moment
}

// ear is the heartbeat of one node.
type ear struct {
	sub   *nats.Subscription
	since time.Time // it is heard
	asked time.Time // somebody did last
}

// hears returns since when a node's heartbeat is heard, false where it is not.
func (v *View) hears(n *nodeEntry) (since time.Time, ok bool) {
	switch {
	case v.ears.all != nil:
		return v.ears.since, true
	case n.ear != nil:
		return n.ear.since, true
	}
	return time.Time{}, false
}

func (v *View) hearAll() error {
	sub, err := v.bus.Conn().Subscribe(subjects.AllHeartbeats, v.heartbeat)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "hear the nodes: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	v.ears.all, v.ears.since = sub, time.Now()
	return nil
}

// adjustEars follows the number of nodes.
func (v *View) adjustEars() {
	switch {
	case !v.sparing:
	case v.ears.all != nil && v.leased > HearsAll && v.ears.needs == 0:
		_ = v.ears.all.Unsubscribe()
		v.ears.all = nil
	case v.ears.all == nil && v.leased <= hearsAgain && !v.closed:
		_ = v.hearAll() // of a connection that is closed
	}
}

// HearsLoads reports whether the view knows what all nodes do now.
func (v *View) HearsLoads() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.ears.all != nil && v.ears.needs == 0
}

// gathers is how long the heartbeats of all nodes take to come by.
const gathers = 1300 * time.Millisecond

// gather hears all nodes for once, if the view does not hear them anyway, so that what it
// says of each is of now, until done is called.
func (v *View) gather() (done func()) {
	began := time.Now()
	v.mu.Lock()
	if v.ears.all != nil && v.ears.needs == 0 {
		v.mu.Unlock()
		return func() {}
	}
	if v.ears.all == nil && !v.closed {
		_ = v.hearAll()
	}
	v.ears.needs++
	v.mu.Unlock()
	time.Sleep(gathers)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ears.since = began.Add(-Silence) // who has said nothing is silent
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.ears.needs--
		v.adjustEars()
	}
}

// attend hears one node from now on, unless that are many already.
func (v *View) attend(id subjects.NodeID, n *nodeEntry, now time.Time) {
	if n.ear != nil {
		n.ear.asked = now
		return
	}
	subject, err := subjects.Heartbeat(id)
	if err != nil || v.ears.some >= earsMost || v.closed {
		return
	}
	if sub, err := v.bus.Conn().Subscribe(subject, v.heartbeat); err == nil {
		n.ear = &ear{sub: sub, since: now, asked: now}
		v.ears.some++
	}
}

// forgetEars no longer hears the nodes that nobody asks about.
func (v *View) forgetEars(now time.Time) {
	for _, n := range v.nodes {
		if n.ear != nil && now.Sub(n.ear.asked) > attends {
			_ = n.ear.sub.Unsubscribe()
			n.ear = nil
			v.ears.some--
		}
	}
}

// hearNothing ends all of it.
func (v *View) hearNothing() {
	v.closed = true
	if v.ears.all != nil {
		_ = v.ears.all.Unsubscribe()
	}
	v.forgetEars(time.Now().Add(2 * attends))
}
