package host

import (
	"context"
	"errors"
	"fmt"
	"go/token"
	"reflect"
	"runtime/debug"

	"github.com/toolmesh/toolmesh"
)

// Causes with which a call's context ends. Whether the tool's code began the
// handler knows better: see [Host.outcome].
var (
	errCancelled   = toolmesh.Errorf(toolmesh.CodeCancelled, "the caller cancelled the call").WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginCaller)
	errDeadline    = toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time is up").WithStarted(toolmesh.StartedYes).WithDetail("limit", "time")
	errSessionOver = toolmesh.Errorf(toolmesh.CodeCancelled, "the call's session has ended").WithStarted(toolmesh.StartedYes).WithDetail("reason", "session_ended")
	errStopping    = toolmesh.Errorf(toolmesh.CodeUnavailable, "the node stopped before the call ended").WithStarted(toolmesh.StartedYes)
)

// errExited is the error of a handler that ended its goroutine.
var errExited = func() *toolmesh.Error {
	e := toolmesh.Errorf(toolmesh.CodeToolError, "the function ended its goroutine instead of returning, as runtime.Goexit and a test's Fatal do")
	e.Type = "goexit"
	return e.WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes)
}()

// panicked is the error of a handler that panics; it is made while that is recovered.
func panicked(p any) error {
	e := toolmesh.Errorf(toolmesh.CodeToolError, "%v", p)
	e.Type, e.Stacktrace = "panic", string(debug.Stack())
	return e
}

// outcome turns the error of a handler into the call's error. If the call's context had ended,
// its cause counts, whatever the handler returned. Only the handler knows whether the tool's code
// had begun by then.
func outcome(ctx *callContext, err error) *toolmesh.Error {
	if err == nil {
		return nil
	}
	ended, unsure := ctx.Err() != nil, false
	var e *toolmesh.Error
	switch {
	case errors.As(err, &e):
		if ctx.nested.Load() && e.Started != toolmesh.StartedYes {
			e = e.WithStarted(toolmesh.StartedYes) // it may be that of the call it made
		}
		// Whether the code of a worker that died had begun is unknown. A handler that runs the
		// code itself knows that it did.
		unsure = e.Started == toolmesh.StartedUnknown &&
			(e.Origin == toolmesh.OriginWorker || e.Code == toolmesh.CodeWorkerCrashed || e.Code == toolmesh.CodeWorkerOutOfMemory)
		// The time of the call is over: a caller must not send it again, whatever the cause.
		again := e.Started == toolmesh.StartedNo && e.Retryable
		if ended && (again || e.Code == toolmesh.CodeCancelled || e.Code == toolmesh.CodeDeadlineExceeded) {
			e = because(ctx, e, unsure)
		}
	case ended && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		e = toolmesh.AsError(context.Cause(ctx))
	default:
		e = toolmesh.Errorf(toolmesh.CodeToolError, "%w", err).WithOrigin(toolmesh.OriginTool)
		e.Type = errorType(err)
	}
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	if e.Code == toolmesh.CodeToolError && e.Origin == toolmesh.OriginAgent {
		e = e.WithOrigin(toolmesh.OriginTool)
	}
	if e.Started == toolmesh.StartedUnknown && !unsure {
		e = e.WithStarted(toolmesh.StartedYes)
	}
	return e
}

// errorType is the first type in an error's chain that its package exports, as
// callers can know it by; those of errors.New and fmt.Errorf say nothing.
func errorType(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		t := reflect.TypeOf(err)
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if token.IsExported(t.Name()) {
			return fmt.Sprintf("%T", err)
		}
	}
	return ""
}

// because returns the cause of an ended context, with the handler's knowledge of whether the call
// began.
func because(ctx context.Context, e *toolmesh.Error, unsure bool) *toolmesh.Error {
	cause := toolmesh.AsError(context.Cause(ctx))
	if unsure || e.Started == toolmesh.StartedNo {
		cause = cause.WithStarted(e.Started)
	}
	// A call that never began has no origin in a worker.
	if cause.Origin == "" && e.Started != toolmesh.StartedNo {
		cause = cause.WithOrigin(e.Origin)
	}
	return cause
}
