package picker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// Candidate is a node that can be called, and its load as somebody last heard it.
type Candidate struct {
	Node     subjects.NodeID `json:"node"`
	Boot     subjects.BootID `json:"boot"`
	InFlight int             `json:"in_flight"`
	Slots    int             `json:"slots"`
}

// Options adjusts a [Picker].
type Options struct {
	// Rand returns a random number in [0,n). Defaults to math/rand/v2.
	Rand func(n int) int
	// Forget is how long a node that is no longer used is remembered. Defaults to
	// a minute.
	Forget time.Duration
}

// Picker knows the calls of this process on each node, and what each node said
// of its load. Its methods may be called concurrently.
type Picker struct {
	rand   func(int) int
	forget time.Duration

	mu    sync.Mutex
	nodes map[subjects.NodeID]*load
	swept time.Time
}

// load is one node as this process knows it.
type load struct {
	boot     subjects.BootID
	own      int // calls of this process that are not over
	inFlight int // what the node said last
	slots    int
	ownThen  int // own when it said so
	heard    time.Time
	used     time.Time
}

// New returns a picker.
func New(options *Options) *Picker {
	var o Options
	if options != nil {
		o = *options
	}
	if o.Rand == nil {
		o.Rand = rand.IntN
	}
	if o.Forget <= 0 {
		o.Forget = time.Minute
	}
	return &Picker{rand: o.Rand, forget: o.Forget, nodes: make(map[subjects.NodeID]*load), swept: time.Now()}
}

// Pick returns the less loaded of two random candidates, leaving out those that
// skip names; nil skips none. It is false when none is left.
func (p *Picker) Pick(among []Candidate, skip func(Candidate) bool) (Candidate, bool) {
	if skip != nil {
		left := make([]Candidate, 0, len(among))
		for _, c := range among {
			if !skip(c) {
				left = append(left, c)
			}
		}
		among = left
	}
	switch len(among) {
	case 0:
		return Candidate{}, false
	case 1:
		return among[0], true
	}
	first := p.rand(len(among))
	second := p.rand(len(among) - 1)
	if second >= first {
		second++
	}
	a, b := among[first], among[second]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.weight(b) < p.weight(a) {
		return b, true
	}
	return a, true
}

// weight is how full a node would be with one more call, as a share of its slots.
func (p *Picker) weight(c Candidate) float64 {
	inFlight, slots := c.InFlight, c.Slots
	if l := p.nodes[c.Node]; l != nil && l.boot == c.Boot {
		if !l.heard.IsZero() {
			inFlight, slots = l.inFlight+l.own-l.ownThen, l.slots
		}
		inFlight = max(inFlight, l.own)
	}
	return float64(inFlight+1) / float64(max(slots, 1))
}

// Begin counts a call that is being sent to a node; End must follow.
func (p *Picker) Begin(c Candidate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	l := p.node(c.Node, c.Boot)
	if l.heard.IsZero() {
		l.inFlight, l.slots, l.ownThen, l.heard = c.InFlight, c.Slots, l.own, now
	}
	l.own++
	l.used = now
	if now.Sub(p.swept) > p.forget {
		p.swept = now
		for id, l := range p.nodes {
			if l.own == 0 && now.Sub(l.used) > p.forget {
				delete(p.nodes, id)
			}
		}
	}
}

// End counts the end of a call that Begin counted.
func (p *Picker) End(node subjects.NodeID, boot subjects.BootID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.nodes[node]; l != nil && l.boot == boot && l.own > 0 {
		l.own--
		l.used = time.Now()
	}
}

// Heard records what a node says of its load: in a reply or a heartbeat. Calls
// of this process that the node cannot have counted yet are added to it.
func (p *Picker) Heard(c Candidate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.node(c.Node, c.Boot)
	l.inFlight, l.slots, l.ownThen, l.heard = c.InFlight, c.Slots, l.own, time.Now()
	l.used = l.heard
}

// Learn records the loads of a list that the registry answered, except of nodes
// that were heard themselves since asked, the time at which the question was sent.
func (p *Picker) Learn(list []Candidate, asked time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range list {
		l := p.node(c.Node, c.Boot)
		if l.heard.After(asked) {
			continue
		}
		l.inFlight, l.slots, l.ownThen, l.heard = c.InFlight, c.Slots, l.own, time.Now()
		l.used = l.heard
	}
}

// Outstanding returns the calls of this process on a node that are not over.
func (p *Picker) Outstanding(node subjects.NodeID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.nodes[node]; l != nil {
		return l.own
	}
	return 0
}

// node returns what is known of a node; another boot begins anew.
func (p *Picker) node(id subjects.NodeID, boot subjects.BootID) *load {
	l := p.nodes[id]
	if l == nil || l.boot != boot {
		l = &load{boot: boot}
		p.nodes[id] = l
	}
	return l
}
