package payloads

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxUploads is how many values a node takes at once.
	maxUploads = 256
	// uploadIdle is how long the next piece of one may take.
	uploadIdle = 30 * time.Second
	// maxReads is how many requests that wait for the store are worked on at once, and
	// maxWaiting how many may wait for that, of so many bytes each.
	maxReads   = 16
	maxWaiting = 4096
	maxRequest = 8 << 10
	// maxPage is the max size of a get's answer in bytes, maxParts its max number of messages.
	maxPage  = 4 << 20
	maxParts = 4096
	// minPiece is how many bytes the pieces of an object must have on average, apart from window of
	// them: it takes little more memory and room in the store than its bytes then. maxPiece bounds
	// the bytes of one.
	minPiece = 1 << 10
	maxPiece = 512 << 10
)

// ServerOptions configure a [Server]; all are required except Log.
type ServerOptions struct {
	Node subjects.NodeID
	Bus  store.Store
	Base context.Context // ends with the node
	// Max is the largest value that is taken, in bytes.
	Max int64
	// Go runs a function outside of the NATS callback.
	Go func(func())
	// Admit says why there is no such session; nil if there is. It may wait.
	Admit func(session subjects.SessionID) error
	// Account returns the account of a session, as far as it is known. It must not block.
	Account func(session subjects.SessionID) subjects.SessionID
	// Log receives the log.
	Log *slog.Logger
}

// Server answers mesh.payload. Its methods may be called concurrently, but for Serve,
// which is the callback of a subscription.
type Server struct {
	ServerOptions
	reads  *fair.Queue[subjects.SessionID]
	places *fair.Room[subjects.SessionID] // uploads
	held   held

	mu      sync.Mutex
	uploads map[string]*upload   // by the value's name
	own     map[*upload]struct{} // values of the node's own that are being stored
	closed  bool
}

// upload is a value that a caller is sending.
type upload struct {
	*store.Upload
	account subjects.SessionID
	size    int64
	next    int // number of the piece that is expected; of the callback

	keep bool     // it is to be held, and has room for that
	kept [][]byte // its result so far; of the callback
}

// NewServer makes a server.
func NewServer(o ServerOptions) *Server {
	return &Server{
		ServerOptions: o, reads: fair.NewQueue[subjects.SessionID](maxReads, maxWaiting, o.Go),
		places: fair.NewRoom[subjects.SessionID](maxUploads), uploads: make(map[string]*upload), own: make(map[*upload]struct{}),
		held: held{room: fair.NewRoom[subjects.SessionID](heldBytes), of: make(map[string]*heldValue)},
	}
}

// Serve takes a request on a subject of payloads. Pieces of one payload must arrive in the order in
// which they were sent.
func (s *Server) Serve(m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if !s.Bus.MayAnswer(m, subject.Session) {
		return
	}
	var name string
	if err == nil {
		name, err = subjects.PayloadName(subject.Session, subject.Payload)
	}
	if err != nil {
		s.refuse(m.Reply, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err))
		return
	}
	header, bad := bus.RequestHeader(m)
	if bad != nil {
		s.refuse(m.Reply, bad)
		return
	}
	verb, directed := codec.PayloadVerb(header.Get(codec.HeaderPayload)), subject.Kind == subjects.KindNodePayload
	switch {
	case verb != codec.PayloadPiece && m.Size() > maxRequest:
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "a request about a payload has %d bytes, at most %d are possible", m.Size(), maxRequest)
	case verb == codec.PayloadPut:
		s.run(subject.Session, func() error { return s.begin(subject.Session, name, header, m) }, m.Reply)
	case verb == codec.PayloadPiece && directed:
		err = s.piece(name, header, m)
	case verb == codec.PayloadEnd && directed:
		err = s.finish(subject.Session, name, header, m.Reply)
	case verb == codec.PayloadGet:
		s.run(subject.Session, func() error { return s.get(name, header, m) }, m.Reply)
	case verb == codec.PayloadDelete:
		s.held.forget(name)
		s.drop(name) // its sender gives it up
		s.run(subject.Session, func() error {
			if err := s.Bus.DeletePayload(s.Base, name); err != nil {
				return err
			}
			s.respond(m.Reply, codec.Header{codec.HeaderPayload: {string(codec.PayloadDelete)}}, nil)
			return nil
		}, m.Reply)
	default:
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s is %q: it is put, get or delete, and to the node that takes a value piece or end", codec.HeaderPayload, verb)
	}
	if err != nil {
		s.refuse(m.Reply, err)
	}
}

// run runs store operations on a goroutine: sessions share the slots fairly.
func (s *Server) run(session subjects.SessionID, do func() error, reply string) {
	if !s.reads.Do(s.Account(session), func() {
		if err := do(); err != nil {
			s.refuse(reply, err)
		}
	}) {
		s.refuse(reply, toolmesh.Errorf(toolmesh.CodeBusy, "too many requests of session %q about payloads wait at node %s: try again", session, s.Node).WithDetail("limit", "requests"))
	}
}

func (s *Server) respond(reply string, h codec.Header, body []byte) {
	if err := s.Bus.Conn().PublishMsg(&nats.Msg{Subject: reply, Header: nats.Header(h), Data: body}); err != nil {
		s.Log.Warn("answer about a payload could not be sent", slog.String("error", err.Error()))
	}
}

func (s *Server) refuse(reply string, err error) {
	e := toolmesh.AsError(err)
	if e.Started == toolmesh.StartedUnknown {
		e = e.WithStarted(toolmesh.StartedNo)
	}
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	header, body := codec.ErrorReply(e)
	s.respond(reply, header, body)
}

// begin begins a put; one that is too large is refused before any data is sent.
func (s *Server) begin(session subjects.SessionID, name string, h codec.Header, m *nats.Msg) error {
	req, bad := codec.ParsePayloadPut(h, m.Data)
	if bad != nil {
		return bad
	}
	if req.Size > s.Max {
		return TooLarge(req.Size, s.Max)
	}
	if err := s.Admit(session); err != nil {
		return err
	}
	u := &upload{account: s.Account(session), size: req.Size, next: 1}
	use, err := s.Bus.PayloadsUse(s.Base, u.account)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s is stopping: send to another", s.Node)
	case s.uploads[name] != nil:
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the payload %q is being sent already", name)
	}
	if err := s.share(use, u.account, u.size); err != nil {
		return err
	}
	if !s.places.Take(u.account, 1) {
		return toolmesh.Errorf(toolmesh.CodeBusy, "node %s takes %d payloads at once, and session %q sends its share of them: try again", s.Node, maxUploads, session).WithDetail("limit", "uploads").WithDetail("max", maxUploads)
	}
	if u.Upload, err = s.Bus.NewUpload(name, u.account, false); err != nil {
		s.places.Give(u.account, 1)
		return err
	}
	u.keep = u.size <= heldBytes/2 && s.held.room.Take(u.account, u.size)
	s.uploads[name] = u
	s.respond(m.Reply, codec.Header{codec.HeaderPayload: {string(codec.PayloadPut)}}, codec.Encode(codec.PayloadTaker{Node: s.Node}))
	return nil
}

// Begin begins to store a value of the node's own, of at most so many bytes. They count until done is
// called. The error says why the account may not store them.
func (s *Server) Begin(ctx context.Context, session, account subjects.SessionID, size int64) (u *store.Upload, done func(), err error) {
	_, name, err := NewName(session)
	if err != nil {
		return nil, nil, err
	}
	use, err := s.Bus.PayloadsUse(ctx, account)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = s.share(use, account, size); err == nil {
		u, err = s.Bus.NewUpload(name, account, true)
	}
	if err != nil {
		return nil, nil, err
	}
	one := &upload{Upload: u, account: account, size: size}
	s.own[one] = struct{}{}
	return u, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.own, one)
	}, nil
}

// Keep stores a value of the node's own, which must not change, and holds it for a while.
func (s *Server) Keep(ctx context.Context, session, account subjects.SessionID, value []byte) (*codec.Ref, error) {
	u, done, err := s.Begin(ctx, session, account, int64(len(value)))
	if err != nil {
		return nil, err
	}
	defer done()
	ref, err := finish(ctx, s.Bus, u, bytes.NewReader(value), s.Max)
	if err == nil {
		s.hold(account, ref, value)
	}
	return ref, err
}

// share is that of the store, with the rest of all values that are being stored. s.mu is held.
func (s *Server) share(use store.PayloadsUse, account subjects.SessionID, size int64) error {
	add := func(u *upload) {
		have, _, _ := u.Size()
		use.Used += u.size - have
		if u.account == account {
			use.Mine += u.size - have
		}
	}
	for _, u := range s.uploads {
		add(u)
	}
	for u := range s.own {
		add(u)
	}
	return share(use, account, size)
}

// Share says why an account may not store so many bytes more; nil if it may. It does not know what is
// being stored.
func Share(ctx context.Context, b store.Store, account subjects.SessionID, size int64) error {
	use, err := b.PayloadsUse(ctx, account)
	if err != nil {
		return err
	}
	return share(use, account, size)
}

// share refuses what would give its account more of the store than is left free.
func share(use store.PayloadsUse, account subjects.SessionID, size int64) error {
	switch free := use.Max - use.Used; {
	case use.Max <= 0:
	case size > free:
		return store.ErrPayloadsFull(fmt.Sprintf("%d of %d bytes are free", max(free, 0), use.Max))
	case use.Mine+size > free-size && use.Used >= use.Max/16: // in an empty one a value may have more than half
		who := fmt.Sprintf("session %q has", account)
		if account == "" {
			who = "sessions that were not created have together"
		}
		return toolmesh.Errorf(toolmesh.CodeBusy, "%s %d bytes in the payload store, which has %d free for all sessions: wait until payloads are read or expire", who, use.Mine, free).
			WithOrigin(toolmesh.OriginMesh).WithDetail("limit", "payloads_share").WithDetail("stored", use.Mine).WithDetail("max", use.Max)
	}
	return nil
}

// stored acknowledges a piece.
func (s *Server) stored(name string, n int, reply string, err error) {
	if err != nil {
		s.drop(name) // once: it is forgotten then
		s.refuse(reply, err)
		return
	}
	s.respond(reply, codec.Header{codec.HeaderSeq: {strconv.Itoa(n)}}, nil)
}

// piece takes one piece of a value.
func (s *Server) piece(name string, h codec.Header, m *nats.Msg) error {
	u := s.find(name)
	if u == nil {
		return unknown(name)
	}
	refused := func(format string, args ...any) error {
		s.drop(name)
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...)
	}
	have, open, _ := u.Size()
	average := min(minPiece, s.Bus.PieceBytes())
	n, err := strconv.Atoi(h.Get(codec.HeaderSeq))
	switch {
	case err != nil || n != u.next:
		return refused("piece %q of the payload came, number %d was expected: begin anew", h.Get(codec.HeaderSeq), u.next)
	case have+int64(len(m.Data)) > u.size:
		return refused("more came of the payload than the %d bytes that were announced", u.size)
	case len(m.Data) > maxPiece:
		return refused("piece %d of the payload has %d bytes, at most %d are possible: send smaller ones", n, len(m.Data), maxPiece)
	case int64(n) > u.size/int64(average)+window:
		return refused("the pieces of the payload have less than %d bytes on average: send larger ones", average)
	case open >= window:
		return refused("%d pieces of the payload are not acknowledged yet: wait for an acknowledgement before you send another one", window)
	}
	u.next++
	if u.keep {
		u.kept = append(u.kept, bytes.Clone(m.Data)) // without the headers, which count for nothing
	}
	reply := m.Reply // the message goes
	if err := u.Write(m.Data, func(err error) { s.stored(name, n, reply, err) }); err != nil {
		s.drop(name)
		return err
	}
	return nil
}

// finish ends an upload, once all of it is stored.
func (s *Server) finish(session subjects.SessionID, name string, h codec.Header, reply string) error {
	u := s.find(name)
	if u == nil {
		return unknown(name)
	}
	if have, _, _ := u.Size(); have != u.size {
		s.drop(name)
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%d bytes came of the payload, %d were announced: begin anew", have, u.size)
	}
	ref := codec.Ref{Name: name, Digest: h.Get(codec.HeaderDigest)}
	if _, err := ref.Payload(session); err != nil {
		s.drop(name)
		return err
	}
	s.run(session, func() error {
		p, err := u.Finish(s.Base, ref.Digest)
		if err != nil {
			s.drop(name)
			return err
		}
		if s.forget(name) == u && u.keep {
			s.held.put(&heldValue{name: name, account: u.account, digest: ref.Digest, size: u.size, pieces: u.kept})
		}
		s.respond(reply, codec.Header{codec.HeaderRef: {p.Name}, codec.HeaderDigest: {p.Digest}}, nil)
		return nil
	}, reply)
	return nil
}

func unknown(name string) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "nothing is being sent under the name %q: begin with a put", name).WithDetail("reason", ReasonGone)
}

func (s *Server) find(name string) *upload {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uploads[name]
}

func (s *Server) forget(name string) *upload {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[name]
	if u == nil {
		return nil
	}
	delete(s.uploads, name)
	s.places.Give(u.account, 1)
	if u.keep {
		s.held.room.Give(u.account, u.size)
	}
	return u
}

// drop removes an upload that failed, and its stored parts.
func (s *Server) drop(name string) {
	if u := s.forget(name); u != nil {
		s.Go(func() {
			if err := u.Drop(s.Base); err != nil {
				s.Log.Debug("what is left of a payload expires by itself", slog.String("error", err.Error()))
			}
		})
	}
}

// Sweep drops the uploads of callers that left. The host calls it each second.
func (s *Server) Sweep(now time.Time) {
	s.held.sweep(now)
	s.dropAll(func(u *upload) bool {
		_, _, heard := u.Size()
		return now.Sub(heard) > uploadIdle
	})
}

// Close has the server take no more values, and drops those that are being sent: their
// callers begin anew with another node.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.dropAll(func(*upload) bool { return true })
}

func (s *Server) dropAll(such func(*upload) bool) {
	s.mu.Lock()
	all := maps.Clone(s.uploads)
	s.mu.Unlock()
	for name, u := range all {
		if such(u) {
			s.drop(name)
		}
	}
}

// get sends some of a value: from_seq is 1, or one behind the Mesh-High that ended the
// answer before. Pieces are numbered within the answer, and Mesh-Count behind them says
// how many there were.
func (s *Server) get(name string, h codec.Header, m *nats.Msg) error {
	req, bad := codec.ParseReplay(h, m.Data)
	if bad != nil {
		return bad
	}
	done, err := strconv.Atoi(cmp.Or(h.Get(codec.HeaderCount), "0"))
	if err != nil || done < 0 {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s is %q: it is how many pieces the caller has", codec.HeaderCount, h.Get(codec.HeaderCount))
	}
	page := page{s: s, reply: m.Reply, left: min(req.MaxBytes, maxPage)}
	if v := s.held.get(name); v != nil && done <= len(v.pieces) {
		for _, piece := range v.pieces[done:] {
			if more, err := page.send(piece); !more || err != nil {
				break // the caller asks again for parts that could not be sent
			}
		}
		// A caller that continues with another node begins there at the first stored piece.
		page.end(codec.High{Terminal: done+page.sent == len(v.pieces)}, done, v.size)
		return nil
	}
	p, err := s.Bus.Payload(s.Base, name)
	if errors.Is(err, store.ErrNoKey) {
		return Gone(name)
	}
	if err != nil {
		return err
	}
	if p.Size == 0 { // its part has no bytes
		page.end(codec.High{Terminal: true}, done, 0)
		return nil
	}
	from, skip, all := req.FromSeq, 0, p.Parts()
	if done > all {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s is %d: there are %d pieces", codec.HeaderCount, done, all)
	}
	if from == 1 {
		skip = done
	}
	last, err := s.Bus.ReadPayload(s.Base, p, uint64(from), all-done+skip, func(part *store.Stored) (bool, error) { //nolint:gosec // from 1 on
		if skip > 0 {
			skip--
			return true, nil
		}
		return page.send(part.Data)
	})
	if err != nil {
		return err
	}
	page.end(codec.High{Seq: int64(last), Terminal: done+page.sent == all}, done, p.Size) //nolint:gosec // of a stream
	return nil
}

// page is one answer to a get.
type page struct {
	s     *Server
	reply string
	sent  int   // pieces
	left  int64 // bytes that may still be sent
}

// send sends a piece, and reports whether the page has room for the next one.
func (p *page) send(piece []byte) (more bool, err error) {
	p.sent++
	p.left -= int64(len(piece))
	err = p.s.Bus.Conn().PublishMsg(&nats.Msg{Subject: p.reply, Header: nats.Header{codec.HeaderSeq: {strconv.Itoa(p.sent)}}, Data: piece})
	return p.left > 0 && p.sent < maxParts, err
}

// end says how far the page goes, behind so many pieces that the caller had.
func (p *page) end(high codec.High, done int, size int64) {
	h := codec.ReplayEnd(high)
	h.Set(codec.HeaderCount, strconv.Itoa(done+p.sent))
	h.Set(codec.HeaderSize, strconv.FormatInt(size, 10))
	p.s.respond(p.reply, h, nil)
}

// hold keeps a payload that was stored from memory in memory for its next reader. The value must
// not change.
func (s *Server) hold(account subjects.SessionID, ref *codec.Ref, value []byte) {
	v := &heldValue{name: ref.Name, account: account, digest: ref.Digest, size: int64(len(value))}
	if v.size > heldBytes/2 {
		return
	}
	for n, size := 0, s.Bus.PieceBytes(); n < len(value); n += size {
		v.pieces = append(v.pieces, value[n:min(n+size, len(value))])
	}
	s.held.put(v)
}

// Load is [Load], but first looks in the memory of the server. It calls room with the size before
// it reads anything.
func (s *Server) Load(ctx context.Context, session subjects.SessionID, ref *codec.Ref, room func(size int64) error) ([]byte, error) {
	v := s.held.get(ref.Name)
	if v == nil || v.digest != ref.Digest {
		return Load(ctx, s.Bus, session, ref, s.Max, room)
	}
	if _, err := ref.Payload(session); err != nil {
		return nil, err
	}
	if err := room(v.size); err != nil {
		return nil, err
	}
	value := make([]byte, 0, v.size)
	sum := sha256.New()
	for _, piece := range v.pieces {
		sum.Write(piece)
		value = append(value, piece...)
	}
	if got := codec.DigestText(sum.Sum(nil)); got != ref.Digest {
		return nil, altered(ref, got)
	}
	return value, nil
}

// Delete deletes the payload of a reference.
func (s *Server) Delete(ctx context.Context, name string) error {
	s.held.forget(name)
	return s.Bus.DeletePayload(ctx, name)
}
