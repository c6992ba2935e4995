package zygote

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// afterEnd is how long a read continues after the end of the process: its output has arrived by
// then, but a process that a tool left behind may hold the pipe open.
const afterEnd = 200 * time.Millisecond

// Worker describes a worker process.
type Worker struct {
	Async     bool
	Isolation toolmesh.Isolation // of its calls
	Limits    tool.Limits        // of one call, enforced by the worker
	Bounds    tool.Limits        // of one call, enforced by the kernel's control groups where they exist
	// Tool is the only tool that the worker imports, in an interpreter of its own; empty for
	// all tools.
	Tool string
	// Turns makes the zygote end the worker when a call's hold of a lane ends.
	Turns bool
}

// Process is a worker process: a fork of a zygote, or one that was a zygote itself.
// It implements the Process of package pool.
type Process struct {
	id     uint64
	zygote *zygote
	handle *sandbox.Handle
	group  *cgroup.Group // nil without a group of its own
	temp   folder        // for its temporary files
	page   *sandbox.Page
	in     *os.File // its calls
	out    *os.File // its results
	stdout *os.File
	stderr *os.File
	reader *eager // of out
	raw    syscall.RawConn
	// release releases a zygote that has become the process; nil for others.
	release func()

	done     chan struct{}
	doneOnce sync.Once
	exit     sandbox.Exit // valid after done

	mu       sync.Mutex
	pending  []byte // not yet written to the full pipe
	writing  int    // bytes of which the flusher has not written all
	flushing bool
	closed   bool
	wg       sync.WaitGroup // the flusher
}

// newProcess makes the channels of a process before its start; theirs are its ends, in the
// order of the protocol. After an error all are closed.
func newProcess(id uint64) (p *Process, theirs []*os.File, err error) {
	p = &Process{id: id, done: make(chan struct{})}
	defer func() {
		if err != nil {
			sandbox.CloseAll(theirs)
			p.closeChannels()
		}
	}()
	theirs, err = sandbox.NewPipes([]sandbox.Channel{{Ours: &p.in, Write: true}, {Ours: &p.out}, {Ours: &p.stdout}, {Ours: &p.stderr}}...)
	if err != nil {
		return p, theirs, err
	}
	if p.page, err = sandbox.NewPage(); err != nil {
		return p, theirs, err
	}
	p.raw, _ = p.in.SyscallConn() // of an open file
	p.reader = newEager(p.out)
	return p, theirs, nil
}

func (p *Process) closeChannels() {
	sandbox.CloseAll([]*os.File{p.in, p.out, p.stdout, p.stderr})
	if p.page != nil {
		p.page.Close()
	}
}

// exited records the end of the process.
func (p *Process) exited(e sandbox.Exit) {
	p.doneOnce.Do(func() {
		p.exit = e
		_ = p.out.SetReadDeadline(time.Now().Add(afterEnd))
		close(p.done)
	})
}

// See the interface Process of package pool.

func (p *Process) ID() uint64                           { return p.id }
func (p *Process) Pid() int                             { return p.handle.Pid() }
func (p *Process) Read(b []byte) (int, error)           { return p.reader.Read(b) }
func (p *Process) Eager(eager bool)                     { p.reader.eager = eager }
func (p *Process) Output() (stdout, stderr *os.File)    { return p.stdout, p.stderr }
func (p *Process) Load(word int) uint64                 { return p.page.Load(word) }
func (p *Process) Store(word int, value uint64)         { p.page.Store(word, value) }
func (p *Process) Interrupt()                           { _ = p.handle.Signal(syscall.SIGURG) }
func (p *Process) Kill()                                { _ = p.handle.Signal(syscall.SIGKILL) }
func (p *Process) Done() <-chan struct{}                { return p.done }
func (p *Process) Exit() sandbox.Exit                   { return p.exit }
func (p *Process) ProcessorTime() (time.Duration, bool) { return sandbox.ProcessorTime(p.Pid()) }
func (p *Process) Usage(most int) (sandbox.Usage, bool) { return sandbox.UsageOf(p.Pid(), true, most) }
func (p *Process) Share() (int64, bool)                 { return sandbox.ShareOf(p.Pid(), true) }
func (p *Process) Group() *cgroup.Group                 { return p.group }
func (p *Process) TempFiles(limit int64) int64          { return sandbox.FilesOf(p.temp.path, p.Pid(), limit) }

// maxUnread is how many bytes wait for a process that does not read: the results of many calls that
// its tool makes.
var maxUnread = 256 << 20

// Write sends data. It never blocks: a goroutine writes the part for which the pipe has no
// room. A process that leaves more than maxUnread bytes of that unread is killed.
func (p *Process) Write(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return // the worker has ended, and its calls end with it
	}
	if p.flushing {
		if p.pending = append(p.pending, data...); len(p.pending)+p.writing > maxUnread {
			p.pending = nil
			p.Kill()
		}
		return
	}
	var n int
	err := p.raw.Control(func(fd uintptr) { n, _ = unix.Write(int(fd), data) }) //nolint:gosec // descriptors are small
	if err != nil {
		return // closed: the worker has ended, and its calls end with it
	}
	if n = max(n, 0); n < len(data) { // -1 with an error, which the flusher meets, too
		p.pending = append([]byte(nil), data[n:]...)
		p.flushing = true
		p.wg.Go(p.flush)
	}
}

// flush writes pending data, waiting for the worker to read.
func (p *Process) flush() {
	for {
		p.mu.Lock()
		data := p.pending
		p.pending, p.writing = nil, len(data)
		if len(data) == 0 {
			p.flushing = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if _, err := p.in.Write(data); err != nil {
			// The worker has stopped reading. The zygote reports its end.
			p.Kill()
			return
		}
	}
}

// Close releases the resources of a process that has ended, or that was killed and whose end is
// not reported: no report is expected afterwards.
func (p *Process) Close() {
	p.zygote.forget(p)
	p.exited(sandbox.Exit{Lost: true})
	p.mu.Lock()
	p.closed = true // no flusher begins from here on
	p.mu.Unlock()
	p.closeChannels()
	p.wg.Wait()
	p.zygote.temp.give(p.temp, !p.exit.Lost)
	p.group.Close()
	p.handle.Close()
	if p.release != nil {
		p.release()
	}
}
