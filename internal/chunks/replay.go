package chunks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxHeld bounds what one replay holds of chunks that lie behind a gap.
	maxHeld = 8 << 20
	// maxHints bounds the places that a replayer remembers.
	maxHints = 4096
	// maxReplayBytes bounds what one request may ask for.
	maxReplayBytes = 16 << 20
)

// Replayer reads stored chunks and answers mesh.replay. Its methods may be
// called concurrently.
type Replayer struct {
	bus *bus.Bus
	log *slog.Logger

	mu    sync.Mutex
	hints map[hintKey]uint64
	order []hintKey
}

// hintKey is a place in a stream: all that is stored before the sequence of its
// hint has a Seq below from. It spares a reader that pages through a long
// stream the pages that it has had.
type hintKey struct {
	subject string
	from    int64
}

// NewReplayer returns a replayer; a nil log discards.
func NewReplayer(b *bus.Bus, log *slog.Logger) *Replayer {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Replayer{bus: b, log: log, hints: make(map[hintKey]uint64)}
}

// Page is one answer of [Replayer.Read].
type Page struct {
	Chunks []*bus.Stored // in order of Seq, without repeats
	High   codec.High
}

// Read returns the stored chunks of a call from req.FromSeq on, in order of
// Mesh-Seq and without repeats, up to req.MaxBytes, which one chunk may pass.
// Chunks of another epoch of the session than epoch are not there. An unknown
// call has an empty page with High 0. The errors are stream_expired
// (details.first_seq) and unavailable.
func (r *Replayer) Read(ctx context.Context, session subjects.SessionID, rpc subjects.RPCID, epoch string, req codec.ReplayRequest) (Page, error) {
	subject, err := subjects.Chunks(session, rpc)
	if err != nil {
		return Page{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "no such stream: %w", err)
	}
	last, err := r.last(ctx, subject)
	if err != nil || last == nil || last.valid && last.epoch != epoch {
		return Page{}, err
	}
	page, ordered := Page{High: last.high()}, last.valid && last.chunk.Terminal()
	if !ordered {
		if ordered, err = r.ordered(ctx, subject, last); err != nil {
			return Page{}, err
		}
	}
	switch {
	case ordered && req.FromSeq > last.chunk.Seq:
		return page, nil
	case ordered && req.FromSeq == last.chunk.Seq:
		page.Chunks = []*bus.Stored{last.msg}
		return page, nil
	}
	newScan := func() pageScan {
		return pageScan{
			epoch: epoch, from: req.FromSeq, next: req.FromSeq, left: min(req.MaxBytes, maxReplayBytes),
			held: make(map[int64]*bus.Stored), whole: !ordered,
		}
	}
	scan := newScan()
	start, hinted := r.hint(subject, req.FromSeq)
	if err := scan.run(ctx, r.bus, subject, start); err != nil {
		return Page{}, err
	}
	if hinted && len(scan.chunks) == 0 {
		// The hint was wrong, or what it led to is gone: once more from the beginning.
		scan = newScan()
		if err := scan.run(ctx, r.bus, subject, 0); err != nil {
			return Page{}, err
		}
	}
	if len(scan.chunks) == 0 && scan.least > req.FromSeq {
		return Page{}, toolmesh.Errorf(toolmesh.CodeStreamExpired, "items before %d are no longer kept", scan.least).
			WithDetail("first_seq", scan.least).WithOrigin(toolmesh.OriginMesh)
	}
	page.High.Seq = max(page.High.Seq, scan.high)
	page.High.Terminal = page.High.Terminal || scan.terminal
	page.Chunks = scan.chunks
	if scan.next > req.FromSeq {
		r.remember(subject, scan.next, scan.resume())
	}
	return page, nil
}

// stored is one stored chunk, as far as [Replayer.Read] looks at it.
type stored struct {
	msg     *bus.Stored
	valid   bool // else nobody of ours wrote it, and chunk is empty
	chunk   codec.Chunk
	epoch   string
	pending uint64 // how many of the same call are stored behind it
}

func (s *stored) high() codec.High {
	if s.valid && s.chunk.Terminal() {
		return codec.High{Seq: s.chunk.Count, Terminal: true}
	}
	return codec.High{Seq: s.chunk.Seq}
}

// last returns the chunk of a call that was stored last, nil if there is none.
// With disorder in the store others may have a higher Seq.
func (r *Replayer) last(ctx context.Context, subject string) (*stored, error) {
	return r.one(ctx, bus.Query{Stream: subjects.StreamChunks, Last: []string{subject}})
}

// ordered reports whether a call's chunks are stored in order and without
// repeats, so that the last one has the highest Seq: there are as many of them
// as Seq goes up from the first one to the last one.
func (r *Replayer) ordered(ctx context.Context, subject string, last *stored) (bool, error) {
	first, err := r.one(ctx, bus.Query{Stream: subjects.StreamChunks, Subject: subject, MaxMsgs: 1})
	if err != nil || first == nil || !first.valid || !last.valid {
		return false, err
	}
	return last.chunk.Seq-first.chunk.Seq == int64(first.pending), nil
}

func (r *Replayer) one(ctx context.Context, q bus.Query) (*stored, error) {
	for m, err := range r.bus.Read(ctx, q) {
		if err != nil {
			return nil, unavailable(err)
		}
		header := codec.Header(m.Header)
		c, err := codec.ParseChunk(header, m.Data)
		if err != nil {
			return &stored{msg: m}, nil
		}
		return &stored{msg: m, valid: true, chunk: c, epoch: header.Get(codec.HeaderEpoch), pending: m.Pending}, nil
	}
	return nil, nil
}

func unavailable(err error) error {
	if e := (*toolmesh.Error)(nil); errors.As(err, &e) {
		return err
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "stored chunks cannot be read: %w", err).WithOrigin(toolmesh.OriginMesh)
}

// pageScan reads a call's chunks as they are stored and puts them in order.
type pageScan struct {
	epoch    string
	from     int64 // Seq that was asked for
	next     int64 // Seq that comes next
	left     int64 // bytes that may still be sent
	chunks   []*bus.Stored
	held     map[int64]*bus.Stored // beyond next
	size     int64                 // of held
	unheld   uint64                // sequence of the first one that held had no room for
	least    int64                 // lowest Seq seen
	high     int64                 // highest item seen
	terminal bool                  // seen
	taken    uint64                // sequence of the last one that was the next
	full     bool
	whole    bool // read on when full: the highest may be anywhere
}

func (s *pageScan) run(ctx context.Context, b *bus.Bus, subject string, from uint64) error {
	for m, err := range b.Read(ctx, bus.Query{Stream: subjects.StreamChunks, Subject: subject, From: from}) {
		if err != nil {
			return unavailable(err)
		}
		header := codec.Header(m.Header)
		c, err := codec.ParseChunk(header, m.Data)
		if err != nil || header.Get(codec.HeaderEpoch) != s.epoch {
			continue // not written by a host of ours, or in another life of the session
		}
		s.add(c, m)
		if s.full && !s.whole {
			return nil
		}
	}
	if s.least <= s.from && !s.full {
		s.flush()
	}
	return nil
}

func (s *pageScan) add(c codec.Chunk, m *bus.Stored) {
	if s.least == 0 || c.Seq < s.least {
		s.least = c.Seq
	}
	if c.Terminal() {
		s.high, s.terminal = max(s.high, c.Count), true
	} else {
		s.high = max(s.high, c.Seq)
	}
	switch {
	case c.Seq < s.next || s.full:
		return
	case c.Seq > s.next:
		if _, ok := s.held[c.Seq]; ok {
			return
		}
		if s.size >= maxHeld {
			if s.unheld == 0 {
				s.unheld = m.Seq
			}
			return
		}
		s.held[c.Seq] = m
		s.size += int64(len(m.Data))
		return
	}
	s.take(m)
	for !s.full {
		m, ok := s.held[s.next]
		if !ok {
			break
		}
		delete(s.held, s.next)
		s.size -= int64(len(m.Data))
		s.take(m)
	}
	s.taken = m.Seq
}

// resume is where the next page may begin: all that is stored before it has
// been taken, or has a Seq below next.
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
	s.chunks = append(s.chunks, m)
	s.next++
	s.left -= int64(len(m.Data))
	s.full = s.left <= 0
}

// flush sends what lies behind a gap, in order: the caller merges, and asks for
// the gap again.
func (s *pageScan) flush() {
	seqs := make([]int64, 0, len(s.held))
	for seq := range s.held {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		if s.full {
			return
		}
		m := s.held[seq]
		s.chunks = append(s.chunks, m)
		s.left -= int64(len(m.Data))
		s.full = s.left <= 0
	}
}

func (r *Replayer) hint(subject string, from int64) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq, ok := r.hints[hintKey{subject, from}]
	return seq, ok
}

func (r *Replayer) remember(subject string, from int64, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := hintKey{subject, from}
	if _, ok := r.hints[key]; !ok {
		r.order = append(r.order, key)
	}
	r.hints[key] = seq
	if len(r.order) > maxHints {
		delete(r.hints, r.order[0])
		r.order = append([]hintKey(nil), r.order[1:]...)
	}
}

// Answer serves one request of mesh.replay, whose subject is s: the chunks and
// then an empty message with Mesh-High go to its reply subject, which has been
// found to be allowed. epoch is the session's, empty for one that nobody
// created. Call it outside of the NATS callback: it blocks.
func (r *Replayer) Answer(ctx context.Context, s subjects.Subject, epoch string, m *nats.Msg) {
	nc := r.bus.Conn()
	respond := func(h codec.Header, body []byte) error {
		return nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(h), Data: body})
	}
	var req codec.ReplayRequest
	header, bad := bus.RequestHeader(m)
	if bad == nil {
		req, bad = codec.ParseReplay(header, m.Data)
	}
	if bad != nil {
		_ = respond(codec.ErrorReply(bad.WithOrigin(toolmesh.OriginAgent)))
		return
	}
	page, err := r.Read(ctx, s.Session, s.RPC, epoch, req)
	if err != nil {
		e := toolmesh.AsError(err)
		r.log.WarnContext(ctx, "replay failed", slog.String("rpc_id", string(s.RPC)), slog.String("error", e.Message))
		_ = respond(codec.ErrorReply(e))
		return
	}
	for _, stored := range page.Chunks {
		if err := respond(chunkHeader(stored.Header), stored.Data); err != nil {
			r.log.WarnContext(ctx, "replay interrupted", slog.String("rpc_id", string(s.RPC)), slog.String("error", err.Error()))
			return
		}
	}
	_ = respond(codec.ReplayEnd(page.High), nil)
}

// chunkHeader drops what the store added.
func chunkHeader(h nats.Header) codec.Header {
	out := make(codec.Header, 5)
	for _, name := range []string{codec.HeaderRPCID, codec.HeaderSeq, codec.HeaderChunk, codec.HeaderCount, codec.HeaderEpoch} {
		if v := h[name]; len(v) > 0 {
			out[name] = v
		}
	}
	return out
}
