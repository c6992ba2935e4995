package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

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

// value is the arguments, or the result, of a task that its record cannot hold: an object
// of the store of tasks, which keeps it for as long as there is the record.
type value struct {
	Name   string `json:"name"` // <key of the task>.<any>
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

func (s *Service) values(ctx context.Context) (jetstream.ObjectStore, error) {
	store, err := s.bus.JetStream().ObjectStore(ctx, subjects.ObjectTasks)
	if err != nil {
		return nil, unavailable("the store of tasks' large values cannot be reached: %w", err)
	}
	return store, nil
}

func unavailable(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, format, args...).WithOrigin(toolmesh.OriginMesh)
}

// keep stores a value of a task, under a name that no other one has: of two runners that
// have a result, the record names one.
func (s *Service) keep(ctx context.Context, t *stored, data []byte) (*value, error) {
	ctx, cancel := context.WithTimeout(ctx, valueWait)
	defer cancel()
	store, err := s.values(ctx)
	if err != nil {
		return nil, err
	}
	info, err := store.PutBytes(ctx, t.key.Name+"."+uuid.NewString(), data)
	switch {
	case bus.Full(err):
		return nil, full("the store of tasks' large values")
	case err != nil:
		return nil, unavailable("a large value of a task cannot be stored: %w", err)
	}
	return &value{Name: info.Name, Digest: info.Digest, Size: int64(len(data))}, nil
}

// fetch reads a value; its digest is checked. One that is gone is invalid_request.
func (s *Service) fetch(ctx context.Context, v *value) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, valueWait)
	defer cancel()
	store, err := s.values(ctx)
	if err != nil {
		return nil, err
	}
	data, err := store.GetBytes(ctx, v.Name)
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, jetstream.ErrDigestMismatch):
		return nil, invalid("the large value %s of the task is gone, or was altered: %w", v.Name, err)
	case err != nil:
		return nil, unavailable("a large value of a task cannot be read: %w", err)
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
		store, err := s.values(ctx)
		if err == nil {
			err = store.Delete(ctx, v.Name)
		}
		cancel()
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			s.log.Debug("a large value of a task is deleted later", slog.String("name", v.Name), slog.String("error", err.Error()))
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
	store, err := s.values(ctx)
	if err != nil {
		return err
	}
	all, err := store.List(ctx)
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil
	}
	if err != nil {
		return unavailable("the large values of tasks cannot be listed: %w", err)
	}
	for _, info := range all {
		if s.now().Sub(info.ModTime) < age {
			continue
		}
		key := info.Name[:max(strings.LastIndexByte(info.Name, '.'), 0)]
		session, id, err := subjects.ParseTaskKey(key)
		if err == nil {
			var t *stored
			switch t, err = s.load(ctx, session, id); {
			case err == nil && (t.LargeArgs != nil && t.LargeArgs.Name == info.Name || t.LargeResult != nil && t.LargeResult.Name == info.Name):
				continue
			case err != nil && !errors.Is(err, errGone):
				return err
			}
		}
		s.drop(ctx, &value{Name: info.Name})
	}
	return nil
}

// digest is empty for no value.
func (v *value) digest() string {
	if v == nil {
		return ""
	}
	return v.Digest
}
