package client

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	routeFresh = 5 * time.Second // after which a route in use is asked for again
	askWait    = 2 * time.Second
	askAgain   = 300 * time.Millisecond // after which a question goes to other nodes as well
	lostAsk    = 300 * time.Millisecond // how much longer a lost call waits for the answer about its tool
	maxRoutes  = 10_000
	listPage   = 500
	// aliasKeep is how long a short id is used for the full one that was found: a tool
	// that comes later may fit better.
	aliasKeep = time.Minute
)

type routeKey struct {
	session subjects.SessionID
	id      subjects.ToolID
}

// seat is a node as one that serves a tool.
type seat struct {
	*bus.Peer
	full   atomic.Int64  // until when it reported no room for the tool: ns since startup
	weight atomic.Uint64 // how often it is to be tried, in a million, by the registry: see [codec.Weights]
}

// startup is when the process began. Times since startup do not depend on the wall clock.
var startup = time.Now()

// usable reports whether new calls of the tool may go there.
func (s *seat) usable() bool { return s.Peer.Usable() && int64(time.Since(startup)) >= s.full.Load() }

// refusedFor is for how long a node that had no room is passed over, at most: it has some
// again before the call that it refused would have begun.
const refusedFor = 100 * time.Millisecond

func (s *seat) refused(e *toolmesh.Error) {
	s.full.Store(int64(time.Since(startup) + min(e.RetryAfter(), refusedFor)))
}

// refused notes that a node had no room, and reports whether another one may have.
func (c *Client) refused(key routeKey, s *seat, e *toolmesh.Error) bool {
	s.refused(e)
	r := &c.shared.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[key]
	return known != nil && slices.ContainsFunc(known.seats, (*seat).usable)
}

// route is the client's knowledge of the nodes that serve a tool.
type route struct {
	seats []*seat
	asked time.Time
	used  time.Time
	// Whether the tool is declared idempotent, by the registry's last answer.
	idempotent bool
	answered   time.Time
	// The full id behind a short one, and when it was found.
	full  subjects.ToolID
	found time.Time
}

// routes is what is known of the tools in use, and of short ids that callers sent.
type routes struct {
	mu    sync.Mutex
	known map[routeKey]*route
}

func (r *routes) alias(session subjects.SessionID, id subjects.ToolID) subjects.ToolID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[routeKey{session, id}]; known != nil && time.Since(known.found) <= aliasKeep {
		return known.full
	}
	return id
}

func (r *routes) setAlias(session subjects.SessionID, short, full subjects.ToolID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.entry(routeKey{session, short})
	known.full, known.found = full, known.used
}

func (r *routes) forget(session subjects.SessionID, id subjects.ToolID, gone subjects.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[routeKey{session, id}]; known != nil {
		known.without(gone)
	}
}

func (r *routes) forgetNode(gone subjects.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.known {
		known.without(gone)
	}
}

func (r *route) without(gone subjects.NodeID) {
	r.seats = slices.DeleteFunc(r.seats, func(n *seat) bool { return n.ID == gone })
}

// pick chooses a node for a call: the better of two random candidates. It
// returns nil while none is known, and has a route in use asked for again, in
// the background, now and then.
func (c *Client) pick(session subjects.SessionID, id subjects.ToolID) (n *seat, choice bool) {
	r := &c.shared.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[routeKey{session, id}]
	if known == nil {
		return nil, false
	}
	known.used = time.Now()
	if known.used.Sub(known.asked) > routeFresh {
		c.refresh(routeKey{session, id}, known)
	}
	return better(known.seats), len(known.seats) > 1
}

// better returns the freer one of two random nodes. Nodes of less weight are drawn less often,
// and a node may be drawn twice, as the freer of two different nodes would get every call,
// whatever its weight.
func better(nodes []*seat) *seat {
	best, other := draw(nodes), draw(nodes)
	if best != nil && best == other && !best.usable() {
		other = draw(slices.DeleteFunc(slices.Clone(nodes), func(n *seat) bool { return n == best }))
	}
	if best != nil && other != nil && (!best.usable() || other.usable() && other.Load() < best.Load()) {
		best = other
	}
	if best == nil || !best.usable() {
		return nil
	}
	return best
}

// draw draws one of the nodes by their weights; nil of none.
func draw(nodes []*seat) (drawn *seat) {
	all := uint64(0)
	for _, n := range nodes {
		all += n.weight.Load()
	}
	at := rand.Uint64N(all + 1)
	for _, drawn = range nodes {
		w := drawn.weight.Load()
		if at < w {
			break
		}
		at -= w
	}
	return drawn
}

// entry returns the route of a tool that is in use, a new one if needed; r.mu is held. Of too many
// any is forgotten: it is asked for again.
func (r *routes) entry(key routeKey) *route {
	known := r.known[key]
	if known == nil {
		for one := range r.known {
			if len(r.known) < maxRoutes {
				break
			}
			delete(r.known, one)
		}
		known = &route{}
		r.known[key] = known
	}
	known.used = time.Now()
	return known
}

// learn begins to know a tool that was called through the queue group.
func (c *Client) learn(session subjects.SessionID, id subjects.ToolID) {
	r := &c.shared.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	key := routeKey{session, id}
	if known := r.entry(key); len(known.seats) == 0 && known.used.Sub(known.asked) > routeFresh/5 {
		c.refresh(key, known)
	}
}

// take replaces the nodes of a route, and keeps the seats of nodes that stay.
func (r *route) take(nodes []*seat) {
	for i, n := range nodes {
		at := slices.IndexFunc(r.seats, func(old *seat) bool { return old.Peer == n.Peer })
		if at >= 0 {
			r.seats[at].weight.Store(n.weight.Load())
			nodes[i] = r.seats[at]
		}
	}
	r.seats = nodes
}

// refresh asks for the nodes of a tool, without delaying calls; r.mu is held.
func (c *Client) refresh(key routeKey, known *route) {
	if c.shared.base.Err() != nil {
		return
	}
	known.asked = time.Now()
	c.shared.tasks.Go(func() { <-c.askNodes(key) })
}

// askNodes asks which nodes serve a tool, and whether it is declared idempotent. Calls at the
// same time share the question.
func (c *Client) askNodes(key routeKey) <-chan singleflight.Result {
	return c.shared.asked.DoChan(string(key.session)+" "+string(key.id), func() (any, error) {
		nodes, idempotent, err := c.candidates(c.shared.base, key)
		if err != nil {
			c.log.Debug("candidates not learned", slog.String("tool", string(key.id)), slog.String("error", err.Error()))
			return nil, err
		}
		r := &c.shared.routes
		r.mu.Lock()
		defer r.mu.Unlock()
		known := r.entry(key)
		known.take(nodes)
		known.idempotent, known.asked, known.answered = idempotent, known.used, known.used
		return nil, nil
	})
}

// declaredIdempotent finds out, once a call was lost that was sent at a time, whether its tool is
// declared so that it may be sent again, and whether a node serves it that is well. If the registry
// is silent, its answer when the call was sent counts.
func (c *Client) declaredIdempotent(ctx context.Context, key routeKey, sent time.Time) (declared, others bool) {
	declared, others, ok := c.shared.routes.declared(key, time.Now())
	if ok {
		return declared, others
	}
	select {
	case <-c.askNodes(key):
	case <-ctx.Done():
	}
	declared, others, _ = c.shared.routes.declared(key, sent)
	return declared, others
}

// declared returns the registry's last answer about a tool; ok is false if that was too old at a
// time. others reports whether a usable node serves it: while some nodes send heartbeats, silent
// ones are not usable.
func (r *routes) declared(key routeKey, at time.Time) (idempotent, others, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[key]
	if known == nil || at.Sub(known.answered) > routeFresh {
		return false, false, false
	}
	heard := slices.ContainsFunc(known.seats, func(n *seat) bool { return n.Heard() && n.Peer.Usable() })
	known.seats = slices.DeleteFunc(known.seats, func(n *seat) bool {
		return !n.Peer.Usable() || heard && n.Unheard()
	})
	return known.idempotent, len(known.seats) > 0, true
}

func (c *Client) candidates(ctx context.Context, key routeKey) ([]*seat, bool, error) {
	var answer registry.CandidatesAnswer
	if err := c.registry(ctx, key.session, registry.VerbCandidates, registry.Request{Tool: string(key.id)}, &answer); err != nil {
		return nil, false, err
	}
	nodes := make([]*seat, 0, len(answer.Nodes))
	for _, a := range answer.Nodes {
		n := c.bus.Listed(a.Node, a.Boot)
		n.SetLoad(codec.Load{InFlight: a.InFlight, Slots: a.Slots})
		one := &seat{Peer: n}
		one.weight.Store(uint64(1e6 * max(min(cmp.Or(a.Weight, 1), 1), codec.WeightMin)))
		nodes = append(nodes, one)
	}
	return nodes, answer.Idempotent, nil
}
