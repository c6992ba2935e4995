package admit

import (
	"slices"
	"time"
)

// Bounds of the names of ended calls whose results were dropped. Two generations of 2,097,152
// names take 64 MiB at most; at 100,000 calls a second they cover at least the last 20 seconds.
const (
	maxNames = 1 << 21 // of one generation
	buckets  = 1 << 17
)

// past holds the hashes of the names of ended calls whose results were dropped. A new name with a
// known hash occurs once in years on a busy node; such a call is refused. past forgets a
// generation at a time, and knows since when it remembers. The zero value is empty.
type past struct {
	young, old generation
	// since: of calls that ended later, all names are known.
	since time.Time
}

// generation is the names of calls that ended one after the other.
type generation struct {
	buckets     *[buckets][]uint64 // by the first bits of the hash; nil while it is empty
	n           int
	first, last time.Time // when the first and the last of its calls ended
}

func (p *past) add(hash uint64, ended time.Time) {
	if p.young.n == maxNames {
		p.turn()
	}
	g := &p.young
	if g.n == 0 {
		g.buckets, g.first = new([buckets][]uint64), ended
	}
	b := &g.buckets[hash%buckets]
	*b = append(*b, hash)
	g.n++
	g.last = later(g.last, ended)
}

func (p *past) has(hash uint64) bool { return p.young.has(hash) || p.old.has(hash) }

func (g *generation) has(hash uint64) bool {
	return g.n > 0 && slices.Contains(g.buckets[hash%buckets], hash)
}

// turn drops the old generation and begins a new one.
func (p *past) turn() {
	p.forgotten(p.old.last)
	p.old, p.young = p.young, generation{}
}

// forgotten notes that names of calls that ended up to a time are.
func (p *past) forgotten(ended time.Time) { p.since = later(p.since, ended) }

// sweep forgets calls that ended up to a time.
func (p *past) sweep(horizon time.Time) {
	if p.young.n > 0 && !p.young.first.After(horizon) {
		p.turn()
	}
	if p.old.n > 0 && !p.old.last.After(horizon) {
		p.forgotten(p.old.last)
		p.old = generation{}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
