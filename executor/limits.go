package executor

import (
	"fmt"
	"path/filepath"

	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// scratch is the folder, below the executor's, of what confined workers write.
const scratch = "tmp"

// Sandbox is the level that tools run in which demand none, and why it is not
// the one of [Options.Sandbox]. The first call tests the machine.
func (x *Executor) Sandbox() (effective tool.Sandbox, reasons []string) {
	return x.spawner.Survey().Effective(x.opts.Sandbox)
}

func (x *Executor) defaultSandbox() tool.Sandbox {
	effective, _ := x.Sandbox()
	return effective
}

// folderOf makes a folder for what a sandbox level lets its processes write;
// empty where it leaves them others.
func (x *Executor) folderOf(level tool.Sandbox) (string, error) {
	return sandbox.OwnFolder(filepath.Join(x.dir, scratch), level)
}

// Lacks says why a tool that demands a sandbox level cannot be served; empty
// when it can. The first call tests the machine.
func (x *Executor) Lacks(level tool.Sandbox) string {
	if why := x.spawner.Survey().Lacks(level); why != "" {
		return fmt.Sprintf("it demands the sandbox level %s, which this node does not have: %s", level, why)
	}
	return ""
}
