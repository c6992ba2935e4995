package registry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// reapMost is how many leases one round ends, at the most.
	reapMost = 64
	// reapEvery is how often they are looked for.
	reapEvery = 5 * time.Second
	// reapWait is how long a node may take to be found, or not.
	reapWait = time.Second
	// leftFor is how long what a node serves stands without a lease before it is taken away: where the
	// broker was away nodes lose their leases for a moment.
	leftFor = 3 * LeaseTTL
)

// reapLoop ends the leases of nodes that died in a mesh so large that their leases would
// stand for minutes: those that were not heard for as long as a lease of a small mesh
// stands, and that the broker knows no subscription of. A node that is ended in error
// writes its lease again. A view that does not hear all nodes ends none.
//
// It also takes away what nodes served that died: nobody believes it without a lease, but each
// lost pod of an autoscaler would leave some. [Store.Sweep] does so after a day, where no
// router runs.
func (v *View) reapLoop(ctx context.Context) {
	ticker := time.NewTicker(reapEvery)
	defer ticker.Stop()
	seen := make(map[string]left)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			v.reap(ctx)
			v.clear(ctx, seen, leftFor)
		}
	}
}

func (v *View) reap(ctx context.Context) {
	for _, dead := range v.silent() {
		subject, bad := subjects.NodeCtl(dead.node, subjects.DefaultSession, subjects.NewRPCID("rpc_"))
		if bad != nil {
			continue
		}
		// A node that has no such call is silent, and one that is not there is told of.
		asked, cancel := context.WithTimeout(ctx, reapWait)
		_, bad = v.bus.Request(asked, &nats.Msg{Subject: subject})
		cancel()
		if !errors.Is(bad, nats.ErrNoResponders) {
			continue
		}
		if bad = v.bus.Delete(ctx, dead.key, dead.revision); bad != nil {
			v.log.Debug("the lease of a node that is gone is not ended", slog.String("node", string(dead.node)), slog.String("error", bad.Error()))
			return // it is back, somebody else has seen it, or the store does not answer: the next round tells
		}
		v.log.Info("the lease of a node that is gone is ended", slog.String("node", string(dead.node)))
	}
}

// suspect is a node that is not heard, and its lease.
type suspect struct {
	node     subjects.NodeID
	key      store.Key
	revision uint64
}

// silent returns nodes that are not heard and whose leases stand for long.
func (v *View) silent() (all []suspect) {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.heartbeats.all == nil || v.listening.IsZero() || now.Sub(v.listening) < LeaseTTL || now.Sub(v.heartbeats.since) < LeaseTTL || v.bus.StalledSince(now.Add(-LeaseTTL)) {
		return nil
	}
	for id, n := range v.nodes {
		if !n.leased || n.record.stands() == LeaseTTL || now.Sub(n.since) < LeaseTTL || n.beat.Boot == string(n.record.Boot) && now.Sub(n.beatAt) < LeaseTTL {
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

// left is a record of what a node serves that has no lease.
type left struct {
	node     subjects.NodeID
	revision uint64
	since    time.Time // when it was first seen so
}

// clear takes away what is left of nodes, of all that is seen to be for some time. A node that comes
// back writes its lease first, and looks whether the rest is there.
func (v *View) clear(ctx context.Context, seen map[string]left, after time.Duration) {
	now := v.left(after)
	maps.DeleteFunc(seen, func(key string, l left) bool { return now[key].revision != l.revision })
	cleared := 0
	for key, l := range now {
		if known, ok := seen[key]; ok {
			l = known
		}
		seen[key] = l
		if time.Since(l.since) < after || cleared == reapMost {
			continue
		}
		name, err := subjects.NodeKey(l.node)
		if err != nil {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, reapWait)
		_, err = v.bus.Latest(asked, store.Key{Bucket: subjects.BucketNodes, Name: name})
		switch {
		case err == nil: // it is back
			delete(seen, key)
		case errors.Is(err, store.ErrNoKey):
			err = v.bus.Delete(asked, store.Key{Bucket: subjects.BucketTools, Name: key}, l.revision)
		}
		cancel()
		if err != nil {
			v.log.Debug("what is left of a node is not taken away", slog.String("node", string(l.node)), slog.String("error", err.Error()))
			return // somebody else has, or the store does not answer: the next round tells
		}
		if _, ok := seen[key]; !ok {
			continue
		}
		cleared++
		v.log.Info("what is left of a node that is gone is taken away", slog.String("node", string(l.node)), slog.String("key", key))
	}
}

// left are the records of nodes that have no lease and are not heard, by their keys; none
// where this view may have missed something within a time.
func (v *View) left(within time.Duration) map[string]left {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.heartbeats.all == nil || v.listening.IsZero() || now.Sub(v.listening) < within || now.Sub(v.heartbeats.since) < within || v.bus.StalledSince(now.Add(-within)) || !v.whole() {
		return nil
	}
	all := make(map[string]left)
	for _, f := range v.follows {
		if f.bucket != subjects.BucketTools {
			continue
		}
		for name, k := range f.keys {
			key, err := subjects.ParseToolsKey(name)
			if n := v.nodes[key.Node]; err != nil || k.gone || n != nil && (n.leased || now.Sub(n.beatAt) < LeaseTTL) {
				continue
			}
			all[name] = left{key.Node, k.revision, now}
		}
	}
	return all
}
