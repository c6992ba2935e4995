package failure

import (
	"fmt"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/tool"
)

// The detail "source" of an error: the mechanism that found too much memory.
const (
	SourceWatchdog = "watchdog"
	SourceCgroup   = "cgroup"
)

// exceeded makes the error of a call that took more than the limit of a name.
func exceeded(code toolmesh.Code, tool, limit string, most any, format string, args ...any) *toolmesh.Error {
	return During(code, format, args...).WithDetail("tool", tool).WithDetail("limit", limit).WithDetail("max", most)
}

const tookTooMuch = "the call took %d bytes of memory, more than its limit of %d"

func outOfMemory(tool string, limit, peak int64, source, format string) *toolmesh.Error {
	return During(toolmesh.CodeWorkerOutOfMemory, format, peak, limit).
		WithDetail("tool", tool).WithDetail("limit", limit).WithDetail("peak", peak).WithDetail("source", source)
}

// Exceeded is the error of a call that must not go on, because its processes take more than
// a limit: memory and temporary files in bytes, tasks in number. nil if they do not.
func Exceeded(name string, limits tool.Limits, memory int64, tasks int, files int64) *toolmesh.Error {
	switch {
	case limits.Memory > 0 && memory > int64(limits.Memory):
		return outOfMemory(name, int64(limits.Memory), memory, SourceWatchdog, tookTooMuch)
	case limits.Pids > 0 && tasks > limits.Pids:
		return exceeded(toolmesh.CodeToolError, name, "pids", limits.Pids,
			"the call had %d processes and threads, more than its limit of %d; it was stopped", tasks, limits.Pids)
	case limits.TempFiles > 0 && files > int64(limits.TempFiles):
		return exceeded(toolmesh.CodeToolError, name, "temp_files", int64(limits.TempFiles),
			"the call had %d bytes of temporary files, more than its limit of %d; it was stopped", files, int64(limits.TempFiles))
	}
	return nil
}

// ByKernel is the error of a call whose control group reached a limit since it had these kills and
// this memory: the kernel killed one of its processes for want of memory, or refused it one beyond its
// limit of them. nil if it did neither.
func ByKernel(name string, limits tool.Limits, group *cgroup.Group, kills int, charged int64) *toolmesh.Error {
	if group.Kills() > kills {
		limit, peak := int64(limits.Memory), group.Peak()-charged
		if group.Reached() {
			return outOfMemory(name, limit, max(peak, limit), SourceCgroup, tookTooMuch)
		}
		return outOfMemory(name, limit, max(peak, 0), SourceCgroup,
			"the machine ran out of memory, and the kernel ended the call, which had taken %d bytes of its limit of %d")
	}
	if group.Refused() > 0 {
		return exceeded(toolmesh.CodeToolError, name, "pids", limits.Pids,
			"the call asked for more processes and threads than its limit of %d; it was stopped", limits.Pids)
	}
	return nil
}

// OutOfTime makes the error of a call that used more processor time than limit.
func OutOfTime(tool string, limit, used time.Duration) *toolmesh.Error {
	return exceeded(toolmesh.CodeDeadlineExceeded, tool, "cpu_time", limit.String(),
		"the call used %v of processor time, more than its limit of %v", used.Round(time.Millisecond), limit)
}

// TurnOver makes the error of a call whose worker was stopped because its hold of a lane ended.
func TurnOver(tool string, begun toolmesh.Started) *toolmesh.Error {
	code, what := toolmesh.CodeNodeLost, "was stopped"
	if begun == toolmesh.StartedNo {
		code, what = toolmesh.CodeUnavailable, "did not begin"
	}
	return toolmesh.Errorf(code, "%s %s: its turn in a lane could not be renewed, and another call may have it now", tool, what).
		WithStarted(begun).WithOrigin(toolmesh.OriginAgent).WithDetail("reason", "lane_lost")
}

// SetBy says in the error of a call that exceeded a limit that the node has set it, where the
// tool did not: as its default, or as the most that it grants. Other errors stay as they
// are.
func SetBy(err error, declared, inEffect tool.Limits) error {
	e, ok := err.(*toolmesh.Error) //nolint:errorlint // our own, unwrapped
	if !ok {
		return err
	}
	var own, effective any
	limit, _ := e.Details["limit"].(string)
	switch {
	case e.Code == toolmesh.CodeWorkerOutOfMemory:
		own, effective = declared.Memory, inEffect.Memory
	case limit == "pids":
		own, effective = declared.Pids, inEffect.Pids
	case limit == "open_files":
		own, effective = declared.OpenFiles, inEffect.OpenFiles
	case limit == "temp_files":
		own, effective = declared.TempFiles, inEffect.TempFiles
	}
	if own == effective {
		return err
	}
	e = e.WithDetail("set_by", "node")
	if own == any(0) || own == any(tool.Size(0)) {
		e.Message += fmt.Sprintf(" (%v is the default of this node; limits of the tool may replace it)", effective)
	} else {
		e.Message += fmt.Sprintf(" (%v is the most that this node grants; the tool declares %v)", effective, own)
	}
	return e
}
