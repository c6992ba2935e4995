package registry_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestIndexIsForNodesWithItsLabels(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		record string
		labels map[string]string
		want   bool
	}{
		"a record from before": {`{"name":"i"}`, nil, true},
		"no labels asked for":  {`{"name":"i","on":{}}`, map[string]string{"gpu": "true"}, true},
		"the label":            {`{"on":{"gpu":"true"}}`, map[string]string{"gpu": "true", "zone": "b"}, true},
		"another value":        {`{"on":{"gpu":"true"}}`, map[string]string{"gpu": "false"}, false},
		"no labels":            {`{"on":{"gpu":"true"}}`, nil, false},
		"one of two":           {`{"on":{"gpu":"true","zone":"b"}}`, map[string]string{"gpu": "true"}, false},
		"both":                 {`{"on":{"gpu":"true","zone":"b"}}`, map[string]string{"zone": "b", "gpu": "true"}, true},
		"not there and empty":  {`{"on":{"gpu":""}}`, nil, false}, // of no record of ours
	} {
		var r registry.IndexRecord
		if err := json.Unmarshal([]byte(tc.record), &r); err != nil {
			t.Fatal(err)
		}
		if got := r.Placed(tc.labels); got != tc.want {
			t.Errorf("%s: %s on a node with %v: %v", name, tc.record, tc.labels, got)
		}
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	good := registry.Labels{"zone": "b", "gpu": "a=b"}
	if err := good.Check(); err != nil || good.String() != "gpu=a=b,zone=b" {
		t.Errorf("%q: %v", good, err)
	}
	if err := registry.Labels(nil).Check(); err != nil {
		t.Errorf("no labels: %v", err)
	}
	for _, bad := range []registry.Labels{
		{"": "x"}, {"x": ""}, {"a,b": "x"}, {"a=b": "x"}, {"a": "x,y"}, {"a": "\xff"}, {" a": "x"}, {"a": "x\n"},
	} {
		if bad.Check() == nil {
			t.Errorf("%q are labels", bad)
		}
	}
}

// An index is served by nodes that can be called and have a tool of its revision, not by nodes that build it, have
// another revision, or send no heartbeat.
func TestServingNodesAreListed(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	v := view(t, b)
	lease := func(node string, r registry.ToolsRecord) {
		l := acquire(t, b, record(node, "boot-"+node))
		beat(t, b, node, "boot-"+node, 0)
		if err := l.Publish(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	tools := func(revision string, state registry.ToolState) registry.ToolsRecord {
		return registry.ToolsRecord{Index: "idx", Revision: revision, Tools: []registry.ToolRoute{{ID: "idx.a", Digest: "d", State: state}}}
	}
	lease("old", tools("r1", ""))
	lease("builds", tools("r2", registry.ToolUnavailable))
	lease("serves", tools("r2", registry.ToolServing))
	private := tools("r2", "")
	private.Session = "bob"
	lease("private", private)
	want := []subjects.NodeID{"serves"}
	meshtest.Until(t, "only who serves the revision is said to", func() bool {
		return len(v.Nodes()) == 4 && slices.Equal(v.Serving(registry.IndexRecord{Name: "idx", Revision: "r2"}), want)
	})
	meshtest.Until(t, "bob's index is served by its node", func() bool {
		return slices.Equal(v.Serving(registry.IndexRecord{Name: "idx", Revision: "r2", Session: "bob"}), []subjects.NodeID{"private"})
	})
	if got := v.Serving(registry.IndexRecord{Name: "idx", Revision: "r3"}); len(got) > 0 {
		t.Errorf("a revision that nobody has is served by %v", got)
	}
}
