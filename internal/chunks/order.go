package chunks

import "github.com/toolmesh/toolmesh/codec"

// Order turns chunks that arrive in any order, repeated or not, into the one
// sequence of their stream. Not safe for concurrent use.
type Order struct {
	next    int64 // Seq of the chunk that comes next
	high    int64 // highest Seq seen or heard of
	waiting map[int64]codec.Chunk
}

// NewOrder begins with the chunk of Seq from.
func NewOrder(from int64) *Order { return &Order{next: from, waiting: make(map[int64]codec.Chunk)} }

// Add takes a chunk; one that was already taken is ignored.
func (o *Order) Add(c codec.Chunk) {
	o.high = max(o.high, c.Seq)
	if c.Seq >= o.next {
		if _, ok := o.waiting[c.Seq]; !ok {
			o.waiting[c.Seq] = c
		}
	}
}

// Pop returns the next chunk of the sequence, if it has arrived.
func (o *Order) Pop() (codec.Chunk, bool) {
	c, ok := o.waiting[o.next]
	if ok {
		delete(o.waiting, o.next)
		o.next++
	}
	return c, ok
}

// Note records that the stream has been stored up to seq.
func (o *Order) Note(seq int64) { o.high = max(o.high, seq) }

// Next is the Seq that Pop waits for.
func (o *Order) Next() int64 { return o.next }

// Gap reports whether a later chunk than the next one is known of.
func (o *Order) Gap() bool { return o.high >= o.next && !o.Ready() }

// Ready reports whether Pop has a chunk.
func (o *Order) Ready() bool { _, ok := o.waiting[o.next]; return ok }
