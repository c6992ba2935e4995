package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
	toolpkg "github.com/toolmesh/toolmesh/tool"
)

// TaskInfo describes a durable task.
type TaskInfo = codec.Task

// SubmitOptions adjusts a task.
type SubmitOptions struct {
	// ID names the task in its session. Defaults to a new id; the same id again, with the
	// same tool and arguments, is the same task.
	ID subjects.RPCID
	// Timeout is the time of each attempt. Defaults to the time that the tool declares, within
	// the rest of the TTL.
	Timeout time.Duration
	// Attempts is how often the tool may be run, 100 at most. Defaults to 3.
	Attempts int
	// Priority is 1, 0 or -1: of the tasks of a session those with the higher one run
	// first. Defaults to 0.
	Priority int
	// TTL is how long the result is kept, and how long the task may wait until it ends:
	// 30 days at most. Defaults to a day.
	TTL time.Duration
	// Key is the idempotency key of the call, see [WithIdempotencyKey]: a call that began under
	// it never runs again. Defaults to none.
	Key string

	// At is when it starts, or In in how long; Every is the interval and Cron the line (of
	// 5 fields, or 6 with seconds in front, in UTC) of a schedule, which submits a task
	// each time until it is cancelled. One of them at most, to the second; they take NATS
	// server 2.14. Default to a task that starts now.
	At    time.Time
	In    time.Duration
	Every time.Duration
	Cron  string
	// CatchUp says how a schedule makes up for times at which no node ran tasks:
	// [codec.CatchUpNone], CatchUpOne or CatchUpAll. Defaults to one task for all of them.
	CatchUp string
}

// Task is a durable task of a session. Its methods may be called concurrently, and from
// any process: see [Client.Task].
type Task struct {
	c  *Client
	id subjects.RPCID
}

// ID names the task in its session.
func (t *Task) ID() subjects.RPCID { return t.id }

// Task returns the task of that name in the client's session, without a request.
func (c *Client) Task(id subjects.RPCID) *Task { return &Task{c: c, id: id} }

// Submit submits a call that survives this process, and returns when the mesh has stored it. nil
// means default options. A failed attempt is repeated after a pause, unless the same call would
// fail in the same way.
//
// Submit repeats the same task until it has an answer or ctx ends. The errors are invalid_request
// for a task that cannot run, such as a cron line that never fires, payload_too_large for
// arguments that are larger than a message, busy if the mesh has no room for more tasks, and
// unavailable if no node runs tasks.
func (c *Client) Submit(ctx context.Context, tool subjects.ToolID, args any, options *SubmitOptions) (*Task, error) {
	o := cmp.Or(options, &SubmitOptions{})
	s, err := c.settings(ctx, []CallOption{WithRPCID(o.ID), WithIdempotencyKey(o.Key), WithTimeout(o.Timeout)}, "task_")
	if err != nil {
		return nil, err
	}
	body, err := encodeArgs(args)
	if err == nil && len(body) > 0 && !json.Valid(body) {
		err = callerError(toolmesh.CodeInvalidArguments, "the arguments are not JSON")
	}
	if err != nil {
		return nil, err
	}
	q := &codec.TaskRequest{
		ID: s.RPCID, Tool: tool, Args: body, TimeoutMS: milliseconds(o.Timeout), Attempts: o.Attempts, Priority: o.Priority,
		TTLMS: milliseconds(o.TTL), Key: o.Key, InMS: milliseconds(o.In), EveryMS: milliseconds(o.Every), Cron: o.Cron, CatchUp: o.CatchUp, Parent: s.Parent,
	}
	if !o.At.IsZero() {
		q.At = o.At.UTC().Format(time.RFC3339Nano)
	}
	if err := c.TaskVerb(ctx, codec.TaskSubmit, q, nil); err != nil {
		return nil, err
	}
	return c.Task(s.RPCID), nil
}

// milliseconds rounds up: a time above zero stays above zero.
func milliseconds(d time.Duration) int64 {
	return int64((min(d, toolmesh.MaxTime) + time.Millisecond - 1) / time.Millisecond)
}

// Show returns the task's state. The error is not_found for a task that does not exist or has
// expired.
func (t *Task) Show(ctx context.Context) (*TaskInfo, error) { return t.ask(ctx, codec.TaskShow) }

// Cancel has the task, or schedule, end, wherever it is, and returns it. One that has
// ended already stays as it is.
func (t *Task) Cancel(ctx context.Context) (*TaskInfo, error) { return t.ask(ctx, codec.TaskCancel) }

// Retry queues a task again that failed or was cancelled, with all its attempts. Any
// other one is invalid_request.
func (t *Task) Retry(ctx context.Context) (*TaskInfo, error) { return t.ask(ctx, codec.TaskRetry) }

// Remove removes an ended task with its result, and reports whether it did: a schedule stays
// while one of its tasks runs. The error is invalid_request for a task that has not ended.
func (t *Task) Remove(ctx context.Context) (bool, error) {
	if t.id == "" { // on the wire that is all tasks
		return false, callerError(toolmesh.CodeInvalidRequest, "the task's id is empty")
	}
	var done codec.TasksRemoved
	err := t.c.TaskVerb(ctx, codec.TaskRemove, &codec.TaskRequest{ID: t.id}, &done)
	return done.Removed > 0, err
}

func (t *Task) ask(ctx context.Context, verb string) (*TaskInfo, error) {
	info := new(TaskInfo)
	if err := t.c.TaskVerb(ctx, verb, &codec.TaskRequest{ID: t.id}, info); err != nil {
		return nil, err
	}
	return info, nil
}

// Wait returns the task's result when it has ended, or the error that it ended with. It
// waits on while the mesh cannot be reached, until ctx ends, which leaves the task as it
// is.
func (t *Task) Wait(ctx context.Context) (*Result, error) {
	info, err := t.Ended(ctx)
	switch {
	case err != nil:
		return nil, err
	case info.Error != nil:
		return nil, info.Error
	}
	return &Result{RPCID: info.ID, Value: info.Result, Node: info.Node, Took: info.Ended.Sub(info.Created)}, nil
}

// Ended is [Task.Wait], and returns the task's whole state.
func (t *Task) Ended(ctx context.Context) (*TaskInfo, error) {
	for n := 1; ; n++ {
		info, err := t.ask(ctx, codec.TaskWait)
		switch {
		case err == nil && info.State.Ended():
			return info, nil
		case err == nil:
			n = 0
		case ctx.Err() == nil && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable && toolmesh.CodeOf(err) != toolmesh.CodeBusy:
			return nil, err
		}
		if ctx.Err() != nil || n > 0 && !pause(ctx, taskPause, n) {
			return nil, ended(ctx, toolmesh.StartedUnknown)
		}
	}
}

// Tasks returns the tasks of the client's session that are in a state, or all of them if
// that is empty, without arguments and results, in the order of their last changes.
func (c *Client) Tasks(ctx context.Context, state codec.TaskState) ([]TaskInfo, error) {
	var all []TaskInfo
	at := make(map[subjects.RPCID]int)
	for after := uint64(0); ; {
		var page codec.TaskPage
		if err := c.TaskVerb(ctx, codec.TaskList, &codec.TaskRequest{State: string(state), After: after, Limit: tasksPage}, &page); err != nil {
			return nil, err
		}
		for _, info := range page.Tasks {
			if i, twice := at[info.ID]; twice { // it has changed in between
				all[i] = info
				continue
			}
			at[info.ID] = len(all)
			all = append(all, info)
		}
		if after = page.Next; after == 0 {
			return all, nil
		}
	}
}

// RemoveTasks removes the tasks of the client's session that ended at least older ago, in the
// given state or, if that is empty, in any, and returns their number. A schedule stays while one
// of its tasks runs.
func (c *Client) RemoveTasks(ctx context.Context, state codec.TaskState, older time.Duration) (int, error) {
	for n := 0; ; {
		var done codec.TasksRemoved
		if err := c.TaskVerb(ctx, codec.TaskRemove, &codec.TaskRequest{State: string(state), OlderMS: milliseconds(older)}, &done); err != nil {
			return n, err
		}
		if n += done.Removed; !done.More {
			return n, nil
		}
	}
}

const (
	tasksPage = 500
	// taskAnswer is how long a request about tasks may take before it is sent again, and
	// taskWait how long one that waits may.
	taskAnswer = 5 * time.Second
	taskWait   = 12 * time.Second
	taskPause  = 50 * time.Millisecond // before the second time
)

// TaskVerb makes a request about tasks (docs/protocol, section 10) and reads the answer into the
// value that into points to; nil drops it. It repeats the request while there is no answer, so
// each verb may arrive twice.
func (c *Client) TaskVerb(ctx context.Context, verb string, q *codec.TaskRequest, into any) error {
	subject, err := subjects.TaskVerb(c.session, verb)
	if err != nil {
		return callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	asked := *q
	timeout := taskAnswer
	switch verb {
	case codec.TaskSubmit:
		if err := c.referTask(ctx, &asked); err != nil {
			return err
		}
	case codec.TaskWait:
		timeout, asked.AcceptRef = taskWait, true
	}
	body := codec.Encode(asked)
	for n := 1; ; n++ {
		attempt, cancel := context.WithTimeout(ctx, timeout)
		m, err := c.ask(attempt, subject, body)
		cancel()
		switch {
		case err == nil:
			err = c.readTask(ctx, m, verb == codec.TaskWait, into)
		case errors.Is(err, errNoResponders):
			err = toolmesh.Errorf(toolmesh.CodeUnavailable, "no node runs tasks: start an agent or a router").
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			err = toolmesh.Errorf(toolmesh.CodeUnavailable, "the request about a task was not answered in %v", timeout).WithOrigin(toolmesh.OriginMesh)
		case ctx.Err() != nil:
			return ended(ctx, toolmesh.StartedUnknown)
		}
		code := toolmesh.CodeOf(err)
		again := code == toolmesh.CodeUnavailable && toolmesh.AsError(err).Retryable
		if err == nil || !again || n >= maxAttempts || !pause(ctx, taskPause, n) {
			return err
		}
	}
}

// readTask reads an answer about tasks; with resolve, a result that came by reference is in its place.
func (c *Client) readTask(ctx context.Context, m *nats.Msg, resolve bool, into any) error {
	r := codec.ParseReply(codec.Header(m.Header), m.Data)
	switch {
	case r.Kind == codec.ReplyError:
		return r.Err
	case into == nil:
		return nil
	}
	unreadable := func(err error) error {
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the answer about a task cannot be read: %w", err)
	}
	data := m.Data
	var at struct{ Ref, Digest string }
	if resolve && json.Unmarshal(data, &at) == nil && at.Ref != "" {
		ref := &codec.Ref{Name: at.Ref, Digest: at.Digest}
		result, err := c.read(ctx, c.session, "", ref, nil)
		if err != nil {
			return err
		}
		c.Forget(c.session, ref)
		whole := make(map[string]json.RawMessage)
		if err := json.Unmarshal(data, &whole); err != nil {
			return unreadable(err)
		}
		maps.DeleteFunc(whole, func(name string, _ json.RawMessage) bool {
			return name == "ref" || name == "digest" || name == "result_size"
		})
		whole["result"] = result
		if data, err = toolpkg.MarshalPlain(whole); err != nil {
			return unreadable(err)
		}
	}
	if err := json.Unmarshal(data, into); err != nil {
		return unreadable(err)
	}
	return nil
}

// referTask has arguments that no message carries travel by reference.
func (c *Client) referTask(ctx context.Context, q *codec.TaskRequest) error {
	limit := c.bus.MaxPayload()
	if limit == 0 || int64(len(q.Args)+headerRoom) <= limit {
		return nil
	}
	ref, err := c.store(ctx, c.session, "", bytes.NewReader(q.Args), int64(len(q.Args)))
	if err != nil {
		return err
	}
	q.Args, q.Ref, q.Digest = nil, ref.Name, ref.Digest
	return nil
}
