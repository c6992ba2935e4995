package executor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/toolmesh/toolmesh/executor/sandbox"
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

	mu      sync.Mutex
	current *zygote // forks workers; nil when it must be made
	all     map[*zygote]struct{}
	closed  bool
}

// open starts the first zygote.
func (f *family) open(ctx context.Context) ([]Unavailable, error) {
	if why := f.index.x.spawner.Survey().Lacks(f.key.sandbox); why != "" {
		return f.refuse(why), nil
	}
	z, err := f.newZygote(ctx)
	if err != nil {
		return nil, err
	}
	f.tools = z.about.Tools
	f.forkUnsafe = z.about.ForkUnsafe
	f.described = true
	if f.forkUnsafe != "" {
		f.index.log.Warn("the index cannot be forked, each worker imports it anew", slog.String("reason", f.forkUnsafe))
	}
	f.mu.Lock()
	f.current = z
	f.mu.Unlock()
	return z.about.Unavailable, nil
}

// newZygote starts a zygote, leaving out modules that hang or end the process.
func (f *family) newZygote(ctx context.Context) (*zygote, error) {
	ix := f.index
	for {
		setup := f.setup
		if err := ix.x.ownFolder(&setup); err != nil {
			return nil, err
		}
		z, err := startZygote(ctx, ix.log, ix.x.spawner, f.command, setup, ix.x.opts.StartTimeout, ix.x.maxFrame())
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
// in that list.
func (f *family) sameTools(z *zygote) error {
	if !slices.EqualFunc(f.tools, z.about.Tools, func(a, b Tool) bool { return a.Name == b.Name && a.Kind == b.Kind }) {
		return errors.New("the index's modules offer other tools than when it was opened; open it again")
	}
	return nil
}

// newWorker starts a worker from the current zygote, or from a new one if that
// is gone or the worker is to be a process that imported the index itself.
func (f *family) newWorker(c *crew) (*worker, error) {
	ix := f.index
	ctx, cancel := ix.untilStop(context.Background())
	defer cancel()
	solo := f.solo()
	f.mu.Lock()
	z := f.current
	if z != nil && (z.gone() || solo) {
		f.current = nil
		if z.gone() {
			delete(f.all, z)
			ix.wg.Go(z.kill)
			z = nil
		}
	}
	f.mu.Unlock()
	if z == nil {
		var err error
		if z, err = f.newZygote(ctx); err != nil {
			return nil, err
		}
		if err := f.sameTools(z); err != nil {
			return nil, err
		}
		if !solo {
			f.mu.Lock()
			if old := f.current; old != nil && !old.gone() {
				// Another worker's start was faster.
				delete(f.all, z)
				f.mu.Unlock()
				z.kill()
				z = old
			} else {
				f.current = z
				f.mu.Unlock()
			}
		}
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
