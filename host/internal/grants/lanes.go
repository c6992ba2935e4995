package grants

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// standsFor is how long a grant may still be valid if its owner's lease ended before its
	// time: that of the owner's last answer.
	standsFor  = registry.HoldsFor
	renewEvery = 2 * time.Second
	// askEvery is how often a waiting call repeats its request, and askedFor how long the owner
	// counts a request as current.
	askEvery = time.Second
	askedFor = 5 * time.Second
	// silence is how long an owner may not answer before the store is asked for the owner.
	silence = 2500 * time.Millisecond
	// soft is how long before the end of a grant its call is told to stop; hard is how long
	// before it the worker is killed, which takes a moment on a busy machine.
	soft = 1500 * time.Millisecond
	hard = 500 * time.Millisecond
	// margin is the time between the end of a grant and the next one.
	margin = time.Second
	// keepFor is how long an unused domain is owned.
	keepFor = 30 * time.Second
	// writeEvery is how often the record of a domain in use is written again, which the bucket
	// expires after a day, and writtenFor how long it is trusted.
	writeEvery = time.Hour
	writtenFor = 12 * time.Hour
	// forEver is the validity of a hold in a lane of the node.
	forEver = 1000 * time.Hour
	// stalled is the pause between ticks after which messages are read before their absence
	// counts.
	stalled = time.Second
	// storeWait bounds one request to the store.
	storeWait = 3 * time.Second
)

// Options connect a [Lanes] with its node.
type Options struct {
	Node     subjects.NodeID
	Boot     subjects.BootID
	Bus      store.Store
	Presence Presence
	// Go runs f in a goroutine; the node waits for it when it stops.
	Go  func(f func())
	Log *slog.Logger
}

// Presence is the part of the node's presence.Presence that a keeper needs.
type Presence interface {
	// Held returns from when and until when the node certainly holds its lease.
	Held() (since, until time.Time)
	// Rely makes the node's lease end soon after the node.
	Rely(ctx context.Context) error
	// NodeLost reports whether a start of a node has lost its lease, and whether by expiry.
	NodeLost(ctx context.Context, node subjects.NodeID, boot subjects.BootID) (lost, expired bool, err error)
}

// Lanes are the lanes of one node: it owns domains, asks the owners of others, and holds the
// grants of calls on the node. Its methods may be called concurrently.
type Lanes struct {
	opts Options

	mu      sync.Mutex // guards the fields below; never held while sending or waiting; taken before presence.mu
	domains map[domainKey]*domain
	asking  map[string]*Grant // by id, while they are not granted
	held    map[string]*Grant
	counter uint64 // of requests
	inbox   *bus.Inbox
	nextAsk time.Time // next renewal
	ticked  time.Time
	grace   time.Time // until then silent waiters are kept, as this process was frozen
	left    bool
}

// domainKey names the lanes of a session, of the mesh or, with node set, of this node; or, with
// index set, the worker of a session: see [Home].
type domainKey struct {
	session subjects.SessionID // empty: of the mesh
	node    bool
	epoch   string
	index   subjects.IndexName
}

// owner is a start of a node.
type owner struct {
	Node subjects.NodeID `json:"node"`
	Boot subjects.BootID `json:"boot"`
}

// domain is this node's knowledge of one domain.
type domain struct {
	key     domainKey
	owner   owner         // zero while unknown
	looking chan struct{} // closed when the store has answered; nil without a request
	failed  error         // of the last request
	term    *term         // of this node as its owner; nil if it is not
	used    time.Time
	calls   int // that use a home
}

// New makes a keeper. It sends nothing before the first [Lanes.Take].
func New(opts Options) *Lanes {
	return &Lanes{
		opts: opts, domains: make(map[domainKey]*domain), asking: make(map[string]*Grant),
		held: make(map[string]*Grant),
	}
}

// domain returns the domain of a key; k.mu is held.
func (k *Lanes) domain(key domainKey) *domain {
	d := k.domains[key]
	if d == nil {
		d = &domain{key: key, used: time.Now()}
		if key.node { // no other node can take it, and it depends on no lease
			d.term = newTerm(time.Time{}, 0, time.Time{})
		}
		k.domains[key] = d
	}
	return d
}

// keyOf is the domain of a scope.
func keyOf(scope tool.LaneScope, session subjects.SessionID) domainKey {
	switch scope {
	case tool.LaneNode:
		return domainKey{node: true}
	case tool.LaneMesh:
		return domainKey{}
	}
	return domainKey{session: session}
}

// Waiting is how many calls of this node wait for a lane.
func (k *Lanes) Waiting() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.asking {
		if g.waits {
			n++
		}
	}
	return n
}

// Tick is the node's clock; the host calls it several times a second.
func (k *Lanes) Tick(now time.Time) {
	var out outbox
	k.mu.Lock()
	if now.Sub(k.ticked) > stalled {
		k.grace = now.Add(askedFor)
	}
	k.ticked = now
	for key, d := range k.domains {
		if d.term != nil {
			k.tickTerm(d, now, &out)
		} else if d.looking == nil && now.Sub(d.used) > keepFor {
			delete(k.domains, key) // its owner is looked up again
		}
	}
	k.renew(now, &out)
	var late []*Grant
	for _, g := range k.held {
		if fenced && now.After(g.end.Add(-soft)) && !g.told {
			g.told = true
			late = append(late, g)
		}
	}
	k.mu.Unlock()
	out.send()
	for _, g := range late {
		k.opts.Log.Warn("call is stopped: its hold of a lane could not be renewed", slog.String("rpc_id", string(g.ask.RPCID)))
		g.ask.Lost(errLost)
	}
}

// ReasonLost is details.reason of the error of a call that lost its lane.
const ReasonLost = "lane_lost"

// errLost ends a call that has lost its lane, which another call may hold soon.
var errLost = toolmesh.Errorf(toolmesh.CodeNodeLost, "the call was stopped: the node that owns its lane is lost, and another call may hold the lane now; check its effects before you send it again").
	WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent).WithDetail("reason", ReasonLost)

// outbox has the messages to send after the lock is released.
type outbox []func()

func (o *outbox) add(f func()) { *o = append(*o, f) }

func (o outbox) send() {
	for _, f := range o {
		f()
	}
}

// Serve answers a request on this node's subject of lanes.
func (k *Lanes) Serve(s subjects.Subject, m *nats.Msg) {
	var req codec.LaneRequest
	if err := bus.ReadRequest(m, &req); err != nil || len(req.IDs) == 0 && req.Type != codec.LaneRenew {
		return // only nodes may ask here, and they retry
	}
	key := domainKey{session: s.Session}
	if req.Mesh {
		key.session = ""
	}
	reply := m.Reply
	k.serve(key, &req, func(a codec.LaneAnswer) {
		if reply != "" {
			_ = k.opts.Bus.Conn().Publish(reply, codec.Encode(a))
		}
	})
}

// heard handles an owner's answer, or the broker's if the owner does not exist.
func (k *Lanes) heard(m *nats.Msg, err error) {
	if err != nil {
		k.mu.Lock()
		k.inbox = nil // the connection is closed, or may not have an inbox: calls wait until their deadline
		k.mu.Unlock()
		return
	}
	answer := codec.LaneAnswer{State: codec.LaneElsewhere}
	if !bus.NoResponders(m) {
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			k.opts.Log.Warn("answer of a lane's owner could not be read", slog.String("error", err.Error()))
			return
		}
	}
	answer.ID = m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	k.answered(answer)
}

// answered handles an answer about a grant, of another node or of this one.
func (k *Lanes) answered(answer codec.LaneAnswer) {
	k.mu.Lock()
	held, asks := k.held[answer.ID], k.asking[answer.ID]
	k.mu.Unlock()
	switch {
	case held != nil:
		k.extend(held, answer)
	case asks != nil:
		select {
		case asks.answers <- answer:
		default: // the owner repeats it
		}
	}
}
