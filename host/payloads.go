package host

import (
	"bytes"
	"encoding/json"
	"log/slog"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/host/stream"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/subjects"
)

// admitsSession says why nothing large is taken for a session; nil if it may be.
func (h *Host) admitsSession(session subjects.SessionID) error {
	if _, sure := h.known(session, true); sure {
		return nil
	}
	_, err := h.epoch(h.base, session)
	return err
}

// resolve reads the arguments of a call that came by reference.
func (h *Host) resolve(c *inflight) (json.RawMessage, *toolmesh.Error) {
	args, err := h.payloads.Load(&c.ctx, c.Request.Session, c.Request.Ref)
	if err != nil {
		return nil, refusal(err).WithStarted(toolmesh.StartedNo)
	}
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	return args, nil
}

// refer has a result that no message carries be read by reference. Beside that it stays in
// the call's record, for repetitions, if it is small enough for one.
func (h *Host) refer(session subjects.SessionID, record admit.Record) admit.Record {
	ref, err := h.keep(session, record.Result)
	if err != nil {
		return admit.Record{Err: err}
	}
	if record.Ref = ref; len(record.Result) > admit.MaxOneResult {
		record.Result = nil
	}
	return record
}

// keep stores what a tool has returned, for its caller.
func (h *Host) keep(session subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error) {
	ref, err := payloads.Store(h.base, h.bus, session, bytes.NewReader(value), h.opts.PayloadMax)
	if err != nil {
		e := toolmesh.AsError(err).WithStarted(toolmesh.StartedYes)
		if e.Origin == "" {
			e = e.WithOrigin(toolmesh.OriginAgent)
		}
		return nil, e
	}
	h.payloads.Hold(ref, value)
	return ref, nil
}

// resultSize is how many bytes a result has.
func resultSize(record admit.Record) int64 {
	if record.Ref != nil {
		return record.Ref.Size
	}
	return int64(len(record.Result))
}

// anew is what a repetition of a call gets whose result went by reference: the first
// caller's object is deleted when that has read it.
func (h *Host) anew(r *stream.Reader, record admit.Record) admit.Record {
	switch {
	case !r.Request.AcceptRef:
	case record.Result != nil:
		return h.refer(r.Request.Session, record)
	default:
		if _, err := h.bus.Payload(h.base, record.Ref.Name); err != nil {
			return admit.Record{Err: toolmesh.Errorf(toolmesh.CodeInvalidRequest,
				"call %q has already run, and its result, of %d bytes, has been read and is no longer kept: use a new rpc_id to run it again", r.Request.RPCID, record.Ref.Size).
				WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent).WithDetail("reason", payloads.ReasonGone)}
		}
	}
	return record
}

// release deletes the arguments of a call that came by reference, once it has ended and
// its caller cannot send it again: for a repetition their digest is enough.
func (h *Host) release(call *admit.Call[*inflight], record admit.Record) {
	req := call.Value.Request
	if req.Ref == nil || call.Full != nil {
		return
	}
	if e := record.Err; e != nil && (e.Started != toolmesh.StartedYes || mayRepeat(e.Code)) {
		return // the client sees to it, or they expire
	}
	h.spend(req)
}

// spend has the arguments of a request deleted that nobody reads any more: in a moment,
// as deleting holds up what the caller reads now.
func (h *Host) spend(req *codec.Request) {
	if req.Ref == nil {
		return
	}
	h.spentMu.Lock()
	defer h.spentMu.Unlock()
	h.spent = append(h.spent, req.Ref.Name)
}

// deleteSpent deletes what spend has noted; the ticker calls it.
func (h *Host) deleteSpent() {
	h.spentMu.Lock()
	names := h.spent
	h.spent = nil
	h.spentMu.Unlock()
	if len(names) == 0 {
		return
	}
	h.running.run(func() {
		for _, name := range names {
			if err := h.payloads.Delete(h.base, name); err != nil {
				h.log.Debug("the arguments of a call expire by themselves", slog.String("error", err.Error()))
			}
		}
	})
}
