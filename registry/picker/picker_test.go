package picker_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/registry/picker"
	"github.com/toolmesh/toolmesh/subjects"
)

// scripted returns random numbers from a list.
func scripted(numbers ...int) *picker.Options {
	return &picker.Options{Rand: func(n int) int {
		v := numbers[0] % n
		numbers = append(numbers[1:], numbers[0])
		return v
	}}
}

func node(id string, inFlight int) picker.Candidate {
	return picker.Candidate{Node: subjects.NodeID(id), Boot: "b", InFlight: inFlight, Slots: 4}
}

func TestPickTakesTheBetterOfTwo(t *testing.T) {
	t.Parallel()
	among := []picker.Candidate{node("a", 3), node("b", 1), node("c", 0)}
	for _, tt := range []struct {
		first, second int
		want          subjects.NodeID
	}{
		{0, 0, "b"}, // a and b
		{1, 0, "b"}, // b and a
		{0, 1, "c"}, // a and c
		{1, 1, "c"}, // b and c: the second skips the first's place
	} {
		got, ok := picker.New(scripted(tt.first, tt.second)).Pick(among, nil)
		if !ok || got.Node != tt.want {
			t.Errorf("random %d, %d: picked %s, want %s", tt.first, tt.second, got.Node, tt.want)
		}
	}
}

func TestPickOfFew(t *testing.T) {
	t.Parallel()
	p := picker.New(nil)
	if _, ok := p.Pick(nil, nil); ok {
		t.Error("picked from nothing")
	}
	if c, ok := p.Pick([]picker.Candidate{node("a", 9)}, nil); !ok || c.Node != "a" {
		t.Errorf("picked %v, %v", c, ok)
	}
	skip := func(c picker.Candidate) bool { return c.Node == "a" }
	for range 20 {
		if c, ok := p.Pick([]picker.Candidate{node("a", 0), node("b", 9)}, skip); !ok || c.Node != "b" {
			t.Fatalf("picked %v, %v", c, ok)
		}
	}
	if _, ok := p.Pick([]picker.Candidate{node("a", 0)}, skip); ok {
		t.Error("picked what is skipped")
	}
}

func TestSlotsCount(t *testing.T) {
	t.Parallel()
	small, large := node("small", 1), node("large", 4)
	large.Slots = 32
	p := picker.New(scripted(0, 0))
	if c, _ := p.Pick([]picker.Candidate{small, large}, nil); c.Node != "large" {
		t.Errorf("picked %s: 4 of 32 is emptier than 1 of 4", c.Node)
	}
}

func TestOwnCallsCorrectTheLoad(t *testing.T) {
	t.Parallel()
	a, b := node("a", 0), node("b", 1)
	p := picker.New(scripted(0, 0))
	pick := func() subjects.NodeID { c, _ := p.Pick([]picker.Candidate{a, b}, nil); return c.Node }
	if got := pick(); got != "a" {
		t.Fatalf("picked %s", got)
	}
	p.Begin(a)
	p.Begin(a)
	if got := pick(); got != "b" {
		t.Fatalf("two calls on a: picked %s", got)
	}
	// The node counts those two calls itself now: they must not count twice.
	a.InFlight = 2
	p.Heard(a)
	p.Heard(picker.Candidate{Node: "b", Boot: "b", InFlight: 2, Slots: 4})
	if got := pick(); got != "a" {
		t.Fatalf("equal loads: picked %s, want the first", got)
	}
	p.End("a", "b")
	p.End("a", "b")
	p.End("a", "b") // one too many changes nothing
	if n := p.Outstanding("a"); n != 0 {
		t.Fatalf("%d outstanding", n)
	}
	// A reply said 2 in flight, both ours and over: nothing is left.
	p.Begin(b)
	if got := pick(); got != "a" {
		t.Fatalf("picked %s", got)
	}
}

func TestAnotherBootBeginsAnew(t *testing.T) {
	t.Parallel()
	p := picker.New(nil)
	a := node("a", 0)
	p.Begin(a)
	a.Boot = "c"
	p.Begin(a)
	if n := p.Outstanding("a"); n != 1 {
		t.Fatalf("%d outstanding on a new boot, want 1", n)
	}
	p.End("a", "b") // of the old boot
	if n := p.Outstanding("a"); n != 1 {
		t.Fatalf("%d outstanding after the old boot's call ended", n)
	}
}

func TestLearnDoesNotUndoWhatWasHeard(t *testing.T) {
	t.Parallel()
	p := picker.New(scripted(0, 0))
	asked := time.Now().Add(-time.Second)
	p.Heard(node("a", 3))
	p.Learn([]picker.Candidate{node("a", 0), node("b", 1)}, asked)
	if c, _ := p.Pick([]picker.Candidate{node("a", 0), node("b", 1)}, nil); c.Node != "b" {
		t.Errorf("picked %s: an older answer hid what a said itself", c.Node)
	}
	p.Learn([]picker.Candidate{node("a", 0)}, time.Now().Add(time.Second))
	if c, _ := p.Pick([]picker.Candidate{node("a", 0), node("b", 1)}, nil); c.Node != "a" {
		t.Errorf("picked %s: a later answer counts", c.Node)
	}
}

// TestSpread sends many calls at once to nodes whose loads nobody refreshes: they
// must spread over all of them, by their slots.
func TestSpread(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	p := picker.New(&picker.Options{Rand: func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }})
	among := []picker.Candidate{node("a", 0), node("b", 0), node("c", 0), {Node: "d", Boot: "b", Slots: 12}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 30 {
				c, ok := p.Pick(among, nil)
				if !ok {
					t.Error("nothing picked")
				}
				p.Begin(c)
			}
		})
	}
	wg.Wait()
	for id, want := range map[subjects.NodeID]int{"a": 40, "b": 40, "c": 40, "d": 120} {
		if got := p.Outstanding(id); got < want*6/10 || got > want*14/10 {
			t.Errorf("%d calls on %s, want about %d", got, id, want)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	p := picker.New(nil)
	among := []picker.Candidate{node("a", 0), node("b", 0), node("c", 0)}
	b.ReportAllocs()
	for b.Loop() {
		c, _ := p.Pick(among, nil)
		p.Begin(c)
		p.End(c.Node, c.Boot)
	}
}
