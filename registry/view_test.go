package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestViewFollowsInEveryTopology(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := ready(t, top.Serve(t))
		records := testmesh.Store(t, b)
		l := acquire(t, b, record("n1", "boot1"))
		publish(t, records, l, "demo", "r1", "demo.a", "demo.b")
		beat(t, b, "n1", "boot1", 2)
		// One view is opened before anything happens, on another server, one after.
		early := view(t, open(t, top.ServeOn(t, 1)))
		for _, v := range []*registry.View{early, view(t, b)} {
			meshtest.Until(t, "the view knows the tool", func() bool { return nodesOf(v, "s1", "demo.a") == "n1/boot1 " })
			meshtest.Until(t, "the view knows the load", func() bool {
				n, ok := v.Node("n1")
				return ok && n.Alive && n.InFlight == 2 && slices.Equal(n.Indexes, []subjects.IndexName{"demo"})
			})
			if v.Stale() != 0 {
				t.Errorf("the view is %v behind", v.Stale())
			}
		}
		publish(t, records, l, "demo", "r2", "demo.b", "demo.c")
		meshtest.Until(t, "the view has the new revision", func() bool {
			r, ok := early.Route("s1", "demo.c")
			return ok && r.Revision == "r2" && nodesOf(early, "s1", "demo.a") == "unknown"
		})
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the node is gone", func() bool { return len(early.Nodes()) == 0 && nodesOf(early, "s1", "demo.b") == "unknown" })
	})
}

// relayed is a bus of a JetStream domain that only it may relay: refuse answers some requests
// itself, the broker the others.
func relayed(t *testing.T, s *meshtest.Server, domain string, refuse func(subject string) []byte) *bus.Bus {
	t.Helper()
	mesh, caller := s.Connect(t), s.Connect(t)
	_, err := caller.Subscribe("$JS."+domain+".API.>", func(m *nats.Msg) {
		if answer := refuse(m.Subject); answer != nil {
			_ = m.Respond(answer)
			return
		}
		inbox := mesh.NewInbox()
		if _, err := mesh.Subscribe(inbox, func(r *nats.Msg) {
			_ = caller.PublishMsg(&nats.Msg{Subject: m.Reply, Header: r.Header, Data: r.Data})
		}); err != nil {
			t.Error(err)
		}
		_ = mesh.PublishMsg(&nats.Msg{Subject: strings.Replace(m.Subject, domain+".", "", 1), Reply: inbox, Header: m.Header, Data: m.Data})
	})
	if err == nil {
		err = caller.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	b := testmesh.Bus(t, s.Connect(t), &bus.Options{Domain: domain})
	return b
}

// In a cluster a new bucket, or one with restarting servers, has no leader for a while: opening the
// registry waits for it. A permanent fault is reported at once.
func TestViewIsOpenedWhileABucketHasNoLeader(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, testmesh.Store(t, b), l, "demo", "r1", "demo.a")
	const info = `{"type":"io.nats.jetstream.api.v1.stream_info_response","error":`
	var asked atomic.Int64
	v := view(t, relayed(t, s, "leaderless", func(subject string) []byte {
		if !strings.HasSuffix(subject, ".STREAM.INFO.KV_MESH_TOOLS") || asked.Add(1) > 2 {
			return nil
		}
		return []byte(info + `{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`)
	}))
	if r, ok := v.Route("s1", "demo.a"); !ok || r.Revision != "r1" || asked.Load() < 3 {
		t.Errorf("after %d questions the view has the route %+v, %v", asked.Load(), r, ok)
	}

	missing := relayed(t, s, "missing", func(subject string) []byte {
		if !strings.HasSuffix(subject, ".STREAM.INFO.KV_MESH_TOOLS") {
			return nil
		}
		return []byte(info + `{"code":404,"err_code":10059,"description":"stream not found"}}`)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := registry.OpenView(ctx, missing, nil)
	if wantCode(t, err, toolmesh.CodeUnavailable); ctx.Err() != nil {
		t.Errorf("a bucket that is not there was waited for: %v", err)
	}
}

func TestNodesThatAreGoneAreNoCandidates(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	records := testmesh.Store(t, b)
	v := view(t, open(t, s.Connect(t)))
	cable := meshtest.NewProxy(t, s)
	b1 := open(t, cable.Connect(t))
	l := acquire(t, b1, record("n1", "boot1"))
	publish(t, records, l, "demo", "r1", "demo.a")
	beat(t, b1, "n1", "boot1", 0)
	meshtest.Until(t, "it can be called", func() bool { return nodesOf(v, "s1", "demo.a") == "n1/boot1 " })
	// Its machine is gone, the lease lasts a while. Messages sent before arrive: the silence begins
	// after them.
	spoke := time.Now()
	beat(t, b1, "n1", "boot1", 0)
	if err := b1.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	cable.Blackhole()
	meshtest.Until(t, "a silent node is no candidate", func() bool { return nodesOf(v, "s1", "demo.a") == "" })
	if d := time.Since(spoke); d < registry.Silence {
		t.Fatalf("no candidate after %v of silence", d)
	}
	if r, ok := v.Route("s1", "demo.a"); !ok || r.Reason == "" {
		t.Fatalf("a tool that nobody serves: %+v, %v; want known, with a reason", r, ok)
	}
	// Another boot takes over: the old one's records are not believed.
	l2 := acquire(t, b, record("n1", "boot2"))
	beat(t, b, "n1", "boot2", 0)
	meshtest.Until(t, "the new boot is known", func() bool { n, _ := v.Node("n1"); return n.Boot == "boot2" })
	if got := nodesOf(v, "s1", "demo.a"); strings.Contains(got, "boot2") {
		t.Fatalf("what boot1 published counts for boot2: %q", got)
	}
	publish(t, records, l2, "demo", "r1", "demo.a")
	meshtest.Until(t, "the new boot can be called", func() bool { return nodesOf(v, "s1", "demo.a") == "n1/boot2 " })
	// A restart under a view's eyes: the lease changes its boot.
	e, err := store.Of(b).Get(t.Context(), nodeKey("n1"))
	if err != nil {
		t.Fatal(err)
	}
	data := strings.Replace(string(e.Value), "boot2", "boot3", 1)
	if _, err := store.Of(b).Put(t.Context(), nodeKey("n1"), []byte(data), registry.LeaseTTL); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "what boot2 published does not count for boot3", func() bool { return nodesOf(v, "s1", "demo.a") == "" })
}

func TestDrainingIsNoCandidate(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	records := testmesh.Store(t, b)
	v := view(t, b)
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, records, l, "demo", "r1", "demo.a")
	meshtest.Until(t, "it can be called", func() bool { return nodesOf(v, "s1", "demo.a") == "n1/boot1 " })
	subject, err := subjects.Heartbeat("n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Conn().Publish(subject, codec.Encode(codec.Heartbeat{Node: "n1", Boot: "boot1", State: "draining", Slots: 4})); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "a heartbeat takes it out", func() bool { return nodesOf(v, "s1", "demo.a") == "" })
	if n, _ := v.Node("n1"); n.State != registry.StateDraining {
		t.Fatalf("state %q", n.State)
	}
}

// A node's subject and its key identify it, not the name in the body; and while heartbeats of its
// lease's boot arrive, those of another boot are ignored.
func TestViewBelievesSubjectsAndKeys(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	for _, node := range []string{"n1", "n2"} {
		acquire(t, b, record(node, "boot-"+node))
	}
	stop := beat(t, b, "n1", "boot-n1", 1)
	beat(t, b, "n2", "boot-n2", 1)
	load := func(node subjects.NodeID) int { n, _ := v.Node(node); return n.InFlight }
	meshtest.Until(t, "both are known", func() bool { return load("n1") == 1 && load("n2") == 1 })
	stop()
	send := func(body codec.Heartbeat) {
		t.Helper()
		if err := b.Conn().Publish("mesh.hb.n1", codec.Encode(body)); err != nil {
			t.Fatal(err)
		}
	}
	send(codec.Heartbeat{Node: "n2", Boot: "another", State: "draining", InFlight: 7, Slots: 9})
	send(codec.Heartbeat{Node: "n2", Boot: "boot-n1", State: "serving", InFlight: 8, Slots: 9})
	meshtest.Until(t, "the last one was read", func() bool { return load("n1") == 8 })
	if n := load("n2"); n != 1 {
		t.Errorf("n2 has %d calls by what stood on n1's subject", n)
	}
	if n, _ := v.Node("n1"); !n.Alive || n.State != registry.StateServing {
		t.Errorf("n1 is %+v by another boot's heartbeat", n)
	}
	defer beat(t, b, "n1", "boot-n1", 1)()
	for _, change := range [][2]string{
		{subjects.BucketNodes, `{"node":"n1","boot":"boot-n2","state":"serving","slots":64}`},
		{subjects.BucketSessions, `{"id":"n1","epoch":"e"}`},
		{subjects.BucketIndexes, `{"name":"n1","session":"s","source":"test"}`},
	} {
		if _, err := store.Of(b).Put(t.Context(), store.Key{Bucket: change[0], Name: "n2"}, []byte(change[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "the records are known", func() bool {
		n, ok := v.Node("n2")
		return ok && n.Slots == 64 && n.Node == "n2" && len(v.Sessions()) == 1 && v.Sessions()[0].ID == "n2" &&
			slices.ContainsFunc(v.Indexes(), func(r registry.IndexRecord) bool { return r.Name == "n2" && r.Session == "" && r.Source == "test" })
	})
	if n, _ := v.Node("n1"); n.Boot != "boot-n1" {
		t.Errorf("n1 is %+v by what stood in n2's key", n)
	}
}

func TestViewSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	records := testmesh.Store(t, b)
	v := view(t, open(t, s.Connect(t)))
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, records, l, "demo", "r1", "demo.a")
	beat(t, b, "n1", "boot1", 0)
	meshtest.Until(t, "it can be called", func() bool { return nodesOf(v, "s1", "demo.a") == "n1/boot1 " })
	s.Stop()
	meshtest.Until(t, "the view knows that it is behind", func() bool { return v.Stale() > 0 })
	if got := nodesOf(v, "s1", "demo.a"); got != "n1/boot1 " {
		t.Fatalf("without a broker the view says %q", got)
	}
	s.Start(t)
	meshtest.Until(t, "it is up to date", func() bool { return v.Stale() == 0 && b.Connected() })
	publish(t, records, l, "demo", "r2", "demo.b")
	meshtest.Until(t, "it follows again", func() bool { return nodesOf(v, "s1", "demo.b") == "n1/boot1 " })
}

func TestViewSurvivesAWipedStore(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	records := testmesh.Store(t, b)
	v := view(t, open(t, s.Connect(t)))
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, records, l, "demo", "r1", "demo.a")
	for i := range 20 { // sequences of the new stream are below those of the old
		publish(t, records, l, "other", fmt.Sprint(i), "other.a")
	}
	beat(t, b, "n1", "boot1", 0)
	meshtest.Until(t, "it can be called", func() bool { return nodesOf(v, "s1", "demo.a") == "n1/boot1 " })
	for _, bucket := range []string{subjects.BucketNodes, subjects.BucketTools} {
		if err := b.JetStream().DeleteStream(t.Context(), subjects.KVStream(bucket)); err != nil {
			t.Fatal(err)
		}
	}
	publishAfter := func() bool {
		err := l.Publish(t.Context(), registry.ToolsRecord{Index: "new", Tools: []registry.ToolRoute{{ID: "new.a", Digest: "d"}}})
		return err == nil
	}
	meshtest.Until(t, "the node writes into the new store", publishAfter)
	meshtest.Until(t, "the view follows the new store", func() bool { return nodesOf(v, "s1", "new.a") == "n1/boot1 " })
	if got := nodesOf(v, "s1", "demo.a"); got != "n1/boot1 " {
		t.Fatalf("what was known is %q", got)
	}
}

// A view reads a change again that it missed: a later one is published with a hole before it, as after a lost
// message.
func TestViewFillsHoles(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	stream := subjects.KVStream(subjects.BucketTools)
	js := b.JetStream()
	have, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	v := view(t, b)
	l := acquire(t, b, record("n1", "boot1"))
	// Without republishing, changes are not received.
	config := have.CachedInfo().Config
	quiet := config
	quiet.RePublish = nil
	put := func(index string) {
		t.Helper()
		id := subjects.ToolID(index + ".a")
		if err := l.Publish(t.Context(), registry.ToolsRecord{Index: subjects.IndexName(index), Tools: []registry.ToolRoute{{ID: id, Digest: "d"}}}); err != nil {
			t.Fatal(err)
		}
	}
	put("heard")
	meshtest.Until(t, "the first is known", func() bool { return nodesOf(v, "s", "heard.a") != "unknown" })
	if _, err := js.UpdateStream(t.Context(), quiet); err != nil {
		t.Fatal(err)
	}
	put("missed1")
	put("missed2")
	if err := l.Withdraw(t.Context(), subjects.ToolsKey{Index: "heard"}); err != nil {
		t.Fatal(err)
	}
	if got := nodesOf(v, "s", "missed1.a"); got != "unknown" {
		t.Fatalf("the test does not test: the view has what it cannot have heard: %q", got)
	}
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	put("later")
	meshtest.Until(t, "the hole is filled", func() bool {
		return nodesOf(v, "s", "later.a") != "unknown" && nodesOf(v, "s", "missed1.a") != "unknown" &&
			nodesOf(v, "s", "missed2.a") != "unknown" && nodesOf(v, "s", "heard.a") == "unknown"
	})
	if v.Stale() != 0 {
		meshtest.Until(t, "the view is up to date", func() bool { return v.Stale() == 0 })
	}
}

// A view misses the last change of a bucket: no later one shows
// the hole, so only the regular look can.
func TestViewSeesAMissedEnd(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := testmesh.View(t, b, registry.Checking(20*time.Millisecond, registry.ViewOptions{}))
	t.Cleanup(v.Close)
	l := acquire(t, b, record("n1", "boot1"))
	stream, err := b.JetStream().Stream(t.Context(), subjects.KVStream(subjects.BucketTools))
	if err != nil {
		t.Fatal(err)
	}
	quiet := stream.CachedInfo().Config
	quiet.RePublish = nil
	if _, err := b.JetStream().UpdateStream(t.Context(), quiet); err != nil {
		t.Fatal(err)
	}
	publish(t, testmesh.Store(t, b), l, "demo", "r1", "demo.a")
	meshtest.Until(t, "the end is seen", func() bool { return nodesOf(v, "s", "demo.a") == "n1/boot1 " })

	// A view that was whole does not say during such a look that it has missed things since its latest outage, which is
	// the beginning of time here. It is asked without a pause.
	var worst atomic.Int64
	asking, stop := context.WithCancel(t.Context())
	defer stop()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for ; asking.Err() == nil; runtime.Gosched() {
			worst.Store(max(worst.Load(), int64(v.Stale())))
		}
	}()
	for i := range 20 {
		revision := fmt.Sprintf("r%d", 2+i)
		publish(t, testmesh.Store(t, b), l, "demo", revision, "demo.a")
		meshtest.Until(t, "the next revision is seen", func() bool { r, _ := v.Route("s", "demo.a"); return r.Revision == revision })
	}
	stop()
	<-asked
	if said := time.Duration(worst.Load()); said > time.Hour {
		t.Errorf("it said that it has heard nothing for %v", said)
	}
}

func TestViewIgnoresForgedChanges(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	m := nats.NewMsg("mesh.reg.MESH_TOOLS.n1.=.i.forged")
	m.Data = []byte(`{"node":"n1","boot":"b","tools":[{"id":"forged.a","digest":"d"}]}`)
	if err := b.Conn().PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	// If a record's key and body name different nodes, indexes or sessions, the key counts.
	key := store.Key{Bucket: subjects.BucketTools, Name: "n2.=.i.real"}
	if _, err := store.Of(b).Put(t.Context(), key, []byte(`{"node":"n1","session":"s9","index":"x","tools":[{"id":"real.a","digest":"d"}]}`), 0); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the record is known", func() bool { _, ok := v.Route("s1", "real.a"); return ok })
	if r, _ := v.Route("s1", "real.a"); r.Index != "real" || r.Session != "" {
		t.Fatalf("route %+v", r)
	}
	if nodesOf(v, "s1", "forged.a") != "unknown" {
		t.Fatal("a change without a sequence was believed")
	}
}

func TestOpenViewNeedsBuckets(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t))
	_, err := registry.OpenView(t.Context(), b, nil)
	wantCode(t, err, toolmesh.CodeUnavailable)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatalf("%v", err)
	}
}

func TestSnapshotOfManyRecords(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	const nodes, indexes = 100, 100
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	for n := range nodes {
		for i := range indexes {
			index := fmt.Sprintf("ix%d", i)
			data, err := json.Marshal(registry.ToolsRecord{
				Node: subjects.NodeID(name(n)), Boot: "boot", Index: subjects.IndexName(index),
				Tools: []registry.ToolRoute{{ID: subjects.ToolID(index + ".mod.f"), Digest: strings.Repeat("d", 64)}, {ID: subjects.ToolID(index + ".mod.g"), Digest: strings.Repeat("e", 64)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			m := nats.NewMsg(subjects.KVSubject(subjects.BucketTools, name(n)+".=.i."+index))
			m.Data = data
			if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-t.Context().Done():
		t.Fatal("not stored")
	}
	began := time.Now()
	v := view(t, open(t, s.Connect(t)))
	t.Logf("%d records in %v", nodes*indexes, time.Since(began))
	began = time.Now()
	tools, next := v.List("s1", "", 0)
	if len(tools) != 2*indexes || next != "" {
		t.Fatalf("%d tools, next %q", len(tools), next)
	}
	t.Logf("listed in %v", time.Since(began))
	if id, err := v.Resolve("s1", "ix42.mod.g"); err != nil || id != "ix42.mod.g" {
		t.Fatalf("%q, %v", id, err)
	}
}

func BenchmarkRoute(b *testing.B) {
	s := meshtest.Broker(b)
	x := ready(b, s.Connect(b))
	records := testmesh.Store(b, x)
	for i := range 10 {
		l := acquire(b, x, record(name(i), "boot1"))
		publish(b, records, l, "demo", "r1", "demo.a")
	}
	v := view(b, x)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := v.Route("s1", "demo.a"); !ok {
			b.Fatal("unknown")
		}
	}
}
