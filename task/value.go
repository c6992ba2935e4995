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
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// mostValue is the largest value that a task takes or gives, in bytes.
	mostValue int64 = 1e9
	// valueWait bounds what is done with one of them.
	valueWait = 2 * time.Minute
	// lookEvery is how often values are looked for that no record names any more, and
	// looseAge how old they are: whoever has stored one has had the time to say so.
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

// valueStream is where values are, valueParts what their subjects begin with.
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
	if v.Parts, err = s.bus.StoreParts(ctx, valueStream, valueParts+v.ID, data); err == nil {
		return v, nil
	}
	if errors.Is(err, bus.ErrFull) {
		return nil, full("the store of tasks' large values")
	}
	return nil, unavailable("store a large value of task %s: %w", t.ID, err)
}

// fetch reads a value; its digest is checked. What is not there may come yet, from a replica
// that lags: that is unavailable. What is all there and another value is invalid_request.
func (s *Service) fetch(ctx context.Context, v *value) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, valueWait)
	defer cancel()
	data, err := s.bus.LoadParts(ctx, valueStream, valueParts+v.ID, v.Parts)
	if err != nil {
		return nil, unavailable("read a large value of a task: %w", err)
	}
	if got := digestOf(data); got != v.Digest {
		return nil, invalid("the large value %s of a task was altered: its digest is %s, and was %s", v.ID, got, v.Digest)
	}
	return data, nil
}

// drop deletes values that no record names; what fails is found later.
func (s *Service) drop(ctx context.Context, all ...*value) {
	for _, v := range all {
		if v == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
		err := s.bus.Purge(ctx, valueStream, valueParts+v.ID)
		cancel()
		if err != nil {
			s.log.Debug("a large value of a task is deleted later", slog.String("value", v.ID), slog.String("error", err.Error()))
		}
	}
}

// receiveArgs has the arguments of a submission that its record cannot hold be in the
// store: those that came by reference, and those that are too long.
func (s *Service) receiveArgs(ctx context.Context, t *stored, q *codec.TaskRequest) error {
	args := []byte(t.Args)
	if q.Ref != "" {
		ref := &codec.Ref{Name: q.Ref, Digest: q.Digest}
		ctx, cancel := context.WithTimeout(ctx, valueWait)
		defer cancel()
		var err error
		if args, err = payloads.Load(ctx, s.bus, t.session, ref, mostValue, nil); err != nil {
			return err
		}
		if args = bytes.TrimSpace(args); len(args) == 0 || args[0] != '{' || !json.Valid(args) {
			return invalid("what ref names is not an arguments object")
		}
	}
	if limit := s.bus.MaxPayload() - 2*recordRoom; limit <= 0 || int64(len(args)) <= limit {
		t.Args = args
		return nil
	}
	kept, err := s.keep(ctx, t, args)
	if err != nil {
		return err
	}
	t.Args, t.LargeArgs = nil, kept
	return nil
}

// argsOf are the arguments of a task.
func (s *Service) argsOf(ctx context.Context, r *record) (json.RawMessage, error) {
	if r.LargeArgs == nil {
		return r.Args, nil
	}
	return s.fetch(ctx, r.LargeArgs)
}

// answerOf is a task as it is answered. A result that the record cannot hold is where its
// caller can read it, for 15 minutes, if it asked for that.
func (s *Service) answerOf(ctx context.Context, t *stored, q *codec.TaskRequest) (*codec.Task, error) {
	answer := t.Task
	if t.LargeResult == nil {
		return &answer, nil
	}
	answer.ResultSize = t.LargeResult.Size
	if !q.AcceptRef {
		return &answer, nil
	}
	data, err := s.fetch(ctx, t.LargeResult)
	if err != nil {
		return nil, err
	}
	ref, err := payloads.Store(ctx, s.bus, t.session, t.session, bytes.NewReader(data), mostValue)
	if err != nil {
		return nil, fmt.Errorf("hand out the result of task %s: %w", t.ID, err)
	}
	answer.Ref, answer.Digest = ref.Name, ref.Digest
	return &answer, nil
}

// sweepValues deletes the values that no record names: of tasks whose ttl is over, and of
// runners that died in between.
func (s *Service) sweepValues(ctx context.Context, age time.Duration) error {
	all, err := s.bus.Subjects(ctx, valueStream, valueParts+">")
	if err != nil {
		return err
	}
	var failed error
	for subject := range all {
		id := strings.TrimPrefix(subject, valueParts)
		named, err := s.named(ctx, id)
		if err == nil && !named {
			var last []*bus.Stored
			if last, err = s.bus.Find(ctx, valueStream, bus.Lookup{Subject: subject}); err == nil && last[0] != nil && s.now().Sub(last[0].Time) >= age {
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
	token, rest, _ := strings.Cut(id, ".")
	task, _, _ := strings.Cut(rest, ".")
	entry, err := s.bus.Latest(ctx, bus.Key{Bucket: subjects.BucketTaskState, Name: token + "." + task})
	if err != nil {
		if errors.Is(err, bus.ErrNoKey) {
			err = nil
		}
		return false, err
	}
	t := parse(bus.Key{}, "", entry.Value, 0)
	return t.LargeArgs != nil && t.LargeArgs.ID == id || t.LargeResult != nil && t.LargeResult.ID == id, nil
}

// digest is empty for no value.
func (v *value) digest() string {
	if v == nil {
		return ""
	}
	return v.Digest
}
