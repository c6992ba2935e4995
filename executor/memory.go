package executor

import (
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/cgroup"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/tool"
)

// A limit on memory has three guards. What is asked for at once, far beyond it,
// is refused by the system (limits.py): a MemoryError, which a tool may handle.
// What is touched is measured by the watchdog, which is exact about what the
// limit means and says so, but looks only now and then. Behind both stands the
// kernel's bound on the worker's control group, where there are groups: nothing
// is faster, and nothing hides from it, neither a process that left its parent
// nor a file in memory. It stands a bit further out than the limit, because it
// also counts what the limit does not: see bound.

// watchdogGuard is what [Executor.MemoryGuard] says where there are no groups.
const watchdogGuard = "watchdog"

// Beyond the limit, for what the kernel holds on a worker's behalf: tables of
// pages, stacks, buffers.
const kernelShare = 4 << 20

// What the interpreter above a command may take: it is in the program's group.
const commandShare = 24 << 20

var errStarved = errors.New("the kernel killed one of its processes for want of memory")

// openGroups finds out whether control groups may be had.
func openGroups(dir string, o Options) *cgroup.Tree {
	if o.WithoutCgroups {
		return &cgroup.Tree{}
	}
	groups := cgroup.Open(cgroup.NameOf(dir), &cgroup.Options{Logger: o.Logger, Record: filepath.Join(dir, "cgroup")})
	if groups.Kind() == "" {
		o.Logger.Info("no control groups: memory limits are kept by the watchdog", slog.String("reason", groups.Why()))
	}
	return groups
}

// MemoryGuard says what stands behind the memory limits of tools on this
// machine: "cgroup v2", "cgroup v1", or "watchdog" where no control groups may be
// made.
func (x *Executor) MemoryGuard() string {
	if kind := x.groups.Kind(); kind != "" {
		return string(kind)
	}
	return watchdogGuard
}

// newGroup makes a group for what keeps these limits; nil where it needs none, or
// none is to be had: the other guards are there.
func (x *Executor) newGroup(limits tool.Limits) *cgroup.Group {
	if limits.Memory == 0 || x.groups.Kind() == "" {
		return nil
	}
	group, err := x.groups.New()
	if err != nil {
		x.log.Warn("a worker gets no control group", slog.Any("error", err))
		return nil
	}
	return group
}

// enclose moves a worker that has just been forked into its group, with what the
// index's own handlers may have started in it: no call has reached it.
func (w *worker) enclose() {
	if w.group == nil {
		return
	}
	err := w.group.Add(w.handle.Pid())
	known := map[int]bool{}
	for more := true; more && err == nil; {
		more = false
		for _, pid := range w.handle.Descendants() {
			if !known[pid] {
				known[pid], more = true, true
				err = errors.Join(err, w.group.Add(pid))
			}
		}
	}
	if err != nil {
		w.log.Warn("a worker is in no control group", slog.Int("pid", w.handle.Pid()), slog.Any("error", err))
	}
}

// bound sets the bound of a worker's group when it is ready for its first call.
// What it has of its zygote is charged to that; but the first to write to a
// common page pays for the copy, though it has no more memory than before. So all
// that it began with may be charged to it once more.
func (w *worker) bound() {
	if w.group == nil {
		return
	}
	used, err := w.group.Usage()
	if err == nil {
		w.meter.charged = used
		limit := int64(w.crew.key.limits.Memory)
		err = w.group.Limit(used + w.meter.base + limit + limit/32 + kernelShare)
	}
	if err != nil {
		w.log.Warn("a worker's control group is not bounded", slog.Int("pid", w.handle.Pid()), slog.Any("error", err))
	}
}

// starved reports whether the kernel killed a process of the worker's since its
// call began. The crew's lock is held.
func (w *worker) starved() bool { return w.group != nil && w.group.Kills() > w.meter.kills }

// starvation makes the error of the calls of a starved worker. The crew's lock
// is held.
func (w *worker) starvation() func(j *job) *toolmesh.Error {
	limit := int64(w.crew.key.limits.Memory)
	peak, reached := w.group.Peak()-w.meter.charged, w.group.Reached()
	return func(j *job) *toolmesh.Error { return failure.Starved(j.tool.Name, limit, peak, reached) }
}

// exhausted ends a worker that is starved and still there: the kernel killed
// another process of its. Its calls have exceeded their limit, whatever they say.
func (c *crew) exhausted(w *worker) bool {
	if w.group == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reckon(w) {
		return false
	}
	w.kill()
	return true
}

// reckon has the calls of a starved worker fail for it. The lock is held.
func (c *crew) reckon(w *worker) bool {
	if !w.starved() {
		return false
	}
	jobs := c.running(w)
	if len(jobs) == 0 {
		return false
	}
	fails := w.starvation()
	for _, j := range jobs {
		if j.breach == nil {
			j.breach = fails(j)
		}
	}
	if !w.stopping {
		c.index.log.Warn("a call exceeded a limit", slog.Int("pid", w.handle.Pid()), slog.Any("error", jobs[0].breach))
	}
	w.retired, w.stopping = true, true
	return true
}

// enclose moves the process above a program, which has not started it yet, into
// a group of its own, and bounds that.
func (r *run) enclose() {
	if r.group == nil {
		return
	}
	limit := int64(r.call.Limits.Memory)
	err := r.group.Add(r.proc.Pid())
	if err == nil {
		err = r.group.Limit(limit + limit/32 + commandShare + kernelShare)
	}
	if err != nil {
		r.c.log.Warn("a command is in no control group", slog.String("tool", r.call.Tool), slog.Any("error", err))
	}
}

// starved is the error of a program of which the kernel killed a process for want
// of memory, else nil.
func (r *run) starved() *toolmesh.Error {
	if r.group == nil || r.group.Kills() == 0 {
		return nil
	}
	return failure.Starved(r.call.Tool, int64(r.call.Limits.Memory), r.group.Peak(), r.group.Reached())
}
