package zygote

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// Options configure a [Starter]. All must be set, except those documented as zero.
type Options struct {
	Logger  *slog.Logger
	Dir     string       // parent of the processes' folders
	Files   string       // the folder that holds the worker's package
	Cgroups *cgroup.Tree // limit memory and processes of workers where groups exist
	// ImportMemory (bytes) and ImportTasks (processes and threads) limit the imports of an
	// index where groups exist.
	ImportMemory int64
	ImportTasks  int
	StartTimeout time.Duration // of the import of one module
	MaxResult    int           // bytes of a result or an item
	MaxFrame     uint32        // bytes of a message
}

// Starter is shared by the groups of an executor: the base processes, and the slots for importing
// interpreters. Its methods may be called concurrently.
type Starter struct {
	opts     Options
	spawner  *sandbox.Spawner
	nextID   atomic.Uint64
	starting chan struct{} // see Slot
	temp     folders       // of workers that may write anywhere

	life context.Context //nolint:containedctx // of the bases
	stop context.CancelFunc

	mu    sync.Mutex
	bases map[string]*base // by the interpreter
	wg    sync.WaitGroup
}

// NewStarter makes a starter, which starts nothing by itself.
func NewStarter(spawner *sandbox.Spawner, opts Options) *Starter {
	s := &Starter{opts: opts, spawner: spawner, starting: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))}
	s.temp.log, s.temp.parent = opts.Logger, opts.Dir
	s.bases = map[string]*base{}
	s.life, s.stop = context.WithCancel(context.Background())
	return s
}

// Slot waits for one of the slots of interpreters that import at once: more than the number of
// processors would only slow each other down.
func (s *Starter) Slot(ctx context.Context) (leave func(), err error) {
	select {
	case s.starting <- struct{}{}:
		return func() { <-s.starting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Warm starts the base of an interpreter of the machine in the background, for the next group.
func (s *Starter) Warm(interpreter string) {
	_, _ = s.baseOf(interpreter) // the next group reports its error
}

// Close ends the bases. The groups must have been closed.
func (s *Starter) Close() {
	s.mu.Lock() // nothing is started from here on
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
}

// numbers are limits in the worker's format: seconds and bytes; zero is none.
type numbers struct {
	CPUTime   float64 `json:"cpu_time,omitempty"`
	Memory    int64   `json:"memory,omitempty"`
	Pids      int     `json:"pids,omitempty"`
	OpenFiles int     `json:"open_files,omitempty"`
	Output    int64   `json:"output,omitempty"`
}
