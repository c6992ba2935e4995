package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
)

const (
	// directBatch and directBytes bound one request of a direct read, and so the memory for its
	// answer.
	directBatch = 512
	directBytes = 2 << 20
	// leastBytes is the min size that a request asks for.
	leastBytes = 128 << 10
	// headerStatus is set in messages of the server itself.
	headerStatus       = "Status"
	statusNoResponders = "503"
	// directTimeout is how long the next message of an answer may take.
	directTimeout = 5 * time.Second
)

// Query asks for stored messages of one stream. Exactly one of Subject and Last
// is set.
type Query struct {
	// Stream is the stream's name.
	Stream string
	// Subject selects messages, which are read in the order of storing; it may have wildcards.
	Subject string
	// Last asks for the last message of each of these subjects instead, which may
	// have wildcards: at most 1,024 messages in all, more is an error.
	Last []string
	// From is the first sequence of interest, with Subject. Defaults to 1.
	From uint64
	// UpTo is the last sequence of interest, with Subject. Defaults to all.
	UpTo uint64
	// First is the number of messages of the first request; each further request has twice as
	// many, up to 512. The broker sends all of them, also to a reader that has stopped: begin
	// with few if you may stop early. Defaults to 512.
	First int
	// Bytes is the max size of one answer, for messages that are all large. Defaults to 2 MB.
	Bytes int
}

// Stored is one stored message.
type Stored struct {
	Subject string
	// Seq is its sequence in the stream.
	Seq uint64
	// Time is when it was stored, by the broker's clock.
	Time time.Time
	// Pending is the number of further messages of the query on the server that answered.
	Pending uint64
	Header  nats.Header
	Data    []byte
}

// Read answers a query by batched direct gets: no consumer is made. It stops
// after the first error. Without messages the sequence is empty.
//
// Any replica answers, and one that lags has fewer messages: a caller that knows a later
// sequence reads again from the last message that it got.
func (st Store) Read(ctx context.Context, q Query) iter.Seq2[*Stored, error] {
	return func(yield func(*Stored, error) bool) {
		if err := st.read(ctx, q, yield); err != nil {
			yield(nil, err)
		}
	}
}

// directRequest is the body of a direct get.
type directRequest struct {
	Seq       uint64   `json:"seq,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

func (st Store) read(ctx context.Context, q Query, yield func(*Stored, error) bool) error {
	req := directRequest{Seq: max(q.From, 1), NextFor: q.Subject}
	if len(q.Last) > 0 {
		req = directRequest{MultiLast: q.Last}
	}
	ahead := min(cmp.Or(q.First, directBatch), directBatch)
	for ; ; ahead = min(2*ahead, directBatch) {
		req.Batch, req.MaxBytes = ahead, max(directBytes/directBatch*ahead, leastBytes, q.Bytes)
		var last *Stored
		stopped := false
		a, err := st.ask(q.Stream, req)
		if err != nil {
			return err
		}
		err = a.read(ctx, func(s *Stored) bool {
			if q.UpTo > 0 && s.Seq > q.UpTo {
				stopped = true
				return false
			}
			last = s
			stopped = !yield(s, nil)
			return !stopped
		})
		if err != nil || stopped || last == nil || last.Pending == 0 || q.UpTo > 0 && last.Seq >= q.UpTo {
			return err
		}
		req.Seq = last.Seq + 1
	}
}

// directHeaders are those that the server adds to the stored ones.
var directHeaders = []string{
	jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer, jetstream.SubjectHeader,
	jetstream.LastSequenceHeader, "Nats-Num-Pending",
}

// asked is one request of a direct read. Read it, or close its inbox.
type asked struct {
	stream string
	in     *bus.Inbox
	got    <-chan bus.Arrival
}

func (st Store) ask(stream string, req directRequest) (*asked, error) {
	body, _ := json.Marshal(req) // of texts and numbers
	a := &asked{stream: stream}
	var err error
	if a.in, a.got, err = st.Collect(max(req.Batch, 1) + 2); err != nil { // all of an answer: its messages and its end
		return nil, err
	}
	if err := a.in.Send(&nats.Msg{Subject: st.API() + "DIRECT.GET." + stream, Data: body}); err != nil {
		a.in.Close()
		return nil, err
	}
	return a, nil
}

// read calls next with the messages of the answer until its end, or until next returns false.
func (a *asked) read(ctx context.Context, next func(*Stored) bool) error {
	defer a.in.Close()
	timeout := time.NewTimer(directTimeout)
	defer timeout.Stop()
	for {
		select {
		case r := <-a.got:
			if r.Err != nil {
				return r.Err
			}
			if status := r.Msg.Header.Get(headerStatus); status != "" && r.Msg.Header.Get(jetstream.SequenceHeader) == "" {
				return directStatus(a.stream, status, r.Msg.Header.Get("Description"))
			}
			s, err := parseStored(r.Msg)
			if err != nil {
				return toolmesh.Errorf(toolmesh.CodeProtocolError, "direct get of %s: %w", a.stream, err)
			}
			if !next(s) {
				return nil
			}
			timeout.Reset(directTimeout)
		case <-timeout.C:
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "stream %s does not answer: %w; it has no leader, or the broker is too slow: try again", a.stream, nats.ErrTimeout).
				WithOrigin(toolmesh.OriginMesh)
		case <-ctx.Done():
			return fmt.Errorf("read stream %s: %w", a.stream, ctx.Err())
		}
	}
}

// Lookup asks for one stored message.
type Lookup struct {
	// Subject is the one that the message has.
	Subject string
	// From asks for the first message from that sequence on, 0 for the last one.
	From uint64
	// Pending asks for [Stored.Pending] too, with From: the broker counts for it.
	Pending bool
}

// Find answers lookups in one stream, nil for those without a message. They are sent together
// and in this order, so that the server has little time to store something in between.
func (st Store) Find(ctx context.Context, stream string, lookups ...Lookup) ([]*Stored, error) {
	all := make([]*asked, 0, len(lookups))
	defer func() {
		for _, a := range all {
			a.in.Close()
		}
	}()
	for _, l := range lookups {
		req := directRequest{Seq: max(l.From, 1), NextFor: l.Subject}
		switch {
		case l.From == 0:
			req = directRequest{MultiLast: []string{l.Subject}, Batch: 1}
		case l.Pending:
			req.Batch = 1
		}
		a, err := st.ask(stream, req)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	found := make([]*Stored, len(all))
	for i, a := range all {
		err := a.read(ctx, func(s *Stored) bool {
			found[i] = s
			return lookups[i].From == 0 || lookups[i].Pending // an end follows
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// directStatus reads the status message that ends an answer; nil for an end
// without fault.
func directStatus(stream, status, text string) error {
	switch status {
	case "204", "404": // end of the batch; nothing there
		return nil
	case statusNoResponders:
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "stream %s is not there or has no leader: %w", stream, nats.ErrNoResponders).
			WithOrigin(toolmesh.OriginMesh)
	case "413":
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "stream %s: more than 1,024 subjects match: ask for fewer at a time", stream).
			WithOrigin(toolmesh.OriginMesh)
	default:
		return toolmesh.Errorf(toolmesh.CodeInternal, "direct get of %s: %s %s", stream, status, text).WithOrigin(toolmesh.OriginMesh)
	}
}

func parseStored(m *nats.Msg) (*Stored, error) {
	h := m.Header
	seq, err := strconv.ParseUint(h.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("header %s: %w", jetstream.SequenceHeader, err)
	}
	at, err := time.Parse(time.RFC3339Nano, h.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return nil, fmt.Errorf("header %s: %w", jetstream.TimeStampHeaer, err)
	}
	pending, _ := strconv.ParseUint(h.Get("Nats-Num-Pending"), 10, 64)
	s := &Stored{Subject: h.Get(jetstream.SubjectHeader), Seq: seq, Time: at, Pending: pending, Data: m.Data, Header: h}
	for _, name := range directHeaders {
		h.Del(name)
	}
	return s, nil
}
