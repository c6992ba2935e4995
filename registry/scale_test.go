package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// crowd puts leases of many nodes into the registry, without renewals and heartbeats, in the form
// of an earlier version.
func crowd(t testing.TB, b *bus.Bus, from, to int, change func(*registry.NodeRecord)) {
	t.Helper()
	for i := from; i < to; i++ {
		r := record(fmt.Sprintf("many%d", i), "boot1")
		if change != nil {
			change(&r)
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Of(b).Put(t.Context(), nodeKey(string(r.Node)), data, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// silentBeat sends one heartbeat of a node, which has arrived when it returns.
func silentBeat(t testing.TB, b *bus.Bus, node string, of ...*bus.Bus) {
	t.Helper()
	subject, err := subjects.Heartbeat(subjects.NodeID(node))
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Conn().Publish(subject, codec.Encode(codec.Heartbeat{Node: node, Boot: "boot1", State: "serving", Slots: 4, InFlight: 3}))
	for _, one := range append([]*bus.Bus{b}, of...) {
		if err := one.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func sparing(t testing.TB, b *bus.Bus) *registry.View {
	t.Helper()
	v := testmesh.View(t, b, registry.Checking(time.Hour, registry.ViewOptions{Sparing: true}))
	t.Cleanup(v.Close)
	return v
}

// A sparing view hears every node in a small mesh, in a large one those that it is asked
// about, and every node again when the mesh is small again.
func TestSparingViewGetsItsHeartbeats(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := ready(t, top.Serve(t))
		mine := open(t, top.ServeOn(t, 1))
		v := sparing(t, mine)
		whole := view(t, open(t, top.ServeOn(t, 1)))
		crowd(t, b, 0, 2, nil)
		loadOf := func(v *registry.View, node string) int {
			n, _ := v.Node(subjects.NodeID(node))
			return n.InFlight
		}
		meshtest.Until(t, "a small mesh is heard", func() bool {
			silentBeat(t, b, "many0", mine)
			return loadOf(v, "many0") == 3
		})
		subscribed := mine.Conn().NumSubscriptions()
		crowd(t, b, 2, registry.SparingMax+1, nil)
		meshtest.Until(t, "the view knows all nodes", func() bool {
			return len(v.Nodes()) == registry.SparingMax+1 && len(whole.Nodes()) == registry.SparingMax+1
		})
		if got := mine.Conn().NumSubscriptions(); got != subscribed-1 {
			t.Errorf("a view of a large mesh has %d subscriptions, want %d: it hears all nodes", got, subscribed-1)
		}
		// No node sends heartbeats: a view that subscribes to all of them takes all as gone, the
		// sparing one believes their leases, except that of the node it was asked about.
		meshtest.Until(t, "the whole view finds the silent node gone, and the sparing one as it was asked about it", func() bool {
			return !v.Alive("many5") && !whole.Alive("many5")
		})
		if n, _ := v.Node("many6"); !n.Alive {
			t.Error("a sparing view believes no lease")
		}
		if got := mine.Conn().NumSubscriptions(); got != subscribed {
			t.Errorf("a view that was asked about one node has %d subscriptions, want %d", got, subscribed)
		}
		meshtest.Until(t, "a heartbeat brings it back", func() bool {
			silentBeat(t, b, "many5", mine)
			return v.Alive("many5")
		})
		if v.KnowsLoads() || !whole.KnowsLoads() {
			t.Error("a view that hears few knows what all do, or one that hears all does not")
		}
		for i := 10; i < registry.SparingMax+1; i++ {
			if err := store.Of(b).Delete(t.Context(), nodeKey(fmt.Sprintf("many%d", i)), 0); err != nil {
				t.Fatal(err)
			}
		}
		meshtest.Until(t, "the small mesh is heard again", func() bool {
			silentBeat(t, b, "many7", mine)
			return loadOf(v, "many7") == 3 && v.KnowsLoads()
		})
	})
}

// A responder of a large mesh that does not subscribe to heartbeats does so once when it is asked
// for statistics.
func TestStatsOfALargeMesh(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	crowd(t, b, 0, registry.SparingMax+1, nil)
	v := sparing(t, b)
	r, err := registry.NewResponder(b, v, testmesh.Store(t, b))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	beat(t, b, "many3", "boot1", 2)
	// Nodes that have only just come are believed for 2.5 s.
	meshtest.Until(t, "one node is heard, with its load, and the others are silent", func() bool {
		var answer registry.StatsAnswer
		if err := ask(t, b, "s1", registry.VerbStats, registry.Request{}, &answer); err != nil {
			t.Fatal(err)
		}
		if len(answer.Nodes) != registry.SparingMax+1 {
			t.Fatalf("%d nodes, want %d", len(answer.Nodes), registry.SparingMax+1)
		}
		return !slices.ContainsFunc(answer.Nodes, func(n registry.NodeStats) bool {
			if n.Node == "many3" {
				return n.State != "serving" || n.InFlight != 2
			}
			return n.State != "silent" || n.InFlight != 0
		})
	})
}

// Nodes with equal tools share one list.
func TestNodesShareEqualLists(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	records := testmesh.Store(t, b)
	want := ""
	var leases []*registry.Lease
	for i := range 5 {
		l := acquire(t, b, record(name(i), "boot1"))
		leases = append(leases, l)
		publish(t, records, l, "demo", "r1", "demo.a", "demo.b")
		beat(t, b, name(i), "boot1", 0)
		want += name(i) + "/boot1 "
	}
	meshtest.Until(t, "all serve it", func() bool { return nodesOf(v, "", "demo.a") == want })
	if got := v.Lists(); got != 1 {
		t.Errorf("5 nodes that serve the same have %d lists, want 1", got)
	}
	publish(t, records, leases[0], "demo", "r2", "demo.a", "demo.c")
	meshtest.Until(t, "one has another revision", func() bool { return nodesOf(v, "", "demo.c") == "n0/boot1 " })
	if got := v.Lists(); got != 2 || nodesOf(v, "", "demo.a") != want {
		t.Errorf("%d lists, want 2; demo.a on %s", got, nodesOf(v, "", "demo.a"))
	}
	for _, l := range leases[1:] {
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "what nobody serves is forgotten", func() bool { return nodesOf(v, "", "demo.b") == "unknown" && v.Lists() == 1 })
}

// After a lost connection a view reads only the changes since.
func TestReconnectReadsMissedChanges(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n0", "boot1"))
	beat(t, b, "n0", "boot1", 0)
	say := func(i int, revision string) {
		r := registry.ToolsRecord{Index: subjects.IndexName(fmt.Sprintf("ix%d", i)), Revision: revision}
		for n := range 40 {
			r.Tools = append(r.Tools, registry.ToolRoute{ID: subjects.ToolID(fmt.Sprintf("ix%d.f%d", i, n)), Digest: strings.Repeat("d", 64)})
		}
		if err := l.Publish(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		say(i, "r1")
	}
	cable := meshtest.NewProxy(t, s)
	nc := cable.Connect(t)
	v := view(t, open(t, nc))
	all := nc.Stats().InBytes
	if all < 300_000 {
		t.Fatalf("the view has read %d bytes: too few to compare with", all)
	}
	cable.Cut(true)
	meshtest.Until(t, "the view has no connection", func() bool { return v.Stale() > 0 })
	say(7, "r2")
	if err := l.Withdraw(t.Context(), subjects.ToolsKey{Index: "ix8"}); err != nil {
		t.Fatal(err)
	}
	before := nc.Stats().InBytes
	cable.Heal()
	// The connection tells the view of its loss and its return a moment later.
	meshtest.Until(t, "the view is whole", func() bool {
		r, _ := v.Route("", "ix7.f0")
		return v.Stale() == 0 && r.Revision == "r2"
	})
	if nodesOf(v, "", "ix8.f0") != "unknown" || nodesOf(v, "", "ix9.f0") != "n0/boot1 " {
		t.Errorf("ix8 is on %s, ix9 on %s", nodesOf(v, "", "ix8.f0"), nodesOf(v, "", "ix9.f0"))
	}
	if moved := nc.Stats().InBytes - before; moved > all/4 {
		t.Errorf("a reconnect moved %d bytes, the first reading %d: all was read again", moved, all)
	}
}

// A lease lasts as long as the number of nodes requires, and no longer than in a small mesh if
// something relies on it.
func TestLeasesFollowTheSizeOfTheMesh(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[uint64]time.Duration{
		0: 3 * time.Second, 3: 3 * time.Second, 77: 3 * time.Second, 100: 8192 * time.Millisecond,
		500: 131072 * time.Millisecond, 1000: 524288 * time.Millisecond, 1 << 40: 10 * time.Minute,
	} {
		if got := registry.RenewsEvery(nodes); got != want {
			t.Errorf("of %d nodes leases are renewed every %v, want %v", nodes, got, want)
		}
	}
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := ready(t, top.Serve(t))
		crowd(t, b, 0, 120, nil)
		l := acquire(t, open(t, top.ServeOn(t, 1)), record("n0", "boot1"))
		long := func() bool {
			r, ok := holder(t, b, "n0")
			return ok && r.LeaseMS == 27_306
		}
		meshtest.Until(t, "the lease is that of a large mesh", func() bool {
			if err := l.Update(t.Context(), func(*registry.NodeRecord) {}); err != nil {
				t.Fatal(err)
			}
			return long()
		})
		if err := l.Rely(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, _ := holder(t, b, "n0"); r.LeaseMS != 0 {
			t.Errorf("a lease that is relied on stands for %d ms, want that of a small mesh", r.LeaseMS)
		}
		since, until := l.Held()
		if now := time.Now(); !since.Before(now) || !until.After(now) {
			t.Errorf("a lease that is relied on is held from %v until %v, at %v", since, until, now)
		}
		meshtest.Until(t, "it is renewed as in a small mesh, without a gap", func() bool {
			again, then := l.Held()
			if !again.Equal(since) {
				t.Fatalf("the lease stands since %v, it stood since %v", again, since)
			}
			return then.After(until)
		})
	})
}

// A router ends the long leases of nodes that are gone, and no others.
func TestLongLeasesOfTheDeadAreEnded(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	long := func(r *registry.NodeRecord) { r.LeaseMS = time.Hour.Milliseconds() }
	crowd(t, b, 0, 3, long)
	crowd(t, b, 3, 4, nil) // of a small mesh: it ends by itself
	beat(t, b, "many0", "boot1", 0)
	own, err := subjects.NodeCtls("many1") // one that is not heard and that is there
	if err == nil {
		_, err = b.Conn().SubscribeSync(own)
	}
	if err != nil {
		t.Fatal(err)
	}
	v := testmesh.View(t, open(t, s.Connect(t)), registry.Checking(time.Hour, registry.ViewOptions{Reaps: true}))
	t.Cleanup(v.Close)
	meshtest.Until(t, "the lease of the node that is gone is ended", func() bool { _, ok := holder(t, b, "many2"); return !ok })
	for _, node := range []string{"many0", "many1", "many3"} {
		if _, ok := holder(t, b, node); !ok {
			t.Errorf("the lease of %s was ended", node)
		}
	}
}

// A listener is notified only of the requested keys.
func TestNotifyOfRequestedKeys(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	records := testmesh.Store(t, b)
	anything, indexes := make(chan struct{}, 1), make(chan struct{}, 1)
	t.Cleanup(v.Notify(anything))
	t.Cleanup(v.Notify(indexes, registry.ChangedIndexes))
	l := acquire(t, b, record("n0", "boot1"))
	publish(t, records, l, "demo", "r1", "demo.a")
	meshtest.Until(t, "the tool is known", func() bool { return nodesOf(v, "", "demo.a") == "n0/boot1 " })
	receive(t, anything, "a change of anything")
	select {
	case <-indexes:
		t.Error("changes of tools and nodes have notified a listener for indexes")
	default:
	}
	if err := records.ClaimIndex(t.Context(), registry.IndexRecord{Name: "demo", Source: "somewhere"}); err != nil {
		t.Fatal(err)
	}
	receive(t, indexes, "a change of an index")
}

// Of many nodes an asker is told the same few again and again, and all askers together
// of all.
func TestAnswersNameSomeOfManyNodes(t *testing.T) {
	t.Parallel()
	var nodes []registry.Candidate
	for i := range 1000 {
		nodes = append(nodes, registry.Candidate{Node: subjects.NodeID(fmt.Sprintf("sim-%04d", i)), Boot: "boot1"})
	}
	told := make(map[subjects.NodeID]int)
	for i := range 100 {
		asker := fmt.Sprintf("_INBOX.asker%d", i)
		one := registry.Some(nodes, asker)
		if len(one) != 128 || !slices.Equal(one, registry.Some(nodes, asker)) {
			t.Fatalf("asker %d is told of %d nodes, want the same 128 each time", i, len(one))
		}
		distinct := make(map[subjects.NodeID]bool)
		for _, n := range one {
			told[n.Node]++
			distinct[n.Node] = true
		}
		if len(distinct) != len(one) {
			t.Fatalf("asker %d is told of a node twice", i)
		}
	}
	least, most := 100, 0
	for _, n := range nodes {
		least, most = min(least, told[n.Node]), max(most, told[n.Node])
	}
	if least < 1 || most > 40 { // 12.8 on average
		t.Errorf("of 100 askers, %d to %d are told of a node: the choice is not even", least, most)
	}
	if few := registry.Some(nodes[:5], "a"); !slices.Equal(few, nodes[:5]) {
		t.Errorf("few nodes are all told of, got %v", few)
	}
}

// The records of a killed node's tools are removed some time after its lease: never those of a live
// node, or of one that sends heartbeats and is about to write its lease.
func TestToolsOfDeadNodesAreRemoved(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("lives", "boot1"))
	beat(t, b, "lives", "boot1", 0)
	beat(t, b, "heard", "boot1", 0)
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Revision: "r1", Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	key := func(node string) store.Key {
		return store.Key{Bucket: subjects.BucketTools, Name: node + ".=.i.demo"}
	}
	v := view(t, open(t, s.Connect(t)))
	meshtest.Until(t, "both are heard", func() bool { return v.Runs("lives", "boot1") })
	for _, node := range []string{"dead", "heard"} {
		if _, err := store.Of(b).Put(t.Context(), key(node), []byte(`{"node":"`+node+`","boot":"boot1","index":"demo","tools":[]}`), 0); err != nil {
			t.Fatal(err)
		}
	}
	clear := v.Clears(t.Context(), 300*time.Millisecond, 0)
	meshtest.Until(t, "what the dead one served is gone", func() bool {
		clear()
		_, err := store.Of(b).Latest(t.Context(), key("dead"))
		return errors.Is(err, store.ErrNoKey)
	})
	for _, node := range []string{"lives", "heard"} {
		if _, err := store.Of(b).Latest(t.Context(), key(node)); err != nil {
			t.Errorf("what %s serves: %v", node, err)
		}
	}
}
