package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// An index is for every node, or for those with all the labels in its record; other nodes never
// build it. A node that serves an index and no longer matches, because the record or its labels
// have changed, goes on until a matching node serves the record's revision, so that calls always
// find a node. If no other node matches, it stops at once.

// placed returns those of some indexes that are for this node.
func (m *Manager) placed(all map[key]registry.IndexRecord) map[key]registry.IndexRecord {
	labels := m.opts.Labels()
	placed := maps.Clone(all)
	maps.DeleteFunc(placed, func(_ key, r registry.IndexRecord) bool { return !r.Placed(labels) })
	return placed
}

// leaves reports whether this node is to have nothing of a record any more; e.mu is held.
func (m *Manager) leaves(e *entry, r registry.IndexRecord) bool {
	if r.Placed(m.opts.Labels()) {
		return false
	}
	if e.instance == nil {
		return true // no call misses it
	}
	serving := m.view.Serving(r)
	anybody := false
	for _, n := range m.view.Loads() {
		// The view may have an old state of this node.
		if n.Node == m.opts.Node || !n.Installs() || !r.Placed(n.Labels) {
			continue
		}
		if slices.Contains(serving, n.Node) {
			return true
		}
		anybody = true
	}
	return !anybody
}

const reasonPlacement = "placement"

// othersMost is how many nodes an error lists.
const othersMost = 10

// checkPlaced refuses a record that is not for this node. details.nodes of the error are
// those that it is for and that can be asked.
func (m *Manager) checkPlaced(r registry.IndexRecord) error {
	labels := m.opts.Labels()
	if r.Placed(labels) {
		return nil
	}
	fit := []subjects.NodeID{}
	var have []string
	for _, n := range m.view.Loads() {
		switch {
		case n.Node == m.opts.Node || !n.Installs() || !n.Alive || n.State == registry.StateDraining:
		case r.Placed(n.Labels):
			fit = append(fit, n.Node)
		default:
			have = append(have, has(n.Node, n.Labels))
		}
	}
	own := has(m.opts.Node, labels)
	what := "it"
	if r.Name != "" {
		what = fmt.Sprintf("index %q", r.Name)
	}
	e := installFailed(reasonPlacement, "%s is for nodes with %s, and %s: ask %s", what, r.On, own, Some(fit))
	if len(fit) == 0 {
		e = installFailed(reasonPlacement, "%s is for nodes with %s, and no node has that: %s. Label one with mesh node label, or say others with --on",
			what, r.On, Some(append([]string{own}, have...)))
	}
	return e.WithDetail("nodes", fit)
}

// elsewhere returns the nodes that an index is for, if the error of an install says that
// the node that was asked is none of them; nil for other errors, and where there are none.
func elsewhere(err error) (nodes []subjects.NodeID) {
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != reasonPlacement {
		return nil
	}
	all, _ := e.Details["nodes"].([]any) // of an error that has travelled
	for _, one := range all {
		if node, ok := one.(string); ok {
			nodes = append(nodes, subjects.NodeID(node))
		}
	}
	return nodes
}

func has(node subjects.NodeID, labels registry.Labels) string {
	return fmt.Sprintf("%s has %s", cmp.Or(node, "this node"), cmp.Or(labels.String(), "no labels"))
}

// Some lists the first of some texts.
func Some[T ~string](all []T) string {
	texts := make([]string, 0, othersMost+1)
	for _, one := range all[:min(len(all), othersMost)] {
		texts = append(texts, string(one))
	}
	if more := len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}
