package zygote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/executor/output"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// How long no base is started for an interpreter with which that failed.
	baseRetry = time.Minute
	// How long after the start of an index the copy for the next one is made: it
	// would take the processors, and the page tables, from the first call.
	baseRest = 50 * time.Millisecond
)

// environ is all that an interpreter of the machine begins with.
var environ = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}

// commandLineRoom is an argument that nobody reads: a process that renames itself
// has as much room as its first command line took.
var commandLineRoom = strings.Repeat(" ", 1024)

// Variables that the C library, or a library that a base has loaded, reads when
// it is loaded: too late in a copy. PYTHON is for modules of the standard library;
// the interpreter itself reads none of them.
var earlyVariables = []string{"LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "PYTHON"}

// bases are the processes that zygotes begin as copies of, one for each
// interpreter. They hold no variables and no files of any index.
type bases struct {
	starter *Starter

	mu     sync.Mutex
	by     map[string]*base // by the interpreter
	closed bool
	quit   chan struct{} // closed with them
	wg     sync.WaitGroup
}

// base is one of them, from the moment that it is wanted.
type base struct {
	made  time.Time
	stamp string        // of the interpreter's file
	ready chan struct{} // closed when it is known whether it can be used

	// Valid after ready; proc before it under mu.
	proc *sandbox.Base
	err  error

	preparing sync.Mutex // one blank at a time is made

	mu    sync.Mutex
	blank *blank // nil without one
	ended bool   // there are to be no more
}

// adoption is what a zygote takes of an index once it is confined.
type adoption struct {
	Environ    []byte   `json:"environ"` // lines as in os.Environ, separated by zeros
	Executable string   `json:"executable"`
	Argv       []string `json:"argv"` // what the executable is started with
}

// unfitFor says why what has these variables cannot go on with what a base has loaded;
// empty when it can. With own nothing does.
func unfitFor(environ []string, own bool) string {
	if own {
		return "each has one"
	}
	for _, line := range environ {
		for _, prefix := range earlyVariables {
			if strings.HasPrefix(line, prefix) {
				name, _, _ := strings.Cut(line, "=")
				return fmt.Sprintf("the variable %s is read when an interpreter starts", name)
			}
		}
	}
	return ""
}

// start makes a process that goes on as cmd would have. One that adopts its environment
// was most often made when the last one was wanted.
func (b *bases) start(ctx context.Context, cmd sandbox.Command, adopts bool) (*sandbox.Process, error) {
	base, err := b.of(cmd.Path)
	if err != nil {
		return nil, err
	}
	select {
	case <-base.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if base.err != nil {
		return nil, base.err
	}
	if adopts {
		if proc := base.take(cmd.Sandbox); proc != nil {
			return proc, nil
		}
	}
	proc, err := base.proc.Start(cmd.Sandbox, adopts)
	if err != nil {
		base.proc.Close() // it does not do what it should: the next one gets another
	}
	return proc, err
}

// blank is a copy that waits for an index.
type blank struct {
	proc    *sandbox.Process
	sandbox tool.Sandbox
}

// take hands over the waiting copy if it is of this level; nil without one.
func (b *base) take(box tool.Sandbox) *sandbox.Process {
	b.mu.Lock()
	waiting := b.blank
	if waiting == nil || waiting.sandbox != box {
		b.mu.Unlock()
		return nil
	}
	b.blank = nil
	b.mu.Unlock()
	select {
	case <-waiting.proc.Done():
		waiting.proc.Kill()
		return nil
	default:
		return waiting.proc
	}
}

// prepare has a copy made, after a rest, that waits for the next index of a
// sandbox level.
func (b *bases) prepare(interpreter string, box tool.Sandbox, rest time.Duration) {
	base, err := b.of(interpreter)
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.wg.Go(func() {
		select {
		case <-time.After(rest):
		case <-b.quit:
			return
		}
		<-base.ready
		if base.err != nil {
			return
		}
		base.preparing.Lock()
		defer base.preparing.Unlock()
		base.mu.Lock()
		enough := base.ended || base.blank != nil && base.blank.sandbox == box
		base.mu.Unlock()
		if enough {
			return
		}
		proc, err := base.proc.Start(box, true)
		if err != nil {
			return // the start of the next index says why
		}
		fresh := &blank{proc: proc, sandbox: box}
		base.mu.Lock()
		old := base.blank
		if base.ended {
			old = fresh
		} else {
			base.blank = fresh
		}
		base.mu.Unlock()
		b.starter.opts.Logger.Debug("a copy of the base process waits for an index", slog.Int("pid", proc.Pid()))
		if old != nil {
			old.proc.Kill()
		}
	})
}

// of finds the base of an interpreter of the machine, or has one started.
func (b *bases) of(interpreter string) (*base, error) {
	info, err := os.Stat(interpreter)
	if err != nil {
		return nil, err
	}
	// An interpreter that was replaced meanwhile is another one.
	stamp := strconv.FormatInt(info.Size(), 10) + " " + info.ModTime().String()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("the executor is closed")
	}
	old := b.by[interpreter]
	if old != nil && old.stamp == stamp && !old.spent() {
		return old, nil
	}
	made := &base{made: time.Now(), stamp: stamp, ready: make(chan struct{})}
	b.by[interpreter] = made
	b.wg.Go(func() {
		if old != nil {
			old.end()
		}
		defer close(made.ready)
		made.err = b.run(made, interpreter)
		if made.err != nil {
			b.starter.opts.Logger.Warn("no base process, each index starts an interpreter of its own",
				slog.String("interpreter", interpreter), slog.Any("error", made.err))
		}
	})
	return made, nil
}

// spent reports whether a new one has to be made.
func (b *base) spent() bool {
	select {
	case <-b.ready:
	default:
		return false
	}
	if b.err != nil {
		return time.Since(b.made) > baseRetry
	}
	select {
	case <-b.proc.Done():
		return true
	default:
		return false
	}
}

// end closes what was made, or is being made.
func (b *base) end() {
	b.mu.Lock()
	waiting, starting := b.blank, b.proc
	b.blank, b.ended = nil, true
	b.mu.Unlock()
	if starting != nil {
		starting.Close()
	}
	<-b.ready
	if waiting != nil {
		waiting.proc.Kill()
	}
	if b.proc != nil { // it had not begun to start
		b.proc.Close()
	}
}

// run starts the process.
func (b *bases) run(made *base, interpreter string) error {
	began := time.Now()
	proc, err := b.starter.spawner.StartBase(sandbox.Command{
		Path: interpreter, Args: []string{"-I", "-S", "-X", "utf8", "-c", python.Bootstrap("base()"), b.starter.opts.Files, commandLineRoom},
		Env: environ, Dir: "/",
	})
	if err != nil {
		return err
	}
	made.mu.Lock()
	made.proc = proc
	unwanted := made.ended
	made.mu.Unlock()
	if unwanted {
		proc.Close()
	}
	words, drained := output.NewTail(nil), make(chan struct{})
	b.wg.Go(func() {
		output.Drain(proc.Output(), words, func(text string) { // which should be nothing
			b.starter.opts.Logger.Debug("output of the base process", slog.String("text", text))
		})
		close(drained)
		<-proc.Done()
		b.starter.opts.Logger.Debug("base process ended", slog.Int("pid", proc.Pid()))
	})
	hello, err := proc.Hello(b.starter.opts.StartTimeout)
	var about struct {
		Modules int `json:"modules"`
	}
	if err == nil {
		err = json.Unmarshal(hello, &about)
	}
	if err != nil {
		proc.Close()
		<-drained
		return fmt.Errorf("%w%s", err, words.Suffix())
	}
	b.starter.opts.Logger.Debug("base process started", slog.String("interpreter", interpreter), slog.Int("pid", proc.Pid()),
		slog.Int("modules", about.Modules), slog.Duration("took", time.Since(began)))
	return nil
}

// close ends all of them.
func (b *bases) close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.quit)
	}
	all := b.by
	b.by = nil
	b.mu.Unlock()
	for _, one := range all {
		one.end()
	}
	b.wg.Wait()
}
