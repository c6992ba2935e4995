package program

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/executor/internal/turns"
	"github.com/toolmesh/toolmesh/tool"
)

// Config says which index programs belong to and how they are started.
type Config struct {
	Index  string // its name, for messages
	Logger *slog.Logger
	// Launch starts startup/command.py, the process above a program. Its folder is that of the
	// index, its level is not looked at.
	Launch  sandbox.Command
	Spawner *sandbox.Spawner
	Groups  *cgroup.Tree
	// Environ is the whole environment of a program: what all programs see with own,
	// of its user, and vars on top.
	Environ func(own, vars map[string]string) []string
	// User is the user of a program that asks for a sandbox level, or for none, and that
	// user's variables.
	User    func(tool.Sandbox) (user sandbox.User, own map[string]string, err error)
	Given   func(sandbox.User) []sandbox.Path // folders that programs of a user have, besides one for temporary files
	Redact  *output.Redactor                  // nil: no secrets
	Scratch string                            // where the folders of programs that may write nowhere else are made
	Sandbox tool.Sandbox                      // of calls that ask for no level
	// Concurrency bounds the programs that run at once.
	Concurrency int
	// Limits are those of calls that declare none, MaxLimits the most that they may
	// declare. Zero fields mean no limit.
	Limits, MaxLimits tool.Limits
	// Processes is how many processes and threads a user may have, if each of its programs
	// may have pids; 0: any.
	Processes func(user sandbox.User, pids int) int
	// MaxResult is how many bytes a result or an item may have.
	MaxResult int
	// Grace is how long a program that is asked to end may take.
	Grace time.Duration
	// Closed is called when nothing is left.
	Closed func()
}

// Call is one run of a program.
type Call struct {
	Tool    string // for messages
	RPCID   string // for log lines
	Account string // whose turn it takes when calls wait for places
	// Argv are the arguments, the program itself first. No shell reads them.
	Argv []string
	// Lines says that the program writes one item per line, like a generator;
	// without it, that all it writes is one result.
	Lines bool
	// Text says that what it writes is text; without it, JSON.
	Text bool
	// Sandbox says what the program may touch. Defaults to [Config.Sandbox].
	Sandbox tool.Sandbox
	// Limits bound the run, within [Config.Limits] and [Config.MaxLimits]. The output, a
	// result or an item, is never more than [Config.MaxResult].
	Limits tool.Limits
	// Vars are environment variables on top of those of all programs.
	Vars map[string]string
	// Stream gives a program's lines to the sink one by one; a plain program's result
	// is then its one item.
	Stream bool
	// Collect makes the result of a program that writes lines the list of its items
	// instead of the last. Ignored with Stream.
	Collect bool
	// Deserted reports whether the call's callers are gone, as that of a pool's call does.
	Deserted func() bool
	// Lane is its turn in a lane: it must have stopped when that ends; nil for most.
	Lane interface {
		Follow(f func(end time.Time))
	}
}

// Runner runs the programs of one index. Its methods may be called concurrently.
type Runner struct {
	cfg  Config
	path []string // folders that programs are looked for in

	mu      sync.Mutex
	free    int                  // places; 0 while calls wait
	waiting turns.Queue[*waiter] // calls without a place
	closed  bool
	stop    chan struct{} // closed when what still runs is to be killed
	stopped sync.Once
	running sync.WaitGroup
}

// New makes ready to run an index's programs; nothing is started.
func New(cfg Config) *Runner {
	p := &Runner{cfg: cfg, free: cfg.Concurrency, stop: make(chan struct{})}
	for _, line := range cfg.Environ(nil, nil) {
		if list, ok := strings.CutPrefix(line, "PATH="); ok {
			p.path = filepath.SplitList(list)
		}
	}
	return p
}

// Missing says why a program cannot be run here, "" if it can.
func (p *Runner) Missing(program string) string {
	if strings.ContainsRune(program, '/') {
		file := program
		if !filepath.IsAbs(file) {
			file = filepath.Join(p.cfg.Launch.Dir, file)
		}
		switch info, err := os.Stat(file); {
		case err != nil && filepath.IsAbs(program):
			return fmt.Sprintf("command not found: there is no %s on this node", program)
		case err != nil:
			return fmt.Sprintf("command not found: the index has no file %s", program)
		case info.Mode().IsRegular() && info.Mode()&0o111 == 0:
			return fmt.Sprintf("the command %s is not executable (chmod +x)", program)
		case !info.Mode().IsRegular():
			return fmt.Sprintf("the command %s is not a file", program)
		}
		return ""
	}
	for _, folder := range p.path {
		if isExecutable(filepath.Join(folder, program)) {
			return ""
		}
	}
	return fmt.Sprintf("command not found: %s is neither in the index's environment nor on the PATH of this node's agent; "+
		"install it there, or add the package that brings it to the dependencies", program)
}

func isExecutable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// Call runs a program and returns its result's JSON; nil for a stream, whose
// items go to the sink as its lines arrive. When ctx ends, the program's group
// is asked to end (SIGTERM) and, after [Config.Grace], everything that it
// started is killed; Call returns when nothing of it is left. A program that
// fails is tool_error, one that a signal ended worker_crashed, output that is no
// JSON result_not_serializable. Every error is a [*toolmesh.Error], except what
// [output.Sink.Item] returned.
func (p *Runner) Call(ctx context.Context, call Call, sink output.Sink) (json.RawMessage, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, failure.Unavailable("the index %s is closed", p.cfg.Index)
	}
	p.running.Add(1)
	p.mu.Unlock()
	defer p.running.Done()
	if err := p.enter(ctx, call.Account); err != nil {
		return nil, err
	}
	defer p.leave()
	if call.Deserted != nil && call.Deserted() {
		return nil, failure.Deserted()
	}
	asked, declared := call.Sandbox, call.Limits
	call.Sandbox = cmp.Or(asked, p.cfg.Sandbox)
	call.Limits = declared.Within(p.cfg.Limits, p.cfg.MaxLimits)
	r := &run{
		asked: asked, declared: declared,
		runner: p, call: call, sink: sink, quiet: make(chan struct{}), tail: output.NewTail(p.cfg.Redact),
		most: p.cfg.MaxResult, exceeded: make(chan struct{}), list: []json.RawMessage{}, last: json.RawMessage("null"),
	}
	if most := int64(call.Limits.Output); most > 0 && most < int64(r.most) {
		r.most = int(most)
	}
	body, err := r.do(ctx)
	return body, failure.SetBy(err, declared, call.Limits)
}

// Waiting is how many calls wait for a place.
func (p *Runner) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting.Waiting)
}

// waiter is a call that waits for a place.
type waiter struct {
	turns.Turn
	given chan struct{} // closed when it has one
}

// enter takes a place, when it is the account's turn.
func (p *Runner) enter(ctx context.Context, account string) error {
	if ctx.Err() != nil {
		return failure.Ended(ctx, toolmesh.StartedNo)
	}
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return nil
	}
	w := &waiter{given: make(chan struct{})}
	p.waiting.Add(w, account)
	p.mu.Unlock()
	select {
	case <-w.given:
	case <-ctx.Done():
	case <-p.stop:
	}
	p.mu.Lock()
	waits := p.waiting.Remove(w)
	p.mu.Unlock()
	switch {
	case !waits && ctx.Err() == nil:
		return nil
	case !waits: // it has got a place meanwhile
		p.leave()
	case ctx.Err() == nil:
		return failure.Unavailable("the index %s is closed", p.cfg.Index)
	}
	return failure.Ended(ctx, toolmesh.StartedNo)
}

// leave gives a call's place to the next that waits.
func (p *Runner) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting.Waiting) == 0 {
		p.free++
		return
	}
	close(p.waiting.Serve(0).given)
}

// Close refuses new calls, waits for those in flight until ctx ends, and then
// kills what still runs. It returns when nothing is left, with ctx's error if
// calls were cut off.
func (p *Runner) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	idle := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() { p.running.Wait(); close(idle) })
	var cut error
	select {
	case <-idle:
	case <-ctx.Done():
		cut = context.Cause(ctx)
	}
	p.stopped.Do(func() { close(p.stop) })
	waiting.Wait()
	p.cfg.Closed()
	return cut
}
