package registry

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// reapMost is how many leases one round ends, at the most.
	reapMost = 64
	// reapEvery is how often they are looked for.
	reapEvery = 5 * time.Second
	// reapWait is how long a node may take to be found, or not.
	reapWait = time.Second
)

// reapLoop ends the leases of nodes that died in a mesh so large that their leases would
// stand for minutes: those that were not heard for as long as a lease of a small mesh
// stands, and that the broker knows no subscription of. A node that is ended in error
// writes its lease again. A view that does not hear all nodes ends none.
func (v *View) reapLoop(ctx context.Context) {
	ticker := time.NewTicker(reapEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			v.reap(ctx)
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
	key      bus.Key
	revision uint64
}

// silent returns nodes that are not heard and whose leases stand for long.
func (v *View) silent() (all []suspect) {
	now := time.Now()
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.ears.all == nil || v.listening.IsZero() || now.Sub(v.listening) < LeaseTTL || now.Sub(v.ears.since) < LeaseTTL || v.bus.StalledSince(now.Add(-LeaseTTL)) {
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
				all = append(all, suspect{id, bus.Key{Bucket: subjects.BucketNodes, Name: name}, k.revision})
			}
		}
	}
	return all
}
