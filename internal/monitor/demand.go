package monitor

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
)

// Demand is the work of a pool of nodes, and its capacity. It counts the nodes that serve: calls on
// a draining node end there and need no other slot.
type Demand struct {
	Pool  string `json:"pool"`
	Nodes int    `json:"nodes"`
	Slots int    `json:"slots"`
	// InFlight are the calls that have a slot, Queued those of them without a worker.
	InFlight int `json:"in_flight"`
	Queued   int `json:"queued"`
	// Waiting are calls that wait for their turn in a lane. They are no demand: more
	// nodes would not run them sooner.
	Waiting int `json:"waiting"`
	// Busy are the calls that were answered busy between the nodes' last two heartbeats,
	// about a second.
	Busy int `json:"busy"`
	// Awaiting are calls that wait at routers for a node of the pool, Tasks durable tasks
	// that stay queued for want of one; see [codec.Awaited].
	Awaiting int `json:"awaiting"`
	Tasks    int `json:"tasks"`
	// OldestWaitMS is for how long the oldest of these has waited.
	OldestWaitMS int64 `json:"oldest_wait_ms"`
	// WantedSlots is how many slots there would have to be; see [Demands].
	WantedSlots int `json:"wanted_slots"`
}

// Demands sums up nodes, and the work that waits for one, by pool, sorted by name.
//
// The wanted slots are the sum of:
//
//   - the calls in flight;
//   - the queued calls, which hold a slot and so count twice: their node has fewer workers
//     than slots, and counted once a pool whose workers are all taken would never grow;
//   - the callers that wait after they were answered busy: each answer counts for the time
//     that its caller was told to wait, as one caller may be refused a hundred times a second;
//   - the calls and tasks that wait for a node, which are on no node.
//
// An autoscaler divides the number by the share of one node: docs/operations/metrics.md.
func Demands(nodes []registry.NodeStatus, awaited map[string]codec.Awaited) []Demand {
	pools := make(map[string]*Demand)
	of := func(name string) *Demand {
		d := pools[name]
		if d == nil {
			d = &Demand{Pool: name}
			pools[name] = d
		}
		return d
	}
	wanting := make(map[string]float64)
	for _, n := range nodes {
		if !n.Alive || n.State == registry.StateDraining {
			continue
		}
		name := cmp.Or(n.Labels[registry.PoolLabel], registry.DefaultPool)
		d := of(name)
		d.Nodes++
		d.Slots += n.Slots
		d.InFlight += n.InFlight
		d.Queued += n.Queued
		d.Waiting += n.Waiting
		d.Busy += n.Busy
		wanting[name] += n.Wanting
	}
	for name, a := range awaited {
		d := of(name)
		d.Awaiting, d.Tasks, d.OldestWaitMS = a.Calls, a.Tasks, a.OldestMS
	}
	all := make([]Demand, 0, len(pools))
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		d := *pools[name]
		d.WantedSlots = d.InFlight + d.Queued + int(math.Ceil(wanting[name])) + d.Awaiting + d.Tasks
		all = append(all, d)
	}
	return all
}

// demandOf returns that of one pool: zeros for one without nodes, which a scaler has to
// be able to ask for.
func demandOf(pool string, all []Demand) Demand {
	if i := slices.IndexFunc(all, func(d Demand) bool { return d.Pool == pool }); i >= 0 {
		return all[i]
	}
	return Demand{Pool: pool}
}
