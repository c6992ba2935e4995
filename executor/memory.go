package executor

import (
	"log/slog"
	"path/filepath"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/cgroup"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/tool"
)

// watchdogGuard is what [Executor.MemoryGuard] says where there are no groups.
const watchdogGuard = "watchdog"

// Beyond the limit, for what the kernel holds on a worker's behalf: tables of
// pages, stacks, buffers.
const kernelShare = 4 << 20

// What the interpreter above a command may take: it is in the program's group.
const commandShare = 24 << 20

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
