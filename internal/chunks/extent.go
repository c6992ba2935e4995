package chunks

import (
	"context"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// looks is how often the ends of a stream are looked at, at most, when it
	// seems out of order or moves.
	looks = 4
	// near is how many chunks are rather read than searched for.
	near = 4
	// maxProbes bounds a search in a store that is in no order at all. It is more
	// than halving any store takes.
	maxProbes = 100
)

// stored is one stored chunk, as far as a replay looks at it.
type stored struct {
	msg   *store.Stored
	valid bool // else it is not a chunk of the mesh, and chunk is empty
	chunk codec.Chunk
	epoch string
}

// parse looks at a stored message; nil has no chunk.
func parse(m *store.Stored) stored {
	if m == nil {
		return stored{}
	}
	header := codec.Header(m.Header)
	c, err := codec.ParseChunk(header, m.Data)
	if err != nil {
		return stored{msg: m}
	}
	return stored{msg: m, valid: true, chunk: c, epoch: header.Get(codec.HeaderEpoch)}
}

// of reports whether it is a chunk of this life of the session.
func (s *stored) of(epoch string) bool { return s.valid && s.epoch == epoch }

// extent describes all chunks of a call by the first and the last one.
type extent struct {
	first, last stored // as stored; without a message if there are none
	// ordered says that the chunks lie in order and without repeats, so that the
	// last one has the highest Seq.
	ordered bool
	// still says that nothing was stored while it was looked: if ordered, the
	// first one has the lowest Seq.
	still bool
}

// ended reports whether the end of the stream was stored last.
func (e *extent) ended() bool { return e.last.valid && e.last.chunk.Terminal() }

// extent looks at both ends of a stream.
//
// The chunks are in order if their number equals the distance in Seq from the first to the last
// one. A running stream stores more between the two reads, so the last one is read before and after
// the count: the number must lie between the two distances. A chunk with a higher Seq than that of
// the later last one would make the number too great, unless another one is missing.
func (r *Replayer) extent(ctx context.Context, subject, epoch string, from int64) (extent, error) {
	var e extent
	for range looks {
		found, err := r.bus.Find(ctx, subjects.StreamChunks,
			store.Lookup{Subject: subject}, store.Lookup{Subject: subject, From: 1, Pending: true}, store.Lookup{Subject: subject})
		if err != nil {
			return e, unavailable(err)
		}
		before := parse(found[0])
		e = extent{first: parse(found[1]), last: parse(found[2])}
		if e.last.msg == nil || e.last.valid && e.last.epoch != epoch {
			return e, nil
		}
		if before.of(epoch) && e.first.of(epoch) && e.last.of(epoch) {
			behind := int64(e.first.msg.Pending)
			e.ordered = before.chunk.Seq-e.first.chunk.Seq <= behind && behind <= e.last.chunk.Seq-e.first.chunk.Seq
			e.still = before.msg.Seq == e.last.msg.Seq
		}
		switch {
		case e.ordered && !e.still && from < e.first.chunk.Seq:
			// The requested chunks have certainly expired only if none was stored meanwhile.
		case !e.ordered && !e.ended():
			// Copies of the store that answer at different states look like disorder.
		default:
			return e, nil
		}
	}
	return e, nil
}

// summary describes all chunks of a call up to a sequence.
type summary struct {
	upTo     uint64
	at       time.Time // time at which that sequence was stored
	top      int64     // highest Seq
	high     int64     // highest item
	terminal bool      // is stored
}

func (s *summary) add(c *codec.Chunk) {
	s.top = max(s.top, c.Seq)
	if c.Terminal() {
		s.high, s.terminal = max(s.high, c.Count), true
	} else {
		s.high = max(s.high, c.Seq)
	}
}

// summary finds the highest chunk that was stored up to the extent's last one. A
// stream out of order is read for it, but each part of it only once.
func (r *Replayer) summary(ctx context.Context, subject, epoch string, e *extent) (summary, error) {
	upTo := e.last.msg.Seq
	if e.ordered || e.ended() {
		s := summary{upTo: upTo}
		s.add(&e.last.chunk)
		return s, nil
	}
	key := summaryKey{subject, epoch}
	r.mu.Lock()
	s := r.summaries[key]
	r.mu.Unlock()
	if first := e.first.msg; first != nil && (first.Seq > s.upTo || first.Time.After(s.at)) {
		s = summary{} // its chunks have expired, or the store was made anew
	}
	if s.upTo >= upTo {
		return s, nil
	}
	q := store.Query{Stream: subjects.StreamChunks, Subject: subject, From: s.upTo + 1, UpTo: upTo}
	for m, err := range r.bus.Read(ctx, q) {
		if err != nil {
			return s, unavailable(err)
		}
		if c := parse(m); c.of(epoch) {
			s.add(&c.chunk)
		}
		s.upTo, s.at = m.Seq, m.Time // not more: the copy of the store that answers may lag
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.summaries) >= maxSummaries {
		clear(r.summaries) // few streams at once are out of order
	}
	if known := r.summaries[key]; known.upTo < s.upTo || known.at.Before(s.at) {
		r.summaries[key] = s
	}
	if e.last.of(epoch) {
		s.add(&e.last.chunk) // also where that copy does not have it yet
	}
	return s, nil
}

// place finds the sequence to read from for a Seq: that of the chunk itself, or a few before it. It
// is a guess where the store is out of order; the read shows whether it was right. Each probe reads
// one chunk; the first one hits if the call has the store to itself.
func (r *Replayer) place(ctx context.Context, subject, epoch string, from int64, e *extent, top int64) (uint64, error) {
	type mark struct {
		at  uint64
		seq int64
	}
	low := mark{at: e.first.msg.Seq}
	if e.first.of(epoch) {
		low.seq = e.first.chunk.Seq
	}
	high := mark{e.last.msg.Seq, e.last.chunk.Seq}
	if !e.last.of(epoch) || high.seq <= from {
		high = mark{e.last.msg.Seq + 1, top + 1}
	}
	end := high.at // nothing of interest is there or behind
	halve := false
	for probes := 0; end > low.at+1 && from-low.seq > near && probes < maxProbes; probes++ {
		width := end - low.at
		at := low.at + width/2
		if !halve {
			share := float64(from-low.seq) / float64(high.seq-low.seq)
			at = low.at + uint64(float64(high.at-low.at)*share+0.5)
			at = min(max(at, low.at+1), end-1)
		}
		stores, err := r.bus.Find(ctx, subjects.StreamChunks, store.Lookup{Subject: subject, From: at})
		if err != nil {
			return 0, unavailable(err)
		}
		found := parse(stores[0])
		switch {
		case found.msg == nil || found.msg.Seq >= end:
			end = at
		case !found.valid:
			return low.at, nil
		case found.epoch != epoch: // an earlier life of the session
			low = mark{at: found.msg.Seq}
		case found.chunk.Seq <= from:
			low = mark{found.msg.Seq, found.chunk.Seq}
		default:
			high, end = mark{found.msg.Seq, found.chunk.Seq}, at
		}
		halve = end > low.at && end-low.at > width/2
	}
	return low.at, nil
}
