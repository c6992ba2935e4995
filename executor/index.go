package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/frame"
	"github.com/toolmesh/toolmesh/executor/sandbox"
)

// Spec says what an index is and how it is served.
type Spec struct {
	Name     string // for messages
	Revision string // for messages
	// SourceDir is the index's folder: first on the modules' path and the
	// working directory. Python writes its bytecode there.
	SourceDir string
	Env       *Env
	// Tools are the declared names, module.function. No others are ever served.
	Tools []string
	// Vars are the index's declared environment variables.
	Vars map[string]string
	// Concurrency bounds the calls that run at once. Defaults to no bound of
	// the index's own: the executor's MaxWorkers for plain functions.
	Concurrency int
	// Collect names tools whose result is the list of their items when a call
	// does not stream, as if each call asked for it.
	Collect map[string]bool
}

// Bytes of a stream's items that may be on their way; loop.py starts with it.
const window = 256 << 10

// itemCost is what an item counts beyond its bytes; loop.py adds the same.
const itemCost = 64

type served struct {
	*Tool
	slot    uint16
	collect bool
}

// Index is one bundle of tools being served. Its methods may be called
// concurrently.
type Index struct {
	x       *Executor
	spec    Spec
	log     *slog.Logger
	command sandbox.Command
	setup   setup

	tools       []Tool
	byName      map[string]*served
	unavailable []Unavailable
	forkUnsafe  string

	plain *crew // sync and generator
	async *crew // async and async generator; nil when the index has none
	stop  chan struct{}
	wg    sync.WaitGroup // readers, starts, the janitor

	zygotes struct {
		sync.Mutex
		current *zygote // forks workers; nil when it must be made
		all     map[*zygote]struct{}
		closed  bool
	}

	inFlight  atomic.Int64
	closing   atomic.Bool
	drained   chan struct{}
	drainOnce sync.Once
	closeOnce sync.Once
}

// Open imports an index's tools and returns when they are described and the
// first worker is warm. Tools that cannot be served are listed by
// [Index.Unavailable]; an index of which nothing can be served is opened too.
// An error is unavailable or, when the interpreter itself does not work,
// install_failed.
func (x *Executor) Open(ctx context.Context, spec Spec) (*Index, error) {
	if spec.Env == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "executor: Spec.Env is missing").WithOrigin(toolmesh.OriginAgent)
	}
	root, err := filepath.Abs(spec.SourceDir)
	if err != nil {
		return nil, openFailed(spec, err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, openFailed(spec, err)
	}
	ix := &Index{
		x: x, spec: spec, stop: make(chan struct{}), drained: make(chan struct{}),
		log: x.log.With(slog.String("index", spec.Name), slog.String("revision", spec.Revision)),
	}
	ix.zygotes.all = map[*zygote]struct{}{}
	paths := []string{root}
	if src := filepath.Join(root, "src"); isDir(src) {
		paths = append(paths, src)
	}
	ix.setup = setup{Root: root, Cwd: root, Paths: paths, Tools: spec.Tools, Exclude: map[string]string{}}
	ix.command = sandbox.Command{
		Path: spec.Env.Python,
		Args: []string{"-I", "-X", "utf8", "-c", bootstrap, x.files},
		Env:  x.workerEnv(filepath.Dir(spec.Env.Python), spec.Vars), Dir: root,
	}
	if err := x.register(ix); err != nil {
		return nil, err
	}
	ix.wg.Add(1)
	err = ix.open(ctx)
	ix.wg.Done()
	if err != nil {
		at, cancel := context.WithCancel(ctx)
		cancel()
		_ = ix.Close(at)
		return nil, openFailed(spec, err)
	}
	return ix, nil
}

// bootstrap makes the worker's files a package and starts them. The folder is
// on the path only meanwhile.
const bootstrap = "import sys; sys.path.insert(0, sys.argv[1]); from " + workerPackage +
	" import zygote; del sys.path[0]; zygote.main(sys.argv[2])"

func openFailed(spec Spec, err error) error {
	var known *toolmesh.Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return toolmesh.AsError(err).WithOrigin(toolmesh.OriginAgent)
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "the index %s cannot be served: %w", spec.Name, err).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
}

// workerEnv is all that a worker sees of an environment. bin comes first on PATH,
// as in an activated environment: programs of the dependencies are found.
func (x *Executor) workerEnv(bin string, vars map[string]string) []string {
	env := map[string]string{
		"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
		"NUMEXPR_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1",
	}
	for _, line := range x.opts.Environ {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "PATH":
			env[name] = bin + string(os.PathListSeparator) + value
		case "HOME", "LANG", "TMPDIR":
			env[name] = value
		}
	}
	for name, value := range vars {
		env[name] = value
	}
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	sort.Strings(list)
	return list
}

func (ix *Index) open(ctx context.Context) error {
	ctx, cancel := ix.untilStop(ctx)
	defer cancel()
	z, err := ix.newZygote(ctx)
	if err != nil {
		return err
	}
	ix.tools = z.about.Tools
	ix.unavailable = z.about.Unavailable
	ix.forkUnsafe = z.about.ForkUnsafe
	if ix.forkUnsafe != "" {
		ix.log.Warn("the index cannot be forked, each worker imports it anew", slog.String("reason", ix.forkUnsafe))
	}
	ix.byName = make(map[string]*served, len(ix.tools))
	var plain, async *crew
	for i := range ix.tools {
		t := &ix.tools[i]
		ix.byName[t.Name] = &served{Tool: t, slot: uint16(i), collect: ix.spec.Collect[t.Name]} //nolint:gosec // checked below
		if t.Kind.async() {
			if async == nil {
				async = &crew{index: ix, async: true, workers: map[*worker]struct{}{}}
			}
		} else if plain == nil {
			plain = &crew{index: ix, workers: map[*worker]struct{}{}}
		}
	}
	if len(ix.tools) > 1<<16-1 {
		return fmt.Errorf("it declares %d tools, more than %d", len(ix.tools), 1<<16-1)
	}
	ix.zygotes.Lock()
	ix.plain, ix.async = plain, async
	ix.zygotes.current = z
	ix.zygotes.Unlock()
	for _, c := range ix.crews() {
		w, err := ix.newWorker(c)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.join(w)
		c.mu.Unlock()
	}
	ix.wg.Go(ix.janitor)
	return nil
}

func (ix *Index) crews() []*crew {
	ix.zygotes.Lock() // an executor may be closed while an index opens
	defer ix.zygotes.Unlock()
	var all []*crew
	for _, c := range []*crew{ix.plain, ix.async} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// newZygote starts a zygote, leaving out modules that hang or end the process.
func (ix *Index) newZygote(ctx context.Context) (*zygote, error) {
	for {
		z, err := startZygote(ctx, ix.log, ix.x.spawner, ix.command, ix.setup, ix.x.opts.StartTimeout, ix.x.maxFrame())
		var failure *importFailure
		if errors.As(err, &failure) {
			if _, again := ix.setup.Exclude[failure.module]; !again && ix.tools == nil {
				ix.log.Warn("a module is left out", slog.String("module", failure.module), slog.String("reason", failure.reason))
				ix.setup.Exclude[failure.module] = failure.reason
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		ix.zygotes.Lock()
		closed := ix.zygotes.closed
		if !closed {
			ix.zygotes.all[z] = struct{}{}
		}
		ix.zygotes.Unlock()
		if closed {
			z.kill()
			return nil, errors.New("the index is closed")
		}
		return z, nil
	}
}

// untilStop gives a context that also ends when the index is closed. Called on
// a goroutine that wg counts.
func (ix *Index) untilStop(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	ix.wg.Go(func() {
		select {
		case <-ix.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// sameTools checks that a new zygote serves what the first did: slots are places
// in that list.
func (ix *Index) sameTools(z *zygote) error {
	if !slices.EqualFunc(ix.tools, z.about.Tools, func(a, b Tool) bool { return a.Name == b.Name && a.Kind == b.Kind }) {
		return errors.New("the index's modules offer other tools than when it was opened; open it again")
	}
	return nil
}

// newWorker starts a worker from the current zygote, or from a new one if that
// is gone or must not be forked.
func (ix *Index) newWorker(c *crew) (*worker, error) {
	ctx, cancel := ix.untilStop(context.Background())
	defer cancel()
	ix.zygotes.Lock()
	z := ix.zygotes.current
	if z != nil && (z.gone() || ix.solo()) {
		ix.zygotes.current = nil
		if z.gone() {
			delete(ix.zygotes.all, z)
			ix.wg.Go(z.kill)
			z = nil
		}
	}
	ix.zygotes.Unlock()
	if z == nil {
		var err error
		if z, err = ix.newZygote(ctx); err != nil {
			return nil, err
		}
		if err := ix.sameTools(z); err != nil {
			return nil, err
		}
		if !ix.solo() {
			ix.zygotes.Lock()
			if old := ix.zygotes.current; old != nil && !old.gone() {
				// Another worker's start was faster.
				delete(ix.zygotes.all, z)
				ix.zygotes.Unlock()
				z.kill()
				z = old
			} else {
				ix.zygotes.current = z
				ix.zygotes.Unlock()
			}
		}
	}
	w, err := startWorker(c, z, ix.x.nextID.Add(1), ix.solo(), ix.x.opts.StartTimeout)
	if ix.solo() {
		ix.wg.Go(func() {
			if err == nil {
				<-w.gone
			}
			z.kill()
			ix.zygotes.Lock()
			delete(ix.zygotes.all, z)
			ix.zygotes.Unlock()
		})
	}
	return w, err
}

// solo reports whether each worker is a process that imported the index itself.
func (ix *Index) solo() bool { return ix.forkUnsafe != "" }

func (ix *Index) maxWorkers() int {
	if ix.spec.Concurrency > 0 {
		return min(ix.spec.Concurrency, ix.x.opts.MaxWorkers)
	}
	return ix.x.opts.MaxWorkers
}

// after calls f after a while, unless the index is closed before.
func (ix *Index) after(d time.Duration, f func()) {
	ix.wg.Go(func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			f()
		case <-ix.stop:
		}
	})
}

// janitor ends workers that nobody needs, and looks after event loops.
func (ix *Index) janitor() {
	idle := time.NewTicker(max(ix.x.opts.IdleAfter/4, time.Millisecond))
	defer idle.Stop()
	var probes <-chan time.Time
	if ix.async != nil {
		probe := time.NewTicker(blockedAfter / 4)
		defer probe.Stop()
		probes = probe.C
	}
	for {
		select {
		case <-idle.C:
			for _, c := range ix.crews() {
				c.reap(ix.x.opts.IdleAfter)
			}
		case <-probes:
			ix.async.probe()
		case <-ix.stop:
			return
		}
	}
}

// Tools are what the index serves, in the order of the declaration. The caller
// must not change them.
func (ix *Index) Tools() []Tool { return ix.tools }

// Unavailable are the declared tools that are not served, and why.
func (ix *Index) Unavailable() []Unavailable { return ix.unavailable }

// Call runs a tool and returns its result's JSON; nil for a stream, whose items
// go to the sink. When ctx ends the work is stopped: Call returns only when it
// has, which takes at most the grace and a moment. Every error is a
// [*toolmesh.Error] that says whether the tool's code had begun, except what
// [Sink.Item] returned.
func (ix *Index) Call(ctx context.Context, call Call, sink Sink) (json.RawMessage, error) {
	t := ix.byName[call.Tool]
	if t == nil {
		return nil, ix.notServed(call.Tool)
	}
	ix.inFlight.Add(1)
	defer ix.leave()
	if ix.closing.Load() {
		return nil, unavailable("the index %s is closed", ix.spec.Name)
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, toolmesh.StartedNo)
	}
	if size := len(call.Args) + len(call.VarArgs); size > ix.x.opts.MaxResult {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the arguments are %d bytes, more than %d", size, ix.x.opts.MaxResult).
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
	}
	body, err := ix.attempt(ctx, t, call, sink)
	if err != nil {
		// A worker that died before it took the call up costs the call nothing.
		if e, ok := err.(*toolmesh.Error); ok && e.Code == toolmesh.CodeWorkerCrashed && e.Started == toolmesh.StartedNo { //nolint:errorlint // our own, unwrapped
			return ix.attempt(ctx, t, call, sink)
		}
	}
	return body, err
}

func (ix *Index) attempt(ctx context.Context, t *served, call Call, sink Sink) (json.RawMessage, error) {
	j := &job{id: ix.x.nextID.Add(1), tool: t, args: call.Args, sink: sink, rpcID: call.RPCID}
	if len(call.VarArgs) > 0 && string(call.VarArgs) != "[]" {
		j.flags |= frame.FlagMeta
		j.meta = metaOf(call.VarArgs)
	}
	var item func(data []byte) error
	c := ix.plain
	if t.Kind.async() {
		c = ix.async
		j.done = make(chan struct{}, 1)
	}
	switch {
	case call.Stream && sink == nil:
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "executor: a stream needs a sink").
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	case call.Stream:
		j.flags |= frame.FlagStream
		j.items.notify = make(chan struct{}, 1)
		item = c.taker(ctx, j)
	case call.Collect || t.collect:
		j.flags |= frame.FlagCollect
	}
	if err := c.submit(j); err != nil {
		return nil, err
	}
	run := c.runPlain
	if c.async {
		run = c.runCoroutine
	}
	refused := run(ctx, j, item)
	switch {
	case j.err != nil && (refused == nil || ctx.Err() != nil):
		return nil, j.err
	case refused != nil:
		return nil, refused
	case j.kind == frame.Error:
		return nil, fromWorker(j.body)
	case call.Stream && j.kind == frame.Result:
		return nil, sink.Item(ctx, j.body) // a plain function's one item
	case j.kind == frame.Result:
		return j.body, nil
	case call.Stream && j.kind == frame.End:
		return nil, nil
	default:
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "the worker answered a call with frame type %d", j.kind).
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedYes)
	}
}

func (ix *Index) notServed(name string) error {
	for _, u := range ix.unavailable {
		if u.Name == name {
			return unavailable("%s is not served: %s", name, u.Reason).WithRetryable(false)
		}
	}
	return toolmesh.Errorf(toolmesh.CodeToolNotFound, "the index %s has no tool %s", ix.spec.Name, name).
		WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
}

func (ix *Index) leave() {
	if ix.inFlight.Add(-1) == 0 && ix.closing.Load() {
		ix.drainOnce.Do(func() { close(ix.drained) })
	}
}

// Close refuses new calls, waits for those in flight until ctx ends, and then
// ends every process of the index. It returns when none is left, with ctx's
// error if calls were cut off.
func (ix *Index) Close(ctx context.Context) error {
	ix.closing.Store(true)
	if ix.inFlight.Load() == 0 {
		ix.drainOnce.Do(func() { close(ix.drained) })
	}
	var cut error
	select {
	case <-ix.drained:
	default:
		select {
		case <-ix.drained:
		case <-ctx.Done():
			cut = context.Cause(ctx)
		}
	}
	ix.closeOnce.Do(func() {
		close(ix.stop)
		for _, c := range ix.crews() {
			c.close()
		}
		ix.zygotes.Lock()
		ix.zygotes.closed = true
		all := make([]*zygote, 0, len(ix.zygotes.all))
		for z := range ix.zygotes.all {
			all = append(all, z)
		}
		ix.zygotes.Unlock()
		for _, z := range all {
			z.kill()
		}
		ix.wg.Wait()
		ix.x.unregister(ix)
	})
	return cut
}

// Stats is a moment's view.
func (ix *Index) Stats() Stats {
	var s Stats
	for _, c := range ix.crews() {
		c.mu.Lock()
		s.Starting += c.starting
		s.Busy += c.busy
		s.Waiting += c.queue.len()
		s.Restarts += c.restarts
		for w := range c.workers {
			if !w.retired {
				s.Workers++
			}
			s.Pids = append(s.Pids, w.handle.Pid())
		}
		c.mu.Unlock()
	}
	ix.zygotes.Lock()
	if z := ix.zygotes.current; z != nil {
		s.Root = z.proc.Pid()
	}
	ix.zygotes.Unlock()
	sort.Ints(s.Pids)
	return s
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
