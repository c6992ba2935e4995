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
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// maxBatches is how many batches a node runs at once, and as many that tools send.
	maxBatches = 128
	// maxPassing is how many a node passes on at once.
	maxPassing = 1024

	lookWait = 5 * time.Second // bounds the look-up of tools in the registry
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
	// Pace returns when a result may be sent to a reader, or when ctx ends.
	Pace(ctx context.Context, to *stream.Reader, record admit.Record)
	// Unread refuses a new batch of a reader that does not read; nil for most.
	Unread(to *stream.Reader) *toolmesh.Error
	// Answer sends a record to a reader once its pace allows. It does not block.
	Answer(to *stream.Reader, record admit.Record)
	// Fits reports whether a message can carry a result of a size, in bytes.
	Fits(size int) bool
	// Keep stores a value that is larger than a message, for its caller to read by reference.
	Keep(session subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error)
	// Load reads the object of a session's reference into room that it reserves.
	Load(session subjects.SessionID, ref *codec.Ref) ([]byte, Room, *toolmesh.Error)
	// Hold holds room for the arguments of a batch, of so many bytes.
	Hold(session subjects.SessionID, size int64) (Room, *toolmesh.Error)
	// Late says why a request came too late, or for another node; nil for most.
	Late(req *codec.Request) *toolmesh.Error
	// Account returns the account that a session's use of the node counts for.
	Account(session subjects.SessionID) subjects.SessionID
}

// Room is held for arguments; the zero value is none.
type Room struct{ Give func() }

// Free gives it back, once.
func (r *Room) Free() {
	if r.Give != nil {
		r.Give()
		r.Give = nil
	}
}

// View is the registry's view. Its methods may be called concurrently.
type View interface {
	// Owner returns the other node that has the batch of an id, of a session: one that
	// serves the tool of its first call, if one of those runs batches. Nil: this node has
	// it, or none.
	Owner(session subjects.SessionID, id subjects.RPCID, first subjects.ToolID) *bus.Peer
	// Descriptors returns the descriptors of tools by the names in calls. Unknown tools are
	// missing.
	Descriptors(ctx context.Context, session subjects.SessionID, names []subjects.ToolID) map[subjects.ToolID]*tool.Descriptor
}

// Options are the parts of a [Server]; all of them are needed.
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
	table    *admit.Table[*execution]
	draining atomic.Bool
	passing  atomic.Int64   // batches that are passed on
	running  sync.WaitGroup // goroutines of batches
}

// New makes a server.
func New(o Options) *Server {
	return &Server{Options: o, table: admit.NewTable[*execution](maxBatches, time.Now)}
}

// Drain refuses new batches; running ones go on.
func (s *Server) Drain() { s.draining.Store(true) }

// Wait waits for the running batches. Serve must not be called after it.
func (s *Server) Wait() { s.running.Wait() }

// Tick sends keepalives to the callers of batches. The host calls it a few times a second.
func (s *Server) Tick(now time.Time) {
	for _, call := range s.table.Running() {
		call.Value.keepAlive(now)
	}
}

// Sweep forgets expired batches. The host calls it each second.
func (s *Server) Sweep() { s.table.Sweep() }

// Cancel ends a batch, and reports whether it runs here.
func (s *Server) Cancel(key admit.Key) bool {
	call, ok := s.table.Cancel(key, s.Host.Account(key.Session))
	if ok {
		call.Value.cancel(errCancelled)
	}
	return ok
}

var errCancelled = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller cancelled the batch").WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)

// reader is a caller of a batch.
type reader struct {
	b     *codec.Batch
	reply string
	began time.Time
	told  time.Time // that it runs; of the ticker
	probe bus.Probe
}

// Serve takes a request on a batch subject, and returns when there is nothing more for
// the goroutine to do, which may be a call that runs.
func (s *Server) Serve(subject subjects.Subject, m *nats.Msg) {
	s.read(subject, m, time.Now(), false)
}

// read is Serve; here means that this node runs the batch, whichever node owns it.
func (s *Server) read(subject subjects.Subject, m *nats.Msg, began time.Time, here bool) {
	header, err := bus.RequestHeader(m)
	if err != nil {
		s.refuse(&reader{b: &codec.Batch{}, reply: m.Reply}, toolmesh.AsError(err))
		return
	}
	ref := header.Referred()
	if ref == nil {
		s.serve(subject, m, header, m.Data, began, here, Room{})
		return
	}
	if s.passing.Add(1) > maxPassing {
		s.passing.Add(-1)
		s.refuse(&reader{b: &codec.Batch{}, reply: m.Reply}, errPassing)
		return
	}
	s.running.Go(func() {
		body, room, bad := s.Host.Load(subject.Session, ref)
		s.passing.Add(-1)
		if bad == nil && len(m.Data) > 0 {
			room.Free()
			bad = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s replaces the body, and the request has both: send one of them", codec.HeaderRef)
		}
		if bad != nil {
			named := &codec.Batch{Request: codec.Request{Call: codec.Call{RPCID: codec.ParseNameHeader[subjects.RPCID](header.Get(codec.HeaderRPCID))}}}
			s.refuse(&reader{b: named, reply: m.Reply}, bad)
			return
		}
		s.serve(subject, m, header.Resolved(), body, began, here, room)
	})
}

// serve serves a batch with its body, in room that is reserved for a body that came by reference.
// m is the message with either.
func (s *Server) serve(subject subjects.Subject, m *nats.Msg, header codec.Header, body []byte, began time.Time, here bool, room Room) {
	defer func() { room.Free() }() // unless run has taken it
	b, bad := codec.ParseBatch(subject, header, body)
	to := &reader{b: b, reply: m.Reply, began: began}
	if bad != nil {
		s.refuse(to, bad)
		return
	}
	r := s.request(subject, to)
	// A batch that this node knows is answered here, whichever node owns it now and whatever else
	// is wrong: after "not started" its caller would send it to another node.
	known := r
	known.First = time.Time{} // how far back this node remembers counts where it is to run the batch
	if verdict, call, record, err, ok := s.table.Repeated(known); ok {
		s.follow(to, verdict, call, record, err)
		return
	}
	if b.Hops == 0 && !here {
		if owner := s.View.Owner(subject.Session, b.Request.RPCID, b.Members[0].Tool); owner != nil {
			s.pass(owner, subject, to, m)
			return
		}
	}
	if bad := s.Host.Unread(&stream.Reader{Reply: to.reply, Request: &b.Request}); bad != nil {
		s.refuse(to, bad)
		return
	}
	if room.Give == nil {
		if room, bad = s.Host.Hold(subject.Session, b.Size()); bad != nil {
			s.refuse(to, bad)
			return
		}
	}
	if s.run(r, to, room) {
		room = Room{}
	}
}

var errPassing = toolmesh.Errorf(toolmesh.CodeBusy, "the node already passes on %d batches: try again", maxPassing)

// request returns the entry of a batch for admission.
func (s *Server) request(subject subjects.Subject, to *reader) admit.Request {
	b := to.b
	r := admit.Request{
		Key:    admit.Key{Session: subject.Session, RPC: subjects.WireName(b.Request.RPCID)},
		Digest: admit.DigestOf(b.Body()), Depth: b.Depth, Account: s.Host.Account(b.Session),
	}
	if b.IsAgain {
		r.First = to.began.Add(-b.Again)
	}
	return r
}

// follow answers a batch that does not start here.
func (s *Server) follow(to *reader, verdict admit.Verdict, call *admit.Running[*execution], record admit.Record, bad *toolmesh.Error) {
	switch verdict {
	case admit.Refuse:
		s.refuse(to, bad)
	case admit.Repeat:
		s.later(to, record)
	case admit.Join:
		to.b.Drop()
		call.Value.join(to)
	}
}

// pass has a batch passed on, as long as not too many are.
func (s *Server) pass(owner *bus.Peer, subject subjects.Subject, to *reader, m *nats.Msg) {
	if s.passing.Add(1) > maxPassing {
		s.passing.Add(-1)
		s.refuse(to, errPassing)
		return
	}
	to.b.Drop() // m keeps the batch while it waits
	s.running.Go(func() {
		passed := s.forward(owner, subject, to, m)
		s.passing.Add(-1)
		if !passed {
			s.read(subject, m, to.began, true)
		}
		to.probe.Close()
	})
}

// run runs a batch on this node. It reports whether it does; if so, it frees the room at the end.
// A repetition gets the first one's answer.
func (s *Server) run(r admit.Request, to *reader, room Room) bool {
	if bad := s.check(to.b); bad != nil {
		s.refuse(to, bad)
		return false
	}
	batch := newExecution(s, to)
	verdict, call, record, bad := s.table.Begin(r, batch)
	if verdict != admit.Run {
		batch.close()
		s.follow(to, verdict, call, record, bad)
		return false
	}
	batch.start(func(rec admit.Record) {
		room.Free()
		s.table.Finish(call, rec)
	})
	return true
}

// check says why a batch must not begin here and now.
func (s *Server) check(b *codec.Batch) *toolmesh.Error {
	if s.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s is draining: send again", s.Node)
	}
	return s.Host.Late(&b.Request)
}

// later answers a caller that came second once there is room on the way to it.
func (s *Server) later(to *reader, rec admit.Record) {
	answer := func(rec admit.Record) { s.answer(to, rec) }
	if s.Host.Fits(len(rec.Result)) {
		s.Host.Answer(&stream.Reader{Reply: to.reply, Request: &to.b.Request, Local: answer}, rec)
		return
	}
	answer(rec)
}

func (s *Server) answer(to *reader, rec admit.Record) {
	if rec.Err != nil {
		s.refuse(to, rec.Err)
		return
	}
	header, body := to.b.Results(s.Identity, rec.Result)
	if to.b.AcceptRef && !s.Host.Fits(len(body)) {
		s.running.Go(func() { s.answerRef(to, rec.Result) }) // its caller must not wait for the store
		return
	}
	if !s.send(to, header, body) {
		s.refuse(to, tooLarge(len(body), s.Bus.MaxPayload()))
		return
	}
	s.end(to)
}

// send sends results; of large ones a caller that offered it says when it has read them.
func (s *Server) send(to *reader, header codec.Header, body []byte) bool {
	if to.b.Read && len(body) >= reply.PacedFrom {
		header.Set(codec.HeaderRead, "1")
	}
	return s.Host.Send(&nats.Msg{Subject: to.reply, Header: nats.Header(header), Data: body})
}

// answerRef answers by reference, with an object of its own.
func (s *Server) answerRef(to *reader, results json.RawMessage) {
	ref, bad := s.Host.Keep(to.b.Session, to.b.ResultsBody(results))
	if bad != nil {
		s.refuse(to, bad)
		return
	}
	header, _ := to.b.ResultRef(s.Identity, ref, codec.Load{})
	s.Host.Send(&nats.Msg{Subject: to.reply, Header: nats.Header(header)})
	s.end(to)
}

func (s *Server) refuse(to *reader, e *toolmesh.Error) {
	if e.Code != toolmesh.CodeNodeLost {
		e = admit.Refusal(e)
	}
	header, body := to.b.Failure(s.Identity, e)
	s.Host.Send(&nats.Msg{Subject: to.reply, Header: nats.Header(header), Data: body})
	s.end(to)
}

// end sends the empty message that ends the answer of several messages.
func (s *Server) end(to *reader) {
	if to.b.Delivery == codec.DeliverInbox {
		s.Host.Send(&nats.Msg{Subject: to.reply})
	}
}

func tooLarge(size int, limit int64) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge,
		"the results have %d bytes together, a message carries %d: send fewer calls at once, or ask for each result as it ends", size, limit).
		WithDetail("limit", limit).WithDetail("size", size).WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
}

// joined joins one or more encoded results into one list, which the table keeps.
func joined(results [][]byte) json.RawMessage {
	var list []byte
	before := byte('[')
	for _, r := range results {
		list = append(append(list, before), r...)
		before = ','
	}
	return append(list, ']')
}
