package registry

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// PoolLabel is the label that names the pool of a node, and of an index that is for one pool.
	PoolLabel = "pool"
	// DefaultPool is the pool of the nodes and indexes without that label.
	DefaultPool = "default"
)

// declaredBy is the prefix of the table's names for the tools that an index's own record
// lists: no key of MESH_TOOLS has a space.
const declaredBy = "index "

// Pool is the pool that an index is for.
func (r IndexRecord) Pool() string { return cmp.Or(r.On[PoolLabel], DefaultPool) }

// Unserved returns the installed indexes that no node serves and that one may begin to serve, in
// no order: their calls wait for that node.
func (v *View) Unserved() []IndexRecord {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	said := v.said(now)
	var all []IndexRecord
	for _, r := range v.indexes {
		if r.Bundle != "" && !v.outlived(r) && v.unserved(r, said, now) {
			all = append(all, r)
		}
	}
	return all
}

// indexPlace is where an index is served: for all sessions, or for one.
type indexPlace struct {
	index   subjects.IndexName
	session subjects.SessionID
}

// saidOfIndex sums up the records that callable nodes have of an index.
type saidOfIndex struct {
	served bool                       // some node serves a tool
	by     map[subjects.NodeID]string // the revision of a node's record
}

// said returns, for each index, the records of the nodes that can be called. The lock is held.
func (v *View) said(now time.Time) map[indexPlace]*saidOfIndex {
	all := make(map[indexPlace]*saidOfIndex)
	for _, e := range v.table.records {
		n := v.nodes[e.key.Node]
		if !v.callable(n, now) || n.record.Boot != e.record.Boot {
			continue
		}
		at := indexPlace{e.key.Index, e.key.Session}
		said := all[at]
		if said == nil {
			said = &saidOfIndex{}
			all[at] = said
		}
		if said.served = said.served || e.record.serves(); said.served {
			continue // then by counts for nothing
		}
		if said.by == nil {
			said.by = make(map[subjects.NodeID]string)
		}
		said.by[e.key.Node] = e.record.Revision
	}
	return all
}

// unserved reports whether no node serves an index and one may begin to: no callable node has a
// record of it, or all such records list unavailable tools only and an agent that the index is for
// has no record of this revision, as it is still building it. The lock is held.
func (v *View) unserved(r IndexRecord, all map[indexPlace]*saidOfIndex, now time.Time) bool {
	said := all[indexPlace{canonical(r.Name), canonical(r.Session)}]
	if said == nil {
		return true
	}
	if said.served {
		return false
	}
	for id := range v.placed(r, now) {
		if revision, ok := said.by[id]; !ok || revision != r.Revision {
			return true
		}
	}
	return false
}

// placed yields the agents that can be called and that an index is for. The lock is held.
func (v *View) placed(r IndexRecord, now time.Time) iter.Seq[subjects.NodeID] {
	return func(yield func(subjects.NodeID) bool) {
		for id, n := range v.nodes {
			if n.record.Installs() && r.Placed(n.record.Labels) && v.callable(n, now) && !yield(id) {
				return
			}
		}
	}
}

// absent returns the reason why no node serves a tool of an index without records of nodes. The
// lock is held.
func (v *View) absent(index subjects.IndexName, session subjects.SessionID, now time.Time) string {
	key, err := subjects.IndexKey(index, session)
	if r, ok := v.indexes[key]; err == nil && ok && r.Bundle != "" {
		for range v.placed(r, now) {
			return "its nodes are still building it: send the call again later"
		}
	}
	return "no node serves it now"
}

// outlived reports whether the session that an index is private to has ended. The lock is held.
func (v *View) outlived(r IndexRecord) bool {
	return r.Session != "" && r.Epoch != v.sessions[canonical(r.Session)].Epoch
}

// Index returns the installed index that a tool's id names, as a session sees it.
func (v *View) Index(session subjects.SessionID, id subjects.ToolID) (IndexRecord, bool) {
	name, ok := id.Index()
	if !ok {
		return IndexRecord{}, false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, scope := range []subjects.SessionID{session, ""} {
		key, err := subjects.IndexKey(name, scope)
		if r, ok := v.indexes[key]; err == nil && ok && r.Bundle != "" && !v.outlived(r) {
			return r, true
		}
	}
	return IndexRecord{}, false
}

// Await returns the pool that must have a node before a tool can be called: the pool of
// its index, if the index is one of [View.Unserved]. It has no name for the functions of a service
// of which no node can be called: the broker may deliver to one that is silent for minutes.
func (v *View) Await(session subjects.SessionID, id subjects.ToolID) (pool string, ok bool) {
	if route, ok := v.Route(session, id); ok && len(route.Nodes) > 0 {
		return "", false // as a rule
	}
	now := time.Now()
	r, installed := v.Index(session, id)
	v.mu.RLock()
	defer v.mu.RUnlock()
	said := v.said(now)
	if installed {
		return r.Pool(), v.unserved(r, said, now)
	}
	name, _ := id.Index()
	for _, scope := range []subjects.SessionID{session, ""} {
		key, err := subjects.IndexKey(name, scope)
		if err == nil && strings.HasPrefix(v.indexes[key].Source, ServiceSource) {
			return "", said[indexPlace{canonical(name), canonical(scope)}] == nil
		}
	}
	return "", false
}

// Placed returns how many agents that can be called have the labels of an index.
func (v *View) Placed(r IndexRecord) (agents int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for range v.placed(r, time.Now()) {
		agents++
	}
	return agents
}

// Runs reports whether a node is heard with a boot id; an empty one means any.
func (v *View) Runs(id subjects.NodeID, boot subjects.BootID) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := v.nodes[id]
	return n != nil && v.alive(n, time.Now()) && (boot == "" || boot == n.record.Boot)
}

// Awaited returns the calls and tasks of all processes that wait for a node, by pool.
func (v *View) Awaited() map[string]codec.Awaited {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := make(map[string]codec.Awaited)
	for _, n := range v.nodes {
		if now.Sub(n.beatAt) >= Silence {
			continue
		}
		for pool, one := range n.beat.Awaited {
			all[pool] = all[pool].Add(one)
		}
	}
	return all
}

// Installs reports whether the node is an agent, which serves the installed indexes.
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
