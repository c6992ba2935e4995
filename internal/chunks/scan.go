package chunks

import (
	"cmp"
	"context"
	"slices"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxHeld bounds, in bytes, the chunks behind a gap that one replay holds; heldExtra is about
	// the size of each besides its body.
	maxHeld   = 8 << 20
	heldExtra = 1 << 10
	// firstAsk is the number of chunks that a page first requests: most pages are short, and all
	// requested chunks arrive even if the page is full.
	firstAsk = 64
)

// pageScan reads a call's chunks as they are stored and sends them in order. It
// keeps no chunk that it has sent, and none that the page has no room for.
type pageScan struct {
	epoch string
	next  int64 // Seq that comes next
	left  int64 // bytes that may still be sent
	send  func(*store.Stored) error

	sent  int
	held  []heldChunk // beyond next, in order of Seq
	size  int64       // of the bodies in held
	least int64       // lowest Seq seen
	read  uint64      // sequence of the last one read
}

type heldChunk struct {
	seq int64
	msg *store.Stored
}

// full reports whether the page has no room left.
func (s *pageScan) full() bool { return s.left <= 0 }

// run reads the stored chunks from one sequence to another until the page is full.
func (s *pageScan) run(ctx context.Context, b store.Store, subject string, from, upTo uint64) error {
	q := store.Query{Stream: subjects.StreamChunks, Subject: subject, From: from, UpTo: upTo, First: firstAsk}
	for m, err := range b.Read(ctx, q) {
		if err != nil {
			return unavailable(err)
		}
		s.read = m.Seq
		if c := parse(m); c.of(s.epoch) {
			if err := s.add(c.chunk.Seq, m); err != nil {
				return err
			}
		}
		if s.full() {
			break
		}
	}
	return nil
}

func (s *pageScan) add(seq int64, m *store.Stored) error {
	if s.least == 0 || seq < s.least {
		s.least = seq
	}
	if seq < s.next {
		return nil
	}
	s.hold(seq, m)
	for !s.full() && len(s.held) > 0 && s.held[0].seq == s.next {
		s.next++
		if err := s.takeFirst(); err != nil {
			return err
		}
	}
	return nil
}

// hold keeps a chunk, also one behind a gap, in case that it is filled later on
// in the store: as many as the page could take, the lowest ones.
func (s *pageScan) hold(seq int64, m *store.Stored) {
	at, found := slices.BinarySearchFunc(s.held, seq, func(h heldChunk, seq int64) int { return cmp.Compare(h.seq, seq) })
	if found {
		return
	}
	s.held = slices.Insert(s.held, at, heldChunk{seq, m})
	s.size += int64(len(m.Data))
	for n := len(s.held); n > 1; n-- {
		last := int64(len(s.held[n-1].msg.Data))
		if s.size-last < s.left && s.size+heldExtra*int64(n) <= maxHeld {
			return
		}
		s.held = slices.Delete(s.held, n-1, n)
		s.size -= last
	}
}

// takeFirst sends the first chunk that is held.
func (s *pageScan) takeFirst() error {
	m := s.held[0].msg
	s.held = s.held[1:]
	s.size -= int64(len(m.Data))
	s.left -= int64(len(m.Data))
	s.sent++
	return s.send(m)
}

// flush sends the chunks behind a gap, in order: the caller merges them and asks for the gap again.
func (s *pageScan) flush() error {
	for !s.full() && len(s.held) > 0 {
		if err := s.takeFirst(); err != nil {
			return err
		}
	}
	return nil
}
