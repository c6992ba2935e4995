package admit_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

// clock is a time that only the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func key(rpc string) admit.Key { return admit.Key{Session: "s", RPC: subjects.RPCID(rpc)} }

func request(rpc string) admit.Request {
	return admit.Request{Key: key(rpc), Tool: "x.y", Digest: admit.DigestOf([]byte("body"))}
}

type table = admit.Table[string]

func begin(t *testing.T, tab *table, r admit.Request) *admit.Running[string] {
	t.Helper()
	v, call, _, err := tab.Begin(r, "value")
	if v != admit.Run || call == nil || err != nil {
		t.Fatalf("begin %q: verdict %d, %v, want run", r.Key.RPC, v, err)
	}
	return call
}

func result(text string) admit.Record { return admit.Record{Result: json.RawMessage(text)} }

func finish(t *testing.T, tab *table, rpc string, rec admit.Record) {
	t.Helper()
	tab.Finish(begin(t, tab, request(rpc)), rec)
}

// expect begins a request again and checks the verdict.
func expect(t *testing.T, tab *table, r admit.Request, want admit.Verdict) (admit.Record, *toolmesh.Error) {
	t.Helper()
	v, call, rec, err := tab.Begin(r, "value")
	if v != want {
		t.Fatalf("begin %q again: verdict %d (%v), want %d", r.Key.RPC, v, err, want)
	}
	if v == admit.Run {
		tab.Finish(call, admit.Record{Err: toolmesh.Errorf(toolmesh.CodeBusy, "undone").WithStarted(toolmesh.StartedNo)})
	}
	return rec, err
}

func TestJoinAndRepeat(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](10, newClock().Now)
	call := begin(t, tab, request("a"))
	for range 3 {
		v, joined, _, _ := tab.Begin(request("a"), "other")
		if v != admit.Join || joined != call || joined.Value != "value" {
			t.Fatalf("verdict %d, call %p, want to join %p", v, joined, call)
		}
	}
	if n := tab.InFlight(); n != 1 {
		t.Errorf("%d in flight, want 1: a caller that joins takes no slot", n)
	}
	tab.Finish(call, result("7"))
	tab.Finish(call, result("8")) // does nothing
	if rec, _ := expect(t, tab, request("a"), admit.Repeat); string(rec.Result) != "7" {
		t.Errorf("record = %s, want 7", rec.Result)
	}
	if n := tab.InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}

func TestDifferentCallUnderOneIDIsRefused(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](10, newClock().Now)
	first := request("a")
	first.Epoch = "1"
	call := begin(t, tab, first)
	other := map[string]admit.Request{}
	for name, change := range map[string]func(*admit.Request){
		"tool":     func(r *admit.Request) { r.Tool = "x.z" },
		"epoch":    func(r *admit.Request) { r.Epoch = "2" },
		"no epoch": func(r *admit.Request) { r.Epoch = "" },
		"stream":   func(r *admit.Request) { r.Stream = true },
		"body":     func(r *admit.Request) { r.Digest[0]++ },
	} {
		r := first
		change(&r)
		other[name] = r
	}
	for range 2 { // while it runs, and afterwards
		for name, r := range other {
			if again := r; name == "epoch" {
				again.First = time.Unix(1<<40, 0)
				if _, err := expect(t, tab, again, admit.Refuse); err.Started != toolmesh.StartedUnknown {
					t.Errorf("sent again in the next session: %v, started %v", err, err.Started)
				}
			}
			started := toolmesh.StartedNo
			if name == "body" {
				started = toolmesh.StartedUnknown // it may be the same call in another form
			}
			if _, err := expect(t, tab, r, admit.Refuse); err.Code != toolmesh.CodeInvalidRequest || err.Started != started {
				t.Errorf("another %s: %v, started %v", name, err, err.Started)
			}
			if _, _, _, _, ok := tab.Repeated(r); !ok {
				t.Errorf("another %s: not known", name)
			}
		}
		tab.Finish(call, result("1"))
		delete(other, "epoch") // it is another call then
	}
}

// The session that has a name next has calls of its own under the ids of the one before.
func TestCallsOfTheNextSession(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	of := func(epoch string) admit.Request {
		r := request("a")
		r.Epoch = epoch
		return r
	}
	tab.Finish(begin(t, tab, of("1")), result("1"))
	clock.advance(time.Minute)
	tab.Finish(begin(t, tab, of("2")), result("2"))
	clock.advance(90 * time.Second)
	for range 60 {
		tab.Sweep() // forgets the first one alone
	}
	if _, _, record, _ := tab.Begin(of("2"), ""); string(record.Result) != "2" {
		t.Errorf("the second call is answered with %s", record.Result)
	}
}

// A call may come before the news of its session's creation, and its repetition
// after that: it is the same call, and from then on one of that session.
func TestEpochThatIsLearnedLater(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](10, newClock().Now)
	call := begin(t, tab, request("a"))
	of := func(epoch string) admit.Request {
		r := request("a")
		r.Epoch = epoch
		return r
	}
	expect(t, tab, of(""), admit.Join)
	expect(t, tab, of("1"), admit.Join)
	expect(t, tab, of("2"), admit.Refuse)
	tab.Finish(call, result("1"))
	expect(t, tab, of("1"), admit.Repeat)

	stream := request("s")
	stream.Stream = true
	begin(t, tab, stream)
	stream.Epoch = "1"
	expect(t, tab, stream, admit.Refuse) // the stored chunks are another session's

	// One that has yet to learn its epoch is the same call as any.
	late := request("l")
	late.Stream, late.Unsettled = true, true
	begin(t, tab, late)
	expect(t, tab, late, admit.Join)
	known := late
	known.Epoch, known.Unsettled = "1", false
	expect(t, tab, known, admit.Join)
	expect(t, tab, late, admit.Join)
	known.Epoch = "2"
	expect(t, tab, known, admit.Refuse)
}

// Requests of another session with a call's id have no effect on the call.
func TestKeysOfOtherSessions(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](2, time.Now)
	call := begin(t, tab, request("a"))
	foreign := request("a").Key
	foreign.Session = "s2"
	if _, ok := tab.Lookup(foreign); ok {
		t.Error("another session finds the call")
	}
	if _, ok := tab.Cancel(foreign, "s1"); ok {
		t.Error("another session cancels the call")
	}
	if got, ok := tab.Lookup(call.Key); !ok || got != call {
		t.Error("its own session does not find it")
	}
	tab.Cancel(admit.Key{Session: "s2", RPC: "b"}, "s1")
	tab.Finish(begin(t, tab, request("b")), result("1"))
	other := request("a")
	other.Key.Session = "s3"
	second := begin(t, tab, other) // the same id is another call there
	if got, ok := tab.Cancel(other.Key, "s1"); !ok || got != second {
		t.Error("a session does not find its own call")
	}
	tab.Finish(second, result("2"))
	tab.Finish(call, result("1"))
	for r, want := range map[*admit.Request]string{&call.Request: "1", &other: "2"} {
		if rec, _ := expect(t, tab, *r, admit.Repeat); string(rec.Result) != want {
			t.Errorf("session %s: %s, want %s", r.Key.Session, rec.Result, want)
		}
	}
}

func TestCallsThatNeverBeganAreNotKept(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](1, clock.Now)
	blocker := begin(t, tab, request("blocker"))
	if _, err := expect(t, tab, request("a"), admit.Refuse); err.Code != toolmesh.CodeBusy || err.Started != toolmesh.StartedNo {
		t.Errorf("with all slots taken: %v", err)
	}
	tab.Finish(blocker, result("1"))
	finish(t, tab, "a", admit.Record{Err: toolmesh.Errorf(toolmesh.CodeInvalidArguments, "no").WithStarted(toolmesh.StartedNo)})
	expect(t, tab, request("a"), admit.Run)
	for code, started := range map[toolmesh.Code]toolmesh.Started{
		toolmesh.CodeToolError: toolmesh.StartedYes, toolmesh.CodeWorkerCrashed: toolmesh.StartedUnknown,
	} {
		rpc := string(code)
		finish(t, tab, rpc, admit.Record{Err: toolmesh.Errorf(code, "yes").WithStarted(started)})
		if rec, _ := expect(t, tab, request(rpc), admit.Repeat); rec.Err == nil || rec.Err.Code != code {
			t.Errorf("%s is not kept: %+v", code, rec)
		}
	}
	// A call without an id is never a repetition, and takes a slot.
	anonymous := begin(t, tab, admit.Request{Tool: "x.y"})
	if tab.InFlight() != 1 {
		t.Error("a call without an id has no slot")
	}
	expect(t, tab, admit.Request{Tool: "x.y"}, admit.Refuse)
	tab.Finish(anonymous, result("1"))
	expect(t, tab, admit.Request{Tool: "x.y"}, admit.Run)
}

// sweep lets time go by as a host does, which looks at its table each second.
func (c *clock) sweep(tab *table, d time.Duration) {
	for ; d > 0; d -= time.Second {
		c.advance(time.Second)
		tab.Sweep()
	}
}

func TestRecordsExpire(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	finish(t, tab, "a", result("1"))
	clock.sweep(tab, 2*time.Minute-time.Second)
	expect(t, tab, request("a"), admit.Repeat)
	clock.sweep(tab, time.Second)
	expect(t, tab, request("a"), admit.Run)
}

// again is a request that is sent again, and was first sent some time ago.
func (c *clock) again(rpc string, ago time.Duration) admit.Request {
	r := request(rpc)
	r.First = c.Now().Add(-ago)
	return r
}

// unknown checks that a repetition does not run, and that the error does not say whether the call
// ran.
func unknown(t *testing.T, tab *table, r admit.Request) {
	t.Helper()
	_, err := expect(t, tab, r, admit.Refuse)
	if err.Code != toolmesh.CodeNodeLost || err.Started != toolmesh.StartedUnknown {
		t.Errorf("%q again: %v, started %v", r.Key.RPC, err, err.Started)
	}
	if _, _, _, err, ok := tab.Repeated(r); !ok || err == nil || err.Code != toolmesh.CodeNodeLost {
		t.Errorf("%q again, and not to be run anyway: %v, %v", r.Key.RPC, err, ok)
	}
}

// A repetition from before the table's memory does not run.
func TestRepetitionsOlderThanTheTable(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	unknown(t, tab, clock.again("before", 0))
	unknown(t, tab, clock.again("before", time.Hour))
	expect(t, tab, request("before"), admit.Run) // not marked as a repetition
	clock.sweep(tab, 10*time.Second)
	unknown(t, tab, clock.again("before", 10*time.Second))
	expect(t, tab, clock.again("lost on its way", 9*time.Second), admit.Run)
	clock.sweep(tab, time.Hour) // as long as nothing was forgotten
	expect(t, tab, clock.again("lost on its way", time.Hour), admit.Run)

	finish(t, tab, "a", result("1"))
	expect(t, tab, clock.again("a", time.Minute), admit.Repeat)
	clock.sweep(tab, 2*time.Minute)
	unknown(t, tab, clock.again("a", 2*time.Minute))
	expect(t, tab, clock.again("lost on its way", time.Minute), admit.Run)

	// A call that ran for long is known from its end on.
	call := begin(t, tab, request("long"))
	clock.sweep(tab, 10*time.Minute)
	expect(t, tab, clock.again("long", 10*time.Minute), admit.Join)
	tab.Finish(call, result("1"))
	clock.sweep(tab, time.Minute)
	expect(t, tab, clock.again("long", 11*time.Minute), admit.Repeat)
}

// A node that was frozen reads the waiting messages before it forgets.
func TestFrozenNodeForgetsSlowly(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	clock.sweep(tab, time.Minute)
	finish(t, tab, "a", result("1"))
	clock.sweep(tab, 10*time.Second)
	clock.advance(time.Hour)
	tab.Sweep()
	expect(t, tab, clock.again("a", 2600*time.Millisecond), admit.Repeat)
	clock.sweep(tab, 15*time.Minute)
	expect(t, tab, request("a"), admit.Run)
}

func TestRecordsGiveWayByCount(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	const n = 10_000
	for i := range n + 3 {
		finish(t, tab, fmt.Sprint(i), result("1"))
	}
	expect(t, tab, request("3"), admit.Repeat)
	expect(t, tab, request(fmt.Sprint(n+2)), admit.Repeat)
	for range 2 {
		for i := range 3 { // their names stay: otherwise they would run again
			for _, r := range []admit.Request{request(fmt.Sprint(i)), clock.again(fmt.Sprint(i), time.Minute)} {
				if _, err := expect(t, tab, r, admit.Refuse); err.Code != toolmesh.CodeInvalidRequest || err.Started != toolmesh.StartedYes {
					t.Errorf("call %d: %v, started %v", i, err, err.Started)
				}
			}
		}
		clock.sweep(tab, 2*time.Minute-time.Second)
	}
	clock.sweep(tab, time.Minute) // a generation at a time
	unknown(t, tab, clock.again("0", 5*time.Minute))
	expect(t, tab, request("0"), admit.Run)
}

func TestRecordsGiveWayByBytes(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](10, newClock().Now)
	mega := result(`"` + strings.Repeat("x", 1<<20) + `"`)
	detailed := admit.Record{Err: toolmesh.Errorf(toolmesh.CodeToolError, "no").WithStarted(toolmesh.StartedYes).
		WithDetail("much", strings.Repeat("x", 1<<20))}
	scattered := admit.Record{Err: detailed.Err.WithDetail("much", slices.Repeat([]any{[]any{}}, 1<<15))} // 96 KiB of JSON
	for i := range 100 {
		finish(t, tab, fmt.Sprint(i), []admit.Record{mega, detailed, scattered}[i%3])
	}
	kept := 0
	for i := range 100 {
		v, _, _, err := tab.Begin(request(fmt.Sprint(i)), "")
		switch {
		case v == admit.Repeat:
			kept++
		case v != admit.Refuse || err.Code != toolmesh.CodeInvalidRequest || err.Started != toolmesh.StartedYes:
			// Its name must stay: otherwise it would run again.
			t.Fatalf("record %d: verdict %d, %v", i, v, err)
		case kept > 0:
			t.Fatalf("record %d was dropped after an older one was kept", i)
		}
	}
	if kept < 62 || kept > 64 {
		t.Errorf("%d records of a megabyte are kept, want what 64 MiB hold", kept)
	}
	// One that is too large by itself leaves the others alone.
	finish(t, tab, "huge", result(`"`+strings.Repeat("x", 9<<20)+`"`))
	if _, err := expect(t, tab, request("huge"), admit.Refuse); err.Started != toolmesh.StartedYes {
		t.Errorf("a result that was too large to keep: %v, started %v", err, err.Started)
	}
	expect(t, tab, request("99"), admit.Repeat)
	expect(t, tab, request("50"), admit.Repeat)
}

func TestCancels(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	call := begin(t, tab, request("a"))
	if got, ok := tab.Cancel(key("a"), "s1"); !ok || got != call {
		t.Error("a running call is not found")
	}
	if _, ok := tab.Lookup(key("a")); !ok {
		t.Error("a cancelled call runs until it has ended")
	}
	tab.Finish(call, admit.Record{Err: toolmesh.Errorf(toolmesh.CodeCancelled, "c").WithStarted(toolmesh.StartedYes)})
	if _, ok := tab.Cancel(key("a"), "s1"); ok {
		t.Error("a call that has ended is cancelled")
	}
	expect(t, tab, request("a"), admit.Repeat) // not "cancelled before it arrived"

	if _, ok := tab.Cancel(key("b"), "s1"); ok {
		t.Error("a call that nobody made is cancelled")
	}
	if _, err := expect(t, tab, request("b"), admit.Refuse); err.Code != toolmesh.CodeCancelled || err.Started != toolmesh.StartedNo {
		t.Errorf("a call after its cancel: %v", err)
	}
	clock.advance(29 * time.Second)
	tab.Sweep()
	expect(t, tab, request("b"), admit.Refuse)
	clock.advance(time.Second)
	expect(t, tab, request("b"), admit.Run)
	tab.Sweep()
	expect(t, tab, request("b"), admit.Run)

	// Cancels of calls that never come take a bounded room.
	for i := range 20_000 {
		tab.Cancel(key(fmt.Sprint("flood", i)), "s1")
	}
	expect(t, tab, request("flood0"), admit.Refuse)
	expect(t, tab, request("flood19999"), admit.Run)
}

// It was cancelled, so it must not begin later, with any outcome.
func TestCancelOfACallThatNeverBegan(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](10, clock.Now)
	for _, code := range []toolmesh.Code{toolmesh.CodeCancelled, toolmesh.CodeBusy} {
		rpc := string(code)
		call := begin(t, tab, request(rpc))
		if _, ok := tab.Cancel(key(rpc), "s1"); !ok {
			t.Fatal("a running call is not found")
		}
		tab.Finish(call, admit.Record{Err: toolmesh.Errorf(code, "no").WithStarted(toolmesh.StartedNo)})
		other := request(rpc)
		other.Digest[0]++
		for range 2 {
			if rec, _ := expect(t, tab, request(rpc), admit.Repeat); rec.Err.Code != toolmesh.CodeCancelled || rec.Err.Started != toolmesh.StartedNo {
				t.Errorf("repeated: %+v", rec)
			}
			expect(t, tab, other, admit.Refuse)
			clock.sweep(tab, 30*time.Second) // as long as the cancel of a call that never came
		}
		clock.sweep(tab, 2*time.Minute)
		expect(t, tab, request(rpc), admit.Run)
	}
}

func TestRepeatedChangesNothing(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](1, newClock().Now)
	if _, _, _, _, ok := tab.Repeated(request("a")); ok {
		t.Error("a call that was never made is known")
	}
	if _, _, _, _, ok := tab.Repeated(admit.Request{Tool: "x.y"}); ok {
		t.Error("a call without an id is known")
	}
	call := begin(t, tab, request("a"))
	if v, c, _, _, ok := tab.Repeated(request("a")); !ok || v != admit.Join || c != call {
		t.Errorf("a running call: verdict %d, %v", v, ok)
	}
	tab.Finish(call, result("1"))
	if v, _, rec, _, ok := tab.Repeated(request("a")); !ok || v != admit.Repeat || string(rec.Result) != "1" {
		t.Errorf("a call that has ended: verdict %d, %s, %v", v, rec.Result, ok)
	}
}

// Of any number of goroutines one runs the call, and the others join it or get its record.
func TestConcurrentBegin(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](100, time.Now)
	for round := range 200 {
		r := request(fmt.Sprint(round))
		var ran, got int
		var mu sync.Mutex
		count := func(n *int) { mu.Lock(); *n++; mu.Unlock() }
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				v, call, _, _ := tab.Begin(r, "")
				switch v {
				case admit.Run:
					count(&ran)
					tab.Finish(call, result("1"))
				case admit.Join, admit.Repeat:
					count(&got)
				}
			})
		}
		wg.Wait()
		if ran != 1 || got != 7 {
			t.Fatalf("round %d: %d ran, %d got the record", round, ran, got)
		}
	}
}

func TestDigestTellsBodiesApart(t *testing.T) {
	t.Parallel()
	one := admit.DigestOf([]byte(`{"a":1}`))
	if again := admit.DigestOf([]byte(`{"a":1}`)); again != one {
		t.Error("one body has two digests")
	}
	if admit.DigestOf([]byte(`{"a":2}`)) == one {
		t.Error("two bodies have one digest")
	}
}

func at(rpc string, depth int) admit.Request {
	r := request(rpc)
	r.Depth = depth
	return r
}

// refused checks that there is no place for a call.
func refused(t *testing.T, tab *table, rpc string, depth int) {
	t.Helper()
	if v, _, _, err := tab.Begin(at(rpc, depth), ""); v != admit.Refuse || err.Code != toolmesh.CodeBusy || err.Details["limit"] != toolmesh.LimitSlots {
		t.Errorf("%s at depth %d: verdict %d, %v, want busy", rpc, depth, v, err)
	}
}

// Nested calls share as many places as there are slots, and each depth has one of
// its own beside them.
func TestPlacesOfNestedCalls(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](2, newClock().Now)
	top := []*admit.Running[string]{begin(t, tab, at("a", 0)), begin(t, tab, at("b", 0))}
	refused(t, tab, "c", 0)
	deep := begin(t, tab, at("d", 1))
	begin(t, tab, at("e", 1))
	begin(t, tab, at("f", 1))
	refused(t, tab, "g", 1)
	begin(t, tab, at("g", 2))
	refused(t, tab, "h", 2)
	begin(t, tab, at("h", 8))
	refused(t, tab, "i", 8)
	tab.Finish(deep, result("1"))
	begin(t, tab, at("i", 8)) // in the shared place that became free
	refused(t, tab, "j", 1)
	// A call from outside does not get the places of nested ones.
	for _, c := range top {
		tab.Finish(c, result("1"))
	}
	refused(t, tab, "j", 0)
	// A repetition is one whatever depth it tells.
	if v, _, _, err := tab.Begin(at("g", 3), ""); v != admit.Join {
		t.Errorf("a repetition at another depth: verdict %d, %v, want join", v, err)
	}
	if v, _, _, err, ok := tab.Repeated(at("d", 5)); !ok || v != admit.Repeat {
		t.Errorf("a repetition of what has ended: verdict %d, %v, want repeat", v, err)
	}
}

// Calls of tools that call each other all end, however small the nodes are: none
// waits for a place that only its own end would free.
func TestNestedCallsDoNotWaitForThemselves(t *testing.T) {
	t.Parallel()
	const deepest, children, roots = 8, 2, 6
	type task struct {
		depth, open int // open children
		above       *task
		node        *table
		call        *admit.Running[string]
	}
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 0))
		nodes := []*table{admit.NewTable[string](1, time.Now), admit.NewTable[string](1, time.Now)}
		var waiting []*task
		for range roots {
			waiting = append(waiting, &task{})
		}
		ended, passes := 0, 0
		for len(waiting) > 0 {
			random.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
			var next []*task
			for _, w := range waiting {
				w.node = nodes[random.IntN(len(nodes))]
				v, call, _, _ := w.node.Begin(admit.Request{Tool: "x.y", Depth: w.depth}, "")
				if v != admit.Run {
					next = append(next, w)
					continue
				}
				w.call = call
				if w.depth < deepest {
					w.open = children
					for range children {
						next = append(next, &task{depth: w.depth + 1, above: w})
					}
				}
				for w != nil && w.open == 0 { // it ends, and with it perhaps the one above
					w.node.Finish(w.call, result("1"))
					if ended++; w.above != nil {
						w.above.open--
					}
					w = w.above
				}
			}
			waiting = next
			if passes++; passes > 100_000 {
				t.Fatalf("seed %d: %d calls wait for each other", seed, len(waiting))
			}
		}
		if want := roots * (1<<(deepest+1) - 1); ended != want {
			t.Fatalf("seed %d: %d calls ended, want %d", seed, ended, want)
		}
	}
}

// A caller that reads the end of a stream may call again, before the end is known to be stored.
func TestASlotIsFreeBeforeItsCallHasEnded(t *testing.T) {
	t.Parallel()
	for _, depth := range []int{0, 1} {
		tab := admit.NewTable[string](1, newClock().Now)
		at := func(rpc string) admit.Request { return at(rpc, depth) }
		refused := func(rpc string) { t.Helper(); refused(t, tab, rpc, depth) }
		if depth > 0 {
			begin(t, tab, at("own")) // in the place of the depth
		}
		var vacated []*admit.Running[string]
		for n := range 16 {
			c := begin(t, tab, at(fmt.Sprint("a", n)))
			refused("b")
			tab.Vacate(c)
			tab.Vacate(c)
			vacated = append(vacated, c)
		}
		if n := tab.InFlight(); n != 16+depth {
			t.Errorf("depth %d: %d calls in flight, want %d", depth, n, 16+depth)
		}
		// They still run: a repetition joins its call.
		if v, _, _, err := tab.Begin(at("a0"), ""); v != admit.Join {
			t.Errorf("depth %d: a repetition: verdict %d, %v, want join", depth, v, err)
		}
		c := begin(t, tab, at("c"))
		tab.Vacate(c) // one too many: the store does not keep pace
		refused("d")
		tab.Finish(vacated[0], result("1"))
		tab.Vacate(vacated[0])
		refused("e")
		tab.Vacate(c)
		d := begin(t, tab, at("f"))
		refused("g")
		for _, c := range append(vacated, c, d) {
			tab.Finish(c, result("1"))
			tab.Finish(c, result("1"))
		}
		begin(t, tab, at("g"))
		refused("h")
	}
}

// Cancels that come before their call: those of one session leave room for the others'.
func TestEarlyCancelsAreShared(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tab := admit.NewTable[string](2, func() time.Time { return now })
	for range 2 { // and once more when the first ones are forgotten
		for n := range 20_000 {
			tab.Cancel(admit.Key{Session: subjects.SessionID(fmt.Sprint("made-up", n%100)), RPC: subjects.RPCID(strconv.Itoa(n))}, "")
		}
		for range 2 {
			tab.Cancel(admit.Key{Session: "s1", RPC: "early"}, "s1")
		}
		r := request("early")
		r.Key.Session = "s1"
		verdict, _, _, err := tab.Begin(r, "")
		if verdict != admit.Refuse || err.Code != toolmesh.CodeCancelled {
			t.Fatalf("the call whose cancel came before it: %v %v", verdict, err)
		}
		now = now.Add(time.Minute)
		tab.Sweep()
	}
}

// A stream that is passed on to the node of its session's worker waits without a slot until its
// end: then it has no place left, and the node no more slots than before.
func TestAStreamThatEndsWhileItWaitsElsewhere(t *testing.T) {
	t.Parallel()
	tab := admit.NewTable[string](2, newClock().Now)
	for n := range 1100 { // more than may wait at once
		c := begin(t, tab, request(strconv.Itoa(n)))
		if !tab.Park(c) {
			t.Fatalf("call %d may not wait: places of earlier ones were never given back", n)
		}
		tab.Vacate(c)
		tab.Finish(c, result("1"))
		if in := tab.InFlight(); in != 0 {
			t.Fatalf("call %d: %d in flight after its end", n, in)
		}
	}
	begin(t, tab, request("a"))
	begin(t, tab, request("b"))
	refused(t, tab, "c", 0)
}
