package registry_test

import (
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// Several records make one index; a missing one hides only its own tools. A record without a number
// is read as before.
func TestRecordsInParts(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	put := func(part int, revision string, ids ...subjects.ToolID) {
		t.Helper()
		r := registry.ToolsRecord{Index: "big", Revision: revision, Part: part}
		for _, id := range ids {
			r.Tools = append(r.Tools, registry.ToolRoute{ID: id, Digest: "d-" + string(id)})
		}
		if err := l.Publish(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	early := view(t, open(t, s.Connect(t)))
	put(0, "r1", "big.a", "big.b")
	put(1, "r1", "big.c")
	put(12, "r1", "big.d")
	late := view(t, open(t, s.Connect(t)))
	listed := func(v *registry.View) (ids []subjects.ToolID) {
		all, _ := v.List("s", "", 0)
		for _, r := range all {
			if len(r.Nodes) != 1 || r.Nodes[0].Node != "n1" {
				t.Errorf("%s is served by %+v", r.ID, r.Nodes)
			}
			ids = append(ids, r.ID)
		}
		return ids
	}
	expect := func(what string, want ...subjects.ToolID) {
		t.Helper()
		for _, v := range []*registry.View{early, late} {
			meshtest.Until(t, what, func() bool { return slices.Equal(listed(v), want) })
		}
	}
	expect("all parts", "big.a", "big.b", "big.c", "big.d")
	for _, v := range []*registry.View{early, late} {
		if n, ok := v.Node("n1"); !ok || !slices.Equal(n.Indexes, []subjects.IndexName{"big"}) {
			t.Errorf("node: %+v", n)
		}
		if id, err := v.Resolve("s", "d"); id != "big.d" || err != nil {
			t.Errorf("a name in a later part: %q, %v", id, err)
		}
	}
	// A tool that moves is in two parts for a moment: it is one tool of one node.
	put(1, "r2", "big.c", "big.d")
	for _, v := range []*registry.View{early, late} {
		meshtest.Until(t, "the later record counts", func() bool {
			r, ok := v.Route("s", "big.d")
			return ok && r.Revision == "r2" && len(r.Nodes) == 1
		})
	}
	put(12, "r2", "big.e")
	expect("it has moved", "big.a", "big.b", "big.c", "big.d", "big.e")
	for _, key := range []subjects.ToolsKey{{Index: "big"}, {Index: "big", Part: 12}} {
		if err := l.Withdraw(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	expect("parts are missing", "big.c", "big.d")
	if _, err := late.Resolve("s", "big.a"); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
		t.Errorf("a tool of a part that is missing: %v", err)
	}
	if got := toolsOf(t, b); len(got) != 1 || got["n1.=.i.big.1"] == "" {
		t.Errorf("records: %v", got)
	}
}

// A record that no message can hold is refused, and in the way of nothing else.
func TestARecordThatFitsNoMessage(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.MaxPayload(16<<10))
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	big := registry.ToolsRecord{Index: "big"}
	for range 1_000 {
		big.Tools = append(big.Tools, registry.ToolRoute{ID: "big.tool", Digest: "d"})
	}
	wantCode(t, l.Publish(t.Context(), big), toolmesh.CodePayloadTooLarge)
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "small", Tools: []registry.ToolRoute{{ID: "small.a", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	// After a restart all is written again that should be there.
	s.Restart(t)
	late := registry.ToolsRecord{Index: "late", Tools: []registry.ToolRoute{{ID: "late.a", Digest: "d"}}}
	meshtest.Until(t, "the others are there", func() bool {
		got := toolsOf(t, b)
		return l.Publish(t.Context(), late) == nil && got["n1.=.i.small"] != "" && got["n1.=.i.late"] != ""
	})
}
