package executor

import (
	"log/slog"
	"path/filepath"

	"github.com/toolmesh/toolmesh/executor/cgroup"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// What this machine gives: sandbox levels and control groups.

// scratch is the folder, below the executor's, of what confined processes write.
const scratch = "tmp"

// Sandbox is the level that tools run in which demand none, and why it is not
// the one of [Options.Sandbox], or not run as who [Options.Users] says. The first
// call tests the machine.
func (x *Executor) Sandbox() (effective tool.Sandbox, reasons []string) {
	effective, reasons = x.spawner.Survey().Effective(x.opts.Sandbox)
	why := x.asRoot
	if x.users != nil && x.spawner.Level() != sandbox.LevelPID {
		why = "processes in namespaces cannot become another user here"
	}
	if why != "" && x.opts.Sandbox != tool.SandboxNone {
		reasons = append(reasons, "tools run as root: "+why)
	}
	return effective, reasons
}

func (x *Executor) defaultSandbox() tool.Sandbox {
	effective, _ := x.Sandbox()
	return effective
}

// Lacks says why a tool that demands a sandbox level cannot be served; empty
// when it can. The first call tests the machine.
func (x *Executor) Lacks(level tool.Sandbox) string { return x.spawner.Survey().Lacks(level) }

// openGroups finds out whether control groups may be had.
func openGroups(dir string, o Options) *cgroup.Tree {
	if o.WithoutCgroups {
		return &cgroup.Tree{}
	}
	groups := cgroup.Open(cgroup.NameOf(dir), filepath.Join(dir, "cgroup"), o.Logger)
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
	return failure.SourceWatchdog
}
