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
	// homeFor is how long a home is kept that no call uses: somewhat longer than the worker.
	homeFor = 11 * time.Minute
	// maxDomains is how many domains a node may know, for one more home; a session has as many
	// of them as it leaves free. All sessions that nobody created are one, as names cost nothing.
	maxDomains = 10_000
)

// Of names the worker of a session for an index. Session is as it travels, see
// [subjects.WireName]. Epoch is the session's: one that is created again under its name is
// another.
type Of struct {
	Session subjects.SessionID
	Epoch   string
	Index   subjects.IndexName
}

// Home is where the worker of a session is: on the node that owns the domain of session and
// index, which has no turns.
type Home struct {
	Node subjects.NodeID // empty: nowhere yet
	Boot subjects.BootID
	Here bool // it is this node
	// ID tells the worker from an earlier one of this node that was another's since; Moved
	// says that another node had it, or other workers, to one call. Both are of a home that is
	// here.
	ID    string
	Moved bool

	k   *Lanes
	key domainKey
	d   *domain
}

// Home finds out where the worker of a session is. Where it is nowhere it is here from then
// on, if claim is set: one of workers, which are others than before once their index was made
// anew. A home that is here is kept until [Home.Leave]. The errors are why ctx ended,
// unavailable without the store or a lease, and busy.
func (k *Lanes) Home(ctx context.Context, of Of, workers string, claim bool) (*Home, error) {
	home := &Home{k: k, key: domainKey{session: of.Session, epoch: of.Epoch, index: of.Index}}
	for {
		who, err := k.find(ctx, home.key, claim)
		if err != nil && ctx.Err() == nil && toolmesh.CodeOf(err) != toolmesh.CodeBusy {
			err = toolmesh.Errorf(toolmesh.CodeUnavailable, "which node has the session's worker is not known: %w", err)
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
			late := slices.Contains(t.replaced, workers) // it asked before they were replaced
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
		k.mu.Unlock() // it has just been given up
	}
}

// Leave ends the use of a home that is here.
func (h *Home) Leave() {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	h.d.calls--
	h.d.used = time.Now()
}

// Seek waits a moment and has the store asked again: the node is not there, or says that it
// does not have the worker.
func (h *Home) Seek(ctx context.Context) {
	wake.After(ctx, lookAgain)
	h.k.disown(h.key, owner{h.Node, h.Boot})
}

// LeaveHomes hands over the workers of a session for an index, empty names for those of all:
// one call of each is told so, and the next runs anywhere. ctx bounds what it writes.
func (k *Lanes) LeaveHomes(ctx context.Context, session subjects.SessionID, index subjects.IndexName) {
	k.handOver(ctx, func(key domainKey) bool {
		return key.index != "" && (index == "" || index == key.index) && (session == "" || session == key.session)
	})
}

// full reports whether a session has no room for one more home, which is among the domains
// already; k.mu is held.
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
var errHomes = toolmesh.Errorf(toolmesh.CodeBusy, "this node knows %d workers of sessions, and has no room for one more", maxDomains).
	WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).WithDetail("reason", "session_workers")

func newID() string {
	return strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // nodes believe each other
}
