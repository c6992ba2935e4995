package host

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/subjects"
)

// finishWithin is how long the last chunks of a stream may take to be stored.
const finishWithin = 40 * time.Second

// stream is the [Sink] of a streaming call: it stores each item, delivers it
// where the caller asked for that, and holds the handler back when the caller
// does not keep up.
type stream struct {
	c      *inflight
	writer *chunks.Writer

	sending sync.Mutex // held by Send and finish; guards what follows
	seq     int64      // items sent
	taken   int64      // bytes of the session's quota
	failed  error      // why Send failed
	over    bool       // finish has run, and returned ended
	ended   admit.Record

	kept     atomic.Int64  // bytes of the items that are stored
	credited chan struct{} // capacity 1: credit arrived

	probe probe                        // of the caller's reply subject
	live  probe                        // of mesh.live, for all that read it without credit
	final atomic.Pointer[admit.Record] // what finish returned, once it has
	last  int64                        // Seq that is stored and delivered; guarded by c.joinMu

	mu       sync.Mutex
	paced    bool // by credit
	credit   int64
	creditAt time.Time
	waiting  bool      // for credit
	itemAt   time.Time // when the last item was sent, or the call began
	left     bool      // the handler did not return: the stream was ended without it
}

func newStream(ctx context.Context, c *inflight) (*stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	now := time.Now()
	s := &stream{
		c: c, credited: make(chan struct{}, 1),
		paced: c.req.HasCredit, credit: c.req.Credit, creditAt: now, itemAt: now,
	}
	s.probe.bus, s.live.bus = c.h.bus, c.h.bus
	s.live.at = now.Add(callerGone - probeEvery) // its readers may yet have to subscribe
	w, err := chunks.NewWriter(c.h.bus, c.req.Session, c.req.RPCID, c.h.boot, &chunks.WriterOptions{Epoch: c.epoch, Admit: s.admit, Stored: s.stored})
	if err != nil {
		return nil, err
	}
	s.writer = w
	return s, nil
}

// Send implements [Sink].
func (s *stream) Send(ctx context.Context, item json.RawMessage) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.failed != nil {
		return s.failed
	}
	// A handler that looks at nothing but this error must end, too.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := s.awaitCredit(ctx); err != nil {
		return err
	}
	c := codec.Chunk{Type: codec.ChunkData, Seq: s.seq + 1, Data: item}
	err := s.carried(&c)
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
		s.c.flows()
	}
	return nil
}

// carried refuses an item that the store may take and its envelope is too long
// for: that has the rpc_id as it was written, with every escape.
func (s *stream) carried(c *codec.Chunk) error {
	const room = 4 << 10 // of all else in an envelope, with an rpc_id of 512 bytes as escapes
	limit := s.c.h.bus.MaxPayload()
	if s.c.req.Delivery != codec.DeliverEnvelope || limit == 0 || int64(len(c.Data)+room) <= limit {
		return nil
	}
	size := len(c.Envelope(s.c.req))
	if int64(size) <= limit {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "item %d of the stream has %d bytes as an envelope, the broker takes %d: yield less at once", c.Seq, size, limit).
		WithDetail("limit", limit).WithDetail("size", size).WithOrigin(toolmesh.OriginAgent)
}

// admit charges an item to the session's quota, when nothing but the store can
// refuse it any more. What the store does not take is given back at the end.
func (s *stream) admit(size int) error {
	h, session := s.c.h, s.c.req.Session
	used, ok := h.quota.Take(session, int64(size))
	if !ok {
		return toolmesh.Errorf(toolmesh.CodeBusy, "session %q has stored %d bytes of chunks within 15 minutes through node %s and may store %d: wait, or yield less",
			session, used, h.node, h.opts.StreamQuota).
			WithDetail("limit", "session_stream_quota").WithDetail("max", h.opts.StreamQuota).WithDetail("stored", used).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedYes)
	}
	s.taken += int64(size)
	return nil
}

func (s *stream) awaitCredit(ctx context.Context) error {
	if !s.c.req.HasCredit {
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

// grant takes credit up to item seq; it never goes back.
func (s *stream) grant(seq int64) {
	s.mu.Lock()
	s.paced = s.c.req.HasCredit
	s.credit = max(s.credit, seq)
	s.creditAt = time.Now()
	s.mu.Unlock()
	s.creditChanged()
}

func (s *stream) creditChanged() {
	select {
	case s.credited <- struct{}{}:
	default:
	}
}

// stored delivers a chunk to its readers once it is stored; it runs on the
// inbox's goroutine, in order.
func (s *stream) stored(c codec.Chunk) {
	s.kept.Add(int64(len(c.Data)))
	s.c.joinMu.Lock()
	defer s.c.joinMu.Unlock()
	s.last = c.Seq
	s.deliver(c)
}

// deliver sends a chunk to the reply subject and to the repetitions that have
// all before it; c.joinMu is held.
func (s *stream) deliver(c codec.Chunk) {
	if s.c.req.Delivery != codec.DeliverLive {
		s.c.deliver(c, s.c.epoch, s.probe.subject(s.c.req, &c))
	}
	s.probeLive(c)
	for _, j := range s.c.joined {
		// The end of a stream that could not be stored stands behind a gap.
		if j.tails() && (c.Seq == j.next || c.Seq > j.next && c.Terminal()) {
			j.deliver(c)
		}
	}
}

// probeLive sends a chunk once more to mesh.live, where its readers have it from the
// store, to find out whether there are any; c.joinMu is held.
func (s *stream) probeLive(c codec.Chunk) {
	reads := func(req *codec.Request) bool { return req.Delivery == codec.DeliverLive && !req.HasCredit }
	reader := s.c
	if !reads(reader.req) {
		i := slices.IndexFunc(s.c.joined, func(j *joiner) bool { return !j.over && reads(j.c.req) })
		if i < 0 {
			return
		}
		reader = s.c.joined[i].c
	}
	probe := s.live.subject(reader.req, &c)
	if probe == "" {
		return
	}
	subject, err := subjects.Live(reader.req.Session, reader.req.RPCID)
	if err != nil {
		return
	}
	header, body := c.Encode(reader.req.RPCID, s.c.epoch)
	s.c.h.sendMsg(&nats.Msg{Subject: subject, Reply: probe, Header: nats.Header(header), Data: body})
}

// deliver sends a chunk to the reply subject of a call or a repetition.
func (c *inflight) deliver(chunk codec.Chunk, epoch, probe string) {
	msg := &nats.Msg{Subject: c.reply, Reply: probe}
	if c.req.Delivery == codec.DeliverEnvelope {
		msg.Data = chunk.Envelope(c.req)
	} else {
		h, body := chunk.Encode(c.req.RPCID, epoch)
		msg.Header, msg.Data = nats.Header(h), body
	}
	c.h.sendMsg(msg)
	if chunk.Terminal() && c.req.Delivery == codec.DeliverInbox {
		c.h.send(c.reply, nil, nil)
	}
}

// tick runs a few times a second.
func (s *stream) tick(now time.Time) {
	s.writer.Tick()
	deserted := s.deserted(now)
	s.mu.Lock()
	silent := s.paced && now.Sub(s.creditAt) >= callerGone
	if silent && !deserted {
		// The reader that gave the credit is gone; another is there that gives none.
		s.paced = false
	}
	idle := s.c.deadline.IsZero() && !s.waiting && now.Sub(s.itemAt) >= idleTimeout
	s.mu.Unlock()
	switch {
	case deserted:
		s.c.end(errGone)
	case silent:
		s.creditChanged()
	case idle:
		s.c.end(errIdle)
	}
}

func (s *stream) high() int64 { return s.writer.High() }

// leave ends the stream of a handler that does not return: its caller need not
// wait for that. It returns at once, and does it only once.
func (s *stream) leave(err *toolmesh.Error) bool {
	s.mu.Lock()
	first := !s.left
	s.left = true
	s.mu.Unlock()
	if first {
		s.c.h.running.run(func() { s.finish(admit.Record{Err: err, Streamed: true}) })
	}
	return first
}

// finish ends the stream, once, and returns what it ended with: it stores the
// terminal, or answers the caller in its place when nothing was yielded before
// an error.
func (s *stream) finish(record admit.Record) admit.Record {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.over {
		return s.ended
	}
	s.over, s.ended = true, s.conclude(record)
	s.writer.Close()
	if lost := s.taken - s.kept.Load(); lost > 0 {
		s.c.h.quota.Give(s.c.req.Session, lost)
	}
	s.probe.close()
	s.live.close()
	if s.failed == nil {
		s.failed = toolmesh.Errorf(toolmesh.CodeCancelled, "the stream is over").WithStarted(toolmesh.StartedYes)
	}
	s.final.Store(&s.ended)
	return s.ended
}

func (s *stream) conclude(record admit.Record) admit.Record {
	if s.failed != nil {
		record.Err = refusedItem(s.failed)
	}
	if s.seq == 0 && record.Err != nil {
		return s.refused(record.Err)
	}
	c := codec.Chunk{Type: codec.ChunkComplete, Seq: s.seq + 1, Count: s.seq}
	if record.Err != nil {
		// Items are out: whatever the error says of itself, this call began.
		record.Err = record.Err.WithStarted(toolmesh.StartedYes)
		c.Type, c.Err = codec.ChunkError, s.c.h.fitting(record.Err)
	}
	// The call's own context may be over; its end must still be stored.
	base := s.c.h.base
	ctx, cancel := context.WithTimeout(context.WithoutCancel(base), finishWithin)
	defer cancel()
	defer context.AfterFunc(base, func() { time.AfterFunc(stopGrace/2, cancel) })() // a host that stops waits less
	err := s.writer.Write(ctx, c)
	if err == nil {
		err = s.writer.Flush(ctx)
	}
	if err == nil {
		s.c.flows()
		return record
	}
	lost := refusedItem(err)
	if s.seq == 0 {
		return s.refused(lost)
	}
	s.c.h.log.Warn("stream ended without its terminal being stored",
		slog.String("rpc_id", string(s.c.req.RPCID)), slog.String("error", err.Error()))
	// Nobody will find the end in the store: it goes to the reply subjects.
	if s.c.req.Delivery == codec.DeliverLive {
		s.c.h.answer(s.c.reply, s.c.req, s.c.tool.identity, admit.Record{Err: lost})
	}
	c.Type, c.Err = codec.ChunkError, lost
	s.c.joinMu.Lock()
	defer s.c.joinMu.Unlock()
	s.deliver(c)
	return admit.Record{Err: lost}
}

// refused answers a stream that has nothing in the store.
func (s *stream) refused(err *toolmesh.Error) admit.Record {
	record := admit.Record{Err: err}
	if s.c.answered.CompareAndSwap(false, true) {
		s.c.h.answer(s.c.reply, s.c.req, s.c.tool.identity, record)
	}
	return record
}

func refusedItem(err error) *toolmesh.Error {
	e := toolmesh.AsError(err)
	if e.Started == toolmesh.StartedUnknown {
		e = e.WithStarted(toolmesh.StartedYes)
	}
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	return e
}

// control serves a message on a ctl subject: it names a call by its subject.
func (h *Host) control(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if m.Reply != "" && !h.bus.MayAnswer(m, s.Session, h.opts.SessionCredentials) {
		h.refusedReplies.Add(1)
		return
	}
	if err != nil {
		return
	}
	var control codec.Control
	header, bad := bus.RequestHeader(m)
	if bad == nil {
		control, bad = codec.ParseControl(header, m.Data)
	}
	key := admit.Key{Session: s.Session, RPC: s.RPC}
	if bad != nil {
		if _, ok := h.calls.Lookup(key); ok && m.Reply != "" {
			header, body := codec.ErrorReply(refusal(bad))
			h.send(m.Reply, header, body)
		}
		return
	}
	if control.Type == codec.ControlCredit {
		if call, ok := h.calls.Lookup(key); ok {
			if running := call.Value.stream.Load(); running != nil {
				running.grant(control.Seq)
			}
		}
		return
	}
	call, ok := h.calls.Cancel(key)
	if !ok {
		return // silent: another node may have it
	}
	call.Value.end(errCancelled)
	if m.Reply != "" {
		h.send(m.Reply, nil, codec.Cancelled{Cancelled: true}.Encode())
	}
}
