package failure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// reported is the body of an ERROR frame; failures.py writes it.
type reported struct {
	Code       toolmesh.Code  `json:"code"`
	Message    string         `json:"message"`
	Started    bool           `json:"started"`
	Type       string         `json:"type"`
	Stacktrace string         `json:"stacktrace"`
	Details    map[string]any `json:"details"`
}

// Started is the word for whether a tool's code had begun.
func Started(yes bool) toolmesh.Started {
	if yes {
		return toolmesh.StartedYes
	}
	return toolmesh.StartedNo
}

// FromWorker makes an error of an ERROR frame's body.
func FromWorker(body []byte) *toolmesh.Error {
	var r reported
	if err := json.Unmarshal(body, &r); err != nil || !r.Code.Valid() {
		return toolmesh.Errorf(toolmesh.CodeInternal, "the worker reported a failure that cannot be read: %.200q", body).
			WithOrigin(toolmesh.OriginWorker)
	}
	origin := toolmesh.OriginWorker
	if r.Code == toolmesh.CodeToolError || r.Code == toolmesh.CodeResultNotSerializable {
		origin = toolmesh.OriginTool
	}
	return &toolmesh.Error{
		Code: r.Code, Message: r.Message, Details: r.Details, Origin: origin,
		Started: Started(r.Started), Type: r.Type, Stacktrace: r.Stacktrace,
	}
}

// Ended makes the error of a call whose context ended.
func Ended(ctx context.Context, begun toolmesh.Started) *toolmesh.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time is up").
			WithOrigin(toolmesh.OriginWorker).WithStarted(begun)
	}
	return toolmesh.Errorf(toolmesh.CodeCancelled, "the call was cancelled").
		WithOrigin(toolmesh.OriginWorker).WithStarted(begun)
}

// Crashed makes the error of a call whose worker ended under it. stderr is what
// the worker said last, as far as it is the call's to see.
func Crashed(tool string, e sandbox.Exit, begun toolmesh.Started, stderr string) *toolmesh.Error {
	message := fmt.Sprintf("the worker of %s ended during the call: %s", tool, e)
	if begun == toolmesh.StartedNo {
		message = fmt.Sprintf("the worker of %s ended before the call began: %s", tool, e)
	}
	err := toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "%s", message).
		WithOrigin(toolmesh.OriginWorker).WithStarted(begun).WithRetryable(begun == toolmesh.StartedNo)
	if e.Signal != 0 {
		err = err.WithDetail("signal", e.Signal)
	} else if !e.Lost {
		err = err.WithDetail("exit_status", e.Code)
	}
	if stderr != "" {
		err = err.WithDetail("stderr", stderr)
	}
	return err
}

// Unavailable makes the error of a call that cannot be made here.
func Unavailable(format string, args ...any) *toolmesh.Error {
	return NotStarted(toolmesh.CodeUnavailable, format, args...)
}

// NotStarted makes the error of a call whose tool's code has not begun.
func NotStarted(code toolmesh.Code, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(code, format, args...).WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
}

// StateGone makes the error of a call that counts on what its session's worker
// knew. It is given once: the next call finds a new worker.
func StateGone(why string) *toolmesh.Error {
	return Unavailable("the session's worker is gone, and what it knew with it: %s; the next call gets a new one", why).
		WithRetryable(true).WithDetail("reason", codec.ReasonStateGone)
}
