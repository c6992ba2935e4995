package task

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// mostValue is the largest value that a task takes or gives, in bytes.
	mostValue int64 = 1e9
	// valueWait bounds one operation on a value.
	valueWait = 2 * time.Minute
	// lookEvery is the interval of searches for values without a record, and looseAge their
	// minimum age: a process that stored one has had the time to write its record.
	lookEvery = 10 * time.Minute
	looseAge  = 10 * time.Minute
)

// value is the arguments, or the result, of a task that its record cannot hold: messages of
// one subject, which the record describes. They are kept for as long as there is the record.
type value struct {
	ID     string `json:"id"` // <key of the task>.<size in bytes>.<any>
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	Parts  int    `json:"parts"`
}

// valueStream is the stream of values, valueParts the prefix of their subjects.
var (
	valueStream = subjects.ObjectStream(subjects.ObjectTasks)
	valueParts  = subjects.ObjectParts(subjects.ObjectTasks)
)

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return codec.DigestText(sum[:])
}

func unavailable(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, format, args...).WithOrigin(toolmesh.OriginMesh)
}

// keep stores a value of a task, under a name that no other one has: of two runners that
// have a result, the record names one.
func (s *Service) keep(ctx context.Context, t *stored, data []byte) (*value, error) {
	ctx, cancel := context.WithTimeout(ctx, valueWait)
	defer cancel()
	v := &value{Digest: digestOf(data), Size: int64(len(data)), ID: fmt.Sprintf("%s.%d.%s", t.key.Name, len(data), uuid.NewString())}
	var err error
	if v.Parts, err = s.bus.StoreParts(ctx, subjects.ObjectTasks, v.ID, data); err == nil {
		return v, nil
	}
	if errors.Is(err, store.ErrFull) {
		return nil, full("the store of tasks' payloads")
	}
	return nil, unavailable("store a payload of task %s: %w", t.ID, err)
}

// fetch reads a value and checks its digest. Missing parts may still come, from a lagging
// replica: that is unavailable. A complete value with another digest is invalid_request.
func (s *Service) fetch(ctx context.Context, v *value) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, valueWait)
	defer cancel()
	var data bytes.Buffer
	got, err := s.bus.CopyParts(ctx, subjects.ObjectTasks, v.ID, v.Parts, v.Size, &data)
	if err != nil {
		return nil, unavailable("read a payload of a task: %w", err)
	}
	if got != v.Digest {
		return nil, invalid("the payload %s of a task was altered: its digest is %s, and was %s", v.ID, got, v.Digest)
	}
	return data.Bytes(), nil
}

// drop deletes values without a record; a sweep repeats failures.
func (s *Service) drop(ctx context.Context, all ...*value) {
	for _, v := range all {
		if v == nil || v.ID == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
		err := s.bus.Purge(ctx, valueStream, valueParts+v.ID)
		cancel()
		if err != nil {
			s.log.Debug("a payload of a task is deleted later", slog.String("value", v.ID), slog.String("error", err.Error()))
		}
	}
}

// inline is the maximum of arguments, and of a result, within a record, in bytes.
func (s *Service) inline() int64 { return min(inlineBytes, s.bus.MaxPayload()/4) }

// receiveArgs reads the arguments of a submission, also those by reference. Arguments that do
// not fit the record are returned, and must be stored.
func (s *Service) receiveArgs(ctx context.Context, t *stored, q *codec.TaskRequest, held *holding) (large []byte, err error) {
	args := []byte(t.Args)
	if q.Ref != "" {
		ref := &codec.Ref{Name: q.Ref, Digest: q.Digest}
		ctx, cancel := context.WithTimeout(ctx, valueWait)
		defer cancel()
		if args, err = payloads.Load(ctx, s.bus, t.session, ref, mostValue, held.take); err != nil {
			return nil, err
		}
		if args = bytes.TrimSpace(args); len(args) == 0 || args[0] != '{' || !json.Valid(args) {
			return nil, invalid("the value of ref is not an arguments object")
		}
	}
	if int64(len(args)) <= s.inline() {
		t.Args = args
		return nil, nil
	}
	t.Args, t.LargeArgs = nil, &value{Digest: digestOf(args), Size: int64(len(args))}
	return args, nil
}

// argsOf are the arguments of a task, for which there is room.
func (s *Service) argsOf(ctx context.Context, r *record, held *holding) (json.RawMessage, error) {
	if r.LargeArgs == nil {
		return r.Args, nil
	}
	if err := held.take(r.LargeArgs.Size); err != nil {
		return nil, err
	}
	return s.fetch(ctx, r.LargeArgs)
}

// answerOf is a task as it is answered. A result that no message holds is where its caller
// can read it, for 15 minutes, if it asked for that.
func (s *Service) answerOf(ctx context.Context, t *stored, verb string, q *codec.TaskRequest, held *holding) (answer *codec.Task, err error) {
	answer = &t.Task
	left := s.bus.MaxPayload() - 2*recordRoom
	if v := t.LargeResult; v != nil && (v.Size <= left || q.AcceptRef) {
		if err = held.take(v.Size); err == nil && v.Size > left {
			err = payloads.Share(ctx, s.bus, held.account, v.Size)
		}
		if err != nil {
			return nil, err
		}
		data, err := s.fetch(ctx, v)
		if err != nil {
			return nil, err
		}
		if v.Size <= left {
			answer.Result = data
			left -= v.Size
		} else {
			ref, err := payloads.Store(ctx, s.bus, t.session, held.account, bytes.NewReader(data), mostValue)
			if err != nil {
				return nil, fmt.Errorf("hand out the result of task %s: %w", t.ID, err)
			}
			answer.Ref, answer.Digest = ref.Name, ref.Digest
		}
	}
	if v := t.LargeResult; v != nil && answer.Result == nil {
		answer.ResultSize = v.Size
	}
	if v := t.LargeArgs; v != nil && verb == codec.TaskShow && v.Size <= left && held.take(v.Size) == nil {
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if args, err := s.fetch(soon, v); err == nil { // otherwise they may still come: the answer is without them
			answer.Args = args
		}
	}
	return answer, nil
}

// dropOf deletes the values of a task. Those of its schedule are not its own.
func (s *Service) dropOf(ctx context.Context, t *stored) {
	for _, v := range []*value{t.LargeArgs, t.LargeResult} {
		if v != nil && strings.HasPrefix(v.ID, t.key.Name+".") {
			s.drop(ctx, v)
		}
	}
}

// sweepValues deletes the values that no record names: of tasks whose ttl is over, and of
// runners that died in between.
func (s *Service) sweepValues(ctx context.Context, age time.Duration) error {
	all, err := s.bus.Info(ctx, valueStream, valueParts+">")
	if err != nil {
		return err
	}
	var failed error
	for subject := range all.State.Subjects {
		id := strings.TrimPrefix(subject, valueParts)
		named, err := s.named(ctx, id)
		if err == nil && !named {
			var last []*store.Stored
			if last, err = s.bus.Find(ctx, valueStream, store.Lookup{Subject: subject}); err == nil && last[0] != nil && s.now().Sub(last[0].Time) >= age {
				s.drop(ctx, &value{ID: id})
			}
		}
		if err != nil {
			failed = err // the others are looked at all the same
		}
	}
	return failed
}

// named reports whether the record of a value's task names it.
func (s *Service) named(ctx context.Context, id string) (bool, error) {
	session, rest, _ := strings.Cut(id, ".")
	task, _, _ := strings.Cut(rest, ".")
	t, err := s.loadKey(ctx, store.Key{Bucket: subjects.BucketTaskState, Name: session + "." + task}, "")
	if errors.Is(err, errGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if t.LargeArgs != nil && t.LargeArgs.ID == id || t.LargeResult != nil && t.LargeResult.ID == id {
		return true, nil
	}
	return s.firedHas(ctx, session, t, func(one *stored) bool { return !one.State.Ended() && one.LargeArgs != nil && one.LargeArgs.ID == id })
}

// digest is empty for no value.
func (v *value) digest() string {
	if v == nil {
		return ""
	}
	return v.Digest
}
