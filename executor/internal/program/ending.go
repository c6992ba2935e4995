package program

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

func (r *run) program() string { return r.call.Argv[0] }

// failed makes an error of how the program ended; nil after success.
func (r *run) failed(ending sandbox.Ending) error {
	switch how := ending.Exit; {
	case ending.Refused != "":
		return failure.Unavailable("the sandbox level %s is not available: %s", r.call.Sandbox, ending.Refused)
	case ending.Failed == syscall.E2BIG:
		return failure.NotStarted(toolmesh.CodePayloadTooLarge, "the arguments are more than the system gives to a program")
	case ending.Failed != 0:
		return failure.Unavailable("the command %s could not be started: %s", r.program(), ending.Failed).WithRetryable(false)
	case ending.Lost:
		if r.runner.life.Err() != nil {
			return failure.During(toolmesh.CodeUnavailable, "the index %s was closed while the call ran", r.runner.cfg.Index)
		}
		return r.withWords(failure.During(toolmesh.CodeWorkerCrashed, "the process that ran %s ended during the call", r.program()))
	case how.Signal != 0:
		return r.withWords(failure.During(toolmesh.CodeWorkerCrashed, "%s was ended by a signal: %s", r.program(), how).WithDetail("signal", how.Signal))
	case how.Code != 0:
		message := fmt.Sprintf("%s ended with exit status %d", r.program(), how.Code)
		<-r.quiet
		if lines := strings.Split(r.tail.String(), "\n"); lines[len(lines)-1] != "" {
			message += ": " + lines[len(lines)-1]
		}
		e := r.withWords(failure.During(toolmesh.CodeToolError, "%s", message).WithDetail("exit_status", how.Code))
		e.Type, e.Origin = "CommandFailed", toolmesh.OriginTool
		return e
	}
	return nil
}

// withWords adds the end of the program's stderr, which is read to its end first: no process is
// left that could write there.
func (r *run) withWords(e *toolmesh.Error) *toolmesh.Error {
	<-r.quiet
	e = e.WithDetail("tool", r.call.Tool)
	if words := r.tail.String(); words != "" {
		e = e.WithDetail("stderr", words)
	}
	return e
}
