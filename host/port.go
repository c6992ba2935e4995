package host

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/subjects"
)

// port is the host as its streams see it.
type port struct{ *Host }

var (
	_ stream.Host  = port{}
	_ stream.Store = port{}
)

func (p port) Send(m *nats.Msg)                      { p.sendMsg(m) }
func (p port) Acknowledge(r *stream.Reader)          { p.acknowledge(r) }
func (p port) Fit(e *toolmesh.Error) *toolmesh.Error { return p.fitting(e) }
func (p port) Keep(session subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error) {
	return p.keep(session, value)
}
func (p port) Go(f func())       { p.running.run(f) }
func (p port) MaxPayload() int64 { return p.bus.MaxPayload() }

// Answer answers a repetition, or a stream that has nothing in the store. A large result
// for which there is no room to wait in goes at once.
func (p port) Answer(r *stream.Reader, record admit.Record) {
	switch {
	case record.Ref != nil:
		p.running.run(func() { p.answer(r, p.anew(r, record)) })
	case len(record.Result) >= pacedFrom && r.Local == nil && p.unsent.room.Take(inboxPrefix(r.Reply), int64(len(record.Result))):
		p.running.run(func() {
			p.pacer.wait(p.base.Done(), r, len(record.Result))
			p.unsent.room.Give(inboxPrefix(r.Reply), int64(len(record.Result))) // what cannot be sent takes it itself
			p.answer(r, record)
		})
	default:
		p.answer(r, record)
	}
}

func (p port) Writer(session subjects.SessionID, rpc subjects.RPCID, opts *chunks.WriterOptions) (stream.Writer, error) {
	w, err := chunks.NewWriter(p.bus, session, rpc, p.boot, opts)
	if err != nil {
		return nil, err
	}
	p.chunked.note(session, opts.Epoch)
	return w, nil
}

func (p port) Read(ctx context.Context, session subjects.SessionID, rpc subjects.RPCID, epoch string, req codec.ReplayRequest) (chunks.Page, error) {
	return p.replayer.Read(ctx, session, rpc, epoch, req)
}

func (p port) Open(deliver func(*nats.Msg, error)) (*bus.Inbox, error) { return p.bus.Open(deliver) }
