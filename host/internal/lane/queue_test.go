package lane_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/tool"
)

// call is one call in the words of a test: "w:a/b" writes a/b, "r:a" reads it, "-" is of
// an unsafe tool.
func key(call string) lane.Key {
	if call == "-" {
		return lane.RuleOf(&tool.Descriptor{ID: "x.unsafe"}, false).Key(nil)
	}
	mode, path, _ := strings.Cut(call, ":")
	args, _ := json.Marshal(map[string]string{"path": path})
	return lane.RuleOf(&tool.Descriptor{ID: "x.t", Annotations: tool.Annotations{
		ParallelSafe: true, ReadOnly: mode == "r", ResourceKey: tool.ResourceKey{Parts: []string{"fs", "{path}"}},
	}}, false).Key(args)
}

// rounds ends all running calls, again and again, and returns the calls that ran together.
func rounds(calls ...string) (all []string) {
	var q lane.Queue
	var ready []*lane.Turn
	for i, call := range calls {
		if t := q.Add(key(call), i); t.Ready() {
			ready = append(ready, t)
		}
	}
	for len(ready) > 0 {
		var names []string
		var next []*lane.Turn
		for _, t := range ready {
			names = append(names, fmt.Sprint(t.Value))
			next = append(next, q.Done(t)...)
		}
		slices.Sort(names)
		all = append(all, strings.Join(names, " "))
		ready = next
	}
	return all
}

func TestCallsThatRunInParallel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		calls []string
		want  []string
	}{
		{"one key", []string{"w:a", "w:a", "w:a"}, []string{"0", "1", "2"}},
		{"several keys", []string{"w:a", "w:b", "w:c"}, []string{"0 1 2"}},
		{"readers", []string{"r:a", "r:a", "w:a", "r:a", "r:a"}, []string{"0 1", "2", "3 4"}},
		{"unsafe alone", []string{"w:a", "w:b", "-", "w:a", "-", "-"}, []string{"0 1", "2", "3", "4", "5"}},
		{"the same file", []string{"w:/d/../e/f", "w:/e/./f", "w:/e//f"}, []string{"0", "1", "2"}},
		{"folder and file", []string{"w:/d", "w:/d/f", "w:/d/g", "w:/dx", "w:/"}, []string{"0 3", "1 2", "4"}},
		{"file and folder", []string{"w:d/f", "w:d/g", "r:d", "w:d", "r:d/f"}, []string{"0 1", "2", "3", "4"}},
		{"folder read, file written", []string{"r:d", "w:d/f", "r:d/g", "r:d"}, []string{"0 2", "1", "3"}},
		{"relative and absolute", []string{"w:a", "w:/a", "w:.", "w:../a"}, []string{"0 1", "2", "3"}},
		{"an empty name", []string{"w:", "w:a", "w:"}, []string{"0 1", "2"}},
	} {
		if diff := cmp.Diff(c.want, rounds(c.calls...)); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
	}
}

// A waiting call that is given up lets no later one past its predecessors.
func TestCallThatIsGivenUpKeepsTheOrder(t *testing.T) {
	t.Parallel()
	var q lane.Queue
	first, second, third := q.Add(key("w:a"), 1), q.Add(key("w:a"), 2), q.Add(key("w:a"), 3)
	if got := q.Done(second); got != nil || third.Ready() {
		t.Fatalf("the third may begin beside the first: %v", got)
	}
	if got := q.Done(first); len(got) != 1 || got[0] != third || !third.Ready() {
		t.Fatalf("the third does not follow the first: %v", got)
	}
	if got := q.Done(first); got != nil {
		t.Errorf("ended twice: %v", got)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"path":{"default":"/home"},"n":{},"user":{}}}`)
	of := func(safe bool, args string, parts ...string) lane.Key {
		return lane.RuleOf(&tool.Descriptor{ID: "x.t", InputSchema: schema, Annotations: tool.Annotations{
			ParallelSafe: safe, ResourceKey: tool.ResourceKey{Parts: parts},
		}}, false).Key(json.RawMessage(args))
	}
	by := func(a tool.Annotations, independent bool) lane.Key {
		return lane.RuleOf(&tool.Descriptor{ID: "x.t", Annotations: a}, independent).Key(nil)
	}
	computed := tool.Annotations{ParallelSafe: true, ResourceKey: tool.ResourceKey{Dynamic: true}}
	dynamic := by(computed, false)
	wide := by(tool.Annotations{ParallelSafe: true, LaneScope: tool.LaneSession}, false)
	nothing, unsafe, locked := tool.Annotations{}, tool.Annotations{Alone: true}, tool.Annotations{ResourceKey: tool.ResourceKey{Parts: []string{"lock"}}}
	unknown := lane.RuleOf(nil, true).Key(nil)
	for _, c := range []struct {
		name    string
		a, b    lane.Key
		overlap bool
	}{
		{"a safe tool without a key and itself", of(true, `{}`), of(true, `{"n":1}`), false},
		{"a safe tool without a key and itself, in a wider scope", wide, wide, true},
		{"a safe tool without a key and an unsafe one", of(true, `{}`), of(false, `{}`), true},
		{"what nothing is known of", lane.RuleOf(nil, false).Key(nil), of(true, `{}`), true},
		{"independent", by(nothing, true), by(nothing, true), false},
		{"independent, of one key", by(locked, true), by(locked, true), true},
		{"independent, key and none", by(locked, true), by(nothing, true), false},
		{"independent, declared unsafe", by(unsafe, true), by(nothing, true), true},
		{"independent, computed keys", by(computed, true), by(nothing, true), true},
		{"independent, what nothing is known of", unknown, unknown, false},
		{"computed keys", dynamic, of(true, `{}`, "db", "{n}"), true},
		{"a number and its text", of(true, `{"n":1}`, "n", "{n}"), of(true, `{"n":"1"}`, "n", "{n}"), true},
		{"one number", of(true, `{"n":1}`, "n", "{n}"), of(true, `{"n":1.0}`, "n", "{n}"), true},
		{"two numbers", of(true, `{"n":1}`, "n", "{n}"), of(true, `{"n":2}`, "n", "{n}"), false},
		{"large numbers", of(true, `{"n":9007199254740993}`, "n", "{n}"), of(true, `{"n":9007199254740992}`, "n", "{n}"), false},
		{"an object's order", of(true, `{"n":{"a":1,"b":2}}`, "n", "{n}"), of(true, `{"n":{"b":2,"a":1}}`, "n", "{n}"), true},
		{"a default", of(true, `{}`, "f", "{path}"), of(true, `{"path":"/home/x"}`, "f", "{path}"), true},
		{"no argument", of(true, `{}`, "f", "{n}"), of(true, `{"n":7}`, "f", "{n}"), true},
		{"no argument, other key", of(true, `{}`, "f", "{n}"), of(true, `{"n":7}`, "g", "{n}"), false},
		{"users", of(true, `{"user":"a","path":"/x"}`, "{user}", "{path}"), of(true, `{"user":"b","path":"/x"}`, "{user}", "{path}"), false},
		{"another number of parts", of(true, `{}`, "db"), of(true, `{"n":"t"}`, "db", "{n}"), false},
		{"a path before a constant", of(true, `{"path":"/a"}`, "{path}", "lock"), of(true, `{"path":"/a/b"}`, "{path}", "lock"), true},
		{"a text with a path in it", of(true, `{"path":"x/../y"}`, "file:{path}"), of(true, `{"path":"y"}`, "file:{path}"), false},
		{"no object", of(true, `[1]`, "f", "{n}"), of(true, `{"n":1}`, "f", "{n}"), true},
		{"a long value", of(true, `{"n":"`+strings.Repeat("x/", 1<<19)+`"}`, "{n}"), of(true, `{"n":"y"}`, "{n}"), false},
	} {
		for _, pair := range [][2]lane.Key{{c.a, c.b}, {c.b, c.a}} {
			var q lane.Queue
			q.Add(pair[0], nil)
			if got := !q.Add(pair[1], nil).Ready(); got != c.overlap {
				t.Errorf("%s: overlap %v, want %v", c.name, got, c.overlap)
			}
		}
	}
}

// overlap is an independent statement of the rule, to compare with the queue.
func overlap(a, b string) bool {
	if a == "-" || b == "-" {
		return true
	}
	if a[0] == 'r' && b[0] == 'r' {
		return false
	}
	x, y := a[2:]+"/", b[2:]+"/"
	return strings.HasPrefix(x, y) || strings.HasPrefix(y, x)
}

// For any calls, with any order of ends, withdrawals and additions: running calls do not overlap,
// overlapping ones begin in call order, no call waits without a reason, and the queue is empty at
// the end.
func TestAnyCalls(t *testing.T) {
	t.Parallel()
	names := []string{"-", "w:a", "w:a/b", "w:a/b/c", "w:a/d", "w:e", "r:a", "r:a/b", "r:a/b/c", "r:e", "r:a/d"}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		type call struct {
			name  string
			turn  *lane.Turn
			began bool
			over  bool
		}
		var q lane.Queue
		var calls []*call
		var running []*call
		begin := func(turns []*lane.Turn) {
			for _, turn := range turns {
				c := turn.Value.(*call)
				if c.began || c.over {
					t.Fatalf("seed %d: %s begins twice, or after it was given up", seed, c.name)
				}
				c.began = true
				running = append(running, c)
			}
		}
		check := func() {
			for i, c := range calls {
				free := !c.over
				for _, before := range calls[:i] {
					if before.over || !overlap(before.name, c.name) {
						continue
					}
					if c.began && !c.over {
						t.Fatalf("seed %d: %s runs, though %s came before it and is not over", seed, c.name, before.name)
					}
					free = false
				}
				// One that was given up while it waited still keeps its place.
				if free && !c.began && !slices.ContainsFunc(calls[:i], func(b *call) bool { return !b.over }) {
					t.Fatalf("seed %d: %s waits for nobody", seed, c.name)
				}
			}
		}
		for range 60 {
			switch n := random.IntN(10); {
			case n < 5:
				c := &call{name: names[random.IntN(len(names))]}
				c.turn = q.Add(key(c.name), c)
				calls = append(calls, c)
				if c.turn.Ready() {
					begin([]*lane.Turn{c.turn})
				}
			case n < 9 && len(running) > 0:
				i := random.IntN(len(running))
				c := running[i]
				running = slices.Delete(running, i, i+1)
				c.over = true
				begin(q.Done(c.turn))
			case len(calls) > 0:
				if c := calls[random.IntN(len(calls))]; !c.began && !c.over {
					c.over = true
					begin(q.Done(c.turn))
				}
			}
			check()
		}
		for len(running) > 0 {
			c := running[0]
			running = running[1:]
			c.over = true
			begin(q.Done(c.turn))
			check()
		}
		for _, c := range calls {
			if !c.over {
				t.Fatalf("seed %d: %s never began", seed, c.name)
			}
		}
		if n := q.Places(); n != 0 {
			t.Fatalf("seed %d: %d places are left", seed, n)
		}
	}
}

// The cost of a thousand calls of each kind.
func BenchmarkQueue(b *testing.B) {
	keys := []lane.Key{key("r:a"), key("w:a/b"), key("w:c"), key("-"), key("r:a/b/c/d")}
	for b.Loop() {
		var q lane.Queue
		var turns []*lane.Turn
		for i := range 1000 {
			turns = append(turns, q.Add(keys[i%len(keys)], nil))
		}
		for _, t := range turns {
			q.Done(t)
		}
	}
}
