package program

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// patrol measures a command until it has ended. Too much processor time terminates it with
// grace; too much memory or too many processes kill it at once.
func (r *run) patrol(every time.Duration) {
	limits, look := r.call.Limits, sandbox.Look{}
	r.proc.Watch(every, limits.Pids, func(u sandbox.Usage) bool {
		memory, files := int64(0), int64(0)
		if limits.Pids == 0 || u.Tasks <= limits.Pids { // measuring more processes is slow
			memory = u.MemoryFor(int64(limits.Memory), 0, func() (int64, bool) { return sandbox.ShareOf(r.proc.Pid(), false) })
			if limit := int64(limits.TempFiles); limit > 0 {
				files, _ = look.Due(func() int64 { return sandbox.FilesOf(r.folder, r.proc.Pid(), limit) })
			}
		}
		exceeded, end := failure.ByKernel(r.call.Tool, limits, r.group, 0, 0), r.proc.Kill
		exceeded = cmp.Or(exceeded, failure.Exceeded(r.call.Tool, limits, memory, u.Tasks, files))
		if exceeded == nil && limits.CPUTime > 0 && u.CPU > limits.CPUTime {
			exceeded, end = failure.OutOfTime(r.call.Tool, limits.CPUTime, u.CPU), r.terminate
		}
		if exceeded != nil {
			r.breach.Store(exceeded)
			r.runner.cfg.Logger.Warn("command exceeded a limit", slog.String("rpc_id", r.call.RPCID), slog.String("tool", r.call.Tool), slog.String("error", exceeded.Error()))
			end()
		}
		return exceeded != nil
	})
}
