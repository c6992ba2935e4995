package chunks

import (
	"context"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// firstAsk is the number of chunks that a page first requests: most pages are short, and all
	// requested chunks arrive even if the page is full.
	firstAsk = 64
	// maxPasses is how often one page reads the chunks of a stream that is out of order. A writer that
	// goes back costs one more pass; the caller asks for what is missing then.
	maxPasses = 8
)

// pageScan reads a call's chunks as they are stored and sends them in order, in as many passes as
// that takes. It keeps no chunk.
type pageScan struct {
	epoch string
	next  int64 // Seq that comes next
	left  int64 // bytes that may still be sent
	send  func(*store.Stored) error

	sent  int
	least int64  // lowest Seq seen
	above int64  // lowest Seq beyond next that the last pass has seen, if that has sent nothing; 0: none
	read  uint64 // sequence of the last one read
}

// full reports whether the page has no room left.
func (s *pageScan) full() bool { return s.left <= 0 }

// run reads the stored chunks from one sequence to another until the page is full.
func (s *pageScan) run(ctx context.Context, b store.Store, subject string, from, upTo uint64) error {
	s.above = 0
	q := store.Query{Stream: subjects.StreamChunks, Subject: subject, From: from, UpTo: upTo, First: firstAsk}
	for m, err := range b.Read(ctx, q) {
		if err != nil {
			return unavailable(err)
		}
		s.read = m.Seq
		c := parse(m)
		if !c.of(s.epoch) {
			continue
		}
		seq := c.chunk.Seq
		if s.least == 0 || seq < s.least {
			s.least = seq
		}
		switch {
		case seq == s.next:
			s.next, s.sent, s.left = s.next+1, s.sent+1, s.left-int64(len(m.Data))
			if err := s.send(m); err != nil || s.full() {
				return err
			}
		case seq > s.next && (s.above == 0 || seq < s.above):
			s.above = seq
		}
	}
	return nil
}
