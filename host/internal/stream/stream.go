package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// Times of docs/protocol, sections 5 and 6.
const (
	idleTimeout = 60 * time.Second // between two items, unless the call has a timeout
	readerGone  = 10 * time.Second // without credit, or between two 503s
	// finishWithin is how long the last chunks of a stream may take to be stored.
	finishWithin = 40 * time.Second
	// stopWithin is the same on a host that stops.
	stopWithin = 2500 * time.Millisecond
)

// Causes with which a stream ends its call.
var (
	errIdle = toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the stream yielded nothing for %v", idleTimeout).WithStarted(toolmesh.StartedYes).WithDetail("limit", "idle")
	errGone = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller is gone").WithStarted(toolmesh.StartedYes).WithDetail("reason", "caller_gone")
)

// Stream is the sink of a streaming call's handler: it stores each item, delivers it to the
// readers that asked for that, and blocks the handler while the caller is behind. Send is for one
// goroutine, all other methods may be called from any.
type Stream struct {
	readers *Readers
	node    *Node
	req     *codec.Request
	total   bool // the call has a deadline
	writer  Writer

	sending sync.Mutex // held by Send and Finish; guards the fields below; taken before Readers.mu
	seq     int64      // items sent
	taken   int64      // bytes of the session's quota
	failed  error      // why Send failed
	over    bool       // Finish has run, and returned ended
	ended   admit.Record

	account  subjects.SessionID // whose quota the items count for; empty for all sessions that were never created
	kept     atomic.Int64       // bytes of the items that are stored
	credited chan struct{}      // capacity 1: credit arrived

	live  bus.Probe // of mesh.live, for all its readers without credit
	began time.Time
	final atomic.Pointer[admit.Record] // Finish's result

	mu       sync.Mutex // taken after Readers.mu
	paced    bool       // by credit
	credit   int64
	creditAt time.Time
	waiting  bool      // for credit
	itemAt   time.Time // when the last item was sent, or the call began
	left     bool      // the handler did not return: the stream was ended without it
}

// New begins the stream of a call, and has its readers follow it. total says that the
// call has a deadline, and epoch is its session's. The errors are why ctx ended,
// invalid_request, and unavailable without a connection.
func New(ctx context.Context, r *Readers, epoch string, total bool) (*Stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	now := time.Now()
	req := r.first.Request
	s := &Stream{
		readers: r, node: r.node, req: req, total: total, credited: make(chan struct{}, 1),
		account: subjects.Account(req.Session, epoch), paced: req.HasCredit, credit: req.Credit, creditAt: now, itemAt: now, began: now,
	}
	w, err := s.node.Store.Writer(req.Session, req.RPCID, chunks.WriterOptions{Epoch: epoch, Admit: s.admit, Stored: s.stored})
	if err != nil {
		return nil, err
	}
	s.writer = w
	r.mu.Lock()
	r.epoch = epoch
	r.mu.Unlock()
	r.stream.Store(s)
	return s, nil
}

// Seen notes a read of the stream's stored items.
func (s *Stream) Seen() { s.live.Met() }

// Final returns the stream's outcome; nil while it runs.
func (s *Stream) Final() *admit.Record { return s.final.Load() }

// Send waits for credit and stores one item. The errors are the cause of ctx's end, busy for a
// session without quota left, payload_too_large, and those of the store.
func (s *Stream) Send(ctx context.Context, item json.RawMessage) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.failed != nil {
		return s.failed
	}
	// A handler that only looks at this error must end, too.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := s.awaitCredit(ctx); err != nil {
		return err
	}
	c := codec.Chunk{Type: codec.ChunkData, Seq: s.seq + 1, Data: item}
	err := s.refer(&c)
	if err == nil {
		err = s.carried(&c)
	}
	if err == nil {
		err = s.writer.Write(ctx, c)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.failed = err
		}
		return err
	}
	s.seq++
	s.mu.Lock()
	s.itemAt = time.Now()
	s.mu.Unlock()
	if s.seq == 1 {
		s.readers.flows()
	}
	return nil
}

// refer has an item that no message carries be read by reference, where the call's first
// reader takes that.
func (s *Stream) refer(c *codec.Chunk) error {
	const room = 4 << 10 // for headers, also the store's
	limit := s.node.Store.MaxPayload()
	if !s.req.AcceptRef || limit == 0 || int64(len(c.Data)+room) <= limit {
		return nil
	}
	if err := s.admit(len(c.Data)); err != nil {
		return err
	}
	ref, bad := s.node.Replies.Keep(s.req.Session, c.Data)
	if bad != nil {
		return bad
	}
	c.Ref, c.Data = ref, nil
	return nil
}

// carried refuses an item that the store may take and its envelope is too long
// for: that has the rpc_id as it was written, with every escape.
func (s *Stream) carried(c *codec.Chunk) error {
	const room = 4 << 10 // of all else in an envelope, with an rpc_id of 512 bytes as escapes
	limit := s.node.Store.MaxPayload()
	if s.req.Delivery != codec.DeliverEnvelope || limit == 0 || int64(len(c.Data)+room) <= limit {
		return nil
	}
	size := len(c.Envelope(s.req))
	if int64(size) <= limit {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "item %d of the stream has %d bytes as an envelope, the broker takes %d: yield less at once", c.Seq, size, limit).
		WithDetail("limit", limit).WithDetail("size", size).WithOrigin(toolmesh.OriginAgent)
}

// admit charges an item to the session's quota, when only the store can still refuse it. Items
// that the store refuses are given back at the end.
func (s *Stream) admit(size int) error {
	used, ok := s.node.Quota.Take(s.account, int64(size))
	if !ok {
		who, or := fmt.Sprintf("session %q has", s.account), "yield less"
		if s.account == "" {
			who, or = "sessions that were not created have together", "create the session (mesh session create), which then has a quota of its own"
		}
		return toolmesh.Errorf(toolmesh.CodeBusy, "%s stored %d bytes of chunks within 15 minutes through node %s and may store %d: wait, or %s",
			who, used, s.node.ID, s.node.Quota.Limit(), or).
			WithDetail("limit", "session_stream_quota").WithDetail("max", s.node.Quota.Limit()).WithDetail("stored", used).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedYes)
	}
	s.taken += int64(size)
	return nil
}

func (s *Stream) awaitCredit(ctx context.Context) error {
	if !s.req.HasCredit {
		return nil
	}
	for {
		s.mu.Lock()
		enough := !s.paced || s.seq < s.credit
		if s.waiting && enough {
			s.itemAt = time.Now() // waiting for the reader is not being idle
		}
		s.waiting = !enough
		s.mu.Unlock()
		if enough {
			return nil
		}
		select {
		case <-s.credited:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Grant takes credit up to item seq; it never goes back.
func (s *Stream) Grant(seq int64) {
	s.mu.Lock()
	s.paced = s.req.HasCredit
	s.credit = max(s.credit, seq)
	s.creditAt = time.Now()
	s.mu.Unlock()
	wake.Up(s.credited)
}

// stored delivers a chunk to its readers once it is stored; it runs on the
// inbox's goroutine, in order.
func (s *Stream) stored(c codec.Chunk, size int) {
	if !c.Terminal() {
		s.kept.Add(int64(size))
	}
	if c.Ref != nil {
		s.kept.Add(c.Ref.Size)
	}
	s.readers.mu.Lock()
	defer s.readers.mu.Unlock()
	s.readers.last = c.Seq
	s.deliver(c)
	s.readers.wake()
}

// deliver sends a chunk to the first caller; readers.mu is held.
func (s *Stream) deliver(c codec.Chunk) {
	if s.req.Delivery != codec.DeliverLive {
		s.readers.send(s.readers.first, c)
	}
	s.probeLive(c)
}

// probeLive sends a chunk once more to mesh.live, where its readers have it from the
// store, to find out whether there are any; readers.mu is held.
func (s *Stream) probeLive(c codec.Chunk) {
	reads := func(r *Reader) bool {
		return !r.over && r.Request.Delivery == codec.DeliverLive && !r.Request.HasCredit
	}
	reader := s.readers.first
	if !reads(reader) {
		i := slices.IndexFunc(s.readers.joined, reads)
		if i < 0 {
			return
		}
		reader = s.readers.joined[i]
	}
	if c.Terminal() || time.Since(s.began) < readerGone { // its readers may yet have to subscribe
		return
	}
	probe := s.live.Next(s.node.Store)
	if probe == "" {
		return
	}
	subject, err := subjects.Live(reader.Request.Session, reader.Request.RPCID)
	if err != nil {
		return
	}
	header, body := c.Encode(reader.Request.RPCID, s.readers.epoch)
	s.node.Replies.Send(&nats.Msg{Subject: subject, Reply: probe, Header: nats.Header(header), Data: body})
}

// deserted reports whether the stream has no reader: neither its caller nor one that has joined
// it gives credit, and chunks to the others meet no subscription. A subscriber of mesh.live does
// not count as a caller that gives credit.
func (s *Stream) deserted(now time.Time) bool {
	credited, here := false, false
	s.readers.mu.Lock()
	for _, j := range append(s.readers.joined[:len(s.readers.joined):len(s.readers.joined)], s.readers.first) {
		switch {
		case j.over:
		case j.Request.HasCredit:
			credited = true
		case j.Request.Delivery == codec.DeliverLive:
			here = here || !s.live.Gone(readerGone)
		default:
			here = here || !j.probe.Gone(readerGone)
		}
	}
	s.readers.mu.Unlock()
	if here {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !credited || now.Sub(s.creditAt) >= readerGone
}

// Tick runs a few times a second.
func (s *Stream) Tick(now time.Time) {
	s.writer.Tick()
	deserted := s.deserted(now)
	s.mu.Lock()
	silent := s.paced && now.Sub(s.creditAt) >= readerGone
	if silent && !deserted {
		// The reader that gave the credit is gone; another one is present that gives none.
		s.paced = false
	}
	idle := !s.total && !s.waiting && now.Sub(s.itemAt) >= idleTimeout
	s.mu.Unlock()
	switch {
	case deserted:
		s.readers.call.End(errGone)
	case silent:
		wake.Up(s.credited)
	case idle:
		s.readers.call.End(errIdle)
	}
}

// Leave ends the stream of a handler that does not return: its caller need not
// wait for that. It returns at once, and does it only once.
func (s *Stream) Leave(err *toolmesh.Error) bool {
	s.mu.Lock()
	first := !s.left
	s.left = true
	s.mu.Unlock()
	if first {
		s.node.Go(func() { s.Finish(admit.Record{Err: err, Streamed: true}) })
	}
	return first
}

// Finish ends the stream, once, and returns its outcome: it stores the terminal, or answers the
// caller instead after an error without items.
func (s *Stream) Finish(record admit.Record) admit.Record {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.over {
		return s.ended
	}
	s.over, s.ended = true, s.conclude(record)
	s.writer.Close()
	if lost := s.taken - s.kept.Load(); lost > 0 {
		s.node.Quota.Give(s.account, lost)
	}
	s.readers.first.probe.Close()
	s.live.Close()
	if s.failed == nil {
		s.failed = toolmesh.Errorf(toolmesh.CodeCancelled, "the stream is over").WithStarted(toolmesh.StartedYes)
	}
	s.final.Store(&s.ended)
	return s.ended
}

func (s *Stream) conclude(record admit.Record) admit.Record {
	if s.failed != nil {
		record.Err = admit.Failure(s.failed, toolmesh.StartedYes)
	}
	if s.seq == 0 && record.Err != nil {
		return s.refused(record.Err)
	}
	c := codec.Chunk{Type: codec.ChunkComplete, Seq: s.seq + 1, Count: s.seq}
	if record.Err != nil {
		// Items were sent: this call began, whatever its error says.
		record.Err = record.Err.WithStarted(toolmesh.StartedYes)
		c.Type, c.Err = codec.ChunkError, s.node.Replies.Fit(record.Err)
	}
	// The call's own context may be over; its end must still be stored.
	base := s.node.Base
	ctx, cancel := context.WithTimeout(context.WithoutCancel(base), finishWithin)
	defer cancel()
	defer context.AfterFunc(base, func() { time.AfterFunc(stopWithin, cancel) })() // a host that stops waits less
	err := s.writer.Write(ctx, c)
	if err == nil {
		err = s.writer.Flush(ctx)
	}
	if err == nil {
		s.readers.flows()
		return record
	}
	lost := admit.Failure(err, toolmesh.StartedYes)
	if s.seq == 0 {
		return s.refused(lost)
	}
	s.node.Log.Warn("stream ended without its terminal being stored",
		slog.String("rpc_id", string(s.req.RPCID)), slog.String("error", err.Error()))
	// Without an end in the store, the error goes to the reply subjects.
	if s.req.Delivery == codec.DeliverLive {
		s.node.Replies.Answer(s.readers.first, admit.Record{Err: lost})
	}
	c.Type, c.Err = codec.ChunkError, lost
	s.readers.mu.Lock()
	defer s.readers.mu.Unlock()
	s.deliver(c)
	return admit.Record{Err: lost}
}

// refused answers a stream that has nothing in the store.
func (s *Stream) refused(err *toolmesh.Error) admit.Record {
	record := admit.Record{Err: err}
	if first := s.readers.first; first.Claim() {
		s.node.Replies.Answer(first, record)
	}
	return record
}
