package pool

import (
	"os"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// Process is one worker process, as far as a pool needs it. Package zygote makes
// real ones; tests make theirs in Go. Its methods may be called concurrently,
// Read and Eager by one goroutine at a time.
type Process interface {
	// ID is its own, among all workers that ever were.
	ID() uint64
	// Pid is the system's.
	Pid() int

	// Read reads the frames that the worker sends. It fails soon after the end of
	// the process, even if another process holds the other end of the pipe.
	Read(b []byte) (int, error)
	// Eager says whether Read is to look for data for a moment before it sleeps:
	// an answer is expected at once, and a processor is idle.
	Eager(eager bool)
	// Write sends frames. It never blocks, keeps no reference to data, and drops
	// what a process that has ended would not read.
	Write(data []byte)
	// Output are the read ends of the descriptors 1 and 2; nil where there are none.
	// The pool closes them.
	Output() (stdout, stderr *os.File)

	// Load and Store access the page that the worker shares with the agent, at the
	// places that [sandbox.WordCancel] and its neighbours name.
	Load(word int) uint64
	Store(word int, value uint64)
	// Interrupt has the worker look at the page; Kill ends it.
	Interrupt()
	Kill()

	// Done is closed when the process is known to have ended. Exit is valid then.
	Done() <-chan struct{}
	Exit() sandbox.Exit

	// Usage is what it and all below it take at this moment; false when it is gone. More
	// than most processes and threads are not counted, all if that is 0.
	Usage(most int) (sandbox.Usage, bool)
	// ProcessorTime is what it alone has used; false when the system does not tell.
	ProcessorTime() (time.Duration, bool)
	// Share is their memory, where common pages count once; false when the system
	// does not tell.
	Share() (int64, bool)
	// TempFiles is how many bytes its temporary files take; beyond limit not exactly.
	TempFiles(limit int64) int64
	// Group bounds its memory and its processes; nil where nothing does.
	Group() *cgroup.Group

	// Close releases what is left of it, after Done. Load, Store and Group must not be
	// used from then on; the other methods do nothing.
	Close()
}
