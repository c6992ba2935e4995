package registry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// reapMost is the max number of leases, and of records, that one round ends.
	reapMost = 64
	// reapEvery is the time between two rounds.
	reapEvery = 5 * time.Second
	// reapWait bounds the questions about one node.
	reapWait = time.Second
	// leftFor is how long the record of a node without a lease is kept: after an outage of the
	// broker, nodes are without leases for a moment.
	leftFor = 3 * LeaseTTL
)

// reapLoop ends the leases of dead nodes in a mesh so large that a lease is valid for
// minutes. A node counts as dead if it was not heard for LeaseTTL and the broker knows no
// subscription of it. A node whose lease was ended in error writes it again. A view that
// does not hear all nodes ends no lease.
//
// It also removes the records of dead nodes' tools. They count for nothing without a lease, but
// each lost pod of an autoscaler leaves some. Without a router [Store.Sweep] removes them after a
// day.
func (v *View) reapLoop(ctx context.Context) {
	seen := make(map[left]time.Time)
	for wake.After(ctx, reapEvery) {
		v.reap(ctx)
		v.clear(ctx, seen, leftFor)
	}
}

func (v *View) reap(ctx context.Context) {
	for _, dead := range v.silent() {
		subject, bad := subjects.NodeCtl(dead.node, subjects.DefaultSession, subjects.NewRPCID("rpc_"))
		if bad != nil {
			continue
		}
		// A live node, which has no such call, is silent; of a dead one the broker tells.
		asked, cancel := context.WithTimeout(ctx, reapWait)
		_, bad = v.bus.Request(asked, &nats.Msg{Subject: subject})
		cancel()
		if !errors.Is(bad, nats.ErrNoResponders) {
			continue
		}
		if bad = v.bus.Delete(ctx, dead.key, dead.revision); bad != nil {
			v.log.Debug("the lease of a dead node could not be ended", slog.String("node", string(dead.node)), slog.String("error", bad.Error()))
			return // it is back, another process has ended the lease, or the store does not answer: the next round tells
		}
		v.log.Info("ended the lease of a dead node", slog.String("node", string(dead.node)))
	}
}

// suspect is a node that is not heard, and its lease.
type suspect struct {
	node     subjects.NodeID
	key      store.Key
	revision uint64
}

// silent returns the nodes that are not heard and whose leases are valid for longer than LeaseTTL.
func (v *View) silent() (all []suspect) {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.hearsSince(now.Add(-LeaseTTL)) {
		return nil
	}
	for id, n := range v.nodes {
		if !n.leased || n.record.validFor() == LeaseTTL || now.Sub(n.since) < LeaseTTL || n.beat.Boot == string(n.record.Boot) && now.Sub(n.beatAt) < LeaseTTL {
			continue
		}
		name, err := subjects.NodeKey(id)
		if err != nil {
			continue
		}
		for _, f := range v.follows {
			if k, ok := f.keys[name]; ok && f.bucket == subjects.BucketNodes && !k.gone && len(all) < reapMost {
				all = append(all, suspect{id, store.Key{Bucket: subjects.BucketNodes, Name: name}, k.revision})
			}
		}
	}
	return all
}

// left is a record of a node's tools without a lease.
type left struct {
	node     subjects.NodeID
	key      string
	revision uint64
}

// clear removes the records that nodes have left, of all that has been seen to be so for some
// time: seen has since when. A node that comes back writes its lease first, and then looks
// whether the rest exists.
func (v *View) clear(ctx context.Context, seen map[left]time.Time, after time.Duration) {
	now := v.left(after)
	maps.DeleteFunc(seen, func(l left, _ time.Time) bool { return !now[l] })
	cleared := 0
	for l := range now {
		if seen[l].IsZero() {
			seen[l] = time.Now()
		}
		name, err := subjects.NodeKey(l.node)
		if err != nil || time.Since(seen[l]) < after || cleared == reapMost {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, reapWait)
		_, err = v.bus.Latest(asked, store.Key{Bucket: subjects.BucketNodes, Name: name})
		back := err == nil
		if errors.Is(err, store.ErrNoKey) {
			err = v.bus.Delete(asked, store.Key{Bucket: subjects.BucketTools, Name: l.key}, l.revision)
		}
		cancel()
		switch {
		case err != nil:
			v.log.Debug("the record of a node without a lease is not removed", slog.String("node", string(l.node)), slog.String("error", err.Error()))
			return // another process has removed it, or the store does not answer: the next round tells
		case back:
			delete(seen, l)
		default:
			cleared++
			v.log.Info("the record of a node without a lease is removed", slog.String("node", string(l.node)), slog.String("key", l.key))
		}
	}
}

// left returns the records of nodes that have no lease and are not heard; none where this
// view may have missed something within a time.
func (v *View) left(within time.Duration) map[left]bool {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.hearsSince(now.Add(-within)) || !v.whole() {
		return nil
	}
	all := make(map[left]bool)
	for _, f := range v.follows {
		if f.bucket != subjects.BucketTools {
			continue
		}
		for name, k := range f.keys {
			key, err := subjects.ParseToolsKey(name)
			if n := v.nodes[key.Node]; err != nil || k.gone || n != nil && (n.leased || now.Sub(n.beatAt) < LeaseTTL) {
				continue
			}
			all[left{key.Node, name, k.revision}] = true
		}
	}
	return all
}

// hearsSince reports whether the view has received the heartbeats of all nodes since a time.
// The lock is held.
func (v *View) hearsSince(t time.Time) bool {
	return v.heartbeats.all != nil && !v.listening.IsZero() && !v.listening.After(t) && !v.heartbeats.since.After(t) && !v.bus.StalledSince(t)
}
