package registry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// reapMost is the max number of records that one round removes.
	reapMost = 64
	// reapEvery is the time between two rounds, slowReapEvery that of a sparing view.
	reapEvery     = 5 * time.Second
	slowReapEvery = 10 * time.Minute
	// reapWait bounds the questions about one node.
	reapWait = time.Second
)

// patience is how long a record is kept that nothing needs: since a view has seen that, and since it
// was written.
type patience struct{ seen, age time.Duration }

var (
	// leftTools is kept by a view that receives all heartbeats: after an outage of the broker, nodes
	// are without leases for a moment.
	leftTools = patience{seen: 3 * LeaseTTL}
	// leftLong is for sparing views, and for names of services: longer than a machine is off at night.
	leftLong = patience{seen: time.Hour, age: 24 * time.Hour}
)

// reapLoop ends the leases of dead nodes in a mesh so large that a lease is valid for
// minutes. A node counts as dead if it was not heard for LeaseTTL and the broker knows no
// subscription of it. A node whose lease was ended in error writes it again. A view that
// does not hear all nodes ends no lease.
//
// It also removes what killed processes leave in the registry: the records of dead nodes' tools,
// which count for nothing without a lease, and the names of services that no node serves.
func (v *View) reapLoop(ctx context.Context) {
	every, tools := reapEvery, leftTools
	if v.sparing {
		every, tools = slowReapEvery, leftLong
	}
	seen := make(map[left]time.Time)
	for wake.After(ctx, every-rand.N(every/4)) { // processes alternate
		v.clear(ctx, seen, tools, leftLong)
	}
}

// left is a record that nothing needs any more.
type left struct {
	store.Key
	revision uint64
	node     subjects.NodeID // whose lease it is
	lease    string          // the key of the lease of the node that has the record
}

// clear removes the records that nothing needs, of all that has been seen to be so for some time:
// seen has since when. A node that comes back writes its lease first, and then looks whether the
// rest exists; a service claims its name first.
func (v *View) clear(ctx context.Context, seen map[left]time.Time, tools, names patience) {
	now := v.left(tools, names)
	maps.DeleteFunc(seen, func(l left, _ time.Time) bool { _, ok := now[l]; return !ok })
	cleared := 0
	for l, after := range now {
		if seen[l].IsZero() {
			seen[l] = time.Now()
		}
		if time.Since(seen[l]) < after || cleared == reapMost {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, reapWait)
		back, err := v.back(asked, l)
		if err == nil && !back {
			err = v.bus.Delete(asked, l.Key, l.revision)
		}
		cancel()
		switch {
		case err != nil:
			v.log.Debug("a record that nothing needs is not removed", slog.String("key", l.String()), slog.String("error", err.Error()))
			return // another process has removed or written it, or the store does not answer: the next round tells
		case back:
			delete(seen, l)
		default:
			cleared++
			v.log.Info("a record that nothing needs is removed", slog.String("key", l.String()))
		}
	}
}

// back reports whether the node of a record lives after all.
func (v *View) back(ctx context.Context, l left) (bool, error) {
	switch {
	case l.node != "":
		// A live node, which has no such call, is silent; of a dead one the broker tells.
		subject, err := subjects.NodeCtl(l.node, subjects.DefaultSession, subjects.NewRPCID("rpc_"))
		if err == nil {
			_, err = v.bus.Request(ctx, &nats.Msg{Subject: subject})
		}
		return !errors.Is(err, nats.ErrNoResponders), nil
	case l.lease != "":
		_, err := v.bus.Latest(ctx, store.Key{Bucket: subjects.BucketNodes, Name: l.lease})
		if errors.Is(err, store.ErrNoKey) {
			return false, nil
		}
		return err == nil, err
	}
	return false, nil
}

// left returns the records that nothing needs, with the time for which each is kept: the leases of
// nodes that are not heard and whose leases are valid for longer than LeaseTTL, the records of nodes
// that have no lease and are not heard, and the names of services whose indexes no node has a
// record of. It is empty where this view may have missed something meanwhile.
func (v *View) left(tools, names patience) map[left]time.Duration {
	now, clock := time.Now(), v.bus.Time()
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := make(map[left]time.Duration)
	add := func(l left, p patience) {
		k := v.follows[l.Bucket].keys[l.Name]
		if l.revision = k.revision; !k.gone && k.revision > 0 && (p.age == 0 || clock.Now.Sub(k.at)-clock.Bound >= p.age) {
			all[l] = p.seen
		}
	}
	unheard := func(n *nodeEntry) bool { return n.beat.Boot != string(n.record.Boot) || now.Sub(n.beatAt) >= LeaseTTL }
	if recently := now.Add(-LeaseTTL); v.heartbeats.all != nil && !v.heartbeats.since.After(recently) && v.listensSince(recently) {
		for id, n := range v.nodes {
			if name, err := subjects.NodeKey(id); err == nil && n.leased && n.record.validFor() > LeaseTTL && now.Sub(n.since) >= LeaseTTL && unheard(n) {
				add(left{Key: store.Key{Bucket: subjects.BucketNodes, Name: name}, node: id}, patience{})
			}
		}
	}
	if !v.listensSince(now.Add(-tools.seen)) || !v.whole() {
		return all
	}
	claims := make(map[string]bool)
	for name, r := range v.indexes {
		if r.Bundle == "" && strings.HasPrefix(r.Source, ServiceSource) {
			claims[name] = true
		}
	}
	for name, k := range v.follows[subjects.BucketTools].keys {
		key, err := subjects.ParseToolsKey(name)
		if err != nil || k.gone {
			continue
		}
		if len(claims) > 0 {
			if claim, err := subjects.IndexKey(key.Index, key.Session); err == nil {
				delete(claims, claim)
			}
		}
		if n := v.nodes[key.Node]; n != nil && (n.leased || now.Sub(n.beatAt) < LeaseTTL) {
			continue
		}
		if lease, err := subjects.NodeKey(key.Node); err == nil {
			add(left{Key: store.Key{Bucket: subjects.BucketTools, Name: name}, lease: lease}, tools)
		}
	}
	for name := range claims {
		add(left{Key: store.Key{Bucket: subjects.BucketIndexes, Name: name}}, names)
	}
	return all
}

// listensSince reports whether the view was connected all the time since. The lock is held.
func (v *View) listensSince(t time.Time) bool {
	return !v.listening.IsZero() && !v.listening.After(t) && !v.bus.StalledSince(t)
}
