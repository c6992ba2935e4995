package task

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// storeWait bounds one question to the store, answerWait one request but a wait.
	storeWait  = 5 * time.Second
	answerWait = 15 * time.Second
	// mostWait is how long a request may wait for the end of a task.
	mostWait = 10 * time.Second
	// mostRequests are answered at once, those that wait included; an account has as many as
	// it leaves free. heldBytes is the same for the values that are read for them, and for
	// tasks that run here.
	mostRequests = 10_000
	heldBytes    = 256 << 20
	// firstLook and lastLook are the first and the last interval at which a wait reads the record,
	// in addition to events, which the broker may not deliver.
	firstLook = 250 * time.Millisecond
	lastLook  = 2 * time.Second
	listMost  = 500
	// mostID bounds the id of a task, in bytes: its calls have longer ones.
	mostID = 256
	// conflicts is how often a change is tried that others come before.
	conflicts = 10
)

func invalid(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...).WithStarted(toolmesh.StartedNo)
}

// receive takes a request about tasks.
func (s *Service) receive(m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if err != nil {
		subject = subjects.Subject{}
	}
	if !s.bus.MayAnswer(m, subject.Session) {
		return
	}
	var q codec.TaskRequest
	if err != nil {
		err = invalid("%w", err)
	} else {
		err = bus.ReadRequest(m, &q)
	}
	for _, ms := range []*int64{&q.TimeoutMS, &q.TTLMS, &q.InMS, &q.EveryMS, &q.WaitMS, &q.OlderMS} {
		*ms = min(*ms, toolmesh.MaxTime.Milliseconds())
	}
	account := s.account(subject.Session)
	if err == nil && !s.places.Take(account, 1) {
		err = toolmesh.Errorf(toolmesh.CodeBusy, "%d requests about tasks are answered at once, and the session has its share of them: try again", mostRequests).
			WithStarted(toolmesh.StartedNo).WithDetail("limit", "requests").WithDetail("max", mostRequests)
	}
	if err != nil {
		s.bus.Respond(m, nil, err)
		return
	}
	held := &holding{room: s.held, account: account}
	if err := held.take(int64(m.Size())); err != nil {
		s.places.Give(account, 1)
		s.bus.Respond(m, nil, err)
		return
	}
	s.requests.Go(func() {
		defer s.places.Give(account, 1)
		ctx, cancel := context.WithTimeout(s.base, answerWait+mostWait)
		defer cancel()
		defer held.free()
		answer, err := s.handle(ctx, subject, &q, held)
		s.bus.Respond(m, answer, err)
	})
}

// verbs are the requests about one task, and what they do to it.
var verbs = map[string]func(*Service, context.Context, subjects.SessionID, *codec.TaskRequest) (*stored, error){
	codec.TaskShow: func(s *Service, ctx context.Context, session subjects.SessionID, q *codec.TaskRequest) (*stored, error) {
		return s.mine(ctx, session, q.ID)
	},
	codec.TaskWait: (*Service).wait, codec.TaskCancel: (*Service).cancel, codec.TaskRetry: (*Service).retry,
}

func (s *Service) handle(ctx context.Context, subject subjects.Subject, q *codec.TaskRequest, held *holding) (any, error) {
	switch subject.Verb {
	case codec.TaskSubmit:
		t, err := s.submit(ctx, subject.Session, q, held)
		if err != nil {
			return nil, err
		}
		return codec.Submitted{ID: t.ID, State: t.State}, nil
	case codec.TaskList:
		return s.list(ctx, subject.Session, q)
	case codec.TaskRemove:
		done, err := s.remove(ctx, subject.Session, q)
		return done, gone(err, subject.Session, q.ID)
	}
	do := verbs[subject.Verb]
	switch {
	case do == nil:
		return nil, invalid("%q is not a request about tasks: it is one of %s, %s, %s, %s", subject.Verb,
			codec.TaskSubmit, codec.TaskList, codec.TaskRemove, strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	case q.ID == "":
		return nil, invalid("id is missing or empty: it is that of a task")
	}
	t, err := do(s, ctx, subject.Session, q)
	if err != nil {
		return nil, gone(err, subject.Session, q.ID)
	}
	return s.answerOf(ctx, t, subject.Verb, q, held)
}

// gone is the error for a task that does not exist.
func gone(err error, session subjects.SessionID, id subjects.RPCID) error {
	if errors.Is(err, errGone) {
		return toolmesh.Errorf(toolmesh.CodeNotFound, "session %q has no task %q: it was not submitted there, or its ttl is over", session, id).WithStarted(toolmesh.StartedNo)
	}
	return err
}

// mine is [Service.load] without the tasks of an earlier session of the name.
func (s *Service) mine(ctx context.Context, session subjects.SessionID, id subjects.RPCID) (*stored, error) {
	t, err := s.load(ctx, session, id)
	if err == nil && s.over(ctx, t) {
		return nil, errGone
	}
	return t, err
}

func (s *Service) newRecord(q *codec.TaskRequest, now time.Time) (*record, error) {
	r := &record{Task: codec.Task{
		ID: cmp.Or(q.ID, subjects.NewRPCID("task_")), Tool: q.Tool, Args: bytes.TrimSpace(q.Args), State: codec.TaskQueued,
		Priority: q.Priority, MaxAttempts: cmp.Or(q.Attempts, defaultAttempts), Created: now,
		TimeoutMS: q.TimeoutMS, TTLMS: cmp.Or(q.TTLMS, defaultTTL.Milliseconds()), Key: q.Key, Parent: q.Parent, CatchUp: q.CatchUp,
	}, Queued: now}
	if err := q.Tool.Validate(); err != nil {
		return nil, invalid("tool: %w", err)
	}
	if bytes.Equal(r.Args, []byte("null")) {
		r.Args = nil
	}
	switch {
	case len(r.ID) > mostID || r.ID != subjects.RPCID(strings.TrimSpace(string(r.ID))) || strings.ContainsFunc(string(r.ID), unicode.IsControl):
		return nil, invalid("id is %.40q: it is at most %d bytes without space around them, as headers carry them", r.ID, mostID)
	case q.Ref != "" && len(r.Args) > 0:
		return nil, invalid("args and ref exclude each other")
	case len(r.Args) > 0 && r.Args[0] != '{':
		return nil, invalid("args is %.40s: it is an object, by parameter name", r.Args)
	case r.MaxAttempts < 1 || r.MaxAttempts > mostAttempts:
		return nil, invalid("attempts is %d: it is 1 to %d", r.MaxAttempts, mostAttempts)
	case r.Priority < codec.PriorityLow || r.Priority > codec.PriorityHigh:
		return nil, invalid("priority is %d: it is %d, %d or %d", r.Priority, codec.PriorityLow, codec.PriorityNormal, codec.PriorityHigh)
	case r.ttl() < time.Second || r.ttl() > mostTTL:
		return nil, invalid("ttl_ms is %d: it is %d to %d", r.TTLMS, time.Second.Milliseconds(), mostTTL.Milliseconds())
	case len(q.Tool) > 4*mostID || len(q.Parent) > 2*mostID || len(q.Cron) > mostID || len(q.At) > mostID:
		return nil, invalid("tool, parent, cron or at is longer than a record holds: at most %d, %d, %d and %d bytes", 4*mostID, 2*mostID, mostID, mostID)
	case r.TimeoutMS < 0:
		return nil, invalid("timeout_ms is %d: it cannot be negative", r.TimeoutMS)
	}
	return r, r.when(q, now)
}

// submit makes a task and queues it. The same id again is the same task.
func (s *Service) submit(ctx context.Context, session subjects.SessionID, q *codec.TaskRequest, held *holding) (*stored, error) {
	r, err := s.newRecord(q, s.now())
	if err != nil {
		return nil, err
	}
	if r.Key != "" {
		if _, err := subjects.IdempotencyKey(session, r.Key); err != nil {
			return nil, invalid("key: %w", err)
		}
	}
	if r.Epoch, err = s.epoch(ctx, session); err != nil {
		return nil, err
	}
	t := &stored{record: *r, session: session}
	if t.key, err = keyOf(session, r.ID); err != nil {
		return nil, err
	}
	large, err := s.receiveArgs(ctx, t, q, held)
	if err != nil {
		if there, bad := s.load(ctx, session, t.ID); q.Ref != "" && bad == nil && there.Epoch == t.Epoch && there.Tool == t.Tool && there.LargeArgs.digest() == q.Digest {
			return there, nil // it came before, and its references were used
		}
		return nil, toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
	}
	done, room := s.roomFor(ctx, session, room{1, int64(len(large))}, 1)
	if room != nil {
		if toolmesh.CodeOf(room) != toolmesh.CodeBusy {
			return nil, room
		}
		return s.submitAgain(ctx, t, room)
	}
	defer done()
	if large != nil {
		if t.LargeArgs, err = s.keep(ctx, t, large); err != nil {
			return nil, toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
		}
	}
	err = s.create(ctx, t)
	if err == nil && q.Ref != "" {
		_ = s.bus.DeletePayload(ctx, q.Ref) // else it expires
	}
	if errors.Is(err, store.ErrConflict) {
		there, err := s.submitAgain(ctx, t, nil)
		if there != t && (err == nil || toolmesh.AsError(err).Started == toolmesh.StartedNo) {
			s.drop(ctx, t.LargeArgs)
		}
		return there, err
	}
	if err == nil {
		err = s.start(ctx, t)
	}
	if err != nil && toolmesh.AsError(err).Started == toolmesh.StartedNo && t.revision > 0 {
		// It cannot be: nothing of it is kept.
		_ = s.bus.Delete(context.WithoutCancel(ctx), t.key, t.revision)
		t.revision = 0
	}
	if err != nil && t.revision == 0 && toolmesh.AsError(err).Started == toolmesh.StartedNo {
		s.drop(ctx, t.LargeArgs) // a sweep decides about values that may still be stored
	}
	return t, err
}

// submitAgain is a submission under the id of a task that there is, or, where room says why
// no task may be made, that there may be. The same one is answered as the first time, also
// where that one was lost half-way.
func (s *Service) submitAgain(ctx context.Context, t *stored, room error) (*stored, error) {
	there, err := s.load(ctx, t.session, t.ID)
	switch {
	case errors.Is(err, errGone) && room != nil:
		return nil, room
	case errors.Is(err, errGone):
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the task %q has just ended its ttl: submit it again", t.ID).WithStarted(toolmesh.StartedNo)
	case err != nil:
		return nil, err
	}
	anew := there.Epoch != t.Epoch || there.unreadable || there.recurs() && there.State.Ended()
	if field := there.differs(t); field != "" && !anew {
		return nil, invalid("the id %q names another task: its %s differs; use a new id", t.ID, field)
	}
	switch {
	case anew, there.When != t.When && there.State.Ended():
		if room != nil && t.LargeArgs != nil {
			return nil, room
		}
		t.revision, t.Made, t.Fired = there.revision, there.Made+there.Attempts+1, there.Fired
		if err := s.write(ctx, t); err != nil {
			return nil, changed(err)
		}
		if !there.recurs() { // tasks of a schedule may still need its arguments
			s.dropOf(ctx, there)
		}
		return t, s.start(ctx, t)
	case there.When != t.When && (there.State != codec.TaskScheduled || t.When == ""):
		field, _, _ := strings.Cut(cmp.Or(t.When, there.When), " ")
		return nil, invalid("the id %q names a task that is %s: its %s differs; use a new id", t.ID, there.State, field)
	case there.When != t.When:
		before := there.record
		there.When, there.Due, there.EveryMS, there.Cron, there.CatchUp = t.When, t.Due, t.EveryMS, t.Cron, t.CatchUp
		if err := s.write(ctx, there); err != nil {
			return nil, changed(err)
		}
		if err := s.start(ctx, there); err != nil {
			there.record = before
			_ = s.write(context.WithoutCancel(ctx), there) // it stays as it was
			return nil, err
		}
	case there.State == codec.TaskQueued || there.State == codec.TaskScheduled:
		if err := s.startOnce(ctx, there); err != nil {
			return nil, err
		}
	}
	return there, nil
}

// changed has a submission that came second be sent again.
func changed(err error) error {
	if errors.Is(err, store.ErrConflict) {
		return unavailable("the task was changed in between: submit it again").WithStarted(toolmesh.StartedNo)
	}
	return err
}

// differs names the differences of two submissions, except their time; empty without any.
func (t *stored) differs(other *stored) string {
	switch {
	case t.Tool != other.Tool:
		return "tool"
	case !sameArgs(t.Args, other.Args) || t.LargeArgs.digest() != other.LargeArgs.digest():
		return "args"
	case t.TimeoutMS != other.TimeoutMS:
		return "timeout_ms"
	case t.MaxAttempts != other.MaxAttempts:
		return "attempts"
	case t.Priority != other.Priority:
		return "priority"
	case t.TTLMS != other.TTLMS:
		return "ttl_ms"
	case t.Key != other.Key:
		return "key"
	}
	return ""
}

func sameArgs(a, b []byte) bool {
	x, errX := tool.Canonical(a)
	y, errY := tool.Canonical(b)
	if errX != nil || errY != nil {
		return bytes.Equal(a, b)
	}
	return bytes.Equal(x, y)
}

// create stores the record of a new task.
func (s *Service) create(ctx context.Context, t *stored) error {
	t.revision = 0
	err := s.write(ctx, t)
	if store.Full(err) {
		return full("the store of tasks")
	}
	return err
}

// start has a task run, now or when it is due.
func (s *Service) start(ctx context.Context, t *stored) error {
	if t.State == codec.TaskScheduled {
		return s.schedule(ctx, t)
	}
	return s.enqueue(ctx, t)
}

// change reads a task and writes the result of do, again if another process was faster. do
// returns false for no change.
func (s *Service) change(ctx context.Context, session subjects.SessionID, id subjects.RPCID, do func(t *stored) (bool, error)) (*stored, error) {
	for n := 1; ; n++ {
		t, err := s.mine(ctx, session, id)
		if err != nil {
			return nil, err
		}
		write, err := do(t)
		if err != nil || !write {
			return t, err
		}
		err = s.write(ctx, t)
		if err == nil || !errors.Is(err, store.ErrConflict) || n == conflicts {
			return t, err
		}
	}
}

// cancel ends a task, or a schedule. One that has ended already stays as it is.
func (s *Service) cancel(ctx context.Context, session subjects.SessionID, q *codec.TaskRequest) (*stored, error) {
	scheduled := false
	t, err := s.change(ctx, session, q.ID, func(t *stored) (bool, error) {
		scheduled = t.State == codec.TaskScheduled
		if t.State.Ended() {
			return false, nil
		}
		why := toolmesh.Errorf(toolmesh.CodeCancelled, "the task was cancelled").WithOrigin(toolmesh.OriginCaller)
		if t.Attempts == 0 && t.State != codec.TaskRunning {
			why = why.WithStarted(toolmesh.StartedUnknown)
		}
		t.end(codec.TaskCancelled, why, s.now())
		return true, nil
	})
	if err != nil || t.State != codec.TaskCancelled {
		return t, err
	}
	if scheduled && s.schedules {
		if err := s.unschedule(ctx, session, q.ID); err != nil {
			// Only its record counts: messages of the schedule are dropped.
			s.log.Warn("the schedule of a task that was cancelled goes on", slog.String("rpc_id", string(q.ID)), slog.String("error", err.Error()))
		}
	}
	return t, nil
}

// retry queues a task again that failed or was cancelled, with all its attempts.
func (s *Service) retry(ctx context.Context, session subjects.SessionID, q *codec.TaskRequest) (*stored, error) {
	t, err := s.change(ctx, session, q.ID, func(t *stored) (bool, error) {
		switch {
		case t.State == codec.TaskQueued && t.Made > 0:
			return false, nil // asked twice
		case t.State != codec.TaskFailed && t.State != codec.TaskCancelled:
			return false, invalid("task %q is %s: only one that failed or was cancelled is tried again", q.ID, t.State)
		case t.unreadable:
			return false, t.Error.WithStarted(toolmesh.StartedNo)
		case t.recurs():
			return false, invalid("task %q is a schedule that was cancelled: submit it anew", q.ID)
		}
		t.Made += t.Attempts + 1
		t.State, t.Attempts, t.Error, t.Ended, t.Started, t.Node, t.Due = codec.TaskQueued, 0, nil, time.Time{}, time.Time{}, "", time.Time{}
		t.Queued, t.Runner = s.now(), ""
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return t, s.startOnce(ctx, t)
}

// wait returns a task when it has ended, or as it is when the time is up.
func (s *Service) wait(ctx context.Context, session subjects.SessionID, q *codec.TaskRequest) (*stored, error) {
	key, err := keyOf(session, q.ID)
	if err != nil {
		return nil, err
	}
	timeout := mostWait
	if q.WaitMS > 0 {
		timeout = min(timeout, time.Duration(q.WaitMS)*time.Millisecond)
	}
	heard := make(chan *nats.Msg, 8)
	sub, err := s.bus.Conn().ChanSubscribe(subjects.RegistryChange(key.Bucket, key.Name), heard)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the end of a task cannot be waited for: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	over := time.NewTimer(timeout)
	defer over.Stop()
	next := firstLook
	look := time.NewTimer(next)
	defer look.Stop()
	t, err := s.mine(ctx, session, q.ID)
	for err == nil && !t.State.Ended() {
		select {
		case m := <-heard:
			if now := parse(key, session, m.Data, 0); !now.unreadable && now.Epoch == t.Epoch && !store.Gone(m.Header) {
				t = now
				continue
			}
			t, err = s.mine(ctx, session, q.ID)
		case <-look.C:
			next = min(2*next, lastLook)
			look.Reset(next)
			t, err = s.mine(ctx, session, q.ID)
		case <-over.C:
			return t, nil
		case <-s.open.Done():
			return t, nil // another one is asked then
		}
	}
	return t, err
}

// remove deletes tasks of the session that have ended, some at a time. A schedule of which a
// task has not ended yet stays: that has its arguments.
func (s *Service) remove(ctx context.Context, session subjects.SessionID, q *codec.TaskRequest) (*codec.TasksRemoved, error) {
	if q.State != "" && !codec.TaskState(q.State).Ended() {
		return nil, invalid("state is %q: only tasks that have ended are removed: %s, %s or %s", q.State, codec.TaskSucceeded, codec.TaskFailed, codec.TaskCancelled)
	}
	if q.OlderMS < 0 {
		return nil, invalid("older_ms is %d: it cannot be negative", q.OlderMS)
	}
	done := new(codec.TasksRemoved)
	if q.ID != "" {
		t, err := s.mine(ctx, session, q.ID)
		if err == nil && !t.State.Ended() {
			err = invalid("task %q is %s: cancel it first", q.ID, t.State)
		}
		if err == nil {
			err = s.erase(ctx, t, done)
		}
		return done, err
	}
	for t, err := range s.all(ctx, session, 0) {
		switch {
		case err != nil:
			return nil, err
		case !t.State.Ended() || q.State != "" && t.State != codec.TaskState(q.State) || s.now().Sub(t.Ended) < time.Duration(q.OlderMS)*time.Millisecond:
			continue
		case done.Removed == removedAtOnce:
			done.More = true
			return done, nil
		}
		if err := s.erase(ctx, t, done); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// erase removes an ended task with its values, and counts it. A schedule whose tasks need its
// arguments stays, as does a task that was retried in between.
func (s *Service) erase(ctx context.Context, t *stored, done *codec.TasksRemoved) error {
	if t.LargeArgs != nil && t.recurs() {
		token, _, _ := strings.Cut(t.key.Name, ".")
		if busy, err := s.firedHas(ctx, token, t, func(one *stored) bool { return !one.State.Ended() }); err != nil || busy {
			return nil //nolint:nilerr // it is removed another time
		}
	}
	switch err := s.bus.Delete(ctx, t.key, t.revision); {
	case errors.Is(err, store.ErrConflict):
		return nil
	case err != nil:
		return err
	}
	s.dropOf(ctx, t)
	done.Removed++
	return nil
}

// removedAtOnce is how many tasks one request removes.
const removedAtOnce = 500

func (s *Service) list(ctx context.Context, session subjects.SessionID, q *codec.TaskRequest) (*codec.TaskPage, error) {
	switch {
	case q.Limit < 0 || q.Limit > listMost:
		return nil, invalid("limit is %d: it is 1 to %d", q.Limit, listMost)
	case q.State != "" && !slices.Contains(codec.TaskStates(), codec.TaskState(q.State)):
		return nil, invalid("state is %q: one of %v", q.State, codec.TaskStates())
	}
	epoch, err := s.epoch(ctx, session)
	if err != nil {
		return nil, err
	}
	page, limit := &codec.TaskPage{Tasks: []codec.Task{}}, cmp.Or(q.Limit, 100)
	size := 0
	for t, err := range s.all(ctx, session, q.After+1) {
		if err != nil {
			return nil, err
		}
		if t.Epoch != epoch && !t.unreadable || q.State != "" && t.State != codec.TaskState(q.State) {
			continue
		}
		t.Args, t.Result = nil, nil
		line, err := tool.MarshalPlain(&t.Task)
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInternal, "list tasks: %w", err)
		}
		if size += len(line) + 1; len(page.Tasks) == limit || len(page.Tasks) > 0 && int64(size) > s.bus.MaxPayload()-recordRoom {
			return page, nil
		}
		page.Tasks, page.Next = append(page.Tasks, t.Task), t.revision
	}
	page.Next = 0
	return page, nil
}
