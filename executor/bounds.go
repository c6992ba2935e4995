package executor

import (
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// backstop is what the system lets one process of a command reserve: far more
// than its limit, which the watchdog keeps and gives its own error. 0: no limit.
func backstop(memory tool.Size) int64 {
	if memory == 0 {
		return 0
	}
	return 2*int64(memory) + 256<<20
}

// watchEvery is how often the watchdog looks at what a command takes.
const watchEvery = 20 * time.Millisecond

// watched reports whether a command with these limits must be looked at while it runs.
func watched(l tool.Limits) bool { return l.CPUTime > 0 || l.Memory > 0 || l.Pids > 0 }

// patrol looks at what a command takes, until it has ended. Of processor time too
// much it is asked to end; more memory or processes than it may have end it at once.
func (r *run) patrol(finished <-chan struct{}) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-finished:
			return
		case <-ticker.C:
		}
		u, ok := r.proc.Below()
		if !ok {
			continue
		}
		exceeded, fatal := r.judge(u)
		if starved := r.starved(); starved != nil {
			exceeded, fatal = starved, true
		}
		if exceeded == nil {
			continue
		}
		select {
		case <-r.proc.Done(): // it was another process's id by then
			return
		default:
		}
		r.breach.Store(exceeded)
		r.c.log.Warn("a command exceeded a limit", slog.String("tool", r.call.Tool), slog.Any("error", exceeded))
		if fatal {
			r.proc.Kill()
		} else {
			close(r.exceeded)
		}
		return
	}
}

// judge says which limit is exceeded, and whether the program has to go at once.
func (r *run) judge(u sandbox.Usage) (exceeded *toolmesh.Error, fatal bool) {
	limits := r.call.Limits
	if memory := u.Memory; limits.Memory > 0 && memory > int64(limits.Memory) {
		if u.Processes > 1 {
			// Children share pages with their parent: those count once.
			if share, ok := r.proc.BelowShare(); ok {
				memory = min(memory, share)
			}
		}
		if memory > int64(limits.Memory) {
			return failure.OutOfMemory(r.call.Tool, int64(limits.Memory), memory, failure.SourceWatchdog), true
		}
	}
	if limits.Pids > 0 && u.Tasks > limits.Pids {
		return failure.TooManyProcesses(r.call.Tool, limits.Pids, u.Tasks), true
	}
	if limits.CPUTime > 0 && u.CPU > limits.CPUTime {
		return failure.OutOfTime(r.call.Tool, limits.CPUTime, u.CPU), false
	}
	return nil, false
}
