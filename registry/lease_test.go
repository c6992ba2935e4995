package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func holder(t testing.TB, b *bus.Bus, node string) (registry.NodeRecord, bool) {
	t.Helper()
	var r registry.NodeRecord
	e, err := store.Of(b).Get(t.Context(), nodeKey(node))
	if err != nil {
		return r, false
	}
	if err := json.Unmarshal(e.Value, &r); err != nil {
		t.Fatal(err)
	}
	return r, true
}

func TestLeaseLivesInEveryTopology(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := ready(t, top.Serve(t))
		l := acquire(t, b, record("n1", "boot1"))
		if l.Err() != nil {
			t.Fatalf("error %v", l.Err())
		}
		if err := l.Update(t.Context(), func(r *registry.NodeRecord) {
			r.State, r.Boot = registry.StateDraining, "another"
		}); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the change is stored", func() bool {
			r, ok := holder(t, b, "n1")
			return ok && r.State == registry.StateDraining && r.Boot == "boot1"
		})
		if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}}); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the tools are stored", func() bool { return len(toolsOf(t, b)) == 1 })
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatalf("a second release: %v", err)
		}
		meshtest.Until(t, "all is gone", func() bool {
			_, leased := holder(t, b, "n1")
			return !leased && len(toolsOf(t, b)) == 0
		})
	})
}

// A renewal that is cut short by the node's end may have been stored all the same.
func TestReleaseDeletesRecordsOfLateRenewals(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	for _, c := range []struct {
		boot   string // of the record that is there when the lease is released
		stays  bool
		before bool // it was deleted before that was written
	}{{"boot1", false, false}, {"boot1", false, true}, {"boot2", true, false}, {"boot2", true, true}} {
		l := acquire(t, b, record("n1", "boot1"))
		if c.before {
			if err := store.Of(b).Delete(t.Context(), nodeKey("n1"), 0); err != nil {
				t.Fatal(err)
			}
		}
		data, err := json.Marshal(record("n1", c.boot))
		if err == nil {
			_, err = store.Of(b).Put(t.Context(), nodeKey("n1"), data, registry.LeaseTTL)
		}
		if err == nil {
			err = l.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if r, there := holder(t, b, "n1"); there != c.stays || there && string(r.Boot) != c.boot {
			t.Errorf("%+v: there is %t, %+v", c, there, r)
		}
		if err := store.Of(b).Delete(t.Context(), nodeKey("n1"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// The lease is deleted even if the records of its tools cannot be deleted in time.
func TestReleaseDeletesTheLeaseIfRecordsStay(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	// Messages are taken and not acknowledged.
	if err := b.JetStream().DeleteStream(t.Context(), subjects.KVStream(subjects.BucketTools)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Conn().Subscribe(subjects.KVSubject(subjects.BucketTools, ">"), func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := l.Release(ctx); err == nil {
		t.Error("it says that all is deleted")
	}
	if _, there := holder(t, b, "n1"); there {
		t.Error("the lease is still there")
	}
}

func TestLeaseOfALivingNodeIsRefused(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	_, err := registry.Acquire(t.Context(), b, record("n1", "boot2"), nil, nil)
	wantCode(t, err, toolmesh.CodeUnavailable)
	if !strings.Contains(err.Error(), "boot1") || toolmesh.AsError(err).Retryable {
		t.Fatalf("%v: must name the boot and not be retryable", err)
	}
	if l.Err() != nil {
		t.Fatalf("the living node lost its lease: %v", l.Err())
	}
	// Without a heartbeat, but with a lease that is renewed while it is listened for,
	// it lives too.
	data, err := json.Marshal(record("n2", "boot1"))
	if err != nil {
		t.Fatal(err)
	}
	renew := func() error {
		_, err := store.Of(b).Put(t.Context(), nodeKey("n2"), data, registry.LeaseTTL)
		return err
	}
	if err := renew(); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := registry.Acquire(t.Context(), b, record("n2", "boot2"), nil, nil)
		refused <- err
	}()
	meshtest.Until(t, "the start is refused", func() bool {
		if err := renew(); err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-refused:
			return true
		default:
			return false
		}
	})
	wantCode(t, err, toolmesh.CodeUnavailable)
	// The same boot, after a lost acknowledgement, has it at once.
	acquire(t, b, record("n1", "boot1"))
}

func TestLeaseOfASilentNodeIsTakenOver(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	cable := meshtest.NewProxy(t, s)
	old := acquire(t, open(t, cable.Connect(t)), record("n1", "boot1"))
	if err := old.Publish(t.Context(), registry.ToolsRecord{Index: "old", Tools: []registry.ToolRoute{{ID: "old.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	cable.Blackhole()
	began := time.Now()
	l := acquire(t, open(t, s.Connect(t)), record("n1", "boot2"))
	if d := time.Since(began); d < registry.Silence {
		t.Fatalf("taken over after %v, without listening for %v", d, registry.Silence)
	}
	cable.Heal()
	select {
	case <-old.Lost():
	case <-time.After(time.Minute):
		t.Fatal("the old boot never learns that it lost the lease")
	}
	if old.Err() == nil {
		t.Fatal("the old boot knows nothing of it")
	}
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "new", Tools: []registry.ToolRoute{{ID: "new.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	// A release of the loser takes nothing from the winner, and the loser's records are removed.
	if err := old.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "what the old boot served is gone", func() bool {
		tools := toolsOf(t, b)
		return len(tools) == 1 && strings.Contains(tools["n1.=.i.new"], "boot2")
	})
	if r, ok := holder(t, b, "n1"); !ok || r.Boot != "boot2" {
		t.Fatalf("the lease is of %q", r.Boot)
	}
}

func TestLeaseSurvivesARestartAndAWipedStore(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	first := func() uint64 {
		e, err := store.Of(b).Get(t.Context(), nodeKey("n1"))
		if err != nil {
			return 0
		}
		return e.Revision
	}
	var before uint64
	meshtest.Until(t, "the lease is there after a restart", func() bool { before = first(); return before > 0 })
	meshtest.Until(t, "it is renewed", func() bool { return first() > before })
	wipe := func(streams ...string) {
		for _, stream := range streams {
			if err := b.JetStream().DeleteStream(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
		}
	}
	wipe(subjects.KVStream(subjects.BucketNodes), subjects.KVStream(subjects.BucketTools), subjects.StreamChunks)
	back := func() bool {
		r, ok := holder(t, b, "n1")
		_, err := b.JetStream().Stream(t.Context(), subjects.StreamChunks)
		return ok && r.Boot == "boot1" && len(toolsOf(t, b)) == 1 && err == nil
	}
	meshtest.Until(t, "lease, tools and chunks are back after a wipe", back)
	wipe(subjects.StreamChunks) // as one in memory, which is lost alone
	s.Restart(t)
	meshtest.Until(t, "chunks are back after a restart", back)
	if l.Err() != nil {
		t.Fatalf("error %v", l.Err())
	}
}

func TestLeaseWaitsForItsBroker(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := l.Publish(ctx, registry.ToolsRecord{Index: "demo", Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}}); err == nil {
		t.Fatal("published without a broker")
	}
	s.Start(t)
	meshtest.Until(t, "the lease is there again, and what was published meanwhile is there", func() bool {
		_, leased := holder(t, b, "n1")
		return leased && len(toolsOf(t, b)) == 1
	})
}

// An outage is in the log once, not several times a second for as long as it lasts.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	logs := meshtest.CaptureLogs(t)
	full := errors.New("the disk is full")
	var prepares atomic.Int64
	prepare := func(context.Context) error {
		if prepares.Add(1) == 1 {
			return nil
		}
		return full
	}
	l, err := registry.Acquire(t.Context(), b, record("n1", "boot1"), prepare, logs.Logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release(context.WithoutCancel(t.Context())) })
	v := testmesh.View(t, b, registry.Checking(100*time.Millisecond, registry.ViewOptions{Logger: logs.Logger}))
	t.Cleanup(v.Close)
	counts := func(level, lease, view string) [2]int {
		return [2]int{logs.Count("level=" + level + ` msg="` + lease), logs.Count("level=" + level + ` msg="` + view)}
	}
	for outage := 1; outage <= 2; outage++ {
		before := counts("DEBUG", "the lease is not renewed", "the registry is not read")
		s.Stop()
		meshtest.Until(t, "both are tried several times", func() bool {
			n := counts("DEBUG", "the lease is not renewed", "the registry is not read")
			return n[0] >= before[0]+3 && n[1] >= before[1]+3
		})
		if n := counts("WARN", "the lease is not renewed", "the registry is not read"); n != [2]int{outage, outage} {
			t.Errorf("lines after outage %d: %v\n%s", outage, n, logs)
		}
		s.Start(t)
		meshtest.Until(t, "the lease is renewed, and the registry read", func() bool {
			n := counts("INFO", "the lease is renewed again", "the registry is read again")
			return n[0] >= outage && n[1] >= outage
		})
	}
	if err := b.JetStream().DeleteStream(t.Context(), subjects.KVStream(subjects.BucketNodes)); err != nil {
		t.Fatal(err)
	}
	before := prepares.Load()
	meshtest.Until(t, "a lost bucket is made several times", func() bool { return prepares.Load() > before+3 })
	if n := logs.Count("level=WARN msg=\"the mesh's streams"); n > 1 {
		t.Errorf("%d lines say that the streams cannot be made\n%s", n, logs)
	}
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	if err := l.Publish(t.Context(), registry.ToolsRecord{Session: "s1", Tools: []registry.ToolRoute{{ID: "search", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := toolsOf(t, b)["n1.s1.t.search"]; !ok {
		t.Fatalf("keys %v", toolsOf(t, b))
	}
	if err := l.Withdraw(t.Context(), subjects.ToolsKey{Session: "s1", Tool: "search"}); err != nil {
		t.Fatal(err)
	}
	if n := len(toolsOf(t, b)); n != 0 {
		t.Fatalf("%d keys after Withdraw", n)
	}
	bad := registry.ToolsRecord{Session: "s1", Tools: []registry.ToolRoute{{ID: "a"}, {ID: "b"}}}
	wantCode(t, l.Publish(t.Context(), bad), toolmesh.CodeInvalidRequest)
}

func TestAcquireRefusesUnusableRecords(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t))
	_, err := registry.Acquire(t.Context(), b, record("", "boot1"), nil, nil)
	wantCode(t, err, toolmesh.CodeInvalidRequest)
	_, err = registry.Acquire(t.Context(), b, record("n1", ""), nil, nil)
	wantCode(t, err, toolmesh.CodeInvalidRequest)
	_, err = registry.Acquire(t.Context(), b, record("n1", "boot1"), nil, nil) // no buckets
	wantCode(t, err, toolmesh.CodeUnavailable)
}

func TestIndexesHaveOneOwner(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	records := testmesh.Store(t, ready(t, s.Connect(t)))
	claim := func(source, session string) error {
		return records.ClaimIndex(t.Context(), registry.IndexRecord{Name: "weather", Source: source, Session: subjects.SessionID(session)})
	}
	if err := claim("github.com/a/weather", ""); err != nil {
		t.Fatal(err)
	}
	if err := claim("github.com/a/weather", ""); err != nil {
		t.Fatalf("the owner again: %v", err)
	}
	wantCode(t, claim("github.com/b/weather", ""), toolmesh.CodeInvalidRequest)
	wantCode(t, claim("github.com/a/weather", "s1"), toolmesh.CodeInvalidRequest)
	if _, err := records.Index(t.Context(), "weather", ""); err != nil {
		t.Fatal(err)
	}
	if err := records.DeleteIndex(t.Context(), "weather", ""); err != nil {
		t.Fatal(err)
	}
	if err := records.DeleteIndex(t.Context(), "weather", ""); err != nil {
		t.Fatalf("deleted twice: %v", err)
	}
	if err := claim("github.com/b/weather", "s1"); err != nil {
		t.Fatal(err)
	}
	if err := claim("github.com/b/weather", "s2"); err != nil {
		t.Fatalf("private to another session: %v", err)
	}
	wantCode(t, claim("github.com/c/weather", "s3"), toolmesh.CodeInvalidRequest)
	wantCode(t, claim("github.com/b/weather", ""), toolmesh.CodeInvalidRequest)
}

// An index from a folder, a source that any caller may claim, belongs to its owner. A caller that
// may take indexes over replaces it there, and not one that a service has registered.
func TestOnlyTheOwnerReplacesAFolder(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	records := testmesh.Store(t, ready(t, s.Connect(t)))
	record := func(source, owner, session string) registry.IndexRecord {
		return registry.IndexRecord{Name: "weather", Source: source, Owner: owner, Session: subjects.SessionID(session), Bundle: "d"}
	}
	claim := func(r registry.IndexRecord) error { return records.ClaimIndex(t.Context(), r) }
	over := func(r registry.IndexRecord) error { return records.ReplaceIndex(t.Context(), r) }
	for _, write := range []func(registry.IndexRecord) error{claim, over} {
		if err := write(registry.IndexRecord{Name: "weather", Source: "git:a", Settings: []byte("{")}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("settings that are not JSON: %v", err)
		}
	}
	for _, r := range []registry.IndexRecord{record("folder:/x", "", ""), record("folder:/x", "a", ""), record("folder:/x", "a", "")} {
		if err := claim(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []registry.IndexRecord{
		record("folder:/x", "b", ""), record("folder:/x", "", ""), record("folder:/y", "a", ""), record("folder:/x", "b", "s1"),
	} {
		wantCode(t, claim(r), toolmesh.CodeInvalidRequest)
		wantCode(t, records.CheckClaim(t.Context(), r, false), toolmesh.CodeInvalidRequest)
	}
	wantCode(t, over(record("folder:/x", "b", "s1")), toolmesh.CodeInvalidRequest) // it is the whole mesh's
	if err := over(record("folder:/x", "b", "")); err != nil {
		t.Fatal(err)
	}
	wantCode(t, claim(record("folder:/x", "a", "")), toolmesh.CodeInvalidRequest)

	service := registry.IndexRecord{Name: "billing", Source: "billing"}
	if err := claim(service); err != nil {
		t.Fatal(err)
	}
	mine := record("folder:/billing", "a", "")
	mine.Name = "billing"
	wantCode(t, over(mine), toolmesh.CodeInvalidRequest)
}

func TestIndexClaimedAtOnceHasOneOwner(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	ready(t, s.Connect(t))
	results := make(chan error)
	const n = 8
	for i := range n {
		records := testmesh.Store(t, open(t, s.Connect(t)))
		go func() {
			results <- records.ClaimIndex(t.Context(), registry.IndexRecord{Name: "x", Source: name(i)})
		}()
	}
	won := 0
	for range n {
		if err := receive(t, results, "claim"); err == nil {
			won++
		} else {
			wantCode(t, err, toolmesh.CodeInvalidRequest)
		}
	}
	if won != 1 {
		t.Fatalf("%d of %d claims won, want 1", won, n)
	}
}

// A view that waits longer removes what a dead node served only once that is old.
func TestOnlyOldRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	if err := b.FreshTime(t.Context()); err != nil { // the age is told by the broker's clock
		t.Fatal(err)
	}
	l := acquire(t, b, record("alive", "boot1"))
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Tools: []registry.ToolRoute{{ID: "demo.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	dead := store.Key{Bucket: subjects.BucketTools, Name: "dead.=.i.demo"}
	if _, err := store.Of(b).Put(t.Context(), dead, []byte(`{}`), 0); err != nil {
		t.Fatal(err)
	}
	v := view(t, b)
	young, old := v.Clears(t.Context(), 0, time.Hour), v.Clears(t.Context(), 300*time.Millisecond, time.Millisecond)
	for range 3 {
		young()
	}
	if tools := toolsOf(t, b); len(tools) != 2 {
		t.Fatalf("a young record was removed: %v", tools)
	}
	meshtest.Until(t, "the record is old enough", func() bool {
		old()
		return len(toolsOf(t, b)) == 1
	})
	if tools := toolsOf(t, b); tools["alive.=.i.demo"] == "" {
		t.Fatalf("left: %v", tools)
	}
}

// The name of a service is free again after a time without a node that serves it; installed indexes
// and served ones keep theirs.
func TestNamesOfServicesThatAreGone(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	records := testmesh.Store(t, b)
	if err := b.FreshTime(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[subjects.IndexName]registry.IndexRecord{
		"gone": {Source: "service:gone"}, "served": {Source: "service:served"}, "private": {Source: "service:private", Session: "s"},
		"installed": {Source: "https://example.com/x.git", Bundle: "sha256:1"}, "other": {Source: "https://example.com/y.git"},
	} {
		r.Name, r.State = name, registry.IndexInstalled
		if err := records.ClaimIndex(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	l := acquire(t, b, record("alive", "boot1"))
	publish(t, records, l, "served", "r1", "served.a")
	v := view(t, b)
	young, soon, old := v.Clears(t.Context(), 0, time.Hour), v.Clears(t.Context(), time.Hour, 0), v.Clears(t.Context(), 300*time.Millisecond, time.Millisecond)
	for range 3 {
		young()
		soon()
	}
	for _, name := range []subjects.IndexName{"gone", "served"} {
		if _, err := records.Index(t.Context(), name, ""); err != nil {
			t.Errorf("the name %s, young or just unserved: %v", name, err)
		}
	}
	meshtest.Until(t, "names that no node serves are removed", func() bool {
		old()
		_, one := records.Index(t.Context(), "gone", "")
		_, other := records.Index(t.Context(), "private", "s")
		return errors.Is(one, store.ErrNoKey) && errors.Is(other, store.ErrNoKey)
	})
	for name, want := range map[subjects.IndexName]bool{"gone": false, "served": true, "installed": true, "other": true} {
		if _, err := records.Index(t.Context(), name, ""); (err == nil) != want {
			t.Errorf("the name %s: %v, want it kept: %v", name, err, want)
		}
	}
	if err := records.ClaimIndex(t.Context(), registry.IndexRecord{Name: "gone", Source: "service:other"}); err != nil {
		t.Errorf("the name cannot be claimed: %v", err)
	}
}

func TestSessionsExpire(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	records := testmesh.Store(t, b)
	v := view(t, b)
	brief := registry.SessionRecord{ID: "brief", Epoch: "e1", Created: time.Now(), TTL: time.Second}
	if err := records.CreateSession(t.Context(), brief); err != nil {
		t.Fatal(err)
	}
	r := registry.SessionRecord{ID: "chat 1", Epoch: "e1", Created: time.Now()}
	if err := records.CreateSession(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := records.CreateSession(t.Context(), r); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("created twice: %v", err)
	}
	if got, err := records.Session(t.Context(), "chat 1"); err != nil || got.Epoch != "e1" {
		t.Fatalf("session %+v, %v", got, err)
	}
	meshtest.Until(t, "the view has the session", func() bool { _, ok := v.Session("chat 1"); return ok })
	meshtest.Until(t, "the brief one expires", func() bool { _, ok := v.Session("brief"); return !ok })
	for range 2 {
		if err := records.DeleteSession(t.Context(), "chat 1"); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "the view sees the other's end", func() bool { return len(v.Sessions()) == 0 })
}

// A name that many sessions have is found taken, or free for one more, by reading as
// little as for a name that one has.
func TestAClaimOfThousandsOfSessions(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	nc := s.Connect(t)
	records := testmesh.Store(t, open(t, nc))
	claim := func(source, session string) error {
		return records.ClaimIndex(t.Context(), registry.IndexRecord{Name: "weather", Source: source, Session: subjects.SessionID(session)})
	}
	read := func(session string) uint64 {
		t.Helper()
		before := nc.Stats().InMsgs
		if err := claim("a", session); err != nil {
			t.Fatalf("one more session: %v", err)
		}
		return nc.Stats().InMsgs - before
	}
	if err := claim("a", "first"); err != nil {
		t.Fatal(err)
	}
	few := read("second")
	for i := range 2_000 {
		key := store.Key{Bucket: subjects.BucketIndexes, Name: "weather." + name(i)}
		if _, err := store.Of(b).Put(t.Context(), key, fmt.Appendf(nil, `{"name":"weather","source":"a","session":%q}`, name(i)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if many := read("third"); many > 2*few {
		t.Errorf("a claim among 2,000 read %d messages, among two %d", many, few)
	}
	if many := read(name(700)); many > 2*few {
		t.Errorf("a claim that was there read %d messages, one among two %d", many, few)
	}
	// The first ones end: their marks are in the way for a while.
	for _, session := range []string{"first", "second", name(0), name(1), name(2)} {
		if err := records.DeleteIndex(t.Context(), "weather", subjects.SessionID(session)); err != nil {
			t.Fatal(err)
		}
	}
	for _, refused := range []registry.IndexRecord{
		{Name: "weather", Source: "b", Session: "other"}, {Name: "weather", Source: "b", Session: "n9"},
		{Name: "weather", Source: "a"}, {Name: "weather", Source: "b"},
	} {
		wantCode(t, records.CheckClaim(t.Context(), refused, false), toolmesh.CodeInvalidRequest)
		wantCode(t, records.ClaimIndex(t.Context(), refused), toolmesh.CodeInvalidRequest)
	}
	if err := claim("a", "first"); err != nil {
		t.Fatalf("a session that comes back: %v", err)
	}
}

// Claims of one name for several sessions at once: one source has it in the end.
func TestConcurrentClaimsOfSessions(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	const n = 6
	results := make(chan error, n)
	for i := range n {
		records := testmesh.Store(t, open(t, s.Connect(t)))
		go func() {
			results <- records.ClaimIndex(t.Context(), registry.IndexRecord{Name: "x", Source: name(i % 2), Session: subjects.SessionID(name(i))})
		}()
	}
	for range n {
		if err := receive(t, results, "claim"); err != nil {
			wantCode(t, err, toolmesh.CodeInvalidRequest)
		}
	}
	sources := make(map[string]bool)
	for m, err := range store.Of(b).Read(t.Context(), store.Query{Stream: subjects.KVStream(subjects.BucketIndexes), Subject: subjects.KVAll(subjects.BucketIndexes)}) {
		if err != nil {
			t.Fatal(err)
		}
		var r registry.IndexRecord
		if !store.Gone(m.Header) && json.Unmarshal(m.Data, &r) == nil {
			sources[r.Source] = true
		}
	}
	if len(sources) != 1 {
		t.Errorf("the name belongs to %v", sources)
	}
}
