package lane

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// Queue orders calls: each begins when all earlier ones that overlap with it have ended. The zero
// value is an empty queue. It is not safe for concurrent use. The cost of adding a call grows
// with the depth of its key, not with the length of the queue.
type Queue struct {
	places map[uint64]*place // by the hash of their way from the root: two with one hash overlap
}

// Turn is one call's.
type Turn struct {
	// Value is its owner's.
	Value any

	key     []uint64 // hashes of its places, from the root on; nil for a join
	waits   int      // for how many it waits
	next    []*Turn  // that wait for it
	done    bool
	abandon bool // it ends as soon as it may begin
}

// place is one place of the tree, with the turns that later ones have to wait for. Turns that
// another one of them waits for are left out.
type place struct {
	own, below set
	users      int // turns that have not ended, with a key here or below
}

// set holds turns that write, and turns that read.
type set struct{ writers, readers []*Turn }

// Ready reports whether the turn may begin. It may not once it has been ended.
func (t *Turn) Ready() bool { return t.waits == 0 && !t.done }

// Add adds a call behind all earlier ones.
func (q *Queue) Add(k Key, value any) *Turn {
	if q.places == nil {
		q.places = make(map[uint64]*place)
	}
	t := &Turn{Value: value, key: ways(k.Place)}
	last := len(t.key) - 1
	for i, way := range t.key {
		p := q.places[way]
		if p == nil {
			p = &place{}
			q.places[way] = p
		}
		p.users++
		switch {
		case i < last: // its key is below this place
			t.after(&p.own.writers)
			if k.Read {
				keep(&p.below.readers, t)
			} else {
				t.after(&p.own.readers)
				keep(&p.below.writers, t)
			}
		case k.Read:
			t.after(&p.own.writers)
			t.after(&p.below.writers)
			keep(&p.own.readers, t)
		default:
			for _, turns := range []*[]*Turn{&p.own.writers, &p.own.readers, &p.below.writers, &p.below.readers} {
				t.after(turns)
				*turns = nil
			}
			p.own.writers = []*Turn{t}
		}
	}
	return t
}

var seed = maphash.MakeSeed()

// ways returns the hashes of the paths from the root to each place of a key.
func ways(steps []string) []uint64 {
	all := make([]uint64, 1, len(steps)+1)
	var h maphash.Hash
	h.SetSeed(seed)
	for i, step := range steps {
		var above [8]byte
		binary.NativeEndian.PutUint64(above[:], all[i])
		h.Reset()
		_, _ = h.Write(above[:])
		_, _ = h.WriteString(step)
		all = append(all, h.Sum64())
	}
	return all
}

// keep adds a turn, and removes ended ones before it grows.
func keep(turns *[]*Turn, t *Turn) {
	if len(*turns) == cap(*turns) {
		forget(turns)
	}
	*turns = append(*turns, t)
}

// forget removes ended turns.
func forget(turns *[]*Turn) {
	*turns = slices.DeleteFunc(*turns, func(t *Turn) bool { return t.done })
}

// after makes the turn wait for others. It joins several into one, so that later turns wait for
// one only.
func (t *Turn) after(turns *[]*Turn) {
	if forget(turns); len(*turns) == 0 {
		return
	}
	other := (*turns)[0]
	if len(*turns) > 1 {
		other = &Turn{abandon: true}
		for _, one := range *turns {
			other.waitFor(one)
		}
		*turns = []*Turn{other}
	}
	t.waitFor(other)
}

func (t *Turn) waitFor(other *Turn) {
	if other != t {
		t.waits++
		other.next = append(other.next, t)
	}
}

// Circle reports whether a turn would wait for one that waits for it: from are the turns that do
// not end before it, and holds returns the turns that do not end before another one.
func (t *Turn) Circle(from []*Turn, holds func(*Turn) []*Turn) bool {
	seen := make(map[*Turn]bool)
	for len(from) > 0 {
		blocked := from[0]
		from = from[1:]
		for _, next := range blocked.next {
			if next == t {
				return true
			}
			if !seen[next] {
				seen[next] = true
				from = append(append(from, next), holds(next)...)
			}
		}
	}
	return false
}

// Done ends a turn, also one that has not begun, and returns the turns that may begin now, in the
// order in which they were added if they waited for the same. Ending a turn again does nothing.
func (q *Queue) Done(t *Turn) (ready []*Turn) {
	if t.done {
		return nil
	}
	if t.waits > 0 {
		t.abandon = true // those behind it go on waiting for those before it
		return nil
	}
	ending := []*Turn{t}
	for len(ending) > 0 {
		t, ending = ending[0], ending[1:]
		t.done = true
		for _, way := range t.key {
			p := q.places[way]
			if p.users--; p.users == 0 {
				delete(q.places, way)
			}
		}
		for _, next := range t.next {
			if next.waits--; next.waits > 0 {
				continue
			}
			if next.abandon {
				ending = append(ending, next)
			} else {
				ready = append(ready, next)
			}
		}
		t.next = nil
	}
	return ready
}
