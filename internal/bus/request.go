package bus

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

// RequestHeader returns the headers of a request that was received. nats.go
// hands on a message whose header block it cannot read as one that has none:
// what the caller asked for there would be ignored, so it is invalid_request,
// with started:false and without an origin. Such a message is larger than what
// is left of it.
func RequestHeader(m *nats.Msg) (codec.Header, *toolmesh.Error) {
	if m.Header == nil && m.Size() > len(m.Subject)+len(m.Reply)+len(m.Data) {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the message's header block cannot be read: it is NATS/1.0, then lines of name: value").
			WithStarted(toolmesh.StartedNo)
	}
	return codec.Header(m.Header), nil
}

// ReadRequest reads a request that is no call into the struct that into points
// to; see [codec.ParseBody].
func ReadRequest(m *nats.Msg, into any) error {
	h, bad := RequestHeader(m)
	if bad == nil {
		bad = codec.ParseBody(h, m.Data, into)
	}
	if bad != nil {
		return bad
	}
	return nil
}

// MayAnswer is [subjects.ReplyAllowed] for a request of a session. Where it is
// false the request is refused without an answer, and the log says so.
func (b *Bus) MayAnswer(m *nats.Msg, session subjects.SessionID, sessionCredentials bool) bool {
	if subjects.ReplyAllowed(m.Reply, session, sessionCredentials) {
		return true
	}
	if n, due := b.refusals.due(time.Now()); due {
		b.log.Warn("request refused: its reply subject is no inbox", slog.String("subject", m.Subject), slog.Int64("refused", n))
	}
	return false
}

// seldom bounds how often the log tells of what others can bring about as often
// as they like: once a second. Its zero value is ready.
type seldom struct {
	last   atomic.Int64 // when it was told, unix ns
	untold atomic.Int64 // how often it happened since
}

// due counts one more, and returns whether to tell of it now, and of how many. A
// clock that was set back does not silence it.
func (s *seldom) due(now time.Time) (n int64, due bool) {
	s.untold.Add(1)
	last := s.last.Load()
	if since := now.UnixNano() - last; since >= 0 && since < int64(time.Second) {
		return 0, false
	}
	if !s.last.CompareAndSwap(last, now.UnixNano()) {
		return 0, false // another one tells, of this one too or the next time
	}
	return s.untold.Swap(0), true
}
