package reply

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// Options are the node's parts of [Replies].
type Options struct {
	Bus      *bus.Bus
	Base     context.Context //nolint:containedctx // ends with the node
	Log      *slog.Logger
	Payloads *payloads.Server
	// Account returns the account that a session's use of the node counts for.
	Account func(subjects.SessionID) subjects.SessionID
	// Load is how busy the node is now.
	Load func() codec.Load
	// Go runs f in a goroutine that the node waits for when it stops.
	Go func(f func())
}

// Replies sends a node's answers. Its methods may be called concurrently.
type Replies struct {
	Options
	pacer
	unsent unsent
}

var _ stream.Replies = (*Replies)(nil)

// New makes the replies of a node.
func New(o Options) *Replies {
	return &Replies{Options: o, unsent: unsent{room: fair.NewRoom[string](maxHeldAnswers)}, pacer: pacer{account: o.Account}}
}

// Answer answers a repetition, or a stream that has nothing in the store. A large result
// waits until there is room on the way to its caller, if there is room to wait in.
func (p *Replies) Answer(r *stream.Reader, record admit.Record) {
	size, prefix := int64(len(record.Result)), inboxPrefix(r.Reply)
	switch {
	case record.Ref != nil:
		p.Go(func() { p.AnswerNow(r, p.anew(r, record)) })
	case p.Paced(r, record) && p.unsent.room.Take(prefix, size):
		p.Go(func() {
			p.Pace(p.Base, r, record)
			p.unsent.room.Give(prefix, size) // an answer that cannot be sent reserves its own room
			p.AnswerNow(r, record)
		})
	default:
		p.AnswerNow(r, record)
	}
}

// Paced reports whether a result is so large that it is paced. One that no message carries goes by
// reference.
func (p *Replies) Paced(r *stream.Reader, record admit.Record) bool {
	return len(record.Result) >= PacedFrom && record.Ref == nil && r.Reply != "" && p.Fits(len(record.Result))
}

// Pace returns when an answer may be sent, or when ctx ends: at once if the answer is small.
func (p *Replies) Pace(ctx context.Context, r *stream.Reader, record admit.Record) {
	if p.Paced(r, record) { // else ctx need not make a channel
		// The caller of a result that another node has made is not asked to tell that it has read it.
		p.pacer.wait(ctx.Done(), r, len(record.Result), r.Request.Read && record.By == nil)
	}
}

// AnswerNow sends the answer of a call that is over.
func (p *Replies) AnswerNow(r *stream.Reader, record admit.Record) {
	if r.Form != nil {
		r.Form(record)
		return
	}
	reply, req, id := r.Reply, r.Request, r.Identity
	if record.By != nil {
		id = record.By
	}
	load := p.load(req)
	var header codec.Header
	var body []byte
	if record.Ref != nil && !req.AcceptRef {
		record.Err = tooLarge(int(record.Ref.Size), p.Bus.MaxPayload()-codec.AnswerRoom) // another one, that takes it, asked first
	}
	switch {
	case record.Err != nil:
		header, body = req.Failure(id, p.Fit(record.Err), load)
	case record.Ref != nil:
		header, body = req.ResultRef(id, record.Ref, load)
		record.Cache.Put(header)
	default:
		header, body = req.Result(id, record.Result, load)
		record.Cache.Put(header)
	}
	record.Lane.Put(header)
	if record.Warning != "" && header != nil {
		header.Set(codec.HeaderWarning, codec.HeaderText(record.Warning))
	}
	if req.Read && record.By == nil && len(body) >= PacedFrom { // the caller tells the node in Mesh-Node that it has read it
		header.Set(codec.HeaderRead, "1")
	}
	if !p.Publish(reply, header, body) && record.Err == nil {
		// Bounded left less room than this caller's own names take.
		header, body = req.Failure(id, tooLarge(len(record.Result), p.Bus.MaxPayload()), load)
		p.Publish(reply, header, body)
	}
	if req.Delivery == codec.DeliverInbox {
		p.Publish(reply, nil, nil) // ends the answer for a caller that waits for the empty message
	}
}

// Acknowledge tells the reader of a live stream that its chunks are in the store.
func (p *Replies) Acknowledge(r *stream.Reader) {
	header, body := r.Request.Ack(r.Identity, p.load(r.Request))
	p.Publish(r.Reply, header, body)
}

// load is how busy the node is, for a request that asks for it.
func (p *Replies) load(req *codec.Request) (load codec.Load) {
	if req.WantLoad {
		load = p.Load()
	}
	return load
}

// Send publishes a reply and reports whether the connection takes its size; the host owns the
// header from then on. While the connection is down the reply is kept and sent afterwards: the
// work is done, and its answer should not be lost.
func (p *Replies) Send(m *nats.Msg) bool {
	if p.unsent.holding.Load() && p.unsent.hold(p.Log, m, true) {
		return true // sent after the waiting ones, to keep chunks in order
	}
	err := p.Bus.Conn().PublishMsg(m)
	switch {
	case err == nil:
		codec.Recycle(codec.Header(m.Header))
	case errors.Is(err, nats.ErrMaxPayload):
		return false
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrConnectionClosed):
		p.Log.Error("reply could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
	default:
		p.unsent.hold(p.Log, m, false)
		if p.Bus.Connected() {
			p.Resend() // it came back in this instant, perhaps before it could wake us
		}
	}
	return true
}

// Resend sends the replies that were kept while the connection was down.
func (p *Replies) Resend() {
	p.unsent.send(p.Log, p.Bus.Conn().PublishMsg, p.Bus.Connected)
}

// Publish is [Replies.Send] of a reply in parts.
func (p *Replies) Publish(reply string, header codec.Header, body []byte) bool {
	return p.Send(&nats.Msg{Subject: reply, Header: nats.Header(header), Data: body})
}

// Bounded replaces a result that no message can carry: it goes by reference, or is an error.
// ctx is the call's.
func (p *Replies) Bounded(ctx context.Context, req *codec.Request, record admit.Record) admit.Record {
	if record.Result == nil || record.Ref != nil || p.Fits(len(record.Result)) {
		return record
	}
	if ctx.Err() != nil { // no caller would read it, or have it deleted
		return admit.Record{Err: toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedYes)}
	}
	if req.AcceptRef {
		return p.refer(req.Session, record)
	}
	return admit.Record{Err: tooLarge(len(record.Result), p.Bus.MaxPayload()-codec.AnswerRoom)}
}

// Fits reports whether a message can carry a result of a size.
func (p *Replies) Fits(size int) bool {
	limit := p.Bus.MaxPayload()
	return limit == 0 || int64(size+codec.AnswerRoom) <= limit
}

func tooLarge(size int, limit int64) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge,
		"the result has %d bytes, a message carries %d: return less, or stream it", size, limit).
		WithDetail("limit", limit).WithDetail("size", size).
		WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
}

// Fit cuts an error that no message can carry.
func (p *Replies) Fit(e *toolmesh.Error) *toolmesh.Error {
	limit := p.Bus.MaxPayload()
	if limit == 0 || int64(len(codec.ErrorBody(e))+4096) <= limit {
		return e
	}
	c := *e
	c.Message = Cut(c.Message, 4096)
	c.Stacktrace = Cut(c.Stacktrace, 16384)
	c.Details = map[string]any{"truncated": true}
	return &c
}

// Cut cuts a text to so many bytes.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// refer has a result that no message carries be read by reference. Beside that it stays in
// the call's record, for repetitions, if it is small enough for one.
func (p *Replies) refer(session subjects.SessionID, record admit.Record) admit.Record {
	ref, err := p.Keep(session, record.Result)
	if err != nil {
		return admit.Record{Err: err}
	}
	if record.Ref = ref; len(record.Result) > admit.MaxOneResult {
		record.Result = nil
	}
	return record
}

// Keep stores a tool's result for its caller.
func (p *Replies) Keep(session subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error) {
	ref, err := p.Payloads.Keep(p.Base, session, p.Account(session), value)
	if err != nil {
		return nil, admit.Failure(toolmesh.AsError(err).WithStarted(toolmesh.StartedYes), toolmesh.StartedYes)
	}
	return ref, nil
}

// anew returns the answer to a repetition of a call whose result went by reference: the first
// caller deletes its object after reading it.
func (p *Replies) anew(r *stream.Reader, record admit.Record) admit.Record {
	switch {
	case !r.Request.AcceptRef:
	case record.Result != nil:
		return p.refer(r.Request.Session, record)
	default:
		if _, err := store.Of(p.Bus).Payload(p.Base, record.Ref.Name); err != nil && !errors.Is(err, store.ErrNoKey) {
			return admit.Record{Err: toolmesh.Errorf(toolmesh.CodeUnavailable, "call %q has run, and the store that has its result does not answer: %w", r.Request.RPCID, err).
				WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)}
		} else if err != nil {
			return admit.Record{Err: toolmesh.Errorf(toolmesh.CodeInvalidRequest,
				"call %q has already run, and its result, of %d bytes, has been read and is no longer kept: use a new rpc_id to run it again", r.Request.RPCID, record.Ref.Size).
				WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent).WithDetail("reason", payloads.ReasonGone)}
		}
	}
	return record
}
