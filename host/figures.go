package host

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

// Figures are a node's figures since its start, and of now.
type Figures struct {
	Node           subjects.NodeID `json:"node"`
	InFlight       int             `json:"in_flight"`
	Slots          int             `json:"slots"`
	Queued         int             `json:"queued"`
	Waiting        int             `json:"waiting"` // for a lane
	Calls          uint64          `json:"calls"`
	Errors         uint64          `json:"errors"`
	Relayed        uint64          `json:"relayed"` // of the calls: those that another node ran, for want of a slot or as it has the session's worker
	Busy           uint64          `json:"busy"`    // answers to callers for which there was no slot
	RefusedReplies uint64          `json:"refused_replies"`
	Tools          int             `json:"tools"`
	// Took is the time of all calls together.
	Took time.Duration `json:"-"`
	// Failures are the calls that have ended with each code: all codes of this version, and
	// [CodeOther]. Their sum is Errors.
	Failures map[toolmesh.Code]uint64 `json:"-"`
}

// Figures returns the node's figures.
func (h *Host) Figures() *Figures {
	f := &Figures{
		Node: h.node, InFlight: h.calls.InFlight(), Slots: h.opts.Slots,
		Calls: h.counts.handled.Load(), Relayed: h.counts.relayed.Load(), Busy: h.counts.busy.Load(), RefusedReplies: h.counts.refusedReplies.Load(),
		Waiting: h.lanes.Waiting(), Took: time.Duration(h.counts.took.Load()),
		Tools: h.routes.count(), Failures: make(map[toolmesh.Code]uint64, len(h.counts.failures)),
	}
	for code, n := range h.counts.failures {
		f.Failures[code] = n.Load()
		f.Errors += f.Failures[code]
	}
	if h.opts.Queued != nil {
		f.Queued = h.opts.Queued()
	}
	return f
}

// counts are the node's counters since its start.
type counts struct {
	handled        atomic.Uint64
	relayed        atomic.Uint64 // calls that another node ran
	took           atomic.Int64  // ns, of all calls handled
	busy           atomic.Uint64 // calls answered busy for want of a slot
	busyFor        atomic.Int64  // ns, of all these: see [codec.Heartbeat]
	refusedReplies atomic.Uint64
	failures       failures
	pace           pace // of all calls
}

// load is how busy the node is, for callers that choose by it.
func (k *core) load() codec.Load {
	return codec.Load{InFlight: k.calls.InFlight(), Slots: k.opts.Slots}
}

// CodeOther is the code in [Figures] for errors whose code this version does not know: handlers
// may use any.
const CodeOther toolmesh.Code = "other"

// failures counts calls by the code they ended with. Its keys never change.
type failures map[toolmesh.Code]*atomic.Uint64

func newFailures() failures {
	f := failures{CodeOther: new(atomic.Uint64)}
	for _, code := range toolmesh.Codes() {
		f[code] = new(atomic.Uint64)
	}
	return f
}

func (f failures) add(code toolmesh.Code) {
	n := f[code]
	if n == nil {
		n = f[CodeOther]
	}
	n.Add(1)
}

// stuckAfter is how long the ticker may be blocked. It sends, and on a connection that the broker
// does not read a send blocks for a minute: a slow broker must not look like a stuck process.
const stuckAfter = 3 * time.Minute

// Stuck returns an error while the host's own ticker, which ends calls in time, is blocked. It
// does not depend on the broker. It is nil before the start and after the end, and never waits.
func (h *Host) Stuck() error {
	at := h.ticked.Load()
	if at == nil {
		return nil
	}
	if stood := time.Since(*at); stood > stuckAfter {
		return toolmesh.Errorf(toolmesh.CodeInternal, "the node's ticker has been blocked for %v by a handler or a lock: restart the node", stood.Round(time.Second))
	}
	return nil
}

// Unready is why the node takes no new calls, or is on no list; nil while it serves.
// It waits for nothing.
func (h *Host) Unready() error {
	refuse := func(format string, args ...any) error {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, format, args...)
	}
	switch {
	case h.draining.Load():
		return refuse("the node is draining")
	case h.presence.Taken():
		return refuse("another process has become node %s", h.node)
	case h.ticked.Load() == nil:
		return refuse("the node does not serve yet")
	case !h.bus.State().Connected: // asking the connection itself waits for its writers
		return refuse("there is no connection to the NATS server")
	case !h.presence.Joined():
		if why := h.presence.Missing(); why != nil {
			return refuse("the node is not in the registry: %w", why)
		}
		return refuse("the node is not in the registry yet")
	}
	return nil
}

// pace is how calls go, of one tool or of all.
type pace struct {
	mu sync.Mutex // no other lock is taken under it
	codec.Pace
}

func (p *pace) mean() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Mean()
}

// faults are errors of the executor, not of the request, its caller or the tool's own code: the
// same call may succeed on another node.
var faults = []toolmesh.Code{toolmesh.CodeInternal, toolmesh.CodeProtocolError, toolmesh.CodeUnavailable}

// paced adds a call that ran here to the node's mean duration of calls. Waits for a lane or for
// the reader of the result do not count, nor do streams and calls that were passed on: they say
// nothing about this node. A deadline that the caller chose is no fault.
func (k *core) paced(call *admit.Running[*inflight], record *admit.Record, took time.Duration) {
	c := call.Value
	if call.Full != nil || record.By != nil || c.Request.Delivery != codec.DeliverNone || record.Err != nil && record.Err.Started == toolmesh.StartedNo {
		return
	}
	if record.Lane != nil {
		took -= record.Lane.Wait
	}
	failed := record.Err != nil && slices.Contains(faults, record.Err.Code)
	now, tool, all := time.Now(), &c.tool.pace, &k.counts.pace
	tool.mu.Lock()
	tool.AddLast(now, took, failed)
	tool.mu.Unlock()
	all.mu.Lock()
	all.Add(now, took, failed)
	all.mu.Unlock()
}

// maxPaces is of how many tools a heartbeat says how they go.
const maxPaces = 8

// paces are those of the tools of indexes that most calls were made of lately.
func (k *core) paces() map[subjects.ToolID]codec.ToolPace {
	type one struct {
		id subjects.ToolID
		codec.ToolPace
	}
	var all []one
	now := time.Now()
	for _, each := range k.routes.Range {
		t, _ := each.(*served)
		if t.at.session != "" {
			continue
		}
		t.pace.mu.Lock()
		if p := t.pace.Report(now); p.Calls >= 0.5 {
			all = append(all, one{t.descriptor.ID, p})
		}
		t.pace.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Compare(b.Calls, a.Calls) })
	paces := make(map[subjects.ToolID]codec.ToolPace)
	for _, p := range all[:min(len(all), maxPaces)] {
		paces[p.id] = p.ToolPace
	}
	return paces
}

// Bounds of the wait that a busy answer asks of its caller.
const (
	minHint = 5 * time.Millisecond
	maxHint = time.Minute
)

// retryAfter is the wait that a call without a slot should make: the mean duration of calls on
// this node, or of its tool's if that is longer. If no call has ended yet it is the age of the
// oldest one.
func (k *core) retryAfter(t *served) time.Duration {
	k.counts.pace.mu.Lock()
	d := k.counts.pace.Met()
	k.counts.pace.mu.Unlock()
	if t != nil {
		d = max(d, t.pace.mean())
	}
	if d == 0 {
		for _, call := range k.calls.Running() {
			d = max(d, time.Since(call.Value.Start))
		}
	}
	return min(max(d, minHint), maxHint)
}
