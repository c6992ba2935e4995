package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/host/stream"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
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

const (
	// minArgsRoom is what a node holds of arguments of its calls at least, in bytes; for
	// each slot it holds argsPerSlot.
	minArgsRoom = 256 << 20
	argsPerSlot = 2 << 20
	// smallArgs are arguments that count nothing.
	smallArgs = 16 << 10
)

// arguments reads the arguments of a call, from wherever they are, and checks them. Until
// the call ends they are a part of what its session may have here: a call that waits for a
// lane, a key, a worker or an equal call holds no more.
func (h *Host) arguments(c *inflight) (args, varArgs json.RawMessage, bad *toolmesh.Error) {
	req := c.Request
	if req.Ref != nil {
		var err error
		args, err = h.payloads.Load(&c.ctx, req.Session, req.Ref, func(size int64) error { return h.holdArgs(c, size) })
		if err != nil {
			return nil, nil, refusal(err).WithStarted(toolmesh.StartedNo)
		}
		if len(bytes.TrimSpace(args)) == 0 {
			args = json.RawMessage("{}")
		}
	}
	c.heavily(func() {
		var err error
		if args == nil {
			args, varArgs, err = c.bind()
		}
		if err == nil {
			err = c.tool.validator.Validate(args)
		}
		if err != nil {
			bad = refusal(err)
		}
	})
	return args, varArgs, bad
}

// holdArgs takes room for arguments of a size.
func (h *Host) holdArgs(c *inflight, size int64) error {
	most, account := c.tool.maxArgs, c.account()
	switch {
	case most > 0 && size > most:
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the arguments are %d bytes, more than %d", size, most).WithDetail("limit", most).WithDetail("size", size)
	case size <= smallArgs || c.held > 0 || c.Local != nil: // of one that has them in any case
	case !h.args.Take(account, size):
		return h.noRoom(account)
	default:
		c.held = size
	}
	return nil
}

// noRoom refuses arguments that an account has no more room for.
func (h *Host) noRoom(account subjects.SessionID) *toolmesh.Error {
	who := fmt.Sprintf("session %q", account)
	if account == "" {
		who = "sessions that nobody created, together,"
	}
	return refusal(toolmesh.Errorf(toolmesh.CodeBusy, "calls of %s hold their part of the %d bytes of arguments that node %s has room for: try again, or another node", who, h.args.Limit(), h.node)).
		WithDetail("limit", "arguments").WithDetail("max", h.args.Limit()).WithDetail("retry_after_ms", h.retryAfter(nil).Milliseconds())
}

// account is whose part of the node a session has, as far as the view knows.
func (h *Host) account(session subjects.SessionID) subjects.SessionID {
	epoch, _ := h.known(session, false)
	return subjects.Account(session, epoch)
}

// account is whose part of the node the call takes.
func (c *inflight) account() subjects.SessionID { return subjects.Account(c.Request.Session, c.epoch) }

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
	account := h.account(session)
	err := h.payloads.Room(h.base, account, int64(len(value)))
	var ref *codec.Ref
	if err == nil {
		ref, err = payloads.Store(h.base, store.Of(h.bus), session, account, bytes.NewReader(value), h.opts.PayloadMax)
	}
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
		if _, err := store.Of(h.bus).Payload(h.base, record.Ref.Name); err != nil && !errors.Is(err, store.ErrNoKey) {
			return admit.Record{Err: toolmesh.Errorf(toolmesh.CodeUnavailable, "call %q has run, and the store that has its result does not answer: %w", r.Request.RPCID, err).
				WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)}
		} else if err != nil {
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
	if call.Full == nil {
		h.spendFor(call.Value.Request, record.Err)
	}
}

// spendFor is spend unless a call that has ended with an error may be sent again with the
// same arguments.
func (h *Host) spendFor(req *codec.Request, e *toolmesh.Error) {
	switch {
	case e == nil || e.Started == toolmesh.StartedYes && e.Code != toolmesh.CodeWorkerCrashed && e.Code != toolmesh.CodeNodeLost:
	case e.Started != toolmesh.StartedNo || e.Retryable || e.Code == toolmesh.CodeToolNotFound:
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
