package host

import (
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
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
			header, body := codec.ErrorReply(admit.Refusal(bad))
			h.replies.Publish(m.Reply, header, body)
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
		h.replies.Read(key)
		return
	}
	if control.Type == codec.ControlWhere {
		if m.Reply != "" && h.calls.Known(key) {
			h.replies.Publish(m.Reply, nil, codec.Where{Node: h.node, Boot: h.boot}.Encode())
		}
		return
	}
	if control.Type != codec.ControlCancel {
		return // a router's
	}
	if h.cancel(key) && m.Reply != "" {
		h.replies.Publish(m.Reply, nil, codec.Cancelled{Cancelled: true}.Encode())
	}
}

// cancel ends the call or the batch of a key, and what was made anew of it, and reports
// whether any of that runs here: if not another node may have it.
func (h *Host) cancel(key admit.Key) bool {
	call, ok := h.calls.Cancel(key, h.sessions.Account(key.Session))
	if ok {
		call.Value.End(errCancelled)
	} else if batches := h.batches.Load(); batches != nil {
		ok = batches.Cancel(key)
	}
	for n := 1; n <= subjects.MaxAgain; n++ {
		key := admit.Key{Session: key.Session, RPC: subjects.WireName(key.RPC.Again(n))}
		if h.calls.Known(key) {
			call, runs := h.calls.Cancel(key, h.sessions.Account(key.Session))
			if ok = ok || runs; runs {
				call.Value.End(errCancelled)
			}
		}
	}
	return ok
}
