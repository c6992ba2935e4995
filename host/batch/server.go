package batch

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// maxBatches is how many batches a node runs at once, and as many that tools send.
	maxBatches = 128
	// maxRequests is how many requests are looked at, passed on or waited for at once.
	maxRequests = 1024

	keepaliveEvery = time.Second
	lookWait       = 5 * time.Second // for what the registry knows of the tools
)

// Host is the node that a [Server] is part of. Its methods may be called concurrently.
type Host interface {
	// Here runs a call of a tool that this node serves, as one that came on a subject, and
	// returns when its handler has, or at once where there is nothing to run; done is called once, perhaps
	// earlier, with its record. When ctx ends, so does the call. mine is false, and
	// nothing happens, for a tool that is not served here.
	Here(ctx context.Context, subject subjects.Subject, call *codec.Request, done func(admit.Record)) (mine bool)
	// Send publishes a reply; it reports whether the connection takes its size.
	Send(m *nats.Msg) bool
	// MayAnswer reports whether a request may be answered where it asks for it.
	MayAnswer(m *nats.Msg, session subjects.SessionID) bool
	// Late says why a request came too late, or for another node; nil for most.
	Late(req *codec.Request) *toolmesh.Error
	// Account is whose part of the node a session has.
	Account(session subjects.SessionID) subjects.SessionID
}

// View is what the registry knows. Its methods may be called concurrently.
type View interface {
	// Owner returns the node that has the batch of an id, of a session: one that serves
	// the tool of its first call, if one of those runs batches.
	Owner(session subjects.SessionID, id subjects.RPCID, first subjects.ToolID) (subjects.NodeID, bool)
	// Alive reports whether a node is heard.
	Alive(id subjects.NodeID) bool
	// Descriptors returns the descriptors of tools by the names that calls have for
	// them. What it does not know is missing.
	Descriptors(ctx context.Context, session subjects.SessionID, names []subjects.ToolID) map[subjects.ToolID]*tool.Descriptor
}

// Feature is what the lease of a node says that serves batches.
const Feature = "batch"

// Options are what a [Server] is made of; all of them are needed.
type Options struct {
	Node     subjects.NodeID
	Identity *codec.Identity
	Base     context.Context // ends with the node
	Bus      *bus.Bus
	Client   *client.Client
	View     View
	Host     Host
	Log      *slog.Logger
}

// Server runs batches. Its methods may be called concurrently.
type Server struct {
	Options
	table    *admit.Table[*run]
	draining atomic.Bool
	places   chan struct{}
	running  sync.WaitGroup // the goroutines of batches

	mu     sync.Mutex
	closed bool // no request is taken any more
}

// New makes a server.
func New(o Options) *Server {
	return &Server{Options: o, table: admit.NewTable[*run](maxBatches, time.Now), places: make(chan struct{}, maxRequests)}
}

// Receive takes a request on a batch subject; it does not block.
func (s *Server) Receive(m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if !s.Host.MayAnswer(m, subject.Session) {
		return
	}
	if err != nil {
		s.refuse(&codec.Batch{}, m, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.refuse(&codec.Batch{}, m, s.leaving())
		return
	}
	select {
	case s.places <- struct{}{}:
		s.running.Go(func() {
			defer func() { <-s.places }()
			s.serve(subject, m)
		})
	default:
		s.refuse(&codec.Batch{}, m, toolmesh.Errorf(toolmesh.CodeBusy, "the node has %d batches: try again", maxRequests))
	}
}

func (s *Server) leaving() *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s is draining: send again", s.Node)
}

// Drain has the server refuse what comes from now on; what runs goes on.
func (s *Server) Drain() { s.draining.Store(true) }

// Close takes no more requests, and waits for the batches that run.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// Sweep forgets what nobody repeats any more. The host calls it each second.
func (s *Server) Sweep() { s.table.Sweep() }

// Cancel ends a batch, and reports whether it runs here.
func (s *Server) Cancel(key admit.Key) bool {
	call, ok := s.table.Cancel(key)
	if ok {
		call.Value.cancel(errCancelled)
	}
	return ok
}

var errCancelled = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller cancelled the batch").WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)

// serve answers one request.
func (s *Server) serve(subject subjects.Subject, m *nats.Msg) {
	header, err := bus.RequestHeader(m)
	if err != nil {
		s.refuse(&codec.Batch{}, m, toolmesh.AsError(err))
		return
	}
	b, bad := codec.ParseBatch(subject, header, m.Data)
	if bad == nil && subject.Kind == subjects.KindBatch {
		if owner, ok := s.View.Owner(subject.Session, b.Request.RPCID, b.Members[0].Tool); ok && owner != s.Node && s.forward(owner, subject, b, m) {
			return
		}
	}
	if bad == nil {
		bad = s.check(b)
	}
	if bad != nil {
		s.refuse(b, m, bad)
		return
	}
	r := admit.Request{
		Key:    admit.Key{Session: subject.Session, RPC: subjects.WireName(b.Request.RPCID)},
		Digest: admit.DigestOf(m.Data), Depth: b.Depth, Account: s.Host.Account(b.Session),
	}
	if b.IsAgain {
		r.First = time.Now().Add(-b.Again)
	}
	got := make(chan admit.Record, 1)
	batch := newRun(s, b, m.Reply)
	verdict, call, record, bad := s.table.Begin(r, batch, func(rec admit.Record) { got <- rec })
	if verdict != admit.Run {
		batch.close()
	}
	switch verdict {
	case admit.Refuse:
		s.refuse(b, m, bad)
		return
	case admit.Repeat:
		got <- record
	case admit.Run:
		batch.start(func(rec admit.Record) {
			s.table.Finish(call, rec)
			got <- rec
		})
	case admit.Join:
	}
	s.await(b, m, got)
}

// check says why a batch must not begin here and now.
func (s *Server) check(b *codec.Batch) *toolmesh.Error {
	if s.draining.Load() {
		return s.leaving()
	}
	return s.Host.Late(&b.Request)
}

// await answers a request when its batch has ended, and says until then that it runs.
func (s *Server) await(b *codec.Batch, m *nats.Msg, got <-chan admit.Record) {
	ticker := time.NewTicker(keepaliveEvery)
	defer ticker.Stop()
	for {
		select {
		case rec := <-got:
			s.answer(b, m, rec)
			return
		case <-ticker.C:
			if b.Keepalive {
				s.Host.Send(&nats.Msg{Subject: m.Reply, Header: nats.Header(b.KeepaliveHeader(s.Identity, -1))})
			}
		}
	}
}

func (s *Server) answer(b *codec.Batch, m *nats.Msg, rec admit.Record) {
	if rec.Err != nil {
		s.refuse(b, m, rec.Err)
		return
	}
	header, body := b.Results(s.Identity, rec.Result)
	if !s.Host.Send(&nats.Msg{Subject: m.Reply, Header: nats.Header(header), Data: body}) {
		s.refuse(b, m, tooLarge(len(body), s.Bus.MaxPayload()))
		return
	}
	s.end(b, m)
}

func (s *Server) refuse(b *codec.Batch, m *nats.Msg, e *toolmesh.Error) {
	if e.Started == toolmesh.StartedUnknown && e.Code != toolmesh.CodeNodeLost {
		e = e.WithStarted(toolmesh.StartedNo)
	}
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	header, body := b.Failure(s.Identity, e)
	s.Host.Send(&nats.Msg{Subject: m.Reply, Header: nats.Header(header), Data: body})
	s.end(b, m)
}

// end sends the empty message behind the last one, to who asked for several.
func (s *Server) end(b *codec.Batch, m *nats.Msg) {
	if b.Delivery == codec.DeliverInbox {
		s.Host.Send(&nats.Msg{Subject: m.Reply})
	}
}

func tooLarge(size int, limit int64) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge,
		"the results have %d bytes together, a message carries %d: send fewer calls at once, or ask for each result as it ends", size, limit).
		WithDetail("limit", limit).WithDetail("size", size).WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
}

// joined is encoded results as one list, which is what the table keeps.
func joined(results [][]byte) json.RawMessage {
	n := 2
	for _, r := range results {
		n += len(r) + 1
	}
	list := append(make([]byte, 0, n), '[')
	for i, r := range results {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, r...)
	}
	return append(list, ']')
}
