package host

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/toolmesh/toolmesh/codec"
)

// unarySink makes one result of the items that a handler sends: the last item, or a list of all.
type unarySink struct {
	collect bool
	items   int
	last    json.RawMessage
	list    bytes.Buffer
	cache   codec.CacheUse // where the result came from
	warning string         // the fault of the result, for people
}

// Send implements [Sink].
func (s *unarySink) Send(ctx context.Context, item json.RawMessage) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s.items++
	if !s.collect {
		s.last = item
		return nil
	}
	if s.items > 1 {
		s.list.WriteByte(',')
	} else {
		s.list.WriteByte('[')
	}
	s.list.Write(item)
	return nil
}

func (s *unarySink) result() json.RawMessage {
	switch {
	case s.collect && s.items == 0:
		return json.RawMessage("[]")
	case s.collect:
		return append(s.list.Bytes(), ']')
	case s.items == 0:
		return json.RawMessage("null")
	}
	return s.last
}

// SendResult implements [ResultSink].
func (s *unarySink) SendResult(ctx context.Context, result json.RawMessage) error {
	s.collect, s.items = false, 0
	return s.Send(ctx, result)
}
