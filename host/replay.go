package host

import (
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

// maxReplays is how many replays are answered at once.
const maxReplays = 16

// replay answers a request for stored chunks, outside of the callback. So many
// at once that no more would help make the next ones wait.
func (h *Host) replay(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if !h.bus.MayAnswer(m, s.Session, h.opts.SessionCredentials) {
		h.refusedReplies.Add(1)
		return
	}
	if err != nil {
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	refuse := func(err error) {
		header, body := codec.ErrorReply(refusal(err))
		h.send(m.Reply, header, body)
	}
	if err != nil {
		refuse(err)
		return
	}
	select {
	case h.streams.Replays <- struct{}{}:
	case <-h.base.Done():
		return
	}
	h.running.run(func() {
		defer func() { <-h.streams.Replays }()
		epoch, sure := h.known(s.Session, true)
		if !sure {
			if epoch, err = h.epoch(h.base, s.Session); err != nil {
				refuse(err)
				return
			}
		}
		h.replayer.Answer(h.base, s, epoch, m)
	})
}

// replayed notes that somebody reads what is stored of a stream that this node has:
// any member of the mesh may have answered.
func (h *Host) replayed(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if err != nil {
		return
	}
	if call, ok := h.calls.Lookup(admit.Key{Session: s.Session, RPC: s.RPC}); ok {
		if running := call.Value.readers.Stream(); running != nil {
			running.Seen()
		}
	}
}
