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

// Config says what the processes of a [Group] have in common.
type Config struct {
	Logger  *slog.Logger
	Redact  *output.Redactor // takes secrets out of what is printed at import; may be nil
	Python  string           // the interpreter, of an environment
	Base    string           // the machine's interpreter behind it
	Root    string           // the index's folder, the working directory
	Paths   []string         // that modules are imported from, before the environment's
	Env     []string         // all that the processes see of an environment
	Sandbox tool.Sandbox
	User    sandbox.User   // of the processes
	Given   []sandbox.Path // folders that they have, besides one of their own for temporary files
	Tools   []string       // module.function
	// OpenFiles is how many files a call may open, and MostFiles, at least as many, the
	// most that Limits of a [Worker] may say.
	OpenFiles, MostFiles int
	// Processes is how many processes and threads User may have; 0: any.
	Processes int
}

// Group is the processes that have an environment and a sandbox in common, and the
// tools that were imported together there. Its methods may be called concurrently,
// once Open has returned.
type Group struct {
	starter *Starter
	log     *slog.Logger
	redact  *output.Redactor
	user    sandbox.User
	command sandbox.Command // starts the machine's interpreter
	setup   setup

	// Set once, when the first zygote has described its tools.
	about     description
	described bool

	unfit string // see unfitFor

	renewing sync.Mutex // held while the zygote that workers are forked from is replaced

	mu      sync.Mutex
	current *zygote // forks workers; nil when it must be made
	all     map[*zygote]struct{}
	closed  bool
	wg      sync.WaitGroup
}

// NewGroup makes a group, of which nothing has been started.
func (s *Starter) NewGroup(cfg Config) *Group {
	g := &Group{
		starter: s, log: cfg.Logger, redact: cfg.Redact, user: cfg.User, all: map[*zygote]struct{}{},
		setup: setup{
			Root: cfg.Root, Cwd: cfg.Root, Paths: cfg.Paths, Sandbox: cfg.Sandbox, Exclude: map[string]string{},
			Secrets: cfg.Redact.Forms(), Tools: cfg.Tools, User: cfg.User.IDs(), Given: cfg.Given,
			OpenFiles: [2]int{cfg.OpenFiles, cfg.MostFiles}, Processes: cfg.Processes,
			Adopt: &adoption{
				Environ: []byte(strings.Join(cfg.Env, "\x00")), Executable: cfg.Python,
				Argv: []string{cfg.Python, "-I", "-X", "utf8", "-c", python.Bootstrap("confined()"), s.opts.Files},
			},
		},
		command: sandbox.Command{
			Path: cfg.Base, Args: []string{"-I", "-S", "-X", "utf8", "-c", python.Bootstrap("zygote(sys.argv[2])"), s.opts.Files},
			Env: environ, Dir: "/", Sandbox: cfg.Sandbox,
		},
		unfit: unfitFor(cfg.Env),
	}
	if g.unfit != "" {
		g.log.Debug("the index starts an interpreter of its own", slog.String("reason", g.unfit))
	}
	return g
}

// Open starts the first zygote, which imports the tools, and says which are served,
// in an order that [Tool] slots are places in, and which are not.
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

// final is the error of a failure of the index's own code, which would fail again.
func final(format string, args ...any) *toolmesh.Error {
	return failure.NotStarted(toolmesh.CodeInstallFailed, format, args...)
}

// ForkUnsafe is why workers are no forks but import the tools themselves; empty when
// they are forks.
func (g *Group) ForkUnsafe() string { return g.about.ForkUnsafe }

// Pid is the process above all workers; 0 while there is none.
func (g *Group) Pid() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current == nil {
		return 0
	}
	return g.current.proc.Pid()
}

// Start starts a worker process: a fork of the zygote, or a process of its own that
// imports the tools itself, where that is asked for or the zygote must not be
// forked. The caller ends it, and closes it.
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

// startProcess has a zygote fork a worker, or become it.
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
	// With the processes that the index's own handlers of forks have started, before any call.
	sandbox.Enclose(p.log, p.group, p.Pid(), 0)
	return p, nil
}

// begin starts a zygote: a copy of the interpreter's base, which starts an interpreter of
// its own where it cannot go on as it is, and for a worker of one tool; where no copy can
// be made, the machine's interpreter, which does so, too.
func (g *Group) begin(ctx context.Context, s setup, only string) (*zygote, error) {
	proc, err := g.starter.bases.start(ctx, g.command, only == "" && g.unfit == "")
	var z *zygote
	if err == nil {
		z, err = g.startZygote(ctx, proc, s)
	}
	var failure *importFailure
	if z != nil || ctx.Err() != nil || errors.As(err, &failure) && failure.module != "" {
		return z, err
	}
	g.log.Warn("the index starts an interpreter of its own", slog.String("error", err.Error()))
	if proc, err = g.starter.spawner.Start(g.command); err != nil {
		return nil, err
	}
	return g.startZygote(ctx, proc, s)
}

// ownFolder makes the folder for temporary files of the processes of a zygote to be: all
// that strict leaves them to be written, and all that they see of others' in guard.
func (g *Group) ownFolder(s *setup) (err error) {
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

// newZygote starts a zygote, leaving out modules that hang or end the process;
// only is as for another.
func (g *Group) newZygote(ctx context.Context, s setup, only string) (*zygote, error) {
	for {
		leave, err := g.starter.Place(ctx)
		if err != nil {
			return nil, err
		}
		z, err := g.begin(ctx, s, only)
		leave()
		var failure *importFailure
		if errors.As(err, &failure) {
			if _, again := g.setup.Exclude[failure.module]; !again && !g.described && failure.module != "" {
				g.log.Warn("a module is left out", slog.String("module", failure.module), slog.String("reason", failure.reason))
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

// sameTools checks that a new zygote serves what the first did: slots are places
// in that list. One that serves a single tool has it at the first place.
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
	return errors.New("the index's modules offer other tools than when it was opened; open it again")
}

// source is the zygote to make a worker of: for a process of its own one that
// no other process uses, else the one that all forks come from.
func (g *Group) source(ctx context.Context, own bool, only string) (*zygote, error) {
	if only != "" {
		return g.another(ctx, only)
	}
	if !own { // many may want the first fork of a new one
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

// another starts one more zygote, which must serve what the first did, or only
// that one tool.
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

// discard ends a zygote that is of no use, nil included.
func (g *Group) discard(z *zygote) {
	if z == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed { // else Close ends it
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
