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
	maxReplayBytes = 64 << 20
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
// An unknown call has an empty page with High 0, and so has one of another epoch
// of its session than epoch. The errors are stream_expired (details.first_seq)
// and unavailable.
func (r *Replayer) Read(ctx context.Context, session subjects.SessionID, epoch string, rpc subjects.RPCID, req codec.ReplayRequest) (Page, error) {
	subject, err := subjects.Chunks(session, rpc)
	if err != nil {
		return Page{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "no such stream: %w", err)
	}
	high, count, err := r.high(ctx, subject, epoch)
	if err != nil || high.Seq == 0 && !high.Terminal {
		return Page{}, err
	}
	page := Page{High: high}
	if req.FromSeq > high.Seq && !(high.Terminal && req.FromSeq <= count+1) {
		return page, nil
	}
	scan := pageScan{epoch: epoch, from: req.FromSeq, next: req.FromSeq, left: min(req.MaxBytes, maxReplayBytes), held: make(map[int64]*bus.Stored)}
	start, hinted := r.hint(subject, req.FromSeq)
	if err := scan.run(ctx, r.bus, subject, start); err != nil {
		return Page{}, err
	}
	if hinted && len(scan.chunks) == 0 {
		// The hint was wrong, or what it led to is gone: once more from the beginning.
		scan = pageScan{epoch: epoch, from: req.FromSeq, next: req.FromSeq, left: min(req.MaxBytes, maxReplayBytes), held: make(map[int64]*bus.Stored)}
		if err := scan.run(ctx, r.bus, subject, 0); err != nil {
			return Page{}, err
		}
	}
	if len(scan.chunks) == 0 && scan.least > req.FromSeq {
		return Page{}, toolmesh.Errorf(toolmesh.CodeStreamExpired, "items before %d are no longer kept", scan.least).
			WithDetail("first_seq", scan.least).WithOrigin(toolmesh.OriginMesh)
	}
	page.High.Seq = max(page.High.Seq, scan.high)
	page.Chunks = scan.chunks
	if scan.next > req.FromSeq {
		r.remember(subject, scan.next, scan.resume)
	}
	return page, nil
}

// high asks for the last stored message of a call. With disorder in the store
// it may be low; the scan raises it.
func (r *Replayer) high(ctx context.Context, subject, epoch string) (high codec.High, count int64, err error) {
	for m, err := range r.bus.Read(ctx, bus.Query{Stream: subjects.StreamChunks, Last: []string{subject}}) {
		if err != nil {
			return high, 0, unavailable(err)
		}
		c, err := codec.ParseChunk(codec.Header(m.Header), m.Data)
		if err != nil || codec.Header(m.Header).Get(codec.HeaderEpoch) != epoch {
			continue
		}
		high.Seq = c.Seq
		if c.Terminal() {
			high.Seq, high.Terminal, count = c.Count, true, c.Count
		}
	}
	return high, count, nil
}

func unavailable(err error) error {
	if e := (*toolmesh.Error)(nil); errors.As(err, &e) {
		return err
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "stored chunks cannot be read: %w", err).WithOrigin(toolmesh.OriginMesh)
}

// pageScan reads a call's chunks as they are stored and puts them in order.
type pageScan struct {
	epoch  string // of the chunks that count
	from   int64  // Seq that was asked for
	next   int64  // Seq that comes next
	left   int64  // bytes that may still be sent
	chunks []*bus.Stored
	held   map[int64]*bus.Stored // beyond next
	size   int64                 // of held
	least  int64                 // lowest Seq seen
	high   int64                 // highest item seen
	resume uint64                // where the next page may begin
	full   bool
}

func (s *pageScan) run(ctx context.Context, b *bus.Bus, subject string, from uint64) error {
	for m, err := range b.Read(ctx, bus.Query{Stream: subjects.StreamChunks, Subject: subject, From: from}) {
		if err != nil {
			return unavailable(err)
		}
		c, err := codec.ParseChunk(codec.Header(m.Header), m.Data)
		if err != nil || codec.Header(m.Header).Get(codec.HeaderEpoch) != s.epoch {
			continue // not written by a host of ours, or of a session that was
		}
		s.add(c, m)
		if s.full {
			return nil
		}
	}
	if s.least <= s.from {
		s.flush()
	}
	return nil
}

func (s *pageScan) add(c codec.Chunk, m *bus.Stored) {
	if s.least == 0 || c.Seq < s.least {
		s.least = c.Seq
	}
	if !c.Terminal() {
		s.high = max(s.high, c.Seq)
	}
	switch {
	case c.Seq < s.next:
		return
	case c.Seq > s.next:
		if _, ok := s.held[c.Seq]; !ok && s.size < maxHeld {
			s.held[c.Seq] = m
			s.size += int64(len(m.Data))
		}
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
	s.resume = m.Seq
	for _, h := range s.held {
		s.resume = min(s.resume, h.Seq)
	}
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
// found to be allowed. epoch is the session's, empty for one that nobody created.
// Call it outside of the NATS callback: it blocks.
func (r *Replayer) Answer(ctx context.Context, s subjects.Subject, epoch string, m *nats.Msg) {
	nc := r.bus.Conn()
	respond := func(h codec.Header, body []byte) error {
		return nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(h), Data: body})
	}
	req, bad := codec.ParseReplay(m.Data)
	if bad != nil {
		_ = respond(codec.ErrorReply(bad))
		return
	}
	page, err := r.Read(ctx, s.Session, epoch, s.RPC, req)
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
