package batch

import (
	"context"
	"encoding/json"
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
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// maxBatches is how many batches a node runs at once, and as many that tools send.
	maxBatches = 128
	// maxPassing is how many a node passes on, or reads from the store, at once.
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
	// Load reads the object of a session's reference into room that it reserves; free, which is to
	// be called once, gives that back.
	Load(session subjects.SessionID, ref *codec.Ref) (body []byte, free func(), bad *toolmesh.Error)
	// Hold holds room for the arguments of a batch, of so many bytes.
	Hold(session subjects.SessionID, size int64) (free func(), bad *toolmesh.Error)
	// Late says why a request came too late, or for another node; nil for most.
	Late(req *codec.Request) *toolmesh.Error
	// Served returns the descriptor of a tool that this node serves; nil for another one.
	Served(session subjects.SessionID, id subjects.ToolID) *tool.Descriptor
}

// Options are the parts of a [Server]; all of them are needed.
type Options struct {
	*stream.Node
	Identity *codec.Identity
	Bus      *bus.Bus
	Client   *client.Client
	View     *registry.View // for the nodes of tools
	Records  *registry.Store
	Host     Host
	Replies  *reply.Replies
}

// Server runs batches. Its methods may be called concurrently.
type Server struct {
	Options
	table    *admit.Table[*execution]
	draining atomic.Bool
	passing  *fair.Room[subjects.SessionID] // batches that are passed on, or read from the store
	running  sync.WaitGroup                 // goroutines of batches
}

// New makes a server.
func New(o Options) *Server {
	return &Server{Options: o, table: admit.NewTable[*execution](maxBatches, time.Now), passing: fair.NewRoom[subjects.SessionID](maxPassing)}
}

// Drain refuses new batches; running ones go on.
func (s *Server) Drain() { s.draining.Store(true) }

// Wait waits for the running batches. Serve must not be called after it.
func (s *Server) Wait() { s.running.Wait() }

// Tick sends keepalives to the callers of batches. The host calls it a few times a second.
func (s *Server) Tick(now time.Time) {
	for _, call := range s.table.Running() {
		call.Value.callers.KeepAlive(now)
	}
}

// Sweep forgets expired batches. The host calls it each second.
func (s *Server) Sweep() { s.table.Sweep() }

// Cancel ends a batch, and reports whether it runs here.
func (s *Server) Cancel(key admit.Key) bool {
	call, ok := s.table.Cancel(key, s.Account(key.Session))
	if ok {
		call.Value.End(errCancelled)
	}
	return ok
}

var errCancelled = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller cancelled the batch").WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)

// reader is a caller of a batch.
type reader struct {
	stream.Reader
	b     *codec.Batch
	probe bus.Probe // of a batch that is passed on
}

// reader returns a caller, which gets its answer in the form of a batch.
func (s *Server) reader(b *codec.Batch, reply string, began time.Time) *reader {
	to := &reader{b: b, Reader: stream.Reader{Request: &b.Request, Reply: reply, Identity: s.Identity, Start: began}}
	to.Form = func(rec admit.Record) { s.answer(to, rec) }
	return to
}

// Serve takes a request on a batch subject, and returns when there is nothing more for
// the goroutine to do, which may be a call that runs.
func (s *Server) Serve(subject subjects.Subject, m *nats.Msg) {
	s.read(subject, m, time.Now(), false)
}

// read is Serve; here means that this node runs the batch, whichever node owns it.
func (s *Server) read(subject subjects.Subject, m *nats.Msg, began time.Time, here bool) {
	header, bad := bus.RequestHeader(m)
	unread := func(named codec.Batch, why *toolmesh.Error) {
		s.refuse(s.reader(&named, m.Reply, began), unbegun(header.Get(codec.HeaderAgain) != "", why))
	}
	if bad != nil {
		unread(codec.Batch{}, bad)
		return
	}
	ref := header.Referred()
	if ref == nil {
		s.serve(subject, m, header, m.Data, began, here, nil)
		return
	}
	leave, bad := s.place(subject.Session, m)
	if bad != nil {
		unread(codec.Batch{}, bad)
		return
	}
	s.running.Go(func() {
		body, free, bad := s.Host.Load(subject.Session, ref)
		leave()
		if bad == nil && len(m.Data) > 0 {
			free()
			bad = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s replaces the body, and the request has both: send one of them", codec.HeaderRef)
		}
		if bad != nil {
			unread(codec.Batch{Request: codec.Request{Call: codec.Call{RPCID: codec.ParseNameHeader[subjects.RPCID](header.Get(codec.HeaderRPCID))}}}, bad)
			return
		}
		s.serve(subject, m, header.Resolved(), body, began, here, free)
	})
}

// serve serves a batch with its body. free gives back the room of a body that came by reference, and
// is nil for others. m is the message with either.
func (s *Server) serve(subject subjects.Subject, m *nats.Msg, header codec.Header, body []byte, began time.Time, here bool, free func()) {
	defer func() {
		if free != nil {
			free()
		}
	}()
	b, bad := codec.ParseBatch(subject, header, body)
	to := s.reader(b, m.Reply, began)
	if bad != nil {
		s.refuse(to, bad)
		return
	}
	r := s.request(subject, to)
	// A batch that this node knows is answered here, whichever node owns it now and whatever else
	// is wrong: after "not started" its caller would send it to another node.
	known := r
	if b.IsAgain { // how far back this node remembers counts where it is to run the batch
		known.First = time.Now()
	}
	if verdict, call, record, err, ok := s.table.Repeated(known); ok {
		s.follow(to, verdict, call, record, err)
		return
	}
	if b.Hops == 0 && !here {
		if owner := s.owner(subject.Session, b.Request.RPCID, b.Members[0].Tool); owner != nil {
			s.pass(owner, subject, to, m)
			return
		}
	}
	if b.IsAgain && b.Boot == "" { // as a repetition its owner would know it
		s.refuse(to, toolmesh.Errorf(toolmesh.CodeNodeLost, "batch %q was sent before, and the node that owned it may be lost: whether it ran is not known", b.Request.RPCID))
		return
	}
	if bad := s.Replies.Unread(&to.Reader); bad != nil {
		s.refuse(to, bad)
		return
	}
	if free == nil {
		if free, bad = s.Host.Hold(subject.Session, b.Size()); bad != nil {
			s.refuse(to, bad)
			return
		}
	}
	if s.run(r, to, free) {
		free = nil // at the batch's end
	}
}

// owner returns the other node that has the batch of an id, of a session: one that serves the tool
// of its first call, if one of those runs batches. Nil: this node has it, or none.
func (s *Server) owner(session subjects.SessionID, id subjects.RPCID, first subjects.ToolID) *bus.Peer {
	route, _ := s.View.Route(session, first)
	owner, ok := s.View.Owner(codec.FeatureBatch, route.Nodes, string(session), string(id))
	if !ok || owner.Node == s.ID {
		return nil
	}
	return s.Bus.Listed(owner.Node, owner.Boot)
}

var errPassing = toolmesh.Errorf(toolmesh.CodeBusy, "the node passes on %d batches at once, and the session has its share of them: try again", maxPassing).
	WithDetail("limit", "batches").WithDetail("max", maxPassing)

// place takes a place for a batch that waits for another node or for the store, and room for its
// message; leave gives them back.
func (s *Server) place(session subjects.SessionID, m *nats.Msg) (leave func(), bad *toolmesh.Error) {
	account := s.Account(session)
	if !s.passing.Take(account, 1) {
		return nil, errPassing
	}
	free, bad := s.Host.Hold(session, int64(m.Size()))
	if bad != nil {
		s.passing.Give(account, 1)
		return nil, bad
	}
	return func() { free(); s.passing.Give(account, 1) }, nil
}

// request returns the entry of a batch for admission.
func (s *Server) request(subject subjects.Subject, to *reader) admit.Request {
	b := to.b
	session, _ := s.View.Session(subject.Session) // the next one of its name has batches of its own
	r := admit.Request{
		Epoch:  session.Epoch,
		Key:    admit.Key{Session: subject.Session, RPC: subjects.WireName(b.Request.RPCID)},
		Digest: admit.DigestOf(b.Body()), Depth: b.Depth, Account: s.Account(b.Session),
	}
	if b.IsAgain {
		r.First = to.Start.Add(-b.Again)
	}
	return r
}

// follow answers a batch that does not start here.
func (s *Server) follow(to *reader, verdict admit.Verdict, call *admit.Running[*execution], record admit.Record, bad *toolmesh.Error) {
	switch verdict {
	case admit.Refuse:
		s.refuse(to, bad)
	case admit.Repeat:
		s.Replies.Answer(&to.Reader, record)
	case admit.Join:
		to.b.Drop()
		var own stream.Readers
		own.Init(s.Node, nil, &to.Reader)
		call.Value.callers.Join(&own)
	}
}

// pass has a batch passed on, as long as not too many are.
func (s *Server) pass(owner *bus.Peer, subject subjects.Subject, to *reader, m *nats.Msg) {
	leave, bad := s.place(subject.Session, m)
	if bad != nil {
		s.refuse(to, unbegun(to.b.IsAgain, bad))
		return
	}
	to.b.Drop() // m keeps the batch while it waits
	s.running.Go(func() {
		passed := s.forward(owner, subject, to, m)
		leave()
		if !passed {
			s.read(subject, m, to.Start, true)
		}
		to.probe.Close()
	})
}

// run runs a batch on this node. It reports whether it does; if so, it frees the room at the end.
// A repetition gets the first one's answer.
func (s *Server) run(r admit.Request, to *reader, free func()) bool {
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
		free()
		s.table.Finish(call, rec)
	})
	return true
}

// check says why a batch must not begin here and now.
func (s *Server) check(b *codec.Batch) *toolmesh.Error {
	if s.draining.Load() {
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s is draining: send again", s.ID))
	}
	return s.Host.Late(&b.Request)
}

// answer sends the outcome of a batch.
func (s *Server) answer(to *reader, rec admit.Record) {
	if rec.Err != nil {
		s.refuse(to, rec.Err)
		return
	}
	header, body := to.b.Results(s.Identity, rec.Result)
	if to.b.AcceptRef && !s.Replies.Fits(len(body)) {
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
	return s.Replies.Publish(to.Reply, header, body)
}

// answerRef answers by reference, with an object of its own.
func (s *Server) answerRef(to *reader, results json.RawMessage) {
	ref, bad := s.Replies.Keep(to.b.Session, to.b.ResultsBody(results))
	if bad != nil {
		s.refuse(to, bad)
		return
	}
	header, _ := to.b.ResultRef(s.Identity, ref, codec.Load{})
	s.Replies.Publish(to.Reply, header, nil)
	s.end(to)
}

// unbegun is the error of a batch that this node does not look at. If the batch was sent before,
// another node, or this one, may have run it: what is not known must not be said.
func unbegun(again bool, e *toolmesh.Error) *toolmesh.Error {
	if again {
		return e.WithStarted(toolmesh.StartedUnknown)
	}
	return admit.Refusal(e)
}

// refuse answers a batch with an error, which says what is known of its calls.
func (s *Server) refuse(to *reader, e *toolmesh.Error) {
	header, body := to.b.Failure(s.Identity, admit.Failure(e, toolmesh.StartedUnknown))
	s.Replies.Publish(to.Reply, header, body)
	s.end(to)
}

// end sends the empty message that ends the answer of several messages.
func (s *Server) end(to *reader) {
	if to.b.Delivery == codec.DeliverInbox {
		s.Replies.Publish(to.Reply, nil, nil)
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
