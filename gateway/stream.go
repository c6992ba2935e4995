package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// keepalive is the interval of keepalives on a quiet stream.
const keepalive = 15 * time.Second

// stream answers a call with its items as they arrive. An error means that the call was not begun.
func (q *request) stream(in *call, lines bool) error {
	done, err := q.l.take(streamsOpen, 1)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(q.r.Context()))
	defer cancel(nil)
	// A reader that disconnects may come back, and may read on at another gateway if this one stops. So the gateway
	// leaves the stream. Only the end of the token cancels it.
	leave := func() { cancel(client.ErrLeft) }
	defer context.AfterFunc(q.r.Context(), leave)()
	defer context.AfterFunc(q.l.ctx, func() {
		if why := context.Cause(q.l.ctx); errors.Is(why, errRevoked) {
			cancel(why)
		}
		leave()
	})()
	out := &streamWriter{w: q.w, in: in, lines: lines, leave: leave}
	in.admit, in.release = q.l.bounded()
	defer in.release()
	err = out.copy(q.c.Stream(ctx, in.tool, in.args, in.options()...))
	if err != nil && !out.begun && in.mend(ctx, q.c, q.l, err) {
		err = out.copy(q.c.Stream(ctx, in.tool, in.args, in.options()...))
	}
	out.ended(q.l.why(err))
	return nil
}

// errLeaving ends the reading of a stream when the gateway stops.
var errLeaving = toolmesh.Errorf(toolmesh.CodeUnavailable, "the gateway stops, the stream goes on: continue it within 10 seconds at GET /v1/calls/{rpc_id}/stream of any gateway").
	WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedUnknown)

// why returns the error that ended a stream: that of the link, if the link has ended, else err.
func (l *link) why(err error) error {
	switch ended := context.Cause(l.ctx); {
	case err == nil || ended == nil:
		return l.hide(err)
	case errors.Is(ended, errRevoked):
		return ended
	}
	return errLeaving
}

// followStream answers GET /v1/calls/{rpc_id}/stream.
func (q *request) followStream() (any, error) {
	in := &call{rpc: subjects.RPCID(q.r.PathValue("rpc_id"))}
	from, err := startOf(q.r)
	if err != nil {
		return nil, err
	}
	done, err := q.l.take(streamsOpen, 1)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithCancelCause(q.ctx)
	defer cancel(nil)
	out := &streamWriter{w: q.w, in: in, lines: accepts(q.r, "application/x-ndjson"), leave: func() { cancel(client.ErrLeft) }, count: from - 1}
	in.admit, in.release = q.l.bounded()
	defer in.release()
	out.ended(q.l.why(out.copy(q.c.Follow(ctx, in.rpc, from, client.Admit(in.admit)))))
	return nil, nil
}

// startOf returns the number of the item that a reader resumes at.
func startOf(r *http.Request) (int64, error) {
	name, text, first := "from", r.URL.Query().Get("from"), int64(1)
	if text == "" {
		name, text, first = "Last-Event-ID", r.Header.Get("Last-Event-ID"), 0 // the next item is wanted
	}
	if text == "" {
		return 1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < first || n == math.MaxInt64 {
		return 0, refused(toolmesh.CodeInvalidRequest, "%s is %q: it is the number of an item, from %d on", name, text, first)
	}
	return n + 1 - first, nil
}

// streamWriter writes the items of one stream as events or as lines.
type streamWriter struct {
	w     http.ResponseWriter
	in    *call
	lines bool
	leave func() // called when the reader has disconnected
	count int64  // the number of the last item

	mu    sync.Mutex // keeps keepalives out of events
	begun bool       // the header is sent
	gone  bool
}

// during runs do and writes keepalives until it returns.
func (s *streamWriter) during(do func() error) error {
	var timer *time.Timer // nil once do has returned
	s.mu.Lock()
	timer = time.AfterFunc(keepalive, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if timer != nil {
			s.keep()
			timer.Reset(keepalive)
		}
	})
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		timer.Stop()
		timer = nil
	}()
	return do()
}

// copy writes all items and returns the error that ended them.
func (s *streamWriter) copy(items iter.Seq2[client.Chunk, error]) error {
	return s.during(func() error {
		for chunk, err := range items {
			if err != nil {
				return err
			}
			s.count, chunk.Data = chunk.Seq, oneLine(withHrefs(chunk.Data))
			if s.lines {
				s.write("", fmt.Appendf(nil, `{"seq":%d,"data":%s}`, chunk.Seq, chunk.Data))
			} else {
				s.write(fmt.Sprintf("id: %d\nevent: item\n", chunk.Seq), chunk.Data)
			}
			s.in.release()
			// A failed write does not end the stream; leave does.
		}
		return nil
	})
}

// keep writes a comment, so that no proxy takes the connection for dead; s.mu is held. Lines have no comments:
// there it sends only the header, with the call's id.
func (s *streamWriter) keep() {
	if s.lines {
		s.send(nil)
	} else {
		s.send([]byte(": keepalive\n\n"))
	}
}

// write writes one event with its head, or one line. The data has no line breaks.
func (s *streamWriter) write(head string, data []byte) {
	form := "%sdata: %s\n\n"
	if s.lines {
		form = "%s%s\n"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(fmt.Appendf(nil, form, head, data))
}

// send sends bytes; s.mu is held.
func (s *streamWriter) send(data []byte) {
	if s.gone {
		return
	}
	s.begin()
	_, err := s.w.Write(data)
	if err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	if err != nil {
		s.gone = true
		s.leave()
	}
}

// begin sends the header; s.mu is held.
func (s *streamWriter) begin() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.in.headers(s.w)
	kind := "text/event-stream"
	if s.lines {
		kind = "application/x-ndjson"
	}
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

// ended writes the end of a stream of items.
func (s *streamWriter) ended(err error) {
	complete := `{"count":%d}`
	if s.lines {
		complete = `{"complete":true,"count":%d}`
	}
	s.end(err, fmt.Appendf(nil, complete, s.count))
}

// end writes the end of a stream. A failure before the first byte is an ordinary answer.
func (s *streamWriter) end(err error, complete []byte) {
	switch {
	case s.gone || errors.Is(err, client.ErrLeft):
	case err != nil && !s.begun:
		failCall(s.w, err, s.in)
	case err != nil && s.lines:
		line, _ := tool.MarshalPlain(map[string]*toolmesh.Error{"error": toolmesh.AsError(err)})
		s.write("", line)
	case err != nil:
		s.write("event: problem\n", problemOf(err, s.in.rpc).encode())
	case s.lines:
		s.write("", complete)
	default:
		s.write("event: complete\n", complete)
	}
}

// oneLine replaces line breaks of JSON with spaces: they would end an event's data. Texts in JSON contain none.
func oneLine(data json.RawMessage) json.RawMessage {
	if data = orNull(data); bytes.ContainsAny(data, "\n\r") {
		data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
	}
	return data
}
