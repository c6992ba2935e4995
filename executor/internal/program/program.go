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

// Config describes the index of the programs and how they are started.
type Config struct {
	Index  string // its name, for messages
	Logger *slog.Logger
	// Launch starts startup/command.py, the process above a program, in the index's folder.
	// Its sandbox level is ignored.
	Launch  sandbox.Command
	Spawner *sandbox.Spawner
	Groups  *cgroup.Tree
	// Request describes a program of a sandbox level, or none, with variables on top of those of all
	// programs: its user, its folders but that for temporary files, its environment, and the number
	// of processes and threads of a user whose programs may each have pids.
	Request func(asked tool.Sandbox, vars map[string]string, pids int) (sandbox.Request, error)
	Path    []string         // folders in which programs are looked up
	Redact  *output.Redactor // nil without secrets
	Scratch string           // parent of the only writable folders of confined programs
	Sandbox tool.Sandbox     // for calls without a level
	// Concurrency is the maximum of simultaneous programs.
	Concurrency int
	// Limits are for calls that declare none, MaxLimits are the highest that calls may declare.
	// Zero fields mean no limit.
	Limits, MaxLimits tool.Limits
	// MaxResult is the maximum of a result or an item, in bytes.
	MaxResult int
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
	// Closed is called when all programs have ended after Close.
	Closed func()
}

// Call is one execution of a program.
type Call struct {
	Tool    string // for messages
	RPCID   string // for log lines
	Account string // for fairness while calls wait
	// Argv are the arguments, the program itself first. No shell reads them.
	Argv []string
	// Lines tells that the program writes one item per line, like a generator; otherwise its
	// whole output is one result.
	Lines bool
	// Text tells that its output is text instead of JSON.
	Text bool
	// Sandbox is the program's sandbox level. Defaults to [Config.Sandbox].
	Sandbox tool.Sandbox
	// Limits are limits within [Config.Limits] and [Config.MaxLimits]. A result or an item never
	// exceeds [Config.MaxResult].
	Limits tool.Limits
	// Vars are environment variables on top of those of all programs.
	Vars map[string]string
	// Stream passes a program's lines to the sink one by one; a plain program's result is then
	// its only item.
	Stream bool
	// Collect makes the result of a program that writes lines the list of its items
	// instead of the last. Ignored with Stream.
	Collect bool
	// Deserted reports whether the call's callers are gone, as that of a pool's call does.
	Deserted func() bool
	// Lane is its hold of a lane: it must have stopped when that ends; nil for most calls.
	Lane interface {
		Follow(f func(end time.Time))
	}
}

// Runner runs the programs of one index. Its methods may be called concurrently.
type Runner struct {
	cfg  Config
	life context.Context //nolint:containedctx // until running programs must be killed
	end  context.CancelFunc

	mu      sync.Mutex
	free    int                  // free slots; 0 while calls wait
	waiting turns.Queue[*waiter] // calls without a slot
	closed  bool
	running sync.WaitGroup
}

// New makes a runner; it starts nothing.
func New(cfg Config) *Runner {
	p := &Runner{cfg: cfg, free: cfg.Concurrency}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// Missing returns why a program cannot be executed here, "" if it can.
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
	for _, folder := range p.cfg.Path {
		info, err := os.Stat(filepath.Join(folder, program))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return ""
		}
	}
	return fmt.Sprintf("command not found: %s is neither in the index's environment nor on the PATH of this node's agent; "+
		"install it there, or add the package that brings it to the dependencies", program)
}

// Call runs a program and returns its result as JSON; nil for a stream, whose items go to the
// sink as lines arrive. When ctx ends, the program's process group gets SIGTERM and, after
// [Config.Grace], all its processes are killed; Call returns after their end. A failed program is
// tool_error, one that a signal ended worker_crashed, invalid JSON result_not_serializable.
// Every error is a [*toolmesh.Error], except errors of [output.Sink.Item].
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
		most: p.cfg.MaxResult, last: json.RawMessage("null"),
	}
	if most := int64(call.Limits.Output); most > 0 && most < int64(r.most) {
		r.most = int(most)
	}
	body, err := r.do(ctx)
	return body, failure.SetBy(err, declared, call.Limits)
}

// Waiting is how many calls wait for a slot.
func (p *Runner) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting.Waiting)
}

// waiter is a call that waits for a slot.
type waiter struct {
	turns.Turn
	given chan struct{} // closed when it has a slot
}

// enter takes a slot, fairly among accounts.
func (p *Runner) enter(ctx context.Context, account string) error {
	w := &waiter{given: make(chan struct{})}
	p.mu.Lock()
	p.waiting.Add(w, account)
	p.serve()
	p.mu.Unlock()
	select {
	case <-w.given:
	case <-ctx.Done():
	case <-p.life.Done():
	}
	p.mu.Lock()
	waits := p.waiting.Remove(w)
	p.mu.Unlock()
	switch {
	case ctx.Err() == nil && !waits:
		return nil
	case ctx.Err() == nil:
		return failure.Unavailable("the index %s is closed", p.cfg.Index)
	case !waits: // it has got a slot all the same
		p.leave()
	}
	return failure.Ended(ctx, toolmesh.StartedNo)
}

// serve gives free slots to those that wait. p.mu is held.
func (p *Runner) serve() {
	for ; p.free > 0 && len(p.waiting.Waiting) > 0; p.free-- {
		close(p.waiting.Serve(0).given)
	}
}

// leave gives a call's slot back.
func (p *Runner) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	p.serve()
}

// Close refuses new calls, waits for running ones until ctx ends, and then kills these. It
// returns after their end, with ctx's error if calls were killed.
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
	p.end()
	waiting.Wait()
	p.cfg.Closed()
	return cut
}
