package executor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// Capabilities of this machine: sandbox levels and control groups.

// scratch is the folder, below the executor's, of the temporary files of confined processes.
const scratch = "tmp"

// Sandbox is the level of tools that demand none, and why it is not that of [Options.Sandbox], or
// why [Options.Users] has no effect. The first call tests the machine.
func (x *Executor) Sandbox() (effective tool.Sandbox, reasons []string) {
	effective, reasons = x.spawner.Survey().Effective(x.opts.Sandbox)
	why := x.asRoot
	if x.users != nil {
		switch x.spawner.Level() {
		case sandbox.LevelPID:
		case sandbox.LevelUser:
			if !x.mapped {
				why = "processes in namespaces cannot become another user here, the agent lacks CAP_SETUID, CAP_SETGID or CAP_SETFCAP"
			}
		case sandbox.LevelReaper:
			if why = x.openUp(); why == "" && x.opts.Sandbox != tool.SandboxNone {
				reasons = append(reasons, "indexes have users of their own all the same")
			}
		}
	}
	if why != "" && x.opts.Sandbox != tool.SandboxNone {
		reasons = append(reasons, "tools run as root: "+why)
	}
	if x.defaultSandbox() != effective {
		reasons = append(reasons, "Landlock keeps tools from changing the agent's files, from reading its keys and from making files in the folders above these all the same")
	}
	return effective, reasons
}

// passage lets the users of indexes pass through the agent's folder to their own folders, and
// closes the rest to them, where mounting is impossible. It returns the reason if it fails.
func (x *Executor) passage() string {
	for folder := filepath.Dir(x.sealed); ; folder = filepath.Dir(folder) {
		info, err := os.Stat(folder)
		if err != nil {
			return err.Error()
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Sprintf("no other user passes %s, in which the agent's folder is, and nothing can be mounted here: choose another with --data-dir", folder)
		}
		if folder == filepath.Dir(folder) {
			break
		}
	}
	entries, err := os.ReadDir(x.sealed)
	if err != nil {
		return err.Error()
	}
	for _, entry := range entries {
		path := filepath.Join(x.sealed, entry.Name())
		shown := slices.ContainsFunc(append([]string{x.dir, x.opts.Homes}, x.opts.Shown...), func(folder string) bool { return within(folder, path) })
		info, err := entry.Info()
		if err != nil || shown || within(path, x.dir) || info.Mode()&(os.ModeSymlink|0o077) == 0 {
			continue
		}
		if err := os.Chmod(path, info.Mode().Perm()&0o700); err != nil {
			return err.Error()
		}
	}
	if err := os.Chmod(x.sealed, 0o711); err != nil { //nolint:gosec // to pass, not to look around
		return err.Error()
	}
	return ""
}

// defaultSandbox is the level of processes that demand none.
func (x *Executor) defaultSandbox() tool.Sandbox { return x.spawner.Survey().Held(x.opts.Sandbox) }

// strict is the level of processes that read or build files of strangers.
func (x *Executor) strict() tool.Sandbox {
	if x.defaultSandbox() == tool.SandboxNone {
		return tool.SandboxNone
	}
	return x.spawner.Survey().Held(tool.SandboxStrict)
}

// Users of processes, as returned by [Executor.RunsAs].
const (
	UserOwn   = "own"   // each index has its own
	UserAgent = "agent" // the user of this process
)

// RunsAs is the user of processes of an index without a sandbox level, and their effective level.
// The user is [UserOwn], [UserAgent], or the name or number in [Options.Users].
func (x *Executor) RunsAs() (user string, level tool.Sandbox) {
	level, _ = x.Sandbox()
	switch {
	case !x.hasUsers(x.opts.Sandbox):
		return UserAgent, level
	case x.opts.Users == "each":
		return UserOwn, level
	}
	return x.opts.Users, level
}

// hasUsers reports whether processes with a sandbox level run as another user.
func (x *Executor) hasUsers(asked tool.Sandbox) bool {
	if x.users == nil || !asked.AtLeast(tool.SandboxGuard) {
		return false
	}
	x.spawner.Survey() // determines the level
	level := x.spawner.Level()
	return !(level == sandbox.LevelUser && !x.mapped || level == sandbox.LevelReaper && x.openUp() != "")
}

// Lacks returns why a tool that demands a sandbox level cannot be served; empty if it can. The
// first call tests the machine.
func (x *Executor) Lacks(level tool.Sandbox) string { return x.spawner.Survey().Lacks(level) }

// leastMemory is the minimum of MemoryShare: less is not enough for common imports of
// tools.
const leastMemory = 256e6

// MemoryShare is a percentage of the memory that this process can have: the machine's, or its
// control group's limit. It is at least 256 MB, in whole megabytes.
func MemoryShare(percent int) tool.Size {
	share := cgroup.Memory() / 100 * int64(percent)
	return tool.Size(max(share/1e6*1e6, leastMemory))
}

// Limits are those of calls whose tools declare none, and the highest that tools may declare.
func (x *Executor) Limits() (standard, most tool.Limits) { return x.opts.Limits, x.opts.MaxLimits }

// MemoryGuard names the mechanism that enforces memory limits on this machine: "cgroup v2", "cgroup
// v1", or "watchdog" if no control groups can be made.
func (x *Executor) MemoryGuard() string {
	if kind := x.groups.Kind(); kind != "" {
		return string(kind)
	}
	return failure.SourceWatchdog
}
