package registry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/subjects"
)

// Labels are those of a node, or those that an index asks of the nodes that serve it.
type Labels map[string]string

// Check returns why labels are none: a name or a value that is empty, begins or ends
// with white space, is not UTF-8, or has what separates them in [Labels.String].
func (l Labels) Check() error {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		switch text := name + "=" + l[name]; {
		case name == "":
			return errors.New("a label has no name: write name=value")
		case l[name] == "":
			return fmt.Errorf("the label %q has no value: write name=value", name)
		case !utf8.ValidString(text):
			return fmt.Errorf("the label %q is not UTF-8", text)
		case strings.ContainsAny(name, "=,") || strings.Contains(l[name], ","):
			return fmt.Errorf("the label %q has a comma, or its name an equals sign", text)
		case strings.TrimSpace(name) != name || strings.TrimSpace(l[name]) != l[name]:
			return fmt.Errorf("the label %q has white space around its name or its value", text)
		}
	}
	return nil
}

// String returns k=v,k=v, sorted; empty for none.
func (l Labels) String() string {
	parts := make([]string, 0, len(l))
	for _, name := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, name+"="+l[name])
	}
	return strings.Join(parts, ",")
}

// Placed reports whether an index is for nodes with these labels: all that it asks for
// are among them, with the same values. One that asks for none is for every node.
func (r IndexRecord) Placed(labels map[string]string) bool {
	for name, value := range r.On {
		if has, ok := labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// Installs reports whether the node is an agent, which serves what is installed.
func (r NodeRecord) Installs() bool { return r.Sandbox.Effective != "" }

// serves reports whether the node serves a tool of the record.
func (r *ToolsRecord) serves() bool {
	return slices.ContainsFunc(r.Tools, func(t ToolRoute) bool { return t.State != ToolUnavailable })
}

// Serving returns the nodes that can be called now and serve some tool of an index at
// the record's revision, sorted.
func (v *View) Serving(r IndexRecord) []subjects.NodeID {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	var nodes []subjects.NodeID
	for _, e := range v.table.records {
		has := &e.record
		if has.Index != r.Name || has.Session != r.Session || has.Revision != r.Revision {
			continue
		}
		if n := v.nodes[e.key.Node]; !v.callable(n, now) || n.record.Boot != has.Boot {
			continue
		}
		if has.serves() {
			nodes = append(nodes, has.Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes) // an index of many tools has several records
}
