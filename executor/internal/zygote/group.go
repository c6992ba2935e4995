package zygote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// Config has the settings that the processes of a [Group] share.
type Config struct {
	Logger *slog.Logger
	Redact *output.Redactor // removes secrets from output at import; may be nil
	Python string           // the interpreter, of an environment
	Base   string           // the machine's interpreter behind it
	Env    []string         // the whole environment of the processes
	User   sandbox.User     // of the processes
	Setup  Setup
}

// Group is the processes that share an environment and a sandbox, and the tools that they have
// imported. Its methods may be called concurrently after Open has returned.
type Group struct {
	starter *Starter
	log     *slog.Logger
	redact  *output.Redactor
	user    sandbox.User
	command sandbox.Command // starts the machine's interpreter
	setup   Setup

	// Set once, when the first zygote has described its tools.
	about     description
	described bool

	unfit string // see unfitFor

	renewing sync.Mutex // held while current is replaced

	mu      sync.Mutex
	current *zygote // forks workers; nil when it must be started
	all     map[*zygote]struct{}
	closed  bool
	wg      sync.WaitGroup
}

// NewGroup makes a group without starting anything.
func (s *Starter) NewGroup(cfg Config) *Group {
	g := &Group{
		starter: s, log: cfg.Logger, redact: cfg.Redact, user: cfg.User, all: map[*zygote]struct{}{}, setup: cfg.Setup,
		command: sandbox.Command{
			Path: cfg.Base, Args: []string{"-I", "-S", "-X", "utf8", "-c", python.Bootstrap("zygote", "main(sys.argv[2])"), s.opts.Files},
			Env: environ, Dir: "/", Sandbox: cfg.Setup.Sandbox,
		},
		unfit: unfitFor(cfg.Env),
	}
	g.setup.Cwd, g.setup.Exclude, g.setup.Secrets, g.setup.User = g.setup.Root, map[string]string{}, cfg.Redact.Forms(), cfg.User.IDs()
	g.setup.Adopt = &adoption{
		Environ: []byte(strings.Join(cfg.Env, "\x00")), Executable: cfg.Python,
		Argv: []string{cfg.Python, "-I", "-X", "utf8", "-c", python.Bootstrap("zygote", "confined()"), s.opts.Files},
	}
	if g.unfit != "" {
		g.log.Debug("the index starts an interpreter of its own", slog.String("reason", g.unfit))
	}
	return g
}

// Open starts the first zygote, which imports the tools. It returns the served tools, in the
// order of [Tool] slots, and the unavailable ones.
func (g *Group) Open(ctx context.Context) ([]Tool, []Unavailable, error) {
	z, err := g.newZygote(ctx, g.setup, "")
	if err != nil {
		if failure := new(importFailure); errors.As(err, &failure) {
			err = final("%s", failure.reason)
		}
		return nil, nil, err
	}
	g.about, g.described = z.about, true
	g.mu.Lock()
	g.current = z
	g.mu.Unlock()
	return g.about.Tools, g.about.Unavailable, nil
}

// final is the error of a failure of the index's own code, which would repeat itself.
func final(format string, args ...any) *toolmesh.Error {
	return failure.NotStarted(toolmesh.CodeInstallFailed, format, args...)
}

// ForkUnsafe is why workers are not forked but import the tools themselves; empty if they are
// forked.
func (g *Group) ForkUnsafe() string { return g.about.ForkUnsafe }

// Start starts a worker process: a fork of the zygote, or a process of its own that imports the
// tools itself, if requested or if the zygote must not fork. The caller ends and closes it.
func (g *Group) Start(ctx context.Context, worker Worker) (*Process, error) {
	own := g.ForkUnsafe() != "" || worker.Tool != ""
	z, err := g.source(ctx, own, worker.Tool)
	if err != nil {
		return nil, err
	}
	p, err := g.starter.startProcess(g.log, z, g.user, worker, own)
	switch {
	case own && err != nil:
		g.discard(z)
	case own:
		p.release = func() { g.discard(z) }
	}
	return p, err
}

// startProcess makes a zygote fork a worker, or become one.
func (s *Starter) startProcess(log *slog.Logger, z *zygote, user sandbox.User, worker Worker, become bool) (_ *Process, err error) {
	p, theirs, err := newProcess(log, s.nextID.Add(1))
	if err != nil {
		return nil, err
	}
	p.zygote, p.group = z, s.opts.Cgroups.ForLimits(int64(worker.Bounds.Memory), worker.Bounds.Pids)
	kind, l := "sync", worker.Limits
	if worker.Async {
		kind = "async"
	}
	p.temp = z.temp.take(user)
	if err = user.Take(theirs[2:4]...); err == nil { // programs open /dev/stdout
		p.handle, err = z.fork(p, forkRequest{
			Kind: kind, Limit: s.opts.MaxResult, Isolation: worker.Isolation, Turns: worker.Turns,
			Limits: numbers{CPUTime: l.CPUTime.Seconds(), Memory: int64(l.Memory), Pids: l.Pids, OpenFiles: l.OpenFiles, Output: int64(l.Output)},
		}, become, append(theirs[:4:4], p.page.File()))
	}
	p.page.Sent()
	sandbox.CloseAll(theirs)
	if err != nil {
		p.closeChannels()
		z.temp.give(p.temp, false)
		p.group.Close()
		return nil, err
	}
	// Includes the processes that the index's own fork handlers have started, before any call.
	sandbox.Enclose(p.log, p.group, p.Pid(), 0)
	return p, nil
}

// begin starts a zygote: a copy of the interpreter's base if possible, which starts an own
// interpreter where it cannot use the base's modules and for a worker of one tool; else the
// machine's interpreter.
func (g *Group) begin(ctx context.Context, s Setup, only string) (*zygote, error) {
	proc, err := g.starter.copyBase(ctx, g.command, only == "" && g.unfit == "")
	var z *zygote
	if err == nil {
		z, err = g.startZygote(ctx, proc, s)
	}
	var failure *importFailure
	if z != nil || ctx.Err() != nil || errors.As(err, &failure) && failure.module != "" {
		return z, err
	}
	g.log.Warn("base process could not be copied: the index starts an interpreter of its own", slog.String("error", err.Error()))
	if proc, err = g.starter.spawner.Start(g.command); err != nil {
		return nil, err
	}
	return g.startZygote(ctx, proc, s)
}

// ownFolder makes the folder for temporary files of a zygote's processes: the only writable one
// under strict, and the only one of others' that they see under guard.
func (g *Group) ownFolder(s *Setup) (err error) {
	s.Temp = g.starter.opts.Dir
	if !s.Sandbox.AtLeast(tool.SandboxGuard) {
		return nil
	}
	if s.Temp, err = sandbox.OwnFolder(s.Temp, s.Sandbox, g.user); s.Temp != "" {
		s.Given = append(slices.Clip(g.setup.Given), sandbox.Path{Path: s.Temp, Access: sandbox.AccessOwn})
	}
	if s.Sandbox.AtLeast(tool.SandboxStrict) {
		s.Folder = s.Temp
	}
	return err
}

// newZygote starts a zygote without modules that hang or end the process; only is as for
// another.
func (g *Group) newZygote(ctx context.Context, s Setup, only string) (*zygote, error) {
	for {
		leave, err := g.starter.Slot(ctx)
		if err != nil {
			return nil, err
		}
		z, err := g.begin(ctx, s, only)
		leave()
		var failure *importFailure
		if errors.As(err, &failure) {
			if _, again := g.setup.Exclude[failure.module]; !again && !g.described && failure.module != "" {
				g.log.Warn("module is left out", slog.String("module", failure.module), slog.String("reason", failure.reason))
				g.setup.Exclude[failure.module] = failure.reason
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		closed := g.closed
		if !closed {
			g.all[z] = struct{}{}
		}
		g.mu.Unlock()
		if closed {
			z.kill()
			return nil, errors.New("the index is closed")
		}
		return z, nil
	}
}

// sameTools checks that a new zygote serves the tools of the first one, whose order defines
// slots. A zygote of a single tool has it in slot 0.
func (g *Group) sameTools(z *zygote, only string) error {
	want := g.about.Tools
	if only != "" {
		want = slices.DeleteFunc(slices.Clone(want), func(t Tool) bool { return t.Name != only })
	}
	if slices.EqualFunc(want, z.about.Tools, func(a, b Tool) bool { return a.Name == b.Name && a.Kind == b.Kind }) {
		return nil
	}
	for _, u := range z.about.Unavailable {
		return fmt.Errorf("%s can no longer be imported: %s", u.Name, u.Reason)
	}
	return errors.New("the index's modules have other tools than when it was opened: open it again")
}

// source is the zygote for a new worker: an unused one for a process of its own, else the one
// that all forks come from.
func (g *Group) source(ctx context.Context, own bool, only string) (*zygote, error) {
	if only != "" {
		return g.another(ctx, only)
	}
	if !own { // several may wait for the first fork of a new one
		g.renewing.Lock()
		defer g.renewing.Unlock()
	}
	g.mu.Lock()
	z := g.current
	if own || z != nil && z.gone() {
		g.current = nil
	}
	g.mu.Unlock()
	if z != nil && !z.gone() {
		return z, nil
	}
	g.discard(z)
	z, err := g.another(ctx, "")
	if err == nil && !own {
		g.mu.Lock()
		g.current = z
		g.mu.Unlock()
	}
	return z, err
}

// another starts one more zygote, which must serve the tools of the first one, or the tool only.
func (g *Group) another(ctx context.Context, only string) (*zygote, error) {
	s := g.setup
	if only != "" {
		s.Tools = []string{only}
	}
	z, err := g.newZygote(ctx, s, only)
	if err != nil {
		return nil, err
	}
	if err := g.sameTools(z, only); err != nil {
		g.discard(z)
		return nil, err
	}
	return z, nil
}

// discard ends a useless zygote; nil is allowed.
func (g *Group) discard(z *zygote) {
	if z == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed { // otherwise Close ends it
		delete(g.all, z)
		g.wg.Go(z.kill)
	}
}

// Close ends every process of the group and waits for them.
func (g *Group) Close() {
	g.mu.Lock()
	g.closed = true
	all := slices.Collect(maps.Keys(g.all))
	g.mu.Unlock()
	for _, z := range all {
		z.kill()
	}
	g.wg.Wait()
}
