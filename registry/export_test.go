package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// Checking returns options with another time between two questions to the store.
func Checking(every time.Duration, o ViewOptions) *ViewOptions {
	o.checkEvery = every
	return &o
}

// Node returns one node that has a lease.
func (v *View) Node(id subjects.NodeID) (NodeStatus, bool) {
	for _, n := range v.Nodes() {
		if n.Node == id || n.Node == canonical(id) {
			return n, true
		}
	}
	return NodeStatus{}, false
}

// Records returns the records of every node about a tool, also of nodes that cannot be called now.
// Tools is only that one tool.
func (v *View) Records(session subjects.SessionID, id subjects.ToolID) (all []ToolsRecord) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, one := range v.current(session, id) {
		r := one.entry.record
		r.Tools = []ToolRoute{*one.tool}
		all = append(all, r)
	}
	return all
}

// LimitCache bounds the descriptors that are kept, in bytes.
func (s *Store) LimitCache(bytes int) { s.cache.limit = bytes }

// Lists is how many different things nodes say of tools.
func (v *View) Lists() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.table.lists)
}

// RenewsEvery is how often a lease is renewed among so many nodes.
func RenewsEvery(nodes uint64) time.Duration { return renewEvery(nodes) }

// Some are the nodes that an asker is told of.
func Some(nodes []Candidate, asker string) []Candidate { return some(nodes, asker) }

// Clears removes the records of an age that nothing has needed for a time, as seen by the earlier calls.
func (v *View) Clears(ctx context.Context, unneeded, age time.Duration) func() {
	seen := make(map[left]time.Time)
	return func() { v.clear(ctx, seen, patience{unneeded, age}, patience{unneeded, age}) }
}

// LooksAgain makes the next search retry the descriptors that the store lacked, and returns the
// words of the tools that all sessions see; empty if the store lacked none.
func (r *Responder) LooksAgain() (words string) {
	r.searcher.mu.Lock()
	one := r.searcher.scopes[""]
	r.searcher.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.again.IsZero() {
		return ""
	}
	one.again = time.Now().Add(-time.Second)
	return fmt.Sprintf("%p", one.index)
}

// KeepDocuments bounds the indexes of sessions that search keeps, in documents.
func (r *Responder) KeepDocuments(n int) { r.searcher.keep = n }

// Indexes names the index of tools that all sessions see, and counts the sessions with an index.
func (r *Responder) Indexes() (shared string, sessions int) {
	r.searcher.mu.Lock()
	defer r.searcher.mu.Unlock()
	return fmt.Sprintf("%p", r.searcher.scopes[""]), len(r.searcher.scopes) - 1
}

// DescriptorOf is descriptorOf.
var DescriptorOf = descriptorOf

// Occupy takes all places for requests that an account may have.
func (r *Responder) Occupy(account subjects.SessionID) {
	for r.places.Take(account, 1) {
	}
}
