package admit_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

// crowd is sessions that ask one table for places.
type crowd struct {
	t     *testing.T
	tab   *table
	depth int
	runs  map[subjects.SessionID][]*admit.Running[string]
}

func newCrowd(t *testing.T, clock *clock, slots, depth int) *crowd {
	return &crowd{t: t, tab: admit.NewTable[string](slots, clock.Now), depth: depth, runs: map[subjects.SessionID][]*admit.Running[string]{}}
}

// ask reports whether an account gets a place.
func (c *crowd) ask(account subjects.SessionID) (ok bool, text string) {
	c.t.Helper()
	v, call, _, err := c.tab.Begin(admit.Request{Tool: "x.y", Depth: c.depth, Account: account}, "")
	if v == admit.Run {
		c.runs[account] = append(c.runs[account], call)
		return true, ""
	}
	if err.Code != toolmesh.CodeBusy || err.Started != toolmesh.StartedNo || err.Details["limit"] != toolmesh.LimitSlots || !err.Retryable {
		c.t.Errorf("%q is refused with %v", account, err)
	}
	return false, err.Message
}

func (c *crowd) asks(account subjects.SessionID, want bool) {
	c.t.Helper()
	if ok, text := c.ask(account); ok != want {
		c.t.Errorf("%q gets a place: %v (%s), want %v; it has %d", account, ok, text, want, len(c.runs[account]))
	}
}

func (c *crowd) end(account subjects.SessionID) {
	all := c.runs[account]
	c.runs[account] = all[1:]
	c.tab.Finish(all[0], result("1"))
}

// A session that takes all places gives way to another as its calls end, and only
// while that one asks.
func TestAFloodGivesWay(t *testing.T) {
	t.Parallel()
	clock := newClock()
	c := newCrowd(t, clock, 4, 0)
	for range 4 {
		c.asks("flood", true) // alone it has all
	}
	c.asks("flood", false)
	c.end("flood")
	c.asks("flood", true) // no other session waits
	c.asks("b", false)
	c.end("flood")
	if ok, text := c.ask("flood"); ok || !strings.Contains(text, `session "flood" has 3 of the 4`) {
		t.Errorf("the flood takes the place that another waits for: %v %s", ok, text)
	}
	c.asks("b", true)
	c.end("flood")
	c.asks("flood", false) // the other has one of its two
	c.asks("b", true)
	c.asks("b", false) // it has its part
	c.end("flood")
	c.asks("flood", true)
	c.end("b")
	c.asks("b", true)

	// It asks no more: after a while the flood may have all again.
	c.end("b")
	c.end("b")
	clock.advance(2 * time.Second)
	c.tab.Sweep()
	c.asks("flood", true)
	c.asks("flood", true)
	c.asks("flood", false)
}

// The places of calls that tools make are shared out, too: a request tells its depth
// itself. The place of each depth is open to all sessions.
func TestAFloodOfNestedCallsGivesWay(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, newClock(), 4, 1)
	for range 5 {
		c.asks("flood", true)
	}
	c.asks("b", false)
	c.end("flood")
	c.asks("flood", false)
	c.asks("b", true)
	c.depth = 2
	c.asks("flood", true)
}

// Against ten greedy sessions each one gets its requests within its share, and no place stays
// empty while a session waits.
func TestPartsAreFair(t *testing.T) {
	t.Parallel()
	const slots, rounds = 40, 1000
	clock := newClock()
	c := newCrowd(t, clock, slots, 0)
	random := rand.New(rand.NewPCG(1, 2))
	session := func(i int) subjects.SessionID { return subjects.SessionID(fmt.Sprint("s", i)) }
	sums, all := make([]int, 10), 0
	for round := range rounds {
		clock.advance(10 * time.Millisecond)
		if round%100 == 0 {
			c.tab.Sweep()
		}
		for i := range sums { // each call ends after ten rounds or so
			for range len(c.runs[session(i)]) {
				if random.IntN(10) == 0 {
					c.end(session(i))
				}
			}
		}
		// The first asks a hundred times for each time that another does.
		for range 100 {
			c.ask(session(0))
		}
		for i := 1; i < len(sums); i++ {
			c.ask(session(i))
		}
		for i := range sums {
			n := len(c.runs[session(i)])
			sums[i] += n
			all += n
		}
	}
	for i, sum := range sums {
		if mean := float64(sum) / rounds; mean < 3 || i == 0 && mean > 6 {
			t.Errorf("session %d has %.1f places as a mean, its part is 4", i, mean)
		}
	}
	if mean := float64(all) / rounds; mean < slots*0.9 {
		t.Errorf("%.1f of %d places are in use as a mean", mean, slots)
	}
}

// Calls that are passed on take no slots, have a name, and are as many as there are
// slots, which sessions share like these.
func TestCallsThatArePassedOn(t *testing.T) {
	t.Parallel()
	clock := newClock()
	tab := admit.NewTable[string](2, clock.Now)
	began := 0
	begin := func(account subjects.SessionID, may bool) (*admit.Running[string], *toolmesh.Error) {
		t.Helper()
		began++
		r := admit.Request{Key: admit.Key{Session: account, RPC: subjects.RPCID(fmt.Sprint(began))}, Tool: "x.y", Account: account, MayPass: may}
		_, call, _, err := tab.Begin(r, "")
		return call, err
	}
	var here, passed []*admit.Running[string]
	for i := range 4 {
		call, err := begin("flood", true)
		if err != nil || (call.Full != nil) != (i >= 2) {
			t.Fatalf("call %d: %+v, %v; two have slots", i, call, err)
		}
		if call.Full == nil {
			here = append(here, call)
		} else {
			passed = append(passed, call)
		}
	}
	if n := tab.InFlight(); n != 2 {
		t.Errorf("%d in flight, want those that run here: 2", n)
	}
	if _, err := begin("flood", true); err == nil || err.Code != toolmesh.CodeBusy || err.Details["limit"] != toolmesh.LimitSlots {
		t.Errorf("the third that is to be passed on: %v", err)
	}
	if _, err := begin("other", true); err == nil {
		t.Error("there is no place for another session, either")
	}
	tab.Finish(passed[0], result("1"))
	if call, err := begin("flood", true); err == nil {
		t.Errorf("the flood takes the place that another waits for: %+v", call)
	}
	call, err := begin("other", true)
	if err != nil || call.Full == nil {
		t.Fatalf("the session that waited: %+v, %v", call, err)
	}
	again := call.Request
	again.MayPass = false // sent to this node itself
	if v, joined, _, err := tab.Begin(again, ""); v != admit.Join || joined != call {
		t.Errorf("a repetition while it runs: %v, %v", v, err)
	}
	if c, ok := tab.Cancel(again.Key, "s1"); !ok || c != call {
		t.Error("a cancel does not find it")
	}
	tab.Finish(call, result("2"))
	if v, _, record, err := tab.Begin(again, ""); v != admit.Repeat || string(record.Result) != "2" {
		t.Errorf("a repetition when it is over: %v, %v, %v", v, record, err)
	}
	if _, err := begin("third", false); err == nil {
		t.Error("what ended elsewhere has given a slot back here")
	}
	tab.Finish(here[0], result("3"))
	if call, err := begin("other", true); err != nil || call.Full != nil {
		t.Errorf("with a slot free: %+v, %v", call, err)
	}
}
