package payloads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// tries is how often a transfer is begun, or a page of one, before it counts as lost.
	tries = 4
	// patience is how long the node that serves it may be silent.
	patience = 5 * time.Second
	// pageBytes is the size of one get.
	pageBytes = 4 << 20
)

// errSilent is the error of a transfer whose node is silent. Another node may serve it.
var errSilent = toolmesh.Errorf(toolmesh.CodeUnavailable, "move a payload: the node that moves it has been silent for %v", patience).WithOrigin(toolmesh.OriginMesh)

// Put has a node store the size bytes of r for a session, and returns the reference. It begins anew
// if the node or the connection is lost. The errors are payload_too_large above the node's limit or
// if no node takes payloads, unavailable if the store is full or silent, and that of ctx; all have
// started:false.
//
// The node is at, where that answers: one that runs the call has the value at hand then.
// Empty leaves it to the broker.
func Put(ctx context.Context, b *bus.Bus, session subjects.SessionID, at subjects.NodeID, r io.ReadSeeker, size int64) (ref *codec.Ref, err error) {
	lost := func(e *toolmesh.Error) bool { // or the node knows nothing of it any more
		return again(e) || e.Details["reason"] == ReasonGone && e.Code == toolmesh.CodeInvalidRequest
	}
	err = retried(ctx, lost, func(n int) (err error) {
		if n > 0 {
			at = ""
			if _, err := r.Seek(0, io.SeekStart); err != nil {
				return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the value cannot be read again: %w", err)
			}
		}
		ref, err = put(ctx, b, session, at, r, size)
		return err
	})
	if err != nil {
		return nil, notStarted(err)
	}
	return ref, nil
}

// retried does something up to tries times, while another node may do it. It gives a node that
// is going, or a connection that is lost, some time.
func retried(ctx context.Context, again func(*toolmesh.Error) bool, do func(n int) error) error {
	for n := 0; ; n++ {
		err := do(n)
		if err == nil || n+1 == tries || ctx.Err() != nil || !again(toolmesh.AsError(err)) {
			return err
		}
		if !wake.After(ctx, 250*time.Millisecond<<n) {
			return fmt.Errorf("move a payload: %w", context.Cause(ctx))
		}
	}
}

// again reports whether what broke off may go well at another node.
func again(e *toolmesh.Error) bool {
	return e.Retryable && (e.Code == toolmesh.CodeUnavailable || e.Code == toolmesh.CodeBusy)
}

func notStarted(err error) error {
	e := toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginCaller)
	}
	return e
}

// exchange opens an exchange for so many replies that wait to be read. Close it.
func exchange(b *bus.Bus, unread int) (*bus.Exchange, error) {
	x := &bus.Exchange{What: "the payload was moved", Patience: patience}
	if err := x.Open(b, unread); err != nil {
		return nil, err
	}
	return x, nil
}

// next returns the next reply that is no error.
func next(ctx context.Context, x *bus.Exchange) (*nats.Msg, error) {
	m, err := x.Next(ctx)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil, fmt.Errorf("move a payload: %w", context.Cause(ctx))
	case toolmesh.CodeOf(err) == toolmesh.CodeNodeLost:
		return nil, errSilent
	case err != nil:
		return nil, err
	case bus.NoResponders(m):
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "no node moves payloads on %s: %w", m.Subject, nats.ErrNoResponders).WithOrigin(toolmesh.OriginMesh)
	}
	if h := codec.Header(m.Header); len(h[codec.HeaderErrorCode]) > 0 {
		return nil, codec.ParseReply(h, m.Data).Err
	}
	return m, nil
}

// where a value is asked about: at a node, or at any one.
func where(session subjects.SessionID, id subjects.PayloadID, at subjects.NodeID) (subject string, err error) {
	to := subjects.Subject{Kind: subjects.KindPayload, Session: session, Payload: id}
	if at != "" {
		to.Kind, to.Node = subjects.KindNodePayload, at
	}
	subject, err = to.Build()
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return subject, nil
}

func ask(verb codec.PayloadVerb) nats.Header {
	return nats.Header{codec.HeaderPayload: {string(verb)}}
}

// put stores a value once.
func put(ctx context.Context, b *bus.Bus, session subjects.SessionID, at subjects.NodeID, r io.Reader, size int64) (*codec.Ref, error) {
	id, _, err := NewName(session)
	if err != nil {
		return nil, err
	}
	subject, err := where(session, id, at)
	if err != nil {
		return nil, err
	}
	x, err := exchange(b, window+8)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	if err := x.Send(&nats.Msg{Subject: subject, Header: ask(codec.PayloadPut), Data: codec.Encode(codec.PayloadPutRequest{Size: size})}, nil); err != nil {
		return nil, err
	}
	m, err := next(ctx, x)
	if errors.Is(err, nats.ErrNoResponders) && at == "" {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the value has %d bytes, the broker takes %d in a message, and there is no node that takes larger ones: send less", size, b.MaxPayload()).
			WithOrigin(toolmesh.OriginCaller).WithDetail("limit", b.MaxPayload()).WithDetail("size", size)
	}
	if err != nil {
		return nil, err
	}
	taker, err := codec.ParsePayloadTaker(m.Data)
	if err != nil {
		return nil, err
	}
	if subject, err = where(session, id, taker.Node); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "%w", err)
	}
	whole := false
	defer func() {
		if !whole {
			remove(b, subject)
		}
	}()
	sum := sha256.New()
	sent, stored := 0, 0
	err = pieces(r, store.Of(b).PieceBytes(), func(piece []byte) error {
		for ; sent-stored >= window; stored++ {
			if _, err := next(ctx, x); err != nil {
				return err
			}
		}
		sent++
		sum.Write(piece)
		h := ask(codec.PayloadPiece)
		h[codec.HeaderSeq] = []string{strconv.Itoa(sent)}
		return x.Send(&nats.Msg{Subject: subject, Header: h, Data: piece}, nil)
	})
	if err != nil {
		return nil, err
	}
	digest := codec.DigestText(sum.Sum(nil))
	h := ask(codec.PayloadEnd)
	h[codec.HeaderDigest] = []string{digest}
	if err := x.Send(&nats.Msg{Subject: subject, Header: h}, nil); err != nil {
		return nil, err
	}
	for {
		m, err := next(ctx, x)
		if err != nil {
			return nil, err
		}
		if name := m.Header[codec.HeaderRef]; len(name) > 0 {
			whole = true
			return &codec.Ref{Name: name[0], Digest: digest}, nil
		}
	}
}

// Get writes the payload of a session's reference to w. It asks again for lost parts. The errors
// are invalid_request if the payload was removed or altered (details.reason), unavailable,
// permission_denied, that of w, and that of ctx; w may then have a part of it or wrong bytes. at is
// the node to ask first, as it may hold the payload in memory; empty for any.
func Get(ctx context.Context, b *bus.Bus, session subjects.SessionID, at subjects.NodeID, ref *codec.Ref, w io.Writer) error {
	id, err := ref.Payload(session)
	if err != nil {
		return err
	}
	g := &getting{b: b}
	if g.subject, err = where(session, id, at); err == nil {
		g.shared, err = where(session, id, "")
	}
	if err != nil {
		return err
	}
	sum := sha256.New()
	defer g.close()
	for !g.high.Terminal {
		page, err := g.page(ctx)
		if err != nil {
			return err
		}
		if v, ok := w.(*Memory); ok {
			if err := v.reserve(g.size, page); err != nil {
				return err
			}
		}
		for _, piece := range page {
			sum.Write(piece)
			if _, err := w.Write(piece); err != nil {
				return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the payload cannot be written: %w", err).WithOrigin(toolmesh.OriginCaller)
			}
		}
	}
	if got := codec.DigestText(sum.Sum(nil)); got != ref.Digest {
		return altered(ref, got)
	}
	return nil
}

// maxGrow is how many bytes a node is believed that a value has before they come.
const maxGrow = 1 << 30

// getting is a value that is being read.
type getting struct {
	b       *bus.Bus
	subject string
	shared  string     // the subject on which any node answers
	high    codec.High // of the last page
	count   int        // pieces that have come
	size    int64      // of the value, as the node says

	next *bus.Exchange // in which the next page is on its way; nil: it is to be asked for
}

func (g *getting) close() {
	if g.next != nil {
		g.next.Close()
		g.next = nil
	}
}

// page reads one page, whole or not at all, and requests the next one, so that it arrives while
// this one is written.
func (g *getting) page(ctx context.Context) (page [][]byte, err error) {
	err = retried(ctx, again, func(n int) (err error) {
		if n > 0 {
			g.subject = g.shared
		}
		if err := g.ask(); err != nil {
			return err
		}
		page, err = g.read(ctx)
		g.close()
		return err
	})
	if err == nil && !g.high.Terminal {
		_ = g.ask() // else the next page is asked for when its turn comes
	}
	return page, err
}

// ask asks for the next page, unless it is on its way.
func (g *getting) ask() error {
	if g.next != nil {
		return nil
	}
	x, err := exchange(g.b, maxParts+8)
	if err != nil {
		return err
	}
	h := ask(codec.PayloadGet)
	h[codec.HeaderCount] = []string{strconv.Itoa(g.count)}
	if err := x.Send(&nats.Msg{Subject: g.subject, Header: h, Data: codec.Encode(codec.ReplayRequest{FromSeq: g.high.Seq + 1, MaxBytes: pageBytes})}, nil); err != nil {
		x.Close()
		return err
	}
	g.next = x
	return nil
}

func (g *getting) read(ctx context.Context) ([][]byte, error) {
	var page [][]byte
	for {
		m, err := next(ctx, g.next)
		if err != nil {
			return nil, err
		}
		if len(m.Data) > 0 {
			page = append(page, m.Data)
			if n := m.Header.Get(codec.HeaderSeq); n != strconv.Itoa(len(page)) {
				return nil, lostPiece(n)
			}
			continue
		}
		high, err := codec.ParseHigh(m.Header.Get(codec.HeaderHigh))
		if err != nil {
			return nil, err
		}
		if n := m.Header.Get(codec.HeaderCount); n != strconv.Itoa(g.count+len(page)) || len(page) == 0 && !high.Terminal {
			return nil, lostPiece(n)
		}
		g.high, g.count = high, g.count+len(page)
		g.size, _ = strconv.ParseInt(m.Header.Get(codec.HeaderSize), 10, 64)
		return page, nil
	}
}

func lostPiece(n string) error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "a piece of the payload was lost on its way, before number %s", n).WithOrigin(toolmesh.OriginMesh)
}

// Memory is where [Get] reads a value into memory.
type Memory struct {
	bytes.Buffer
	// Admit is called with the number of bytes before they are read. Its error is that of Get. nil admits any number.
	Admit    func(bytes int64) error
	admitted int64
}

// reserve makes room for the bytes that the value is said to have, and for those of a page if these are more.
func (v *Memory) reserve(said int64, page [][]byte) error {
	more := int64(v.Len())
	for _, piece := range page {
		more += int64(len(piece))
	}
	if more = max(more, min(said, maxGrow)) - v.admitted; more <= 0 {
		return nil
	}
	if v.Admit != nil {
		if err := v.Admit(more); err != nil {
			return err
		}
	}
	v.admitted += more
	v.Grow(int(more))
	return nil
}

// Delete deletes the payload of a reference. It waits for no answer: a payload that is not deleted
// expires. at is the node that may hold it in memory; empty for any.
func Delete(b *bus.Bus, session subjects.SessionID, at subjects.NodeID, ref *codec.Ref) {
	id, err := ref.Payload(session)
	if err != nil {
		return
	}
	if subject, err := where(session, id, at); err == nil {
		remove(b, subject)
	}
}

// remove asks for a deletion without waiting for the answer.
func remove(b *bus.Bus, subject string) {
	if !b.Connected() {
		return
	}
	c, err := b.Open(func(*nats.Msg, error) {})
	if err != nil {
		return
	}
	_ = c.Send(&nats.Msg{Subject: subject, Header: ask(codec.PayloadDelete)}) // a lost message leaves it to a timeout
	c.Close()
}
