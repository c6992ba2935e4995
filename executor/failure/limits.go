package failure

import (
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// Who found that a call took too much memory: the detail "source" of its error.
const (
	SourceWatchdog = "watchdog"
	SourceCgroup   = "cgroup"
)

func exceeded(code toolmesh.Code, tool, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(code, format, args...).WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedYes).
		WithDetail("tool", tool)
}

func outOfMemory(tool string, limit, peak int64, source string) *toolmesh.Error {
	return exceeded(toolmesh.CodeWorkerOutOfMemory, tool, "the call took %d bytes of memory, more than its limit of %d", peak, limit).
		WithDetail("limit", limit).WithDetail("peak", peak).WithDetail("source", source)
}

// Exceeded is the error of a call that must not go on for what its processes take:
// memory, in bytes, and tasks. nil if it may.
func Exceeded(name string, limits tool.Limits, memory int64, tasks int) *toolmesh.Error {
	switch {
	case limits.Memory > 0 && memory > int64(limits.Memory):
		return outOfMemory(name, int64(limits.Memory), memory, SourceWatchdog)
	case limits.Pids > 0 && tasks > limits.Pids:
		return exceeded(toolmesh.CodeToolError, name, "the call had %d processes and threads, more than its limit of %d; it was stopped",
			tasks, limits.Pids).WithDetail("limit", "pids").WithDetail("max", limits.Pids)
	}
	return nil
}

// Starved makes the error of a call of which the kernel killed a process for want
// of memory. reached says that the call's own group had come to its bound; else
// the whole machine had no more.
func Starved(tool string, limit, peak int64, reached bool) *toolmesh.Error {
	if reached {
		return outOfMemory(tool, limit, max(peak, limit), SourceCgroup)
	}
	return exceeded(toolmesh.CodeWorkerOutOfMemory, tool,
		"the machine ran out of memory, and the kernel ended the call, which had taken %d bytes of its limit of %d", max(peak, 0), limit).
		WithDetail("limit", limit).WithDetail("peak", max(peak, 0)).WithDetail("source", SourceCgroup)
}

// OutOfTime makes the error of a call that used more processor time than limit.
func OutOfTime(tool string, limit, used time.Duration) *toolmesh.Error {
	return exceeded(toolmesh.CodeDeadlineExceeded, tool, "the call used %v of processor time, more than its limit of %v",
		used.Round(time.Millisecond), limit).WithDetail("limit", "cpu_time").WithDetail("max", limit.String())
}
