package zygote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/python"
)

// baseRetry is how long no base is started for an interpreter with which that failed.
const baseRetry = time.Minute

// environ is all that an interpreter of the machine begins with.
var environ = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}

// commandLineRoom is an argument without a meaning: a process that renames itself has as
// much room as its first command line took.
var commandLineRoom = strings.Repeat(" ", 1024)

// Variables that the C library, or a library that a base has loaded, reads when
// it is loaded: too late in a copy. PYTHON is for modules of the standard library;
// the interpreter itself reads none of them.
var earlyVariables = []string{"LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "PYTHON"}

// bases are the processes that zygotes begin as copies of, one for each
// interpreter. They hold no variables and no files of any index.
type bases struct {
	starter *Starter
	life    context.Context //nolint:containedctx // ends all of them
	stop    context.CancelFunc

	mu sync.Mutex
	by map[string]*base // by the interpreter and its file's size and time
	wg sync.WaitGroup
}

// base is one of them, from the moment that it is wanted.
type base struct {
	ready chan struct{} // closed when it is known whether it can be used

	// Valid after ready.
	proc *sandbox.Base
	err  error
}

// adoption has the environment that a zygote takes once it is confined.
type adoption struct {
	Environ    []byte   `json:"environ"` // lines as in os.Environ, separated by zeros
	Executable string   `json:"executable"`
	Argv       []string `json:"argv"` // what the executable is started with
}

// unfitFor says why a process with these variables cannot go on with the modules that a base
// has loaded; empty if it can.
func unfitFor(environ []string) string {
	for _, line := range environ {
		if slices.ContainsFunc(earlyVariables, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			name, _, _ := strings.Cut(line, "=")
			return fmt.Sprintf("the variable %s is read when an interpreter starts", name)
		}
	}
	return ""
}

// start makes a process that goes on as cmd would have, or adopts its environment.
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
	proc, err := base.proc.Start(cmd.Sandbox, adopts)
	if err != nil {
		base.proc.Kill() // it does not work: the next one gets another
	}
	return proc, err
}

// of finds the base of an interpreter of the machine, or has one started. An interpreter that
// was replaced meanwhile has another base.
func (b *bases) of(interpreter string) (*base, error) {
	info, err := os.Stat(interpreter)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("%s %d %v", interpreter, info.Size(), info.ModTime())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return nil, errors.New("the executor is closed")
	}
	if one := b.by[key]; one != nil {
		return one, nil
	}
	made := &base{ready: make(chan struct{})}
	b.by[key] = made
	b.wg.Go(func() {
		log := b.starter.opts.Logger.With(slog.String("interpreter", interpreter))
		forget := func() {
			b.mu.Lock()
			delete(b.by, key)
			b.mu.Unlock()
		}
		if made.proc, made.err = b.run(interpreter); made.err != nil {
			log.Warn("no base process, each index starts an interpreter of its own", slog.String("error", made.err.Error()))
			close(made.ready)
			wake.After(b.life, baseRetry)
			forget()
			return
		}
		log.Debug("base process started", slog.Int("pid", made.proc.Pid()))
		close(made.ready)
		<-made.proc.Done()
		made.proc.Kill() // gives its descriptors back
		forget()
		log.Debug("base process ended", slog.Int("pid", made.proc.Pid()))
	})
	return made, nil
}

// run starts the process, which ends with all of them.
func (b *bases) run(interpreter string) (*sandbox.Base, error) {
	proc, err := b.starter.spawner.StartBase(sandbox.Command{
		Path: interpreter, Args: []string{"-I", "-S", "-X", "utf8", "-c", python.Bootstrap("base()"), b.starter.opts.Files, commandLineRoom},
		Env: environ, Dir: "/",
	})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(b.life, proc.Kill)
	words, drained := output.NewTail(nil), make(chan struct{})
	b.wg.Go(func() {
		output.Drain(proc.Stderr, words, func(text string) { // which should be nothing
			b.starter.opts.Logger.Debug("output of the base process", slog.String("text", text))
		})
		close(drained)
		<-proc.Done()
		stop()
	})
	if _, err = proc.Hello(b.starter.opts.StartTimeout); err != nil {
		proc.Kill()
		<-drained
		return nil, fmt.Errorf("%w%s", err, words.Suffix())
	}
	return proc, nil
}

// close ends all of them.
func (b *bases) close() {
	b.mu.Lock() // nothing is started from here on
	b.stop()
	b.mu.Unlock()
	b.wg.Wait()
}
