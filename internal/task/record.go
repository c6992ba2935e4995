package task

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Defaults and bounds of a submission's options.
const (
	defaultAttempts = 3
	mostAttempts    = 100
	defaultTTL      = 24 * time.Hour
	mostTTL         = 30 * 24 * time.Hour
)

// The pause after an attempt that failed: a second, and twice as much after each further
// one up to a minute, less up to half of it by chance.
const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
	// lastWait is the longest pause of a task that no node can run now.
	lastWait = 30 * time.Second
)

func backoff(failures int) time.Duration {
	d := min(firstBackoff<<min(failures-1, 10), lastBackoff)
	return d - rand.N(d/2) //nolint:gosec // jitter
}

// record is the stored form of a task.
type record struct {
	codec.Task
	// Epoch is the session's: a task is not one of the next session of its name.
	Epoch string `json:"epoch,omitempty"`
	// Queued is since when its ttl runs: since it was submitted, due or retried.
	Queued time.Time `json:"queued,omitzero"`
	// Made is the number of attempts that were made, or may have been, before it was retried
	// manually: no two calls have one name.
	Made int `json:"made,omitempty"`
	// Runner makes the call of a task that runs.
	Runner string `json:"runner,omitempty"`
	// When is the submission's option for its time: a name, and a value.
	When string `json:"when,omitempty"`
	// Fired are the last times, in unix seconds, of a schedule whose tasks are kept.
	Fired []int64 `json:"fired,omitempty"`
	// LargeArgs and LargeResult are in the place of Args and Result where those do not fit.
	LargeArgs   *value `json:"large_args,omitempty"`
	LargeResult *value `json:"large_result,omitempty"`
}

// stored is a record with its place.
type stored struct {
	record
	key      store.Key
	session  subjects.SessionID
	revision uint64
	// unreadable: the record is none.
	unreadable bool
}

// errGone: the record of a task does not exist. It never did, its ttl is over, or its session
// has ended.
var errGone = errors.New("no such task")

// keyOf is the place of a task's record.
func keyOf(session subjects.SessionID, id subjects.RPCID) (store.Key, error) {
	name, err := subjects.TaskKey(session, id)
	if err != nil {
		return store.Key{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the task's id: %w", err)
	}
	return store.Key{Bucket: subjects.BucketTaskState, Name: name}, nil
}

// load reads a task's record as it is now; see [errGone].
func (s *Service) load(ctx context.Context, session subjects.SessionID, id subjects.RPCID) (*stored, error) {
	key, err := keyOf(session, id)
	if err != nil {
		return nil, err
	}
	return s.loadKey(ctx, key, session)
}

func (s *Service) loadKey(ctx context.Context, key store.Key, session subjects.SessionID) (*stored, error) {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	entry, err := s.bus.Latest(ctx, key)
	switch {
	case errors.Is(err, store.ErrNoKey):
		return nil, errGone
	case err != nil:
		return nil, err
	}
	return parse(key, session, entry.Value, entry.Revision), nil
}

// parse reads a record. One that cannot be read is a task that has failed: it holds up
// nothing, and is removed as others are.
func parse(key store.Key, session subjects.SessionID, value []byte, revision uint64) *stored {
	t := &stored{key: key, session: session, revision: revision}
	if err := json.Unmarshal(value, &t.record); err != nil {
		t.record, t.unreadable = record{Task: codec.Task{State: codec.TaskFailed}}, true
		_, t.ID, _ = subjects.ParseTaskKey(key.Name)
		t.Error = toolmesh.Errorf(toolmesh.CodeInternal, "the record of task %s cannot be read: %w", key.Name, err)
	}
	return t
}

// recordRoom is the room left in a message with a record, for headers and for the answer
// around it.
const recordRoom = 4096

// encode writes a record; one that no message holds is payload_too_large.
func (s *Service) encode(r *record) ([]byte, error) {
	value, err := tool.MarshalPlain(r)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "the record of a task: %w", err)
	}
	if limit := s.bus.MaxPayload() - recordRoom; limit > 0 && int64(len(value)) > limit {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the task's record has %d bytes, a message of the broker at most %d", len(value), limit).
			WithDetail("limit", limit).WithDetail("size", len(value)).WithStarted(toolmesh.StartedNo)
	}
	return value, nil
}

// write stores a record over the one that was read, or a first one; [store.ErrConflict] if that has
// changed, or there is one. An ended task is kept for its ttl.
func (s *Service) write(ctx context.Context, t *stored) error {
	t.Error = cut(t.Error)
	value, err := s.encode(&t.record)
	if err != nil {
		return err
	}
	var ttl time.Duration
	if t.State.Ended() {
		ttl = t.ttl()
	}
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	revision := t.revision
	if revision == 0 {
		revision, err = s.bus.Create(ctx, t.key, value, ttl)
	} else {
		revision, err = s.bus.Update(ctx, t.key, value, revision, ttl)
	}
	if err == nil {
		t.revision = revision
	}
	return err
}

func (r *record) ttl() time.Duration { return time.Duration(r.TTLMS) * time.Millisecond }

// expires is when a task must have ended.
func (r *record) expires() time.Time { return r.Queued.Add(r.ttl()) }

// attempt is the number of the attempt that is to be made, or that goes on.
func (r *record) attempt() int {
	if r.State == codec.TaskRunning {
		return r.Attempts
	}
	return r.Attempts + 1
}

// callID names the call of an attempt.
func (r *record) callID(n int) subjects.RPCID {
	return r.ID + subjects.RPCID("."+strconv.Itoa(r.Made+n))
}

// permanent are failures that the same call has again.
func permanent(code toolmesh.Code) bool {
	switch code {
	case toolmesh.CodeInvalidArguments, toolmesh.CodeInvalidRequest, toolmesh.CodePermissionDenied,
		toolmesh.CodeSessionNotFound, toolmesh.CodePayloadTooLarge, toolmesh.CodeResultNotSerializable:
		return true
	}
	return false
}

// waits reports whether a call could not be made now, so that it was no attempt.
func waits(e *toolmesh.Error) bool {
	return e.Started == toolmesh.StartedNo && (e.Code == toolmesh.CodeBusy || e.Code == toolmesh.CodeUnavailable)
}

// end has a task end.
func (r *record) end(state codec.TaskState, err *toolmesh.Error, now time.Time) {
	r.State, r.Error, r.Ended, r.Due = state, err, now, time.Time{}
}

// after sets the next state of a task whose attempt n has ended with result or err, and returns,
// if it is queued again, the time until it may run.
func (r *record) after(n int, result *client.Result, err error, now time.Time) (wait time.Duration) {
	e := toolmesh.AsError(err)
	if e == nil && len(result.Value) > 0 && !json.Valid(result.Value) {
		e = codec.NotJSON()
	}
	if e == nil {
		r.Attempts, r.Result, r.Node = n, result.Value, result.Node
		r.Progress = nil
		r.end(codec.TaskSucceeded, nil, now)
		return 0
	}
	if waits(e) {
		// The longer it has waited, the longer it waits.
		wait = min(max(now.Sub(r.Queued)/4, firstBackoff), lastWait)
		wait -= rand.N(wait / 2) //nolint:gosec // jitter
		r.State, r.Attempts, r.Error, r.Runner = codec.TaskQueued, n-1, e, ""
		if now.Add(wait).After(r.expires()) {
			r.end(codec.TaskFailed, expired(r, e), now)
		}
		return wait
	}
	r.Attempts = n
	switch {
	case e.Code == toolmesh.CodeCancelled:
		r.end(codec.TaskCancelled, e, now)
	case permanent(e.Code), n >= r.MaxAttempts, r.Key != "" && e.Started != toolmesh.StartedNo:
		// A begun call under the submitter's key is not repeated.
		r.end(codec.TaskFailed, e, now)
	default:
		wait = backoff(n)
		r.State, r.Error, r.Due, r.Runner = codec.TaskQueued, e, now.Add(wait), ""
		if r.Due.After(r.expires()) {
			r.end(codec.TaskFailed, e, now)
		}
	}
	return wait
}

// expired is the error of a task that could not be run in its time.
func expired(r *record, last *toolmesh.Error) *toolmesh.Error {
	e := toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the task did not end within its ttl of %v", r.ttl()).
		WithOrigin(toolmesh.OriginMesh)
	if r.Attempts == 0 {
		e = e.WithStarted(toolmesh.StartedNo)
	}
	if last != nil {
		e = e.WithDetail("last", last)
	}
	return e
}
