package host

import (
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// control serves a message on a ctl subject: it names a call by its subject.
func (h *Host) control(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if m.Reply != "" && !h.bus.MayAnswer(m, s.Session, h.opts.SessionCredentials) {
		h.refusedReplies.Add(1)
		return
	}
	if err != nil {
		return
	}
	var control codec.Control
	header, bad := bus.RequestHeader(m)
	if bad == nil {
		control, bad = codec.ParseControl(header, m.Data)
	}
	key := admit.Key{Session: s.Session, RPC: s.RPC}
	if bad != nil {
		if _, ok := h.calls.Lookup(key); ok && m.Reply != "" {
			header, body := codec.ErrorReply(refusal(bad))
			h.send(m.Reply, header, body)
		}
		return
	}
	if control.Type == codec.ControlCredit {
		if call, ok := h.calls.Lookup(key); ok {
			if running := call.Value.readers.Stream(); running != nil {
				running.Grant(control.Seq)
			}
		}
		return
	}
	if control.Type == codec.ControlRead {
		h.pacer.read(key)
		return
	}
	if control.Type == codec.ControlWhere {
		if m.Reply != "" && h.calls.Known(key) {
			h.send(m.Reply, nil, codec.Where{Node: h.node, Boot: h.boot}.Encode())
		}
		return
	}
	call, ok := h.calls.Cancel(key)
	if ok {
		call.Value.End(errCancelled)
	} else if batches := h.batches.Load(); batches == nil || !batches.Cancel(key) {
		return // silent: another node may have it
	}
	if m.Reply != "" {
		h.send(m.Reply, nil, codec.Cancelled{Cancelled: true}.Encode())
	}
}
