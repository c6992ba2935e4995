package host

import (
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// control serves a message on a ctl subject, which names a call. It ignores messages for routers.
func (in *intake) control(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if m.Reply != "" && !in.bus.MayAnswer(m, s.Session) {
		in.counts.refusedReplies.Add(1)
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
	call, running := in.calls.Lookup(key)
	if bad != nil {
		if running && m.Reply != "" {
			header, body := codec.ErrorReply(admit.Refusal(bad))
			in.replies.Publish(m.Reply, header, body)
		}
		return
	}
	switch control.Type {
	case codec.ControlCredit:
		if running && call.Value.readers.Stream() != nil {
			call.Value.readers.Stream().Grant(control.Seq)
		}
	case codec.ControlRead:
		in.replies.Read(key)
	case codec.ControlWhere:
		at := codec.Where{Node: in.node, Boot: in.boot}
		if running {
			at.Tool = call.Value.tool.descriptor.ID
		}
		if m.Reply != "" && in.calls.Known(key) {
			in.replies.Publish(m.Reply, nil, codec.Encode(at))
		}
	case codec.ControlCancel:
		if in.cancel(key) && m.Reply != "" {
			in.replies.Publish(m.Reply, nil, codec.Encode(codec.Cancelled{Cancelled: true}))
		}
	}
}

// cancel ends the call or the batch of a key and its renewed attempts, and reports whether any of
// them runs here: if not, another node may have it.
func (in *intake) cancel(key admit.Key) bool {
	call, ok := in.calls.Cancel(key, in.sessions.Account(key.Session))
	if ok {
		call.Value.End(errCancelled)
	} else if batches := in.batches.Load(); batches != nil {
		ok = batches.Cancel(key)
	}
	for n := 1; n <= subjects.MaxAgain; n++ {
		key := admit.Key{Session: key.Session, RPC: subjects.WireName(key.RPC.Again(n))}
		if in.calls.Known(key) {
			call, runs := in.calls.Cancel(key, in.sessions.Account(key.Session))
			if ok = ok || runs; runs {
				call.Value.End(errCancelled)
			}
		}
	}
	return ok
}
