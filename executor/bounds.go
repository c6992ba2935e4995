package executor

import (
	"runtime"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// Work for an index that is not a call of a tool is limited, too: imports, builds, init.

const (
	// helpTime bounds the time of a program of an installation. Some download gigabytes.
	helpTime = time.Hour
	// helpFile bounds one file that it writes, in bytes.
	helpFile = 16 << 30
	// helpers is the maximum of these programs at once as one user.
	helpers = 4
)

// manyTasks is the maximum of processes and threads of an import or a build: compilers start
// some for each processor.
func manyTasks() int { return max(1024, 64*runtime.NumCPU()) }

// bound limits a program of an installation.
func (x *Executor) bound(r *sandbox.Request) {
	memory := int64(MemoryShare(50))
	r.Bounds = sandbox.Bounds{Time: helpTime, Memory: memory, Tasks: manyTasks(), Groups: x.groups}
	r.Memory, r.FileSize = sandbox.Backstop(memory), helpFile
	if r.User.ID != 0 {
		r.Processes = helpers * manyTasks()
	}
}

// processes is the maximum of processes and threads of an index's user, if each call may have
// pids: those of all its workers, and as many again for the processes above them. It is 0, for no
// limit, if the user is not the index's own.
func (x *Executor) processes(user sandbox.User, pids int) int {
	if user.ID == 0 {
		return 0
	}
	return (x.opts.MaxWorkers + 1) * pids
}
