package executor

import (
	"runtime"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// What runs for an index and is no call of a tool is bounded, too: imports, builds, init.

const (
	// helpTime bounds the time of a program of an installation. Some download gigabytes.
	helpTime = time.Hour
	// helpFile bounds one file that it writes, in bytes.
	helpFile = 16 << 30
	// helpers is how many of them may run at once as one user.
	helpers = 4
)

// manyTasks is how many processes and threads an import or a build may have: compilers
// take some for each processor.
func manyTasks() int { return max(1024, 64*runtime.NumCPU()) }

// bound bounds a program of an installation.
func (x *Executor) bound(r *sandbox.Request) {
	memory := int64(MemoryShare(50))
	r.Bounds = sandbox.Bounds{Time: helpTime, Memory: memory, Tasks: manyTasks(), Groups: x.groups}
	r.Memory, r.FileSize = sandbox.Backstop(memory), helpFile
	if r.User.ID != 0 {
		r.Processes = helpers * manyTasks()
	}
}

// processes is how many processes and threads the user of an index may have, if each call may
// have pids: those of all its workers, and once more as many for the processes above them. 0,
// for no bound, of a user that is not the index's own.
func (x *Executor) processes(user sandbox.User, pids int) int {
	if user.ID == 0 {
		return 0
	}
	return (x.opts.MaxWorkers + 1) * pids
}
