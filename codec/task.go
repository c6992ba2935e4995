package codec

import (
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Verbs of mesh.task.<session>.<verb>.
const (
	TaskSubmit = "submit"
	TaskShow   = "show"
	TaskList   = "ls"
	TaskWait   = "wait"
	TaskCancel = "cancel"
	TaskRetry  = "retry"
	TaskRemove = "rm"
)

// The ways of a schedule to treat times at which no process ran tasks: no task, one task for the
// last of them, or one for each of the last 100.
const (
	CatchUpNone = "none"
	CatchUpOne  = "one"
	CatchUpAll  = "all"
)

// CatchUps returns them.
func CatchUps() []string { return []string{CatchUpNone, CatchUpOne, CatchUpAll} }

// TaskState says how far a durable task is.
type TaskState string

// The states of a task. A task that waits between two attempts is queued.
const (
	TaskScheduled TaskState = "scheduled"
	TaskQueued    TaskState = "queued"
	TaskRunning   TaskState = "running"
	TaskSucceeded TaskState = "succeeded"
	TaskFailed    TaskState = "failed"
	TaskCancelled TaskState = "cancelled"
)

// TaskStates returns all states, in the order in which a task has them.
func TaskStates() []TaskState {
	return []TaskState{TaskScheduled, TaskQueued, TaskRunning, TaskSucceeded, TaskFailed, TaskCancelled}
}

// Ended reports whether nothing happens to a task any more, unless it is retried.
func (s TaskState) Ended() bool {
	return s == TaskSucceeded || s == TaskFailed || s == TaskCancelled
}

// Priorities of a task.
const (
	PriorityLow    = -1
	PriorityNormal = 0
	PriorityHigh   = 1
)

// TaskRequest is the body of a request about tasks; each verb reads its own fields.
type TaskRequest struct {
	// ID names the task. For submit it defaults to a new id; the same id again is the
	// same task.
	ID subjects.RPCID `json:"id,omitempty"`

	// Of submit: the call.
	Tool subjects.ToolID `json:"tool,omitempty"`
	Args json.RawMessage `json:"args,omitempty"`
	// Ref and Digest stand for arguments in the object store, in place of Args.
	Ref    string `json:"ref,omitempty"`
	Digest string `json:"digest,omitempty"`
	// TimeoutMS is the time of each attempt.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Attempts is how often the tool may run, 3 if absent.
	Attempts int `json:"attempts,omitempty"`
	// Priority is -1, 0 or 1.
	Priority int `json:"priority,omitempty"`
	// TTLMS is for how long the result is kept, and how long the task may wait for its
	// end; a day if absent.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// Key is the idempotency key of the call.
	Key string `json:"key,omitempty"`
	// When it starts, one of them at most: At is a time as RFC 3339 has it.
	At      string `json:"at,omitempty"`
	InMS    int64  `json:"in_ms,omitempty"`
	EveryMS int64  `json:"every_ms,omitempty"`
	Cron    string `json:"cron,omitempty"`
	// CatchUp is none, one or all, of a schedule; one if absent.
	CatchUp string `json:"catch_up,omitempty"`
	// Parent is the call that submits it.
	Parent subjects.RPCID `json:"parent,omitempty"`

	// OlderMS, of rm, is for how long the tasks to remove have ended.
	OlderMS int64 `json:"older_ms,omitempty"`

	// Of ls: which tasks (of rm, too), at most how many, and the Next of the page before.
	State string `json:"state,omitempty"`
	Limit int    `json:"limit,omitempty"`
	After uint64 `json:"after,omitempty"`

	// AcceptRef has a result that no message carries be answered by reference, of wait
	// and show.
	AcceptRef bool `json:"accept_ref,omitempty"`

	// WaitMS is for how long wait waits before it answers with a task that has not
	// ended; 10 s if absent, and at most.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// Task is a durable task as show, wait, cancel and retry answer it. In a list it is
// without Args and Result.
type Task struct {
	ID       subjects.RPCID  `json:"id"`
	Tool     subjects.ToolID `json:"tool"`
	Args     json.RawMessage `json:"args,omitempty"`
	State    TaskState       `json:"state"`
	Priority int             `json:"priority"`
	// Attempts is how many have begun, MaxAttempts how many may.
	Attempts    int `json:"attempts"`
	MaxAttempts int `json:"max_attempts"`
	// Created is when it was submitted, Due when it may start (or its next attempt),
	// Started when its last attempt did, and Ended when it ended: mesh time.
	Created time.Time `json:"created"`
	Due     time.Time `json:"due,omitzero"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Node is the one that ran it.
	Node      subjects.NodeID `json:"node,omitempty"`
	TimeoutMS int64           `json:"timeout_ms,omitempty"`
	TTLMS     int64           `json:"ttl_ms"`
	Key       string          `json:"key,omitempty"`
	EveryMS   int64           `json:"every_ms,omitempty"`
	Cron      string          `json:"cron,omitempty"`
	CatchUp   string          `json:"catch_up,omitempty"`
	// Schedule is the task whose schedule made this one.
	Schedule subjects.RPCID `json:"schedule,omitempty"`
	Parent   subjects.RPCID `json:"parent,omitempty"`
	// Progress is the last report of the last attempt; nil without one, and once the task has
	// succeeded.
	Progress *Progress `json:"progress,omitempty"`
	// Result is that of one that succeeded. Error is that of one that failed, or of the
	// last attempt of one that is tried again.
	Result json.RawMessage `json:"result,omitempty"`
	Error  *toolmesh.Error `json:"error,omitempty"`
	// ResultSize is the number of bytes of a result that no message holds. Ref and Digest name it
	// for a caller that accepts references.
	ResultSize int64  `json:"result_size,omitempty"`
	Ref        string `json:"ref,omitempty"`
	Digest     string `json:"digest,omitempty"`
}

// Submitted is the answer to submit.
type Submitted struct {
	ID    subjects.RPCID `json:"id"`
	State TaskState      `json:"state"`
}

// TasksRemoved is the answer to rm: how many were removed, and whether there are more, for
// which it is to be asked again.
type TasksRemoved struct {
	Removed int  `json:"removed"`
	More    bool `json:"more,omitempty"`
}

// TaskPage is the answer to ls, in the order in which the tasks were changed last.
type TaskPage struct {
	Tasks []Task `json:"tasks"`
	// Next is the After of the next page; 0 at the end. A task that changes in between is
	// on two pages.
	Next uint64 `json:"next,omitempty"`
}
