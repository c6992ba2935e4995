package bus

import (
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// maxHeader bounds the header block of a request, in bytes. Values are parts of the block, so a
// waiting call that keeps one of them keeps all of it.
const maxHeader = 32 << 10

// RequestHeader returns the headers of a received request. nats.go delivers a message with an
// unreadable header block as one without headers: the caller's options would be ignored, so the
// error is invalid_request, with started:false and without an origin, as for a block that is too
// long. Such a message is larger than its remaining parts.
func RequestHeader(m *nats.Msg) (codec.Header, *toolmesh.Error) {
	size := m.Size() - len(m.Subject) - len(m.Reply) - len(m.Data)
	switch {
	case size > maxHeader:
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the message's header block has %d bytes, at most %d are possible", size, maxHeader).
			WithStarted(toolmesh.StartedNo)
	case m.Header == nil && size > 0:
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the message's header block cannot be read: it is NATS/1.0, then lines of name: value").
			WithStarted(toolmesh.StartedNo)
	}
	return codec.Header(m.Header), nil
}

// ReadRequest reads a request other than a call into the struct that into points
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

// MayAnswer is [subjects.ReplyAllowed] for a request of a session, whose caller may have the default
// inbox. Where it is false the request is refused without an answer, and the log says so.
func (b *Bus) MayAnswer(m *nats.Msg, session subjects.SessionID) bool {
	if subjects.ReplyAllowed(m.Reply, session, false) {
		return true
	}
	b.refusals.Do(func() {
		b.log.Warn("request refused: its reply subject is not an inbox", slog.String("subject", m.Subject))
	})
	return false
}

// answerRoom is left in a message with an answer, for headers and protocol.
const answerRoom = 1024

// Respond answers a request other than a call with a value as JSON, or with an error, whose origin
// is the mesh if it names none. A value that no message holds is payload_too_large.
func (b *Bus) Respond(m *nats.Msg, answer any, err error) {
	out := &nats.Msg{Subject: m.Reply}
	if err == nil {
		out.Data, err = tool.MarshalPlain(answer)
	}
	if most := b.MaxPayload() - answerRoom; err == nil && int64(len(out.Data)) > most {
		err = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the answer has %d bytes, a message of the broker at most %d", len(out.Data), most).WithStarted(toolmesh.StartedNo)
	}
	if e := toolmesh.AsError(err); e != nil {
		if e.Origin == "" {
			e = e.WithOrigin(toolmesh.OriginMesh)
		}
		header, body := codec.ErrorReply(e)
		out.Header, out.Data = nats.Header(header), body
	}
	if err := b.nc.PublishMsg(out); err != nil {
		b.log.Warn("answer to a request could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
	}
}
