package monitor_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/monitor"
	"github.com/toolmesh/toolmesh/registry"
)

// node is a serving node with a change of the test's.
func node(pool string, change func(*registry.NodeStatus)) registry.NodeStatus {
	n := registry.NodeStatus{Alive: true}
	n.State, n.Slots = registry.StateServing, 8
	if pool != "" {
		n.Labels = map[string]string{"pool": pool, "zone": "a"}
	}
	if change != nil {
		change(&n)
	}
	return n
}

func TestDemands(t *testing.T) {
	t.Parallel()
	load := func(inFlight, queued, waiting, busy int, wanting float64) func(*registry.NodeStatus) {
		return func(n *registry.NodeStatus) {
			n.InFlight, n.Queued, n.Waiting, n.Busy, n.Wanting = inFlight, queued, waiting, busy, wanting
		}
	}
	for name, c := range map[string]struct {
		nodes   []registry.NodeStatus
		awaited map[string]codec.Awaited
		want    []monitor.Demand
	}{
		"no nodes": {nil, nil, []monitor.Demand{}},
		"what waits for a pool without nodes": {
			nil,
			map[string]codec.Awaited{"gpu": {Calls: 3, Tasks: 2, OldestMS: 1500}},
			[]monitor.Demand{{Pool: "gpu", Awaiting: 3, Tasks: 2, OldestWaitMS: 1500, WantedSlots: 5}},
		},
		"what waits adds to what runs, and to no other pool": {
			[]registry.NodeStatus{node("gpu", load(4, 1, 7, 9, 0.5)), node("cpu", load(2, 0, 0, 0, 0))},
			map[string]codec.Awaited{"gpu": {Calls: 1, OldestMS: 10}},
			[]monitor.Demand{
				{Pool: "cpu", Nodes: 1, Slots: 8, InFlight: 2, WantedSlots: 2},
				{Pool: "gpu", Nodes: 1, Slots: 8, InFlight: 4, Queued: 1, Waiting: 7, Busy: 9, Awaiting: 1, OldestWaitMS: 10, WantedSlots: 7},
			},
		},
		"one that idles, without a label": {
			[]registry.NodeStatus{node("", nil)},
			nil,
			[]monitor.Demand{{Pool: "default", Nodes: 1, Slots: 8}},
		},
		"pools are sums, by name": {
			[]registry.NodeStatus{node("gpu", load(3, 1, 7, 0, 0)), node("cpu", load(1, 0, 0, 0, 0)), node("gpu", load(4, 0, 0, 0, 0))},
			nil,
			[]monitor.Demand{
				{Pool: "cpu", Nodes: 1, Slots: 8, InFlight: 1, WantedSlots: 1},
				{Pool: "gpu", Nodes: 2, Slots: 16, InFlight: 7, Queued: 1, Waiting: 7, WantedSlots: 8},
			},
		},
		// A hundred answers in a second to callers that are to wait 10 ms are one that waits.
		"callers that wait, not answers": {
			[]registry.NodeStatus{node("gpu", load(8, 0, 0, 100, 1)), node("gpu", load(8, 0, 0, 30, 0.3))},
			nil,
			[]monitor.Demand{{Pool: "gpu", Nodes: 2, Slots: 16, InFlight: 16, Busy: 130, WantedSlots: 18}},
		},
		"what drains or is silent counts for nothing": {
			[]registry.NodeStatus{
				node("gpu", func(n *registry.NodeStatus) { n.State, n.InFlight = registry.StateDraining, 5 }),
				node("gpu", func(n *registry.NodeStatus) { n.Alive, n.InFlight = false, 5 }),
				node("gpu", load(2, 0, 0, 0, 0)),
			},
			nil,
			[]monitor.Demand{{Pool: "gpu", Nodes: 1, Slots: 8, InFlight: 2, WantedSlots: 2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, monitor.Demands(c.nodes, c.awaited)); diff != "" {
				t.Errorf("demand (-want +got):\n%s", diff)
			}
		})
	}
}

// targetPercent is the average use of a node's slots to aim at: the rest takes new calls while
// another node starts.
const targetPercent = 70

// replicas is the number of nodes, with slots each, that a HorizontalPodAutoscaler makes of
// WantedSlots with averageValue = slots × targetPercent / 100. It is 0 if no slots are wanted.
// slots below 1 count as 1.
func replicas(wanted, slots int) int {
	if wanted <= 0 {
		return 0
	}
	target := max(slots, 1) * targetPercent
	return (wanted*100 + target - 1) / target
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ wanted, slots, want int }{
		{0, 8, 0},
		{-1, 8, 0},
		{1, 8, 1},
		{1, 128, 1},
		{5, 8, 1}, // 5.6 slots of a node are to be in use
		{6, 8, 2},
		{7, 10, 1},
		{8, 10, 2},
		{56, 8, 10},
		{57, 8, 11},
		{1, 1, 2}, // a node of one slot is never to be full
		{10, 0, 15},
		{10, -3, 15},
		{1_000_000, 128, 11_161},
		{21, 30, 1}, // 70 % of 30 is 21, which binary fractions are not sure of
		{22, 30, 2},
		{14_000_000, 1, 20_000_000},
	} {
		if got := replicas(c.wanted, c.slots); got != c.want {
			t.Errorf("%d wanted at %d a node: %d replicas, want %d", c.wanted, c.slots, got, c.want)
		}
	}
}

// A pool that is scaled by the number has room for new calls, in one step from any size, and is
// then stable.
func TestAPoolFollowsItsDemand(t *testing.T) {
	t.Parallel()
	const slots = 8
	for _, calls := range []int{0, 1, 5, 6, 50, 777, 100_000} {
		for _, size := range []int{1, 3, 1000} {
			for step := range 4 {
				nodes := make([]registry.NodeStatus, size)
				left := calls
				for i := range nodes {
					nodes[i] = node("gpu", func(n *registry.NodeStatus) { n.InFlight = min(left, slots) })
					left -= nodes[i].InFlight
				}
				nodes[0].Wanting = float64(left)
				before, wanted := size, 0
				for _, d := range monitor.Demands(nodes, nil) {
					wanted = d.WantedSlots
				}
				if size = max(replicas(wanted, slots), 1); step > 0 && size != before {
					t.Fatalf("%d calls: from %d nodes to %d in step %d", calls, before, size, step)
				}
			}
			if 100*calls > size*slots*targetPercent || size > 1 && 100*calls <= (size-1)*slots*targetPercent {
				t.Errorf("%d calls have %d nodes of %d slots", calls, size, slots)
			}
		}
	}
}
