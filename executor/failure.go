package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"github.com/toolmesh/toolmesh"
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

func started(yes bool) toolmesh.Started {
	if yes {
		return toolmesh.StartedYes
	}
	return toolmesh.StartedNo
}

// fromWorker makes an error of an ERROR frame's body.
func fromWorker(body []byte) *toolmesh.Error {
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
		Started: started(r.Started), Type: r.Type, Stacktrace: r.Stacktrace,
	}
}

// ended makes the error of a call whose context ended.
func ended(ctx context.Context, begun toolmesh.Started) *toolmesh.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time is up").
			WithOrigin(toolmesh.OriginWorker).WithStarted(begun)
	}
	return toolmesh.Errorf(toolmesh.CodeCancelled, "the call was cancelled").
		WithOrigin(toolmesh.OriginWorker).WithStarted(begun)
}

// exit says how a process ended.
type exit struct {
	Code   int // -1 when a signal ended it
	Signal int // 0 when it exited
	lost   bool
}

func (e exit) String() string {
	switch {
	case e.lost:
		return "its zygote ended"
	case e.Signal != 0:
		return fmt.Sprintf("signal %d, %s", e.Signal, syscall.Signal(e.Signal))
	default:
		return fmt.Sprintf("exit status %d", e.Code)
	}
}

// crashed makes the error of a call whose worker ended under it.
func crashed(tool string, e exit, begun toolmesh.Started, stderr string) *toolmesh.Error {
	message := fmt.Sprintf("the worker of %s ended during the call: %s", tool, e)
	if begun == toolmesh.StartedNo {
		message = fmt.Sprintf("the worker of %s ended before the call began: %s", tool, e)
	}
	err := toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "%s", message).
		WithOrigin(toolmesh.OriginWorker).WithStarted(begun).WithRetryable(begun == toolmesh.StartedNo)
	if e.Signal != 0 {
		err = err.WithDetail("signal", e.Signal)
	} else if !e.lost {
		err = err.WithDetail("exit_status", e.Code)
	}
	if stderr != "" {
		err = err.WithDetail("stderr", stderr)
	}
	return err
}

func unavailable(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, format, args...).
		WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
}
