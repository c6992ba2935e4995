package failure

import (
	"context"
	"encoding/json"
	"errors"

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

// maxReported bounds an ERROR frame's body in bytes. failures.py cuts all texts and lists to a fraction of it; two
// bytes of details that code of an index writes itself may take 24 of memory.
const maxReported = 1 << 20

// FromWorker makes an error of an ERROR frame's body.
func FromWorker(body []byte) *toolmesh.Error {
	var r reported
	if len(body) > maxReported || json.Unmarshal(body, &r) != nil || !r.Code.Valid() {
		return toolmesh.Errorf(toolmesh.CodeInternal, "the worker reported a failure that cannot be read: %q", body[:min(len(body), 200)]).
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
		return During(toolmesh.CodeDeadlineExceeded, "the call's time is up").WithStarted(begun)
	}
	return During(toolmesh.CodeCancelled, "the call was cancelled").WithStarted(begun)
}

// Crashed makes the error of a call whose worker ended. stderr has the worker's last words,
// as far as the call may see them.
func Crashed(tool string, e sandbox.Exit, begun toolmesh.Started, stderr string) *toolmesh.Error {
	when := "during the call"
	if begun == toolmesh.StartedNo {
		when = "before the call began"
	}
	err := During(toolmesh.CodeWorkerCrashed, "the worker of %s ended %s: %s", tool, when, e).
		WithStarted(begun).WithRetryable(begun == toolmesh.StartedNo)
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
	return During(code, format, args...).WithStarted(toolmesh.StartedNo)
}

// Deserted makes the error of a waiting call whose callers have left.
func Deserted() *toolmesh.Error {
	return Unavailable("the call did not begin: its caller is gone")
}

// During makes the error of a call whose tool's code had begun.
func During(code toolmesh.Code, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(code, format, args...).WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedYes)
}

// StateGone makes the error of a call that counts on the state of its session's worker. It is
// given once: the next call finds a new worker.
func StateGone(why string) *toolmesh.Error {
	return Unavailable("the session's worker was lost with its state: %s; the next call gets a new one", why).
		WithRetryable(true).WithDetail("reason", codec.ReasonStateGone)
}
