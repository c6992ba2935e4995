package sandbox

import (
	"fmt"
	"syscall"
)

// Exit says how a process ended.
type Exit struct {
	Code   int  // -1 when a signal ended it
	Signal int  // 0 when it exited
	Lost   bool // unknown: the process that reports it ended first
}

// ExitOf decodes the exit code of a process that reports its child's end.
func ExitOf(code int) Exit {
	if code > 128 {
		return Exit{Code: -1, Signal: code - 128}
	}
	return Exit{Code: code}
}

// Error is [Exit.String].
func (e Exit) Error() string { return e.String() }

func (e Exit) String() string {
	switch {
	case e.Lost:
		return "its zygote ended"
	case e.Signal != 0:
		return fmt.Sprintf("signal %d, %s", e.Signal, syscall.Signal(e.Signal))
	default:
		return fmt.Sprintf("exit status %d", e.Code)
	}
}
