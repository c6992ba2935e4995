package zygote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/python"
)

// baseRetry is how long no base is started for an interpreter after one failed.
const baseRetry = time.Minute

// environ is the whole environment of an interpreter of the machine.
var environ = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}

// commandLineRoom is an unused argument: a process that renames itself has only the room of its
// first command line.
var commandLineRoom = strings.Repeat(" ", 1024)

// earlyVariables are read by the C library, or by libraries of a base, when they are loaded: too
// late in a copy. PYTHON is for modules of the standard library; the interpreter itself reads
// none of them.
var earlyVariables = []string{"LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "PYTHON"}

// base is a process that zygotes are copied from, from its first request on. Each interpreter has one.
// It has no variables and no files of any index.
type base struct {
	state string        // size and time of the interpreter's file
	ready chan struct{} // closed when it has started or failed

	// Valid after ready.
	proc *sandbox.Base
	err  error
}

// adoption is the environment that a zygote adopts once it is confined.
type adoption struct {
	Environ    []byte   `json:"environ"` // lines as in os.Environ, separated by zeros
	Executable string   `json:"executable"`
	Argv       []string `json:"argv"` // arguments of the executable
}

// unfitFor returns why a process with these variables cannot use the modules of a base; empty if
// it can.
func unfitFor(environ []string) string {
	for _, line := range environ {
		if slices.ContainsFunc(earlyVariables, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			name, _, _ := strings.Cut(line, "=")
			return fmt.Sprintf("the variable %s is read when an interpreter starts", name)
		}
	}
	return ""
}

// copyBase makes a process that runs cmd, or adopts cmd's environment.
func (s *Starter) copyBase(ctx context.Context, cmd sandbox.Command, adopts bool) (*sandbox.Process, error) {
	base, err := s.baseOf(cmd.Path)
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
		base.proc.Kill() // it is broken: the next request starts another
	}
	return proc, err
}

// baseOf finds or starts the base of an interpreter of the machine. A replaced interpreter has
// another base, and its earlier one ends.
func (s *Starter) baseOf(interpreter string) (*base, error) {
	info, err := os.Stat(interpreter)
	if err != nil {
		return nil, err
	}
	state := fmt.Sprintf("%d %v", info.Size(), info.ModTime())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, errors.New("the executor is closed")
	}
	before := s.bases[interpreter]
	if before != nil && before.state == state {
		return before, nil
	}
	made := &base{state: state, ready: make(chan struct{})}
	s.bases[interpreter] = made
	if before != nil {
		s.wg.Go(func() {
			if <-before.ready; before.err == nil {
				before.proc.Kill()
			}
		})
	}
	s.wg.Go(func() {
		log := s.opts.Logger.With(slog.String("interpreter", interpreter))
		if made.proc, made.err = s.startBase(interpreter); made.err != nil {
			log.Warn("base process could not be started: each index starts an interpreter of its own", slog.String("error", made.err.Error()))
			close(made.ready)
			wake.After(s.life, baseRetry)
		} else {
			log.Debug("base process started", slog.Int("pid", made.proc.Pid()))
			close(made.ready)
			<-made.proc.Done()
			made.proc.Kill() // releases its descriptors
			defer log.Debug("base process ended", slog.Int("pid", made.proc.Pid()))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.bases[interpreter] == made {
			delete(s.bases, interpreter)
		}
	})
	return made, nil
}

// startBase starts a base process, which ends with s.
func (s *Starter) startBase(interpreter string) (*sandbox.Base, error) {
	proc, err := s.spawner.StartBase(sandbox.Command{
		Path: interpreter, Args: []string{"-I", "-S", "-X", "utf8", "-c", python.Bootstrap("base", "main()"), s.opts.Files, commandLineRoom},
		Env: environ, Dir: "/",
	})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(s.life, proc.Kill)
	words, drained := output.NewTail(nil), make(chan struct{})
	s.wg.Go(func() {
		output.Drain(proc.Stderr, words, func(text string) { // expected to be empty
			s.opts.Logger.Debug("output of the base process", slog.String("text", text))
		})
		close(drained)
		<-proc.Done()
		stop()
	})
	if _, err = proc.Hello(s.opts.StartTimeout); err != nil {
		proc.Kill()
		<-drained
		return nil, fmt.Errorf("%w%s", err, words.Suffix())
	}
	return proc, nil
}
