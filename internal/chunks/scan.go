package chunks

import (
	"container/heap"
	"context"
	"slices"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxHeld bounds what one replay holds of chunks that lie behind a gap, and
	// heldExtra is about what each of them takes beside its body.
	maxHeld   = 8 << 20
	heldExtra = 1 << 10
	// firstAsk is how many chunks a page asks the broker for at first: most pages
	// are short, and what was asked for comes even when the page is full.
	firstAsk = 64
)

// pageScan reads a call's chunks as they are stored and sends them in order. It
// keeps no chunk that it has sent, and none that the page has no room for.
type pageScan struct {
	epoch string
	from  int64 // Seq that was asked for
	next  int64 // Seq that comes next
	left  int64 // bytes that may still be sent
	send  func(*bus.Stored) error

	err    error // of send
	sent   int
	full   bool
	held   map[int64]*bus.Stored // beyond next
	seqs   descending            // of held, and of some that were sent since
	size   int64                 // of the bodies in held
	unheld uint64                // sequence of the first one that held had no room for
	least  int64                 // lowest Seq seen
	taken  uint64                // sequence of the last one that was the next
	read   uint64                // sequence of the last one read
}

// run reads what is stored from one sequence to another, until the page is full.
func (s *pageScan) run(ctx context.Context, b *bus.Bus, subject string, from, upTo uint64) error {
	s.held, s.seqs, s.size, s.unheld = make(map[int64]*bus.Stored), nil, 0, 0
	q := bus.Query{Stream: subjects.StreamChunks, Subject: subject, From: from, UpTo: upTo, First: firstAsk}
	for m, err := range b.Read(ctx, q) {
		if err != nil {
			return unavailable(err)
		}
		s.read = m.Seq
		if c := parse(m); c.of(s.epoch) {
			s.add(c.chunk.Seq, m)
		}
		if s.full || s.err != nil {
			return s.err
		}
	}
	return nil
}

func (s *pageScan) add(seq int64, m *bus.Stored) {
	if s.least == 0 || seq < s.least {
		s.least = seq
	}
	switch {
	case seq < s.next:
		return
	case seq > s.next:
		s.hold(seq, m)
		return
	}
	s.take(m)
	s.next++
	for !s.full && s.err == nil {
		m, ok := s.held[s.next]
		if !ok {
			break
		}
		s.drop(s.next)
		s.take(m)
		s.next++
	}
	s.taken = m.Seq
}

// hold keeps what lies behind a gap, in case that it is filled later on in the
// store: as much of it as the page could take, the lowest ones.
func (s *pageScan) hold(seq int64, m *bus.Stored) {
	if _, ok := s.held[seq]; ok {
		return
	}
	s.held[seq] = m
	s.size += int64(len(m.Data))
	heap.Push(&s.seqs, seq)
	for len(s.held) > 1 {
		highest := s.seqs[0]
		last, ok := s.held[highest]
		if ok && s.size-int64(len(last.Data)) < s.left && s.size+heldExtra*int64(len(s.held)) <= maxHeld {
			return
		}
		heap.Pop(&s.seqs)
		if !ok {
			continue
		}
		s.drop(highest)
		if s.unheld == 0 || last.Seq < s.unheld {
			s.unheld = last.Seq
		}
	}
}

func (s *pageScan) drop(seq int64) {
	s.size -= int64(len(s.held[seq].Data))
	delete(s.held, seq)
}

// resume is where the next page may begin: all that is stored before it, as far
// as it was read, has been taken or has a Seq below next.
func (s *pageScan) resume() uint64 {
	at := s.taken
	if s.unheld != 0 {
		at = min(at, s.unheld)
	}
	for _, h := range s.held {
		at = min(at, h.Seq)
	}
	return at
}

func (s *pageScan) take(m *bus.Stored) {
	if s.err = s.send(m); s.err != nil {
		return
	}
	s.sent++
	s.left -= int64(len(m.Data))
	s.full = s.left <= 0
}

// flush sends what lies behind a gap, in order: the caller merges, and asks for
// the gap again.
func (s *pageScan) flush() error {
	seqs := make([]int64, 0, len(s.held))
	for seq := range s.held {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		if s.full || s.err != nil {
			break
		}
		s.take(s.held[seq])
	}
	return s.err
}

// descending is a heap with the highest Seq first.
type descending []int64

func (d descending) Len() int           { return len(d) }
func (d descending) Less(i, j int) bool { return d[i] > d[j] }
func (d descending) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements [heap.Interface].
func (d *descending) Push(x any) {
	if seq, ok := x.(int64); ok {
		*d = append(*d, seq)
	}
}

// Pop implements [heap.Interface].
func (d *descending) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}
