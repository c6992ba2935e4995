package pool

import (
	"os"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// Process is one worker process as a pool sees it. Package zygote makes real ones; tests make
// theirs in Go. Its methods may be called concurrently, Read and Eager by one goroutine at a
// time.
type Process interface {
	// ID is unique among all workers.
	ID() uint64
	// Pid is the process id of the system.
	Pid() int

	// Read reads the worker's frames. It fails soon after the end of the process, even if
	// another process holds the other end of the pipe.
	Read(b []byte) (int, error)
	// Eager makes Read poll for a moment before it sleeps, for an answer that is expected at
	// once while a processor is idle.
	Eager(eager bool)
	// Write sends frames. It never blocks, keeps no reference to data, and drops data that an
	// ended process would not read.
	Write(data []byte)
	// Output are the read ends of the descriptors 1 and 2; nil without any. The pool closes
	// them.
	Output() (stdout, stderr *os.File)

	// Load and Store access the page that the worker shares with the agent, by words like
	// [sandbox.WordCancel].
	Load(word int) uint64
	Store(word int, value uint64)
	// Interrupt makes the worker read the page; Kill ends it.
	Interrupt()
	Kill()

	// Done is closed when the process is known to have ended; then Exit is valid.
	Done() <-chan struct{}
	Exit() sandbox.Exit

	// Usage is the usage of the worker and all processes below it at this moment; false after
	// its end. It counts at most this many tasks, all with 0.
	Usage(most int) (sandbox.Usage, bool)
	// ProcessorTime is the worker's own, without processes below; false where the system does not tell.
	ProcessorTime() (time.Duration, bool)
	// Share is their memory with common pages counted once; false where the system does not
	// tell.
	Share() (int64, bool)
	// TempFiles is the size of its temporary files in bytes; inexact beyond limit.
	TempFiles(limit int64) int64
	// Group is its control group; nil without one.
	Group() *cgroup.Group

	// Close releases its resources, after Done. Load, Store and Group must not be used
	// afterwards; the other methods do nothing.
	Close()
}
