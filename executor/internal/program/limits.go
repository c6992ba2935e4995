package program

import (
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// watchEvery is how often a run that declares limits is looked at: what it may take
	// beyond a limit before it is stopped is what it can take in that time.
	watchEvery = 20 * time.Millisecond
	// The node's defaults, and temporary files, are looked at more rarely. A look at files
	// may take no more than a part of the time.
	watchDefaults = 100 * time.Millisecond
	watchShare    = 20
	// overhead is what the control group of a program holds beside it: the interpreter
	// above it, and what the kernel holds on its behalf.
	overhead = 28 << 20
)

// closely reports whether a run under these limits, which it declares, must be looked
// at often.
func closely(l tool.Limits) bool { return l.CPUTime > 0 || l.Memory > 0 || l.Pids > 0 }

// watched reports whether a run under these limits must be looked at.
func watched(l tool.Limits) bool { return closely(l) || l.TempFiles > 0 }

// bounded is the limit on memory that the system keeps too: one that is declared.
func (r *run) bounded() tool.Size { return min(r.declared.Memory, r.call.Limits.Memory) }

// backstop is what the system lets one process of a command reserve: far more
// than its limit, which the watchdog keeps and gives its own error. 0: no limit.
func backstop(memory tool.Size) int64 {
	if memory == 0 {
		return 0
	}
	return 2*int64(memory) + 256<<20
}

// patrol looks at what a command takes, until it has ended. Of processor time too
// much it is asked to end; more memory or processes than it may have end it at once.
func (r *run) patrol(finished <-chan struct{}) {
	every, limit := watchDefaults, int64(r.call.Limits.TempFiles)
	if closely(r.declared) {
		every = watchEvery
	}
	var nextFiles time.Time
	for {
		select {
		case <-finished:
			return
		case <-time.After(every):
		}
		pids := r.call.Limits.Pids
		u, ok := sandbox.UsageOf(r.proc.Pid(), false, pids)
		if !ok {
			continue
		}
		many, files := pids > 0 && u.Tasks > pids, int64(0) // with so many the rest takes long
		if began := time.Now(); limit > 0 && !many && began.After(nextFiles) {
			files = sandbox.FilesOf(r.folder, r.proc.Pid(), limit)
			now := time.Now()
			nextFiles = now.Add(max(watchDefaults/2, watchShare*now.Sub(began)))
		}
		exceeded, fatal := r.exceeds(u, files)
		if refused := r.refused(); refused != nil {
			exceeded, fatal = refused, true
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
		r.runner.cfg.Logger.Warn("a command exceeded a limit", slog.String("rpc_id", r.call.RPCID), slog.String("tool", r.call.Tool), slog.Any("error", exceeded))
		if fatal {
			r.proc.Kill()
		} else {
			close(r.exceeded)
		}
		return
	}
}

// exceeds says which limit is exceeded, and whether the program has to go at once.
func (r *run) exceeds(u sandbox.Usage, files int64) (exceeded *toolmesh.Error, fatal bool) {
	limits, memory := r.call.Limits, int64(0)
	if limits.Pids == 0 || u.Tasks <= limits.Pids {
		memory = u.MemoryFor(int64(limits.Memory), 0, func() (int64, bool) { return sandbox.ShareOf(r.proc.Pid(), false) })
	}
	if exceeded := failure.Exceeded(r.call.Tool, limits, memory, u.Tasks, files); exceeded != nil {
		return exceeded, true
	}
	if limits.CPUTime > 0 && u.CPU > limits.CPUTime {
		return failure.OutOfTime(r.call.Tool, limits.CPUTime, u.CPU), false
	}
	return nil, false
}

// enclose moves the process above a program, which has not started it yet, into
// a group of its own, and bounds that.
func (r *run) enclose() {
	if r.group == nil {
		return
	}
	limit := int64(r.call.Limits.Memory)
	err := r.group.Add(r.proc.Pid())
	if err == nil && limit > 0 {
		err = r.group.Limit(limit + limit/32 + overhead)
	}
	if err != nil {
		r.runner.cfg.Logger.Warn("a command is in no control group", slog.String("rpc_id", r.call.RPCID), slog.String("tool", r.call.Tool), slog.Any("error", err))
	}
}

// refused is the error of a program of which the kernel killed a process for want of
// memory, or to which it refused one, else nil.
func (r *run) refused() *toolmesh.Error {
	switch {
	case r.group == nil:
		return nil
	case r.group.Kills() > 0:
		return failure.Starved(r.call.Tool, int64(r.call.Limits.Memory), r.group.Peak(), r.group.Reached())
	case r.group.Refused() > 0:
		return failure.Refused(r.call.Tool, r.call.Limits)
	}
	return nil
}
