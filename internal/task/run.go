package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// markAfter is how long a call takes before its task is said to run.
	markAfter = 100 * time.Millisecond
	// keepEvery is how often the broker is told that a task is worked on.
	keepEvery = ackWait / 3
	// keepRetry is the pause after the broker has not confirmed that a task is worked on.
	keepRetry = 500 * time.Millisecond
)

// Causes of the end of a run, other than the end of its service.
var (
	// errOver: the task has ended otherwise. Its call is cancelled.
	errOver = toolmesh.Errorf(toolmesh.CodeCancelled, "the task has ended")
	// errPast: another runner has the message, and makes the next attempt. The call of this
	// attempt is cancelled.
	errPast = toolmesh.Errorf(toolmesh.CodeCancelled, "the attempt is over")
	// errTaken: another runner has the message, or may have it. It has joined the call, and
	// settles the message.
	errTaken = fmt.Errorf("another runner has the task: %w", client.ErrLeft)
)

// run is one message of the queue that this runner works on.
type run struct {
	s       *Service
	session subjects.SessionID
	account subjects.SessionID // whose share it counts in
	id      subjects.RPCID
	key     string
	ctx     context.Context // of its call
	// leave ends it: with errTaken or client.ErrLeft the call goes on without this runner,
	// with anything else it is cancelled.
	leave context.CancelCauseFunc

	m    *nats.Msg
	kept time.Time // when the broker last confirmed that this runner works on the task

	pool string              // the pool whose node the task waits for; for the run's goroutine only
	told chan codec.Progress // capacity 1: how far the call is
}

// A message that is delivered again while its task runs here is ignored: the broker takes what one
// delivery is answered with for all of them. So a run is forgotten before it answers: what is
// delivered from then on begins another one.

// done removes the message. It is for tasks that have ended only: several runners may have a
// delivery of one message, and the acknowledgement of one takes it from all.
func (r *run) done() {
	r.s.exit(r)
	_ = r.m.Ack()
}

// again has the broker deliver the message again after a while, to any runner.
func (r *run) again(after time.Duration) {
	r.s.exit(r)
	_ = r.m.NakWithDelay(after)
}

// progress has the run write how far the call is. A report that comes before the last one is
// written is dropped.
func (r *run) progress(p codec.Progress) {
	select {
	case r.told <- p:
	default:
	}
}

// do makes one attempt, if the record says that one is due.
func (r *run) do() {
	s := r.s
	t, fresh := r.read()
	if t == nil {
		return
	}
	now := s.now()
	n := t.attempt()
	if now.After(t.expires()) || n > t.MaxAttempts {
		t.end(codec.TaskFailed, expired(&t.record, t.Error), now)
		r.settle(t, n, 0)
		return
	}
	var result *client.Result
	var err error
	if fresh {
		if why := r.await(t); why != nil {
			err = why
		} else {
			_, err = s.roomFor(r.ctx, r.session, room{bytes: resultBytes}, 1) // before the call begins
		}
	}
	if err == nil {
		result, err = r.call(t, n, fresh)
	}
	switch {
	case errors.Is(context.Cause(r.ctx), errTaken), errors.Is(context.Cause(r.ctx), errPast):
	case errors.Is(context.Cause(r.ctx), client.ErrLeft):
		if s.bus.Connected() {
			r.again(0)
		}
	case errors.Is(context.Cause(r.ctx), errOver):
		r.done()
	case lostConnection(err):
		// Whether the call goes on is unknown: the next runner joins it.
		r.again(firstBackoff)
	default:
		if t.Started.IsZero() {
			t.Started = now
		}
		before := t.record
		wait := t.after(n, result, err, s.now())
		if t.State == codec.TaskQueued {
			r.awaits(t, wait)
		}
		if before.State == codec.TaskQueued && t.State == codec.TaskQueued && before.Error != nil && waits(t.Error) && before.Error.Code == t.Error.Code {
			r.again(wait) // nothing new
			return
		}
		r.settle(t, n, wait)
	}
}

// read reads the record of a message's task; nil if there is nothing to do. fresh says that no
// attempt can be under way.
func (r *run) read() (t *stored, fresh bool) {
	s := r.s
	t, err := s.load(r.ctx, r.session, r.id)
	switch {
	case errors.Is(err, errGone):
		r.done()
		return nil, false
	case err != nil:
		r.again(firstBackoff)
		return nil, false
	case t.State.Ended() || t.State == codec.TaskScheduled:
		r.done()
		return nil, false
	case s.over(r.ctx, t):
		_ = s.bus.Delete(r.ctx, t.key, t.revision)
		r.done()
		return nil, false
	}
	if wait := t.Due.Sub(s.now()); wait > 0 {
		r.again(wait)
		return nil, false
	}
	if t.State == codec.TaskRunning {
		return t, false
	}
	meta, err := r.m.Metadata()
	first := t.Error == nil && t.Due.IsZero()
	switch {
	case err == nil && first && meta.NumDelivered == 1:
		return t, true
	case first && r.m.Header.Get(jetstream.MsgIDHeader) == messageID(t):
		return t, false // a runner had the message, and wrote nothing
	}
	if r.await(t) != nil {
		return t, true // none is made
	}
	// The record says of each further attempt that it is under way before its call begins: the
	// number of deliveries says nothing about these.
	if !r.mark(t, t.attempt()) {
		r.again(firstBackoff)
		return nil, false
	}
	return t, true
}

// lostConnection reports whether a call ended because this runner has no connection.
func lostConnection(err error) bool {
	e := toolmesh.AsError(err)
	return e != nil && e.Code == toolmesh.CodeUnavailable && e.Origin == toolmesh.OriginCaller
}

// call makes the call of an attempt, again and again while no node has room for it. If the
// call may be under way already it joins that call.
func (r *run) call(t *stored, n int, fresh bool) (*client.Result, error) {
	made := t.record // attend changes t
	attended := make(chan struct{})
	go func() {
		defer close(attended)
		r.attend(t, n)
	}()
	over, stop := context.WithDeadline(r.ctx, time.Now().Add(made.expires().Sub(r.s.now())))
	defer func() {
		stop()
		r.leave(nil)
		<-attended
	}()
	caller := r.s.client.In(r.session)
	held := holding{room: r.s.held, account: r.account}
	defer held.free()
	if !fresh && made.Key == "" {
		args, err := r.args(&made, &held, fresh)
		if err != nil {
			return nil, err
		}
		result, known, err := caller.Join(r.ctx, made.Tool, made.callID(n), args, client.WithProgress(r.progress), client.WhenReferred(held.free))
		if err == nil && !known {
			err = toolmesh.Errorf(toolmesh.CodeNodeLost, "the runner of the attempt is lost, and no node knows its call: whether the tool ran is not known").
				WithOrigin(toolmesh.OriginMesh)
		}
		return result, err
	}
	for {
		timeout := max(made.expires().Sub(r.s.now()), time.Millisecond)
		if own := toolmesh.Millis(made.TimeoutMS); own > 0 {
			timeout = min(own, timeout)
		}
		args, err := r.args(&made, &held, fresh)
		if err != nil {
			return nil, err
		}
		options := []client.CallOption{
			client.WhenReferred(held.free), client.WithRPCID(made.callID(n)), client.WithTimeout(timeout), client.WithLineage(client.Lineage{Parent: made.Parent}),
			client.NoWait(), client.Outlive(), client.WithProgress(r.progress),
		}
		if made.Key != "" {
			options = append(options, client.WithIdempotencyKey(made.Key))
		}
		result, err := caller.Call(r.ctx, made.Tool, args, options...)
		held.free()
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeBusy || !waits(e) || !r.s.await(over, r.account, made.Priority) {
			return result, err
		}
	}
}

// args are the arguments of an attempt's call, with the room for them. Large ones are held until
// they are where the node reads them, which is long before a call of hours ends.
func (r *run) args(made *record, held *holding, fresh bool) (json.RawMessage, error) {
	args, err := r.s.argsOf(r.ctx, made, held)
	if err == nil {
		return args, nil
	}
	e := toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
	if !fresh && waits(e) { // the attempt may be running: no other one may begin
		e = unavailable("%w", e).WithOrigin(toolmesh.OriginCaller)
	}
	return nil, e
}

// attend follows a call until r's context ends. It marks the task as running and tells the
// broker that the task is worked on. It leaves the call when the broker has not confirmed that
// for so long that another runner may have the message.
func (r *run) attend(t *stored, n int) {
	timer := time.NewTimer(markAfter)
	defer timer.Stop()
	marked := t.State == codec.TaskRunning && t.Runner == r.s.name
	changes := make(chan *nats.Msg, 8) // of the record, also by this run
	var sub *nats.Subscription
	defer func() {
		if sub != nil {
			_ = sub.Unsubscribe()
		}
	}()
	for {
		look := false
		select {
		case <-r.ctx.Done():
			return
		case m := <-changes:
			revision, _ := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
			if look = revision > t.revision; !look {
				continue
			}
		case p := <-r.told:
			if t.State == codec.TaskRunning && (t.Progress == nil || !t.Progress.Same(p)) {
				next := *t
				next.Progress = &p
				r.put(t, &next, n)
			}
			continue
		case <-timer.C:
			if sub == nil { // before the record is written or read: no change is missed
				sub, _ = r.s.bus.Conn().ChanSubscribe(subjects.RegistryChange(t.key.Bucket, t.key.Name), changes)
			}
		}
		switch {
		case !marked && !look:
			marked = true
			r.mark(t, n)
			timer.Reset(keepEvery)
			continue
		case !look:
			timer.Reset(r.keep())
		}
		r.follow(t, n)
	}
}

// mark writes into the record that this runner makes an attempt, and reports whether it is
// written.
func (r *run) mark(t *stored, n int) bool {
	next := *t
	next.State, next.Attempts, next.Runner, next.Started, next.Due = codec.TaskRunning, n, r.s.name, r.s.now(), time.Time{}
	if t.State != codec.TaskRunning {
		next.Progress = nil // it is that of the attempt before
	}
	return r.put(t, &next, n)
}

// put writes a record of a task that runs, and reports whether it is written.
func (r *run) put(t, next *stored, n int) bool {
	err := r.s.write(r.ctx, next)
	switch {
	case err == nil:
		*t = *next
	case errors.Is(err, store.ErrConflict):
		r.follow(t, n)
	}
	return err == nil
}

// follow reads the record, and leaves the call if the task now has another runner.
func (r *run) follow(t *stored, n int) {
	now, err := r.s.load(r.ctx, r.session, r.id)
	switch {
	case errors.Is(err, errGone):
		r.leave(errOver)
	case err != nil:
	case now.State.Ended(), r.s.over(r.ctx, now):
		r.leave(errOver)
	case now.attempt() != n:
		r.leave(errPast)
	case now.Runner != "" && now.Runner != r.s.name && now.revision > t.revision:
		r.leave(errTaken)
	default:
		*t = *now
	}
}

// keep tells the broker that the task is worked on, and returns the pause until the next time.
func (r *run) keep() time.Duration {
	ctx, cancel := context.WithTimeout(r.ctx, keepEvery)
	defer cancel()
	err := r.m.InProgress(nats.Context(ctx))
	if err == nil {
		r.kept = time.Now()
		return keepEvery
	}
	if time.Since(r.kept) > ackWait {
		r.s.log.Warn("task is left to another runner: the broker did not get this one's acknowledgement in time", slog.String("rpc_id", string(r.id)))
		r.leave(errTaken)
	}
	return keepRetry
}

// settle stores how an attempt ended. Then it removes the message, or has it delivered again.
// If several runners have a task, the first one that stores its end counts.
func (r *run) settle(t *stored, n int, wait time.Duration) {
	s := r.s
	for tries := 1; ; tries++ {
		err := s.keepResult(context.WithoutCancel(s.base), t)
		if err == nil {
			err = s.write(context.WithoutCancel(s.base), t)
		}
		switch {
		case err == nil:
		case errors.Is(err, store.ErrConflict):
			now, err := s.load(context.WithoutCancel(s.base), r.session, r.id)
			if over := errors.Is(err, errGone) || err == nil && now.State.Ended(); over || err == nil && now.attempt() != n {
				if err != nil || now.LargeResult == nil || t.LargeResult == nil || now.LargeResult.ID != t.LargeResult.ID { // else it is ours: the acknowledgement was lost
					s.drop(s.base, t.LargeResult)
				}
				if over {
					r.done()
				}
				return
			}
			if err == nil {
				t.revision = now.revision
				continue
			}
			fallthrough
		default:
			s.log.Warn("end of a task's attempt could not be stored: the store does not answer, it is tried again", slog.String("rpc_id", string(r.id)))
			if wake.After(s.open, backoff(tries)) {
				continue
			}
			return // the next runner gets it by the attempt's key
		}
		break
	}
	if !t.State.Ended() {
		r.again(wait)
		return
	}
	r.done()
}

// keepResult stores a result that the record cannot hold. If the session has no room for it the
// task has failed.
func (s *Service) keepResult(ctx context.Context, t *stored) error {
	size := int64(len(t.Result))
	if size <= s.inline() {
		return nil
	}
	done, err := s.roomFor(ctx, t.session, room{bytes: size}, 2)
	if err == nil {
		t.LargeResult, err = s.keep(ctx, t, t.Result)
		done()
	}
	if toolmesh.CodeOf(err) == toolmesh.CodeBusy {
		t.end(codec.TaskFailed, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the task has run, and its result, of %d bytes, cannot be kept: %w", size, err).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedYes).WithDetail("size", size), t.Ended)
		err = nil
	}
	if err == nil {
		t.Result = nil
	}
	return err
}
