package chunks

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxSummaries bounds the number of summaries that a replayer caches.
	maxSummaries = 1024
	// maxReplayBytes is the max size of one page, in bytes.
	maxReplayBytes = 16 << 20
)

// Replayer reads stored chunks and answers mesh.replay. Its methods may be
// called concurrently.
type Replayer struct {
	bus store.Store
	log *slog.Logger

	mu        sync.Mutex
	summaries map[summaryKey]summary
}

type summaryKey struct{ subject, epoch string }

// NewReplayer returns a replayer.
func NewReplayer(b *bus.Bus, log *slog.Logger) *Replayer {
	return &Replayer{bus: store.Of(b), log: log, summaries: make(map[summaryKey]summary)}
}

// Page is one answer of [Replayer.Read].
type Page struct {
	Chunks []*store.Stored // in order of Seq, without repeats
	High   codec.High
}

// Read returns the stored chunks of a call from req.FromSeq on, in order of
// Mesh-Seq and without repeats, up to req.MaxBytes, which one chunk may pass.
// Chunks of another epoch of the session than epoch are not there, and those
// that are stored while it reads are left for the next page. An unknown call has
// an empty page with High 0. The errors are stream_expired (details.first_seq)
// and unavailable.
func (r *Replayer) Read(ctx context.Context, session subjects.SessionID, rpc subjects.RPCID, epoch string, req codec.ReplayRequest) (Page, error) {
	var page Page
	high, err := r.page(ctx, session, rpc, epoch, req, func(m *store.Stored) error {
		page.Chunks = append(page.Chunks, m)
		return nil
	})
	if err != nil {
		return Page{}, err
	}
	page.High = high
	return page, nil
}

// page does the work of Read, and sends the chunks as it reads them. After an error other than
// stream_expired some may have been sent. It reads about as much as it sends if the store is in
// order, else up to all that was stored when it began.
func (r *Replayer) page(ctx context.Context, session subjects.SessionID, rpc subjects.RPCID, epoch string, req codec.ReplayRequest, send func(*store.Stored) error) (codec.High, error) {
	subject, err := subjects.Chunks(session, rpc)
	if err != nil {
		return codec.High{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "no such stream: %w", err)
	}
	ends, err := r.extent(ctx, subject, epoch, req.FromSeq)
	last := &ends.last
	if err != nil || last.msg == nil || last.valid && last.epoch != epoch {
		return codec.High{}, err
	}
	all, err := r.summary(ctx, subject, epoch, &ends)
	if err != nil {
		return codec.High{}, err
	}
	high := codec.High{Seq: all.high, Terminal: all.terminal}
	switch {
	case req.FromSeq > all.top:
		return high, nil
	case last.valid && req.FromSeq == last.chunk.Seq && req.FromSeq == all.top:
		return high, send(last.msg)
	case ends.ordered && ends.still && req.FromSeq < ends.first.chunk.Seq:
		return codec.High{}, expired(ends.first.chunk.Seq)
	case ends.first.msg == nil: // it has just expired
		return high, nil
	}
	scan := pageScan{epoch: epoch, next: req.FromSeq, left: min(req.MaxBytes, maxReplayBytes), send: send}
	start, err := r.place(ctx, subject, epoch, req.FromSeq, &ends, all.top)
	if err != nil {
		return codec.High{}, err
	}
	if err := scan.run(ctx, r.bus, subject, start, last.msg.Seq); err != nil {
		return codec.High{}, err
	}
	if scan.above == 0 && scan.read < last.msg.Seq {
		return high, nil // the copy of the store that answered lags: the rest comes with the next page
	}
	// The guess was wrong, or the chunk that comes next is stored before the last one sent, or nowhere.
	for pass := 0; pass < maxPasses && !scan.full() && scan.next <= all.top; pass++ {
		next := scan.next
		if err := scan.run(ctx, r.bus, subject, 0, last.msg.Seq); err != nil {
			return codec.High{}, err
		}
		switch {
		case scan.next > next:
		case scan.sent == 0 && scan.least > req.FromSeq:
			return codec.High{}, expired(scan.least)
		case scan.above == 0:
			return high, nil
		default:
			scan.next = scan.above // behind a gap: the caller merges what follows and asks for the gap again
		}
	}
	return high, nil
}

func expired(first int64) error {
	return toolmesh.Errorf(toolmesh.CodeStreamExpired, "items before %d are no longer kept", first).
		WithDetail("first_seq", first).WithOrigin(toolmesh.OriginMesh)
}

func unavailable(err error) error {
	if _, own := errors.AsType[*toolmesh.Error](err); own {
		return err
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "stored chunks cannot be read: %w", err).WithOrigin(toolmesh.OriginMesh)
}

// Answer serves one request of mesh.replay with the subject s: it sends the chunks and then an
// empty message with Mesh-High to the reply subject, which must be a permitted one. epoch is the
// session's, empty for a session that was not created. It blocks: call it outside of the NATS
// callback.
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
	var broken error
	high, err := r.page(ctx, s.Session, s.RPC, epoch, req, func(stored *store.Stored) error {
		for _, name := range []string{jetstream.ExpectedLastSubjSeqHeader, jetstream.MsgIDHeader, codec.HeaderBoot} { // for the store
			stored.Header.Del(name)
		}
		broken = respond(codec.Header(stored.Header), stored.Data)
		return broken
	})
	switch {
	case broken != nil:
		r.log.WarnContext(ctx, "replay interrupted", slog.String("rpc_id", string(s.RPC)), slog.String("error", broken.Error()))
	case err != nil:
		e := toolmesh.AsError(err)
		r.log.DebugContext(ctx, "replay failed", slog.String("rpc_id", string(s.RPC)), slog.String("error", e.Message))
		_ = respond(codec.ErrorReply(e))
	default:
		_ = respond(codec.ReplayEnd(high), nil)
	}
}
