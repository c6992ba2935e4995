package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// target is where one attempt goes.
type target struct {
	id     subjects.ToolID
	node   *bus.Peer // nil: the queue group
	seat   *seat     // of node, where the client has chosen it; else nil
	choice bool      // there are others
	batch  bool      // of no tool
}

// How often a call that did not start is sent again, except for want of room.
const (
	maxAttempts = 6
	maxLosses   = subjects.MaxAgain    // of them after its node was lost
	firstPause  = 5 * time.Millisecond // doubles, with jitter
	// roomWait is for how long a call waits for room that has no time of its own.
	roomWait = 30 * time.Second
)

// final is an error after which the call must not be sent again, whatever its Started is: the
// caller has seen some of the answer.
type final struct{ err error }

func (f final) Error() string { return f.err.Error() }
func (f final) Unwrap() error { return f.err }

// attempts sends a call until its answer is other than "not here, not now". It sends again only a
// call that provably did not start, or an idempotent one. Once an attempt may have run, no error
// says that the call has not started: the last attempt speaks for itself only.
func (c *Client) attempts(ctx context.Context, name subjects.ToolID, s *settings, send func(target) error) error {
	ran := toolmesh.StartedNo
	err := c.tries(ctx, name, s, func(t target) error {
		err := send(t)
		if e := toolmesh.AsError(err); err != nil && e.Started != toolmesh.StartedNo && ran != toolmesh.StartedYes {
			ran = e.Started
		}
		return err
	})
	if e := toolmesh.AsError(err); err != nil && e.Started == toolmesh.StartedNo {
		return e.WithStarted(ran)
	}
	return err
}

func (c *Client) tries(ctx context.Context, name subjects.ToolID, s *settings, send func(target) error) error {
	id := c.shared.routes.alias(s.Session, name)
	resolved, queueOnly, lost, first := false, s.queue, 0, s.RPCID
	reason := "" // why no node serves the tool
	room := newRoom(ctx, s)
	for n := 1; ; n++ {
		t := target{id: id}
		if !queueOnly {
			if t.seat, t.choice = c.pick(s.Session, id); t.seat != nil {
				t.node = t.seat.Peer
			}
			if at := s.first; n == 1 && at != nil && at.Usable() {
				t.node, t.seat = at, nil
			}
		}
		if t.node != nil {
			t.node.Outstanding.Add(1)
		}
		sent := time.Now()
		err := send(t)
		if t.node != nil {
			t.node.Outstanding.Add(-1)
		}
		if err == nil {
			return nil
		}
		if f, ok := errors.AsType[final](err); ok {
			return f.err
		}
		e := toolmesh.AsError(err)
		if t.seat != nil && busy(e) && !codec.NodeBusy(e) && c.refused(routeKey{s.Session, id}, t.seat, e) && ctx.Err() == nil && n < maxAttempts {
			continue // another one has room, perhaps
		}
		if room.wait(ctx, s, e) {
			n--
			continue
		}
		if ctx.Err() != nil || n >= maxAttempts {
			if errors.Is(err, errNoResponders) {
				return unserved(id, reason)
			}
			return err
		}
		switch {
		case e.Details["waited_ms"] != nil:
			return err // it has waited for as long as routers have it wait
		case codec.StateGone(e):
			return err // the caller is to know: the next call would find a new worker
		case errors.Is(err, errNoResponders) && t.node != nil:
			c.shared.routes.forget(s.Session, id, t.node.ID)
			queueOnly = true
		case errors.Is(err, errNoResponders):
			if resolved {
				return unserved(id, reason)
			}
			resolved = true
			other, why, err := c.resolve(ctx, s.Session, name)
			if err != nil {
				return err
			}
			reason = why
			if other == id {
				return unserved(id, reason)
			}
			c.shared.routes.setAlias(s.Session, name, other)
			id, queueOnly = other, s.queue
		case e.Started == toolmesh.StartedNo && e.Code == toolmesh.CodeToolNotFound && t.node != nil,
			e.Started == toolmesh.StartedNo && e.Code == toolmesh.CodeUnavailable && e.Origin != toolmesh.OriginCaller:
			if t.node != nil {
				c.shared.routes.forget(s.Session, id, t.node.ID)
				queueOnly = true
			} else if !pause(ctx, firstPause, n) {
				return err
			}
		case busy(e):
			if s.noWait || passes(e) || !pause(ctx, firstPause, n) {
				return err
			}
		case lost < maxLosses && (e.Code == toolmesh.CodeNodeLost || e.Details["reason"] == bus.ReasonCut), lost == 0 && e.Code == toolmesh.CodeWorkerCrashed:
			lost++
			if t.node != nil {
				c.shared.routes.forget(s.Session, id, t.node.ID)
			}
			// The broker may still choose a node that has frozen: the registry knows better.
			asking, cancel := ctx, context.CancelFunc(func() {})
			if e.Code == toolmesh.CodeNodeLost {
				asking, cancel = context.WithTimeout(ctx, lostAsk)
			}
			declared, others := c.declaredIdempotent(asking, routeKey{s.Session, id}, sent)
			cancel()
			if e.Started != toolmesh.StartedNo && !declared && !s.idempotent && s.IdempotencyKey == "" {
				return err
			}
			queueOnly = !others && queueOnly
			s.RPCID = first.Again(lost)
		default:
			return err
		}
	}
}

// pause waits behind the n-th attempt, longer each time. It reports false if ctx ends first.
func pause(ctx context.Context, first time.Duration, n int) bool {
	d := first << min(n-1, 5)
	d = d/2 + rand.N(d)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return false
	}
	return wake.After(ctx, d)
}

// busy reports whether a call was refused for want of room: it may be sent again.
func busy(e *toolmesh.Error) bool {
	return e.Started == toolmesh.StartedNo && e.Code == toolmesh.CodeBusy
}

// passes reports whether the cause of a refusal passes by itself, so that waiting helps.
func passes(e *toolmesh.Error) bool {
	return busy(e) && (e.RetryAfter() > 0 || e.Details["limit"] == toolmesh.LimitSlots)
}

// room waits until nodes that were full have room, within the time of one call.
type room struct {
	until time.Time
	n     int // how often it has waited
}

func newRoom(ctx context.Context, s *settings) room {
	if deadline, ok := ctx.Deadline(); ok && s.Timeout == 0 {
		return room{until: deadline}
	}
	return room{until: time.Now().Add(cmp.Or(s.Timeout, roomWait))}
}

// wait returns when a call that was refused for want of room may be sent again, with the rest of
// its time as timeout. It waits as long as the node says, and up to half of that again, so that
// refused calls do not return together. It reports false at once if waiting does not help, or if
// the call has not that much time.
func (r *room) wait(ctx context.Context, s *settings, e *toolmesh.Error) bool {
	left := time.Until(r.until)
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	// A node that does not pass calls on does not say how long: another one may have room.
	d := cmp.Or(e.RetryAfter(), firstPause<<min(r.n, 7))
	r.n++
	// Calls above this one hold their own arguments, and the room of their keys, until they end: they could wait for
	// one another.
	circle := s.Depth > 0 && (e.Details["limit"] == "arguments" || e.Details["limit"] == "keys_max")
	if s.noWait || circle || !passes(e) || left <= d || !wake.After(ctx, d+rand.N(min(d, left-d)/2+1)) {
		return false
	}
	if s.Timeout > 0 {
		s.Timeout = max(time.Until(r.until), time.Millisecond)
	}
	return true
}

// errNoResponders is NATS's 503: the request met no subscription.
var errNoResponders = callerError(toolmesh.CodeUnavailable, "no node serves the tool")

func unserved(id subjects.ToolID, reason string) error {
	if reason == "" {
		reason = "it is known, but no node serves it now"
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "tool %q cannot be called: %s", id, reason).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}
