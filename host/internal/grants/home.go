package grants

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// homeFor is how long an unused home is kept: somewhat longer than the worker.
	homeFor = 11 * time.Minute
	// maxDomains is the number of domains up to which a node accepts one more home; a session
	// may have as many as it leaves free. All sessions that were not created count as one, as names cost nothing.
	maxDomains = 10_000
)

// Of names the worker of a session for an index. Session is in its wire form, see
// [subjects.WireName]. Epoch is the session's: a session created again has another one.
type Of struct {
	Session subjects.SessionID
	Epoch   string
	Index   subjects.IndexName
}

// Home is the location of a session's worker: on the node that owns the domain of session and
// index, which has no lanes.
type Home struct {
	Node subjects.NodeID // empty without a worker
	Boot subjects.BootID
	Here bool // on this node
	// ID distinguishes the worker from an earlier one of this node, if another node had it in
	// between; Moved tells one call that another node, or other workers, had it. Both are set
	// for a home on this node only.
	ID    string
	Moved bool

	k   *Lanes
	key domainKey
	d   *domain
}

// Home finds the location of a session's worker. If there is none and claim is set, this node
// becomes its home, for these workers only: they change when their index is built again. A home
// on this node is kept until [Home.Leave]. The errors are the cause of ctx, unavailable without
// the store or a lease, and busy.
func (k *Lanes) Home(ctx context.Context, of Of, workers string, claim bool) (*Home, error) {
	home := &Home{k: k, key: domainKey{session: of.Session, epoch: of.Epoch, index: of.Index}}
	for {
		who, err := k.find(ctx, home.key, claim)
		if err != nil && ctx.Err() == nil && toolmesh.CodeOf(err) != toolmesh.CodeBusy {
			err = toolmesh.Errorf(toolmesh.CodeUnavailable, "the node of the session's worker could not be found: %w", err)
		}
		if err != nil {
			return nil, err
		}
		if home.Node, home.Boot = who.Node, who.Boot; who != k.self() {
			return home, nil
		}
		k.mu.Lock()
		if home.d = k.domains[home.key]; home.d != nil && home.d.term != nil {
			t := home.d.term
			home.Here, home.ID = true, t.id+"."+workers
			late := slices.Contains(t.replaced, workers) // the call asked before they were replaced
			if !late && t.workers != workers {
				if t.workers != "" {
					t.moved, t.replaced = true, append(t.replaced, t.workers)
				}
				t.workers = workers
			}
			if claim && !late {
				home.Moved, t.moved = t.moved, false
			}
			home.d.calls++
			k.mu.Unlock()
			return home, nil
		}
		k.mu.Unlock() // it was left meanwhile
	}
}

// Leave ends the use of a home on this node.
func (h *Home) Leave() {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	h.d.calls--
	h.d.used = time.Now()
}

// Seek waits a moment and then asks the store again: the node is gone, or does not have the
// worker.
func (h *Home) Seek(ctx context.Context) {
	wake.After(ctx, lookAgain)
	h.k.disown(h.key, owner{h.Node, h.Boot})
}

// LeaveHomes gives up the workers of a session for an index, or of all with empty names: one call
// of each gets an error, and the next runs anywhere. ctx bounds its writes.
func (k *Lanes) LeaveHomes(ctx context.Context, session subjects.SessionID, index subjects.IndexName) {
	k.handOver(ctx, func(key domainKey) bool {
		return key.index != "" && (index == "" || index == key.index) && (session == "" || session == key.session)
	})
}

// full reports whether a session may have no further home; the new one is among the domains
// already. k.mu is held.
func (k *Lanes) full(key domainKey) bool {
	if 2*len(k.domains) <= maxDomains {
		return false
	}
	account, own := subjects.Account(key.session, key.epoch), 0
	for other := range k.domains {
		if other.index != "" && subjects.Account(other.session, other.epoch) == account {
			own++
		}
	}
	return own+len(k.domains) > maxDomains
}

// errHomes refuses one more home.
var errHomes = toolmesh.Errorf(toolmesh.CodeBusy, "this node keeps %d workers of sessions, the max", maxDomains).
	WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).WithDetail("reason", "session_workers")

func newID() string {
	return strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // nodes believe each other
}
