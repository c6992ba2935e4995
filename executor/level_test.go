package executor

import "github.com/toolmesh/toolmesh/executor/internal/sandbox"

// Level is the way in which processes are kept together on this machine.
func (x *Executor) Level() sandbox.Level { return x.spawner.Level() }
