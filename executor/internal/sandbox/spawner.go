package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/tool"
)

// Level is a way to end processes together.
type Level string

// The levels, best first.
const (
	// LevelPID is a PID namespace; needs CAP_SYS_ADMIN.
	LevelPID Level = "pid"
	// LevelUser is a PID namespace inside a user namespace that maps only ourselves.
	LevelUser Level = "user"
	// LevelReaper is a subreaper that watches a pipe; works everywhere.
	LevelReaper Level = "reaper"
)

// Spawner starts the processes that must end with this one, all from one thread that lives as
// long as the spawner: the kernel sends the parent-death signal when the thread that started a
// process ends. Safe for concurrent use.
type Spawner struct {
	log    *slog.Logger
	jobs   chan func()
	done   chan struct{}
	closed sync.Once
	all    bool // of users, see ForUsers

	mu     sync.Mutex
	levels []Level

	surveyed sync.Once
	survey   Survey
}

// NewSpawner starts the thread; Close ends it. The first working one of the levels is
// kept; without any, all levels of the system are tried.
func NewSpawner(log *slog.Logger, levels ...Level) *Spawner {
	if len(levels) == 0 {
		levels = systemLevels()
	}
	keepDescriptors()
	s := &Spawner{log: log, jobs: make(chan func()), done: make(chan struct{}), levels: levels}
	go s.run()
	return s
}

// ForUsers prepares for processes of other users; call it before any start. The user namespace
// that keeps processes together then maps these users, too, if the system allows it, which it
// returns.
func (s *Spawner) ForUsers() bool {
	s.all = mayMap()
	return s.all
}

func (s *Spawner) run() {
	// Never unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	defer close(s.done)
	for job := range s.jobs {
		job()
	}
}

// Close ends the thread, and with it, by the parent-death signal, all processes that it
// started. No start may be in progress.
func (s *Spawner) Close() {
	s.closed.Do(func() { close(s.jobs) })
	<-s.done
}

// Level is the level in use; before the first start, the first one to try.
func (s *Spawner) Level() Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.levels[0]
}

// start calls run on the thread. With fall it tries the next level while the system
// refuses.
func (s *Spawner) start(run func(level Level) error, fall bool) (Level, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		level := s.levels[0]
		var err error
		ran := make(chan struct{})
		s.jobs <- func() { defer close(ran); err = run(level) }
		<-ran
		refused := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC) ||
			errors.Is(err, unix.EACCES)
		if err == nil || !fall || len(s.levels) == 1 || level == LevelReaper || !refused {
			return level, err
		}
		s.levels = s.levels[1:]
		s.log.Warn("process isolation is not available: the next level is used",
			slog.String("level", string(level)), slog.String("next", string(s.levels[0])), slog.String("error", err.Error()))
	}
}

// Command describes a program for [Spawner.Start].
type Command struct {
	Path string
	Args []string // without the program's name
	Env  []string
	Dir  string
	// Sandbox decides the namespaces in which the program starts, in addition to those that
	// keep processes together. The program sets up the rest of the level itself, with the
	// capabilities that it has in its namespaces. Defaults to none. See [Spawner.Survey].
	Sandbox tool.Sandbox
}

// Process is a started root process with its channels. The program finds the
// control socket at descriptor 3 and the lifeline at 4.
type Process struct {
	Level   Level
	Control *net.UnixConn
	Stdout  *os.File
	Stderr  *os.File

	proc     *os.Process
	lifeline *os.File
	done     chan struct{}
	state    *os.ProcessState
	stop     sync.Once
}

// Start starts the command with standard input from the null device. The
// program's last argument is the mode, "namespace" or "reaper".
func (s *Spawner) Start(cmd Command) (*Process, error) {
	return s.begin(cmd, unix.SOCK_STREAM, cmd.Sandbox == "" || cmd.Sandbox == tool.SandboxNone, func(level Level) ([]string, *syscall.SysProcAttr) {
		return []string{level.Mode()}, attributes(level, cmd.Sandbox, s.all)
	})
}

// begin starts a command with its channels; kind is the kind of the control socket. how returns
// the last arguments and the attributes for a level. With fall the next level is tried where
// the system refuses one.
func (s *Spawner) begin(cmd Command, kind int, fall bool, how func(Level) ([]string, *syscall.SysProcAttr)) (_ *Process, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start %s: %w", cmd.Path, err)
		}
	}()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close() //nolint:errcheck // read only
	p, theirs, err := newProcess(kind)
	if err != nil {
		return nil, err
	}
	defer CloseAll(theirs)
	p.Level, err = s.start(func(level Level) (err error) {
		last, attr := how(level)
		p.proc, err = os.StartProcess(cmd.Path, slices.Concat([]string{cmd.Path}, cmd.Args, last), &os.ProcAttr{
			Dir: cmd.Dir, Env: cmd.Env, Files: append([]*os.File{null}, theirs...), Sys: attr,
		})
		return err
	}, fall)
	if err != nil {
		p.closeChannels()
		return nil, err
	}
	go p.wait()
	return p, nil
}

// Mode is the root process's last argument, about its level.
func (l Level) Mode() string {
	if l == LevelReaper {
		return "reaper"
	}
	return "namespace"
}

// newProcess makes the channels of a root process before its start, and returns their other
// ends: standard output and error, control (a socket of this kind), lifeline.
func newProcess(kind int) (_ *Process, theirs []*os.File, err error) {
	p := &Process{done: make(chan struct{})}
	defer func() {
		if err != nil {
			p.closeChannels()
			CloseAll(theirs)
		}
	}()
	theirs, err = NewPipes(Channel{Ours: &p.Stdout}, Channel{Ours: &p.Stderr}, Channel{Ours: &p.lifeline, Write: true})
	if err != nil {
		return nil, theirs, err
	}
	conn, remote, err := socketPair(kind)
	if err != nil {
		return nil, theirs, err
	}
	p.Control = conn
	return p, slices.Insert(theirs, 2, remote), nil
}

// CloseAll closes files; some may be nil.
func CloseAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// closeChannels closes our ends of a process that was not started.
func (p *Process) closeChannels() {
	CloseAll([]*os.File{p.Stdout, p.Stderr, p.lifeline})
	if p.Control != nil {
		_ = p.Control.Close()
	}
}

func (p *Process) wait() {
	p.state, _ = p.proc.Wait() // nil with an error
	close(p.done)
}

// Pid is the root process's id.
func (p *Process) Pid() int { return p.proc.Pid }

// Done is closed when the root process and all processes below it have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is the root's exit status after Done: its child's exit status, or 128 plus the
// signal.
func (p *Process) ExitCode() int {
	if p.state == nil {
		return -1
	}
	if status, ok := p.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.state.ExitCode()
}

// Kill ends the root and everything below it, and waits for their end. It may be
// called several times and concurrently.
func (p *Process) Kill() {
	p.stop.Do(func() {
		_ = p.lifeline.Close()
		_ = p.Control.Close()
		if p.Level == LevelReaper {
			// It kills the processes below it first. A kill is needed only if the reaper itself is
			// stopped or damaged.
			timer := time.AfterFunc(3*time.Second, func() {
				_ = syscall.Kill(-p.proc.Pid, syscall.SIGKILL)
				_ = p.proc.Kill()
			})
			<-p.done
			timer.Stop()
		} else {
			_ = p.proc.Kill()
			<-p.done
		}
		_ = p.Stdout.Close()
		_ = p.Stderr.Close()
	})
	<-p.done
}

// Channel describes a pipe: where our end goes, and whether we write to it.
type Channel struct {
	Ours  **os.File
	Write bool
}

// NewPipes makes pipes. Our ends do not block and are known to the runtime's poller. It returns
// the other ends, which are a child's and block; with an error, those made so far.
func NewPipes(channels ...Channel) (theirs []*os.File, err error) {
	for _, channel := range channels {
		ours, end, err := os.Pipe()
		if err != nil {
			return theirs, fmt.Errorf("pipe: %w", err)
		}
		if channel.Write {
			ours, end = end, ours
		}
		_ = end.Fd() // makes it blocking
		*channel.Ours = ours
		theirs = append(theirs, end)
	}
	return theirs, nil
}

func socketPair(kind int) (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	local, remote := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	conn, err := net.FileConn(local)
	_ = local.Close()
	if err != nil {
		_ = remote.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), remote, nil //nolint:forcetypeassert // as it was made
}

// Rights is the message that passes files on, in order. With a closed one it cannot be sent.
func Rights(files []*os.File) []byte {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = -1
		conn, _ := f.SyscallConn()                            // File.Fd would make it blocking
		_ = conn.Control(func(n uintptr) { fds[i] = int(n) }) //nolint:gosec // descriptors are small
	}
	return unix.UnixRights(fds...)
}
