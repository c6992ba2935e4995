package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// minArgsRoom is the least memory for arguments of calls on a node, in bytes; each slot adds
	// argsPerSlot.
	minArgsRoom = 256 << 20
	argsPerSlot = 2 << 20
	// smallArgs are arguments that count nothing.
	smallArgs = 16 << 10
	// deletesAtOnce is how many arguments by reference are deleted at once, and deletesWait how
	// many wait for that.
	deletesAtOnce = 8
	deletesWait   = 4096
)

// arguments reads the arguments of a call, from the request or by reference, and checks them.
// Until the call ends they count towards its session's share of the room for arguments, so that a
// call that waits for a lane, a key, a worker or an equal call holds no more.
func (r *runner) arguments(c *inflight) (args json.RawMessage, bad *toolmesh.Error) {
	req := c.Request
	if req.Ref != nil {
		var err error
		args, err = r.payloads.Load(&c.ctx, req.Session, req.Ref, func(size int64) error { return r.holdArgs(c, size) })
		if err != nil {
			return nil, admit.Refusal(err).WithStarted(toolmesh.StartedNo)
		}
		if len(bytes.TrimSpace(args)) == 0 {
			args = json.RawMessage("{}")
		}
	}
	c.heavily(func() {
		err := c.bind()
		if err == nil {
			if req.Ref == nil {
				args = c.args
			}
			err = c.tool.validator.Validate(args)
		}
		if err != nil {
			bad = admit.Refusal(err)
		}
	})
	return args, bad
}

// holdArgs takes room for arguments of a size.
func (r *runner) holdArgs(c *inflight, size int64) error {
	most, account := c.tool.maxArgs, c.account()
	switch {
	case most > 0 && size > most:
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the arguments have %d bytes, the max is %d", size, most).WithDetail("limit", most).WithDetail("size", size)
	case size <= smallArgs || c.held > 0 || c.Local: // of one that has them in any case
	case !r.args.Take(account, size):
		return r.noRoom(account)
	default:
		c.held = size
	}
	return nil
}

// noRoom refuses arguments that an account has no more room for.
func (r *runner) noRoom(account subjects.SessionID) *toolmesh.Error {
	who := fmt.Sprintf("session %q", account)
	if account == "" {
		who = "sessions that were not created, together,"
	}
	return admit.Refusal(toolmesh.Errorf(toolmesh.CodeBusy, "calls of %s hold their share of the %d bytes for arguments on node %s: try again later, or on another node", who, r.args.Limit(), r.node)).
		WithDetail("limit", "arguments").WithDetail("max", r.args.Limit()).WithDetail("retry_after_ms", r.retryAfter(nil).Milliseconds())
}

// account returns the account whose share the call uses.
func (c *inflight) account() subjects.SessionID { return subjects.Account(c.Request.Session, c.epoch) }

// release deletes the arguments of a call that came by reference, once it has ended and
// its caller cannot send it again: for a repetition their digest is enough.
func (r *runner) release(call *admit.Running[*inflight], record admit.Record) {
	if call.Full == nil {
		r.spendFor(call.Value.Request, record.Err)
	}
}

// spendFor is spend, unless the call's error allows to send it again with the same arguments.
func (r *runner) spendFor(req *codec.Request, e *toolmesh.Error) {
	switch {
	case e == nil || e.Started == toolmesh.StartedYes && e.Code != toolmesh.CodeWorkerCrashed && e.Code != toolmesh.CodeNodeLost:
	case e.Started != toolmesh.StartedNo || e.Retryable || e.Code == toolmesh.CodeToolNotFound:
		return // the client deletes them, or they expire
	}
	r.spend(req)
}

// spend has the stored arguments of a request deleted, which no call reads any more. Where too many
// wait for that they expire by themselves.
func (r *runner) spend(req *codec.Request) {
	if req.Ref == nil {
		return
	}
	r.deletes.Do(r.sessions.Account(req.Session), func() {
		if err := r.payloads.Delete(r.base, req.Ref.Name); err != nil {
			r.log.Debug("the arguments of a call expire by themselves", slog.String("error", err.Error()))
		}
	})
}
