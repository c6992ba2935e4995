package registry_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// Nodes publish and withdraw at random while the broker restarts and a
// view's connection is cut: every view must end with the stored records, whenever it was opened.
func TestViewsAgreeAfterChurn(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	cable := meshtest.NewProxy(t, s)
	views := []*registry.View{view(t, open(t, s.Connect(t))), view(t, open(t, cable.Connect(t)))}
	const seed = 7
	random := rand.New(rand.NewPCG(seed, seed))
	var leases []*registry.Lease
	for i := range 4 {
		leases = append(leases, acquire(t, b, record(name(i), "boot1")))
	}
	for round := range 6 {
		for step := range 80 {
			l := leases[random.IntN(len(leases))]
			index := subjects.IndexName(fmt.Sprintf("ix%d", random.IntN(12)))
			if random.IntN(3) == 0 {
				_ = l.Withdraw(t.Context(), subjects.ToolsKey{Index: index}) // the lease repairs a failure
				continue
			}
			r := registry.ToolsRecord{Index: index, Revision: fmt.Sprintf("%d.%d", round, step)}
			for n := range 1 + random.IntN(3) {
				r.Tools = append(r.Tools, registry.ToolRoute{ID: subjects.ToolID(fmt.Sprintf("%s.f%d", index, n)), Digest: "d"})
			}
			_ = l.Publish(t.Context(), r)
		}
		switch round {
		case 0, 3:
			s.Restart(t)
		case 1, 4:
			cable.Cut(false)
		case 2:
			views = append(views, view(t, open(t, s.Connect(t))))
		}
	}
	stored := func() map[string]string {
		out := make(map[string]string)
		for _, data := range toolsOf(t, b) {
			var r registry.ToolsRecord
			if err := json.Unmarshal([]byte(data), &r); err != nil {
				t.Fatal(err)
			}
			for _, tool := range r.Tools {
				out[string(tool.ID)] += fmt.Sprintf("%s/%s ", r.Node, r.Revision)
			}
		}
		return sortWords(out)
	}
	for i, v := range views {
		meshtest.Until(t, fmt.Sprintf("view %d has what is stored", i), func() bool {
			return maps.Equal(stored(), known(v)) && len(known(v)) > 0 && v.Stale() == 0
		})
	}
}

// known is a view's nodes and revisions of every tool.
func known(v *registry.View) map[string]string {
	out := make(map[string]string)
	routes, _ := v.List("s", "", 0)
	for _, r := range routes {
		for _, each := range v.Records("s", r.ID) {
			out[string(r.ID)] += fmt.Sprintf("%s/%s ", each.Node, each.Revision)
		}
	}
	return sortWords(out)
}

func sortWords(m map[string]string) map[string]string {
	for k, text := range m {
		words := strings.Fields(text)
		slices.Sort(words)
		m[k] = strings.Join(words, " ")
	}
	return m
}

// The server that leads a bucket is stopped, and
// expects the view, on another one, to go on.
func TestViewInAClusterThatLosesALeader(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for an election")
	}
	t.Parallel()
	servers := meshtest.Cluster(t, 3)
	b := ready(t, servers[0].Connect(t, nats.DontRandomize()))
	stream, err := b.JetStream().Stream(t.Context(), subjects.KVStream(subjects.BucketTools))
	if err != nil {
		t.Fatal(err)
	}
	leader := stream.CachedInfo().Cluster.Leader
	var dying *meshtest.Server
	var left []*meshtest.Server
	for _, s := range servers {
		if s.Server().Name() == leader {
			dying = s
		} else {
			left = append(left, s)
		}
	}
	if dying == nil {
		t.Fatalf("no server is the leader %q", leader)
	}
	nodeBus, viewBus := open(t, left[0].Connect(t)), open(t, left[1].Connect(t))
	v := view(t, viewBus)
	l := acquire(t, nodeBus, record("n1", "boot1"))
	beat(t, nodeBus, "n1", "boot1", 0)
	put := func(revision string) error {
		return l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Revision: revision, Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}})
	}
	// Each stream of a new cluster elects a leader of its own.
	meshtest.Until(t, "the first record is written", func() bool { return put("r1") == nil })
	meshtest.Until(t, "it can be called", func() bool { return nodesOf(v, "s", "demo.a") == "n1/boot1 " })
	dying.Stop()
	meshtest.Until(t, "it is written under a new leader", func() bool { return put("r2") == nil })
	meshtest.Until(t, "the view follows the new leader", func() bool {
		r, ok := v.Route("s", "demo.a")
		return ok && r.Revision == "r2" && len(r.Nodes) == 1
	})
	if err := l.Err(); err != nil {
		t.Fatalf("the lease was lost: %v", err)
	}
}
