package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// family is the processes of an index that have a zygote key in common: the
// tools that were imported together, in one environment and one sandbox.
type family struct {
	index   *Index
	key     zygoteKey
	command sandbox.Command
	setup   setup

	// Set once, when the first zygote has described its tools.
	tools      []Tool // the place in it is a tool's slot
	described  bool
	forkUnsafe string

	alone atomic.Pointer[string] // why its zygotes are no copies of a base; nil: they are

	renewing sync.Mutex // held while the zygote that workers are forked from is replaced

	mu      sync.Mutex
	current *zygote // forks workers; nil when it must be made
	all     map[*zygote]struct{}
	closed  bool
}

// open starts the first zygote.
func (f *family) open(ctx context.Context) ([]Unavailable, error) {
	if why := f.index.x.Lacks(f.key.sandbox); why != "" {
		return f.refuse(why), nil
	}
	z, err := f.newZygote(ctx, f.setup, "")
	if err != nil {
		return nil, err
	}
	f.tools = z.about.Tools
	f.forkUnsafe = z.about.ForkUnsafe
	f.described = true
	if f.forkUnsafe != "" {
		f.index.log.Warn("the index cannot be forked, each worker imports it anew", slog.String("reason", f.forkUnsafe))
		for i := range f.tools {
			t := &f.tools[i]
			warning := "its worker is no fork but imports the index anew: " + f.forkUnsafe
			if f.index.spec.Policies[t.Name].Isolation == tool.IsolationFork {
				warning = "isolation fork starts a new interpreter for each call: " + f.forkUnsafe
			}
			t.Warnings = append(t.Warnings, warning)
		}
	}
	f.mu.Lock()
	f.current = z
	f.mu.Unlock()
	return z.about.Unavailable, nil
}

// begin starts a zygote: a copy of the interpreter's base or, where that cannot be
// and for isolation fresh, an interpreter of its own.
func (f *family) begin(ctx context.Context, s setup, only string) (*zygote, error) {
	ix := f.index
	if only == "" && f.alone.Load() == nil {
		z, err := f.copied(ctx, s)
		if z != nil || ctx.Err() != nil {
			return z, err
		}
		var early *startFailure
		level := slog.LevelWarn
		switch {
		case !errors.As(err, &early):
			var failure *importFailure
			if errors.As(err, &failure) {
				return nil, err
			}
		case early.unfit:
			f.alone.Store(&early.words) // and the next ones of this family likewise
			level = slog.LevelDebug
		}
		ix.log.Log(ctx, level, "the index starts an interpreter of its own", slog.Any("error", err))
		if err := ix.x.ownFolder(&s); err != nil { // the first is gone
			return nil, err
		}
	}
	proc, err := ix.x.spawner.Start(f.command)
	if err != nil {
		return nil, err
	}
	return startZygote(ctx, ix.log, proc, s, ix.redact, ix.x.opts.StartTimeout, ix.x.maxFrame())
}

// copied starts a zygote as a copy of the interpreter's base.
func (f *family) copied(ctx context.Context, s setup) (*zygote, error) {
	ix := f.index
	proc, err := ix.x.bases.start(ctx, f.command)
	if err != nil {
		return nil, err
	}
	defer ix.x.bases.prepare(f.command.Path, f.command.Sandbox, baseRest)
	return startZygote(ctx, ix.log, proc, adopt(s, f.command, proc.Level), ix.redact, ix.x.opts.StartTimeout, ix.x.maxFrame())
}

// newZygote starts a zygote, leaving out modules that hang or end the process;
// only is as for another.
func (f *family) newZygote(ctx context.Context, s setup, only string) (*zygote, error) {
	ix := f.index
	for {
		if err := ix.x.ownFolder(&s); err != nil {
			return nil, err
		}
		select {
		case ix.x.starting <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		z, err := f.begin(ctx, s, only)
		<-ix.x.starting
		var failure *importFailure
		if errors.As(err, &failure) {
			if _, again := f.setup.Exclude[failure.module]; !again && !f.described {
				ix.log.Warn("a module is left out", slog.String("module", failure.module), slog.String("reason", failure.reason))
				f.setup.Exclude[failure.module] = failure.reason
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		f.mu.Lock()
		closed := f.closed
		if !closed {
			f.all[z] = struct{}{}
		}
		f.mu.Unlock()
		if closed {
			z.kill()
			return nil, errors.New("the index is closed")
		}
		return z, nil
	}
}

// sameTools checks that a new zygote serves what the first did: slots are places
// in that list. One that serves a single tool has it at the first place.
func (f *family) sameTools(z *zygote, only string) error {
	want := f.tools
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

// newWorker starts a worker: a fork of the zygote, or a process of its own that
// imports the index itself, where that is asked for or the zygote must not be
// forked.
func (f *family) newWorker(c *crew) (*worker, error) {
	ix := f.index
	ctx, cancel := ix.untilStop(context.Background())
	defer cancel()
	solo := f.solo() || c.key.tool != ""
	z, err := f.source(ctx, solo, c.key.tool)
	if err != nil {
		return nil, err
	}
	if f.solo() && c.key.tool == "" {
		ix.spawned.Add(1)
	}
	w, err := startWorker(c, z, ix.x.nextID.Add(1), solo, ix.x.opts.StartTimeout)
	if solo {
		ix.wg.Go(func() {
			if err == nil {
				<-w.gone
			}
			z.kill()
			f.mu.Lock()
			delete(f.all, z)
			f.mu.Unlock()
		})
	}
	return w, err
}

// source is the zygote to make a worker of: for a process of its own one that
// nobody else uses, else the one that all forks come from.
func (f *family) source(ctx context.Context, solo bool, only string) (*zygote, error) {
	if only != "" {
		return f.another(ctx, only)
	}
	if solo {
		f.mu.Lock()
		z := f.current
		f.current = nil
		f.mu.Unlock()
		if z != nil && !z.gone() {
			return z, nil
		}
		f.discard(z)
		return f.another(ctx, "")
	}
	f.renewing.Lock() // many may want the first fork of a new one
	defer f.renewing.Unlock()
	f.mu.Lock()
	z := f.current
	if z != nil && z.gone() {
		f.current = nil
	}
	f.mu.Unlock()
	if z != nil && !z.gone() {
		return z, nil
	}
	f.discard(z)
	z, err := f.another(ctx, "")
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.current = z
	f.mu.Unlock()
	return z, nil
}

// another starts one more zygote, which must serve what the first did, or only
// that one tool.
func (f *family) another(ctx context.Context, only string) (*zygote, error) {
	s := f.setup
	if only != "" {
		s.Tools = []string{only}
	}
	z, err := f.newZygote(ctx, s, only)
	if err != nil {
		return nil, err
	}
	if err := f.sameTools(z, only); err != nil {
		f.discard(z)
		return nil, err
	}
	return z, nil
}

// discard ends a zygote that is of no use, nil included.
func (f *family) discard(z *zygote) {
	if z == nil {
		return
	}
	f.mu.Lock()
	delete(f.all, z)
	f.mu.Unlock()
	f.index.wg.Go(z.kill)
}

// solo reports whether each worker is a process that imported the index itself.
func (f *family) solo() bool { return f.forkUnsafe != "" }

// close ends every process of the family.
func (f *family) close() {
	f.mu.Lock()
	f.closed = true
	all := make([]*zygote, 0, len(f.all))
	for z := range f.all {
		all = append(all, z)
	}
	f.mu.Unlock()
	for _, z := range all {
		z.kill()
	}
}
