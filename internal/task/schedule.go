package task

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// consumerDue is the consumer of the schedules whose time has come.
const consumerDue = "due"

// leastEvery is the shortest interval of a schedule.
const leastEvery = time.Second

// recurs reports whether a task is a schedule that makes others.
func (r *record) recurs() bool { return r.EveryMS > 0 || r.Cron != "" }

// when reads a submission's option for its time into the record of the task.
func (r *record) when(q *codec.TaskRequest, now time.Time) error {
	if q.CatchUp != "" && !slices.Contains(codec.CatchUps(), q.CatchUp) || q.CatchUp != "" && q.EveryMS == 0 && q.Cron == "" {
		return invalid("catch_up is %q: it is one of %v, of a schedule", q.CatchUp, codec.CatchUps())
	}
	milliseconds := func(ms int64) string {
		if ms == 0 {
			return ""
		}
		return strconv.FormatInt(ms, 10)
	}
	given := slices.DeleteFunc([][2]string{{"at", q.At}, {"in_ms", milliseconds(q.InMS)}, {"every_ms", milliseconds(q.EveryMS)}, {"cron", q.Cron}},
		func(option [2]string) bool { return option[1] == "" })
	switch {
	case len(given) == 0:
		return nil
	case len(given) > 1:
		return invalid("at, in_ms, every_ms and cron exclude each other")
	}
	r.State, r.When = codec.TaskScheduled, strings.Join(given[0][:], " ")
	if q.CatchUp != "" {
		r.When += " catch_up " + q.CatchUp
	}
	defer func() { r.Due = r.Due.Add(time.Second - 1).Truncate(time.Second) }() // as the broker has it
	var err error
	switch {
	case q.At != "":
		at, err := time.Parse(time.RFC3339Nano, q.At)
		if err != nil {
			return invalid("at is %q: it is a time like 2026-01-02T15:04:05Z", q.At)
		}
		r.Due = at.UTC()
		if last := now.Add(toolmesh.MaxTime); r.Due.After(last) {
			r.Due = last // the broker's clock ends in 2262, and it delivers at once what is due later
		}
	case q.InMS < 0:
		return invalid("in_ms is %d: it cannot be negative", q.InMS)
	case q.InMS > 0:
		r.Due = now.Add(toolmesh.Millis(q.InMS))
	case q.Cron != "":
		r.Cron, err = cronLine(q.Cron)
	case q.EveryMS < leastEvery.Milliseconds():
		return invalid("every_ms is %d: it is at least %d", q.EveryMS, leastEvery.Milliseconds())
	default:
		r.EveryMS = q.EveryMS
	}
	return err
}

// cronLine is a cron line as the broker reads it, which has seconds in front. Whether it
// ever fires the broker says.
func cronLine(line string) (string, error) {
	fields := strings.Fields(line)
	switch {
	case len(fields) == 1 && strings.HasPrefix(line, "@") && fields[0] != "@every" && fields[0] != "@at":
		return fields[0], nil
	case len(fields) == 5:
		return "0 " + strings.Join(fields, " "), nil
	case len(fields) == 6:
		return strings.Join(fields, " "), nil
	}
	return "", invalid("cron is %q: it has 5 fields (minute, hour, day, month, weekday), or 6 with seconds in front", line)
}

// schedule has the broker say when a task is due. The error is invalid_request for a cron
// line that is none or never fires, and unavailable where the broker has no schedules.
func (s *Service) schedule(ctx context.Context, t *stored) error {
	if !s.schedules {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the broker cannot delay messages: that takes NATS server 2.14 or later").
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo).WithRetryable(false)
	}
	at, err := subjects.Schedule(subjects.ScheduleAt, t.session, t.ID)
	if err != nil {
		return invalid("the task's id: %w", err)
	}
	due, err := subjects.Schedule(subjects.ScheduleDue, t.session, t.ID)
	if err != nil {
		return invalid("the task's id: %w", err)
	}
	options := []jetstream.PublishOpt{jetstream.WithScheduleTarget(due)}
	switch {
	case t.Cron != "":
		options = append(options, jetstream.WithScheduleCron(t.Cron))
	case t.EveryMS > 0:
		options = append(options, jetstream.WithScheduleEvery(toolmesh.Millis(t.EveryMS)))
	default:
		options = append(options, jetstream.WithScheduleAt(t.Due))
	}
	err = s.bus.Publish(ctx, &nats.Msg{Subject: at}, options...) // in place of the one before
	if errors.Is(err, store.ErrSchedule) {
		return invalid("the schedule %q is none, or it never fires", t.Cron)
	}
	if errors.Is(err, store.ErrFull) {
		return full("the store of schedules")
	}
	return err
}

func (s *Service) unschedule(ctx context.Context, session subjects.SessionID, id subjects.RPCID) error {
	at, err := subjects.Schedule(subjects.ScheduleAt, session, id)
	if err != nil {
		return invalid("the task's id: %w", err)
	}
	return s.bus.Purge(ctx, subjects.StreamSchedules, at)
}

// due has a task run whose time has come: itself, or one more that its schedule makes,
// whose id says which one, so that it is made once.
func (s *Service) due(ctx context.Context, m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if err != nil {
		_ = m.Ack()
		return
	}
	meta, err := m.Metadata()
	if err != nil {
		return // no delivery of a consumer
	}
	err = s.queueDue(ctx, subject.Session, subject.RPC, m.Subject, meta)
	switch {
	case errors.Is(err, errGone):
		_ = s.unschedule(ctx, subject.Session, subject.RPC)
		_ = m.Ack()
	case err != nil:
		s.log.Warn("a task that is due is not queued yet", slog.String("rpc_id", string(subject.RPC)), slog.String("error", err.Error()))
		_ = m.NakWithDelay(backoff(int(min(meta.NumDelivered, 100)))) //nolint:gosec // few
	default:
		_ = m.Ack()
	}
}

func (s *Service) queueDue(ctx context.Context, session subjects.SessionID, id subjects.RPCID, subject string, meta *nats.MsgMetadata) error {
	t, err := s.load(ctx, session, id)
	switch {
	case err != nil:
		return err
	case t.State.Ended():
		return errGone
	case s.over(ctx, t):
		return errGone
	}
	t.Queued = s.now()
	if !t.recurs() {
		if t.State == codec.TaskScheduled {
			t.State, t.Due = codec.TaskQueued, time.Time{}
			if err := s.write(ctx, t); err != nil {
				return err
			}
		}
		return s.enqueue(ctx, t) // also one that was queued when the runner before was lost
	}
	if skip, err := s.missed(ctx, t, subject, meta); err != nil || skip {
		return err
	}
	at := meta.Timestamp.Unix()
	if len(t.Fired) < s.fired { // else one goes
		done, err := s.roomFor(ctx, session, room{records: 1}, 1)
		if err != nil {
			return err
		}
		defer done()
	}
	if full, err := s.makeRoom(ctx, t, at); err != nil || full {
		return err
	}
	one := *t
	one.Schedule, one.ID, one.Created = t.ID, firedID(t.ID, at), one.Queued
	one.State, one.EveryMS, one.Cron, one.CatchUp, one.When, one.Fired = codec.TaskQueued, 0, "", "", "", nil
	if one.key, err = keyOf(session, one.ID); err != nil {
		return err
	}
	if t.Key != "" {
		one.Key = t.Key + "-" + strconv.FormatInt(at, 10)
	}
	if err := s.create(ctx, &one); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	return s.enqueue(ctx, &one)
}

// missedAfter is how late the time of a schedule may be looked at without counting as missed. A
// time that a runner had when it was lost comes again after ackWait.
const missedAfter = ackWait + 10*time.Second

// missed reports whether a time of a schedule is one that it does not catch up with.
func (s *Service) missed(ctx context.Context, t *stored, subject string, meta *nats.MsgMetadata) (bool, error) {
	switch late := s.now().Sub(meta.Timestamp) > missedAfter; {
	case t.CatchUp == codec.CatchUpAll:
		return false, nil
	case late && t.CatchUp == codec.CatchUpNone:
		return true, nil
	}
	last, err := s.bus.Find(ctx, subjects.StreamSchedules, store.Lookup{Subject: subject})
	return err == nil && last[0] != nil && last[0].Seq > meta.Sequence.Stream, err
}

func firedID(schedule subjects.RPCID, at int64) subjects.RPCID {
	return schedule + subjects.RPCID("-"+strconv.FormatInt(at, 10))
}

// makeRoom notes in a schedule's record that it makes a task, and removes the oldest of those
// that it has made. It is full while that one has not ended.
func (s *Service) makeRoom(ctx context.Context, t *stored, at int64) (full bool, err error) {
	if slices.Contains(t.Fired, at) {
		return false, nil
	}
	for len(t.Fired) >= s.fired {
		switch oldest, err := s.load(ctx, t.session, firedID(t.ID, t.Fired[0])); {
		case errors.Is(err, errGone):
		case err != nil:
			return false, err
		case !oldest.State.Ended():
			s.log.Warn("a schedule makes no task: the last ones have not ended", slog.String("rpc_id", string(t.ID)), slog.Int("tasks", len(t.Fired)))
			return true, nil
		default:
			if err := s.bus.Delete(ctx, oldest.key, oldest.revision); err != nil {
				return false, err
			}
			s.dropOf(ctx, oldest)
		}
		t.Fired = t.Fired[1:]
	}
	t.Fired = append(t.Fired, at)
	return false, s.write(ctx, t)
}

// firedHas reports whether a task that a schedule has made, and that is kept, is such a one.
// session is its token in keys.
func (s *Service) firedHas(ctx context.Context, session string, t *stored, such func(*stored) bool) (bool, error) {
	for _, at := range t.Fired {
		token, err := subjects.EncodeToken(string(firedID(t.ID, at)))
		if err != nil {
			return false, invalid("the id of a schedule's task: %w", err)
		}
		one, err := s.loadKey(ctx, store.Key{Bucket: subjects.BucketTaskState, Name: session + "." + token}, t.session)
		if err != nil && !errors.Is(err, errGone) {
			return false, err
		}
		if err == nil && such(one) {
			return true, nil
		}
	}
	return false, nil
}
