package task

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// sweepEvery is how often one of all runners looks for tasks that are in no queue.
	sweepEvery = 15 * time.Second
	// sweepAge is the min age of a record that it reads: its writer has had the time to queue it.
	sweepAge = 10 * time.Second
	// sweepWithin bounds one sweep, and sweptErrors the errors that it reports.
	sweepWithin = time.Minute
	sweptErrors = 3
	// endJitter spreads the runners' work over time when a session ends.
	endJitter = 300 * time.Millisecond
)

// swept is the revision up to which the records were swept.
type swept struct {
	Seq uint64 `json:"seq"`
	// Values is the time of the last sweep of the payloads.
	Values time.Time `json:"values,omitzero"`
}

// sweptKey is not the key of a task: it has one part.
var sweptKey = store.Key{Bucket: subjects.BucketTaskState, Name: "swept"}

// sweeps sweeps now and then. Of all runners the first one that writes the mark does it.
func (s *Service) sweeps() {
	for wake.After(s.open, sweepEvery/2+rand.N(sweepEvery)) {
		ctx, cancel := context.WithTimeout(s.base, sweepWithin)
		if err := s.sweep(ctx, sweepEvery, sweepAge); err != nil && s.bus.Connected() && s.base.Err() == nil {
			s.log.Warn("sweep of tasks was not finished", slog.String("error", err.Error()))
		}
		cancel()
	}
}

// sweep reads the records that were written since the last sweep, if that is longer ago than
// every, and queues the tasks whose submission was cut off before they were queued. Each record is
// read once. One that fails is read again in the next sweep, and does not hold up the others.
// Before that it makes consumers anew that were lost with their store.
func (s *Service) sweep(ctx context.Context, every, age time.Duration) error {
	if s.missing.Swap(false) {
		_, err := s.bus.EnsureSchedules(ctx, s.opts.Replicas)
		if err = errors.Join(err, s.consumers(ctx)); err != nil {
			s.missing.Store(true)
			return err
		}
	}
	var mark swept
	entry, err := s.bus.Latest(ctx, sweptKey)
	switch {
	case errors.Is(err, store.ErrNoKey):
		entry.Revision, err = s.bus.Create(ctx, sweptKey, []byte(`{}`), 0)
	case err == nil && s.now().Sub(entry.Time) < every:
		return nil
	case err == nil:
		_ = json.Unmarshal(entry.Value, &mark) // one that cannot be read begins anew
		entry.Revision, err = s.bus.Update(ctx, sweptKey, entry.Value, entry.Revision, 0)
	}
	if errors.Is(err, store.ErrConflict) {
		return nil // another runner sweeps
	}
	if err != nil {
		return err
	}
	bucket := subjects.BucketTaskState
	query := store.Query{Stream: subjects.KVStream(bucket), Subject: subjects.KVSubject(bucket, "*.*"), From: mark.Seq + 1}
	var failed []error
	for m, err := range s.bus.Read(ctx, query) {
		if err == nil && s.now().Sub(m.Time) < age {
			break
		}
		if err == nil && !store.Gone(m.Header) {
			err = s.mend(ctx, m)
		}
		switch {
		case err == nil && failed == nil:
			mark.Seq = m.Seq
		case err != nil && len(failed) < sweptErrors:
			failed = append(failed, err)
		}
		if store.IsUnavailable(err) {
			break // the others would fail, too
		}
	}
	if now := s.now(); now.Sub(mark.Values) > lookEvery {
		if err := s.sweepValues(ctx, looseAge); err != nil {
			failed = append(failed, err)
		}
		mark.Values = now
	}
	value, _ := json.Marshal(mark)                                            // of a number and a time
	put, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait) // ctx may have ended
	defer cancel()
	_, err = s.bus.Put(put, sweptKey, value, 0)
	return errors.Join(append(failed, err)...)
}

// queued reports whether a task has its message in the queue, or its schedule.
func (s *Service) queued(ctx context.Context, t *stored) (bool, error) {
	stream := subjects.StreamTasks
	filter, err := subjects.QueuedTask(t.session, t.ID)
	if t.State == codec.TaskScheduled {
		stream = subjects.StreamSchedules
		filter, err = subjects.ScheduleOf(t.session, t.ID)
	}
	if err != nil || t.State == codec.TaskScheduled && !s.schedules {
		return true, nil //nolint:nilerr // it is none of ours
	}
	found, err := s.bus.Find(ctx, stream, store.Lookup{Subject: filter})
	return err == nil && found[0] != nil, err
}

// startOnce queues a task unless it is queued: with two messages two runners would begin it.
func (s *Service) startOnce(ctx context.Context, t *stored) error {
	if queued, err := s.queued(ctx, t); err != nil || queued {
		return err
	}
	return s.start(ctx, t)
}

// mend queues a task that is in no queue. One that can never be queued ends as failed.
func (s *Service) mend(ctx context.Context, m *store.Stored) error {
	name, _ := subjects.KVKey(subjects.BucketTaskState, m.Subject)
	session, id, err := subjects.ParseTaskKey(name)
	if err != nil {
		return nil //nolint:nilerr // it is none of ours
	}
	t := parse(store.Key{Bucket: subjects.BucketTaskState, Name: name}, session, m.Data, m.Seq)
	if t.State.Ended() {
		return nil
	}
	if queued, err := s.queued(ctx, t); err != nil || queued {
		return err
	}
	// A task without a message may have ended in between.
	now, err := s.load(ctx, session, id)
	if errors.Is(err, errGone) || err == nil && now.revision != t.revision {
		return nil
	}
	if err != nil {
		return err
	}
	err = s.start(ctx, now)
	if never := toolmesh.AsError(err); never != nil && permanent(never.Code) {
		s.log.Warn("a task cannot be queued, and has failed", slog.String("session", string(session)), slog.String("rpc_id", string(id)), slog.String("error", err.Error()))
		now.end(codec.TaskFailed, never.WithStarted(toolmesh.StartedNo), s.now())
		if err = s.write(ctx, now); errors.Is(err, store.ErrConflict) {
			return nil // it was changed in between
		}
		return err
	}
	if err == nil {
		s.log.Info("a task whose submission was cut off is queued", slog.String("rpc_id", string(now.ID)))
	}
	return err
}

// sessionChanged deletes the tasks of a session that has ended.
func (s *Service) sessionChanged(m *nats.Msg) {
	if !store.Gone(m.Header) {
		return
	}
	subject, err := subjects.Parse(m.Subject)
	if err != nil {
		return
	}
	name, err := subjects.DecodeToken(subject.Key)
	if err != nil {
		return
	}
	session := subjects.SessionID(name)
	s.requests.Go(func() {
		if !wake.After(s.open, rand.N(endJitter)) { //nolint:gosec // jitter
			return
		}
		ctx, cancel := context.WithTimeout(s.base, sweepWithin)
		defer cancel()
		if err := s.endSession(ctx, session); err != nil {
			s.log.Warn("tasks of an ended session could not be removed yet", slog.String("session", string(session)), slog.String("error", err.Error()))
		}
	})
}

// endSession deletes the tasks of a session that has ended, and ends their calls. Tasks that were
// submitted before the session was created are not its own.
func (s *Service) endSession(ctx context.Context, session subjects.SessionID) error {
	for t, err := range s.all(ctx, session, 0) {
		if err != nil {
			return err
		}
		if !t.unreadable && (t.Epoch == "" || !s.over(ctx, t)) {
			continue
		}
		if t.State == codec.TaskScheduled && s.schedules {
			if err := s.unschedule(ctx, session, t.ID); err != nil {
				return err
			}
		}
		if err := s.bus.Delete(ctx, t.key, 0); err != nil && !errors.Is(err, store.ErrNoKey) {
			return err
		}
		s.dropOf(ctx, t)
	}
	return nil
}
