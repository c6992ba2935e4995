package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/frame"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/tool"
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
	// Vars are the environment variables that all tools see.
	Vars map[string]string
	// Secrets names variables, of Vars and of Policies, whose values must not
	// appear in errors, output and reasons. Results are not looked at.
	Secrets []string
	// Policies say how tools are run, by name. A tool without one is run by the
	// defaults.
	Policies map[string]Policy
	// Concurrency bounds the calls that run at once. Defaults to no bound of
	// the index's own: the executor's MaxWorkers for plain functions.
	Concurrency int
	// Quarantined is told when a tool's quarantine begins, with the reason, and when
	// it ends, with none. It is called while calls wait: it must return at once,
	// and must not call the index. Defaults to nobody.
	Quarantined func(tool, reason string)
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
	slot    uint16 // its place in its family's list
	collect bool
	family  *family
	policy  Policy

	quarantine quarantine
	crew       *crew // of its own isolation; nil when that is session
}

// Index is one bundle of tools being served. Its methods may be called
// concurrently.
type Index struct {
	x    *Executor
	spec Spec
	log  *slog.Logger

	redact *redactor // nil: no secrets

	tools       []Tool
	byName      map[string]*served
	unavailable []Unavailable
	families    []*family // set by Open, one for each zygote key

	watching chan struct{} // capacity 1; see alarm
	stop     chan struct{}
	wg       sync.WaitGroup // readers, starts, the janitor

	crewsMu sync.RWMutex
	crews   map[workerKey]*crew
	ended   bool // no further crews

	leases  leases
	spawned atomic.Int64 // workers that should have been forks

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
		x: x, spec: spec, stop: make(chan struct{}), watching: make(chan struct{}, 1), drained: make(chan struct{}),
		log: x.log.With(slog.String("index", spec.Name), slog.String("revision", spec.Revision)),
	}
	ix.crews = map[workerKey]*crew{}
	ix.leases.by, ix.leases.taken = map[workerKey]*lease{}, map[workerKey]*lease{}
	ix.redact = newRedactor(spec.secrets())
	if err := ix.group(root); err != nil {
		return nil, openFailed(spec, err)
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

// group makes the families: tools that may share a process are imported together.
func (ix *Index) group(root string) error {
	paths := []string{root}
	if src := filepath.Join(root, "src"); isDir(src) {
		paths = append(paths, src)
	}
	byKey := map[zygoteKey]*family{}
	for _, name := range ix.spec.Tools {
		policy := ix.spec.Policies[name].withDefaults(ix.x.defaultSandbox())
		if err := policy.check(); err != nil {
			return fmt.Errorf("the policy of %s: %w", name, err)
		}
		vars := merged(ix.spec.Vars, policy.Vars)
		key := zygoteKey{sandbox: policy.Sandbox, env: profile(vars)}
		f := byKey[key]
		if f == nil {
			f = &family{
				index: ix, key: key, all: map[*zygote]struct{}{},
				setup: setup{Root: root, Cwd: root, Paths: paths, Sandbox: key.sandbox, Exclude: map[string]string{}, Secrets: ix.spec.Secrets},
				command: sandbox.Command{
					Path: ix.spec.Env.Python,
					Args: []string{"-I", "-X", "utf8", "-c", bootstrap, ix.x.files},
					Env:  ix.x.workerEnv(filepath.Dir(ix.spec.Env.Python), vars), Dir: root,
					Sandbox: key.sandbox,
				},
			}
			if why := unfitFor(f.command, ix.x.opts.OwnInterpreters); why != "" {
				ix.log.Debug("the index starts an interpreter of its own", slog.String("reason", why))
				f.alone.Store(&why)
			}
			byKey[key] = f
			ix.families = append(ix.families, f)
		}
		f.setup.Tools = append(f.setup.Tools, name)
	}
	return nil
}

func (ix *Index) open(ctx context.Context) error {
	ctx, cancel := ix.untilStop(ctx)
	defer cancel()
	ix.byName = map[string]*served{}
	for _, f := range ix.families {
		unavailable, err := f.open(ctx)
		if err != nil && (len(ix.families) == 1 || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			// The tools of other families have nothing to do with it.
			ix.log.Error("some tools cannot be served", slog.Any("tools", f.setup.Tools), slog.Any("error", err))
			for _, name := range f.setup.Tools {
				unavailable = append(unavailable, Unavailable{Name: name, Reason: err.Error()})
			}
		}
		ix.unavailable = append(ix.unavailable, unavailable...)
		if len(f.tools) > 1<<16-1 {
			return fmt.Errorf("it declares %d tools, more than %d", len(f.tools), 1<<16-1)
		}
		for i := range f.tools {
			t := &f.tools[i]
			ix.byName[t.Name] = &served{
				Tool: t, slot: uint16(i), family: f, collect: ix.spec.Collect[t.Name], //nolint:gosec // checked above
				policy: ix.spec.Policies[t.Name].withDefaults(f.key.sandbox),
			}
		}
	}
	// In the order of the declaration, whatever family they belong to.
	place := map[string]int{}
	for i, name := range ix.spec.Tools {
		if _, twice := place[name]; !twice {
			place[name] = i
			if t := ix.byName[name]; t != nil {
				ix.tools = append(ix.tools, *t.Tool)
			}
		}
	}
	slices.SortStableFunc(ix.unavailable, func(a, b Unavailable) int { return place[a.Name] - place[b.Name] })
	for i := range ix.tools {
		t := ix.byName[ix.tools[i].Name]
		if t.policy.Isolation == tool.IsolationSession {
			continue
		}
		c, err := ix.crew(t, t.policy.Isolation)
		if err != nil {
			return err
		}
		t.crew = c
	}
	for _, c := range ix.everyCrew() {
		if c.once && c.spares == 0 {
			continue
		}
		w, err := c.family.newWorker(c)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.join(w)
		c.mu.Unlock()
	}
	ix.wg.Go(ix.janitor)
	ix.wg.Go(ix.watch)
	return nil
}

// crew finds the crew that runs a tool's calls in an isolation, or makes it. A
// session's come from lease.
func (ix *Index) crew(t *served, isolation tool.Isolation) (*crew, *toolmesh.Error) {
	key := workerKey{zygoteKey: t.family.key, async: t.Kind.async(), isolation: isolation, limits: t.policy.Limits}
	if isolation == tool.IsolationFresh {
		key.tool = t.Name
	}
	return ix.crewOf(t.family, key)
}

func (ix *Index) crewOf(f *family, key workerKey) (*crew, *toolmesh.Error) {
	ix.crewsMu.RLock()
	c := ix.crews[key]
	ix.crewsMu.RUnlock()
	if c != nil {
		return c, nil
	}
	ix.crewsMu.Lock()
	defer ix.crewsMu.Unlock()
	if c := ix.crews[key]; c != nil {
		return c, nil
	}
	if ix.ended {
		return nil, failure.Unavailable("the index %s is closed", ix.spec.Name)
	}
	c = newCrew(ix, f, key)
	ix.crews[key] = c
	return c, nil
}

// everyCrew lists the crews of this moment.
func (ix *Index) everyCrew() []*crew {
	ix.crewsMu.RLock()
	defer ix.crewsMu.RUnlock()
	return slices.Collect(maps.Values(ix.crews))
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
	probe := time.NewTicker(blockedAfter / blockedLooks)
	defer probe.Stop()
	for {
		select {
		case <-idle.C:
			for _, c := range ix.everyCrew() {
				c.reap(ix.x.opts.IdleAfter)
				c.weigh()
			}
			ix.expire()
		case <-probe.C:
			for _, c := range ix.everyCrew() {
				if c.async {
					c.probe()
				}
			}
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
		return nil, failure.Unavailable("the index %s is closed", ix.spec.Name)
	}
	if ctx.Err() != nil {
		return nil, failure.Ended(ctx, toolmesh.StartedNo)
	}
	if call.Isolation != "" {
		if _, err := tool.ParseIsolation(string(call.Isolation)); err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err).
				WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
		}
	}
	if size := len(call.Args) + len(call.VarArgs); size > ix.x.opts.MaxResult {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the arguments are %d bytes, more than %d", size, ix.x.opts.MaxResult).
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
	}
	trial, refused := t.quarantine.enter(t.Name, time.Now())
	if refused != nil {
		return nil, refused
	}
	var outcome verdict
	defer func() { t.quarantine.leave(ix, t.Name, trial, outcome) }()
	body, err := ix.attempt(ctx, t, call, sink, &outcome)
	if e := diedBefore(err); e != nil {
		// A worker that died before it took the call up costs the call nothing. A
		// call that finds two dead is what kills them: nobody is to try again.
		outcome = verdict{}
		body, err = ix.attempt(ctx, t, call, sink, &outcome)
		if e := diedBefore(err); e != nil {
			return nil, e.WithRetryable(false).WithDetail("workers", 2)
		}
	}
	return body, err
}

// diedBefore is err if it is that of a worker that ended before the call began.
func diedBefore(err error) *toolmesh.Error {
	if e, ok := err.(*toolmesh.Error); ok && e.Code == toolmesh.CodeWorkerCrashed && e.Started == toolmesh.StartedNo { //nolint:errorlint // our own, unwrapped
		return e
	}
	return nil
}

func (ix *Index) attempt(ctx context.Context, t *served, call Call, sink Sink, outcome *verdict) (json.RawMessage, error) {
	j := &job{id: ix.x.nextID.Add(1), tool: t, args: call.Args, sink: sink, session: call.Session, rpcID: call.RPCID, depth: max(call.Depth, 0)}
	j.nesting.maker, j.nesting.ctx = call.Nested, ctx
	defer j.endNested()
	if len(call.VarArgs) > 0 && string(call.VarArgs) != "[]" {
		j.flags |= frame.FlagMeta
		j.meta = metaOf(call.VarArgs)
	}
	var item func(data []byte) error
	c := t.crew
	switch isolation := tighter(t.policy.Isolation, call.Isolation); {
	case isolation == tool.IsolationSession:
		leased, release, err := ix.lease(t, call)
		if err != nil {
			return nil, err
		}
		defer release()
		c = leased
	case isolation != t.policy.Isolation:
		tightened, err := ix.crew(t, isolation)
		if err != nil {
			return nil, err
		}
		c = tightened
	case isolation == tool.IsolationWarm && c.async && t.quarantine.suspect.Load():
		key := c.key
		key.suspect = t.Name
		apart, err := ix.crewOf(t.family, key)
		if err != nil {
			return nil, err
		}
		c = apart
	}
	if c.async {
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
	if exceeded := c.breached(j); exceeded != nil {
		return nil, exceeded // and no crash: the tool is told its limit, and stays in service
	}
	*outcome = judge(j)
	switch {
	case j.err != nil && (refused == nil || ctx.Err() != nil):
		return nil, j.err
	case refused != nil:
		return nil, refused
	case j.kind == frame.Error:
		return nil, failure.FromWorker(j.body)
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
			return failure.Unavailable("%s is not served: %s", name, u.Reason).WithRetryable(false)
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
		ix.crewsMu.Lock()
		ix.ended = true
		ix.crewsMu.Unlock()
		for _, c := range ix.everyCrew() {
			c.close()
		}
		for _, f := range ix.families {
			f.close()
		}
		ix.wg.Wait()
		ix.x.unregister(ix)
	})
	return cut
}

// Stats is a moment's view.
func (ix *Index) Stats() Stats {
	var s Stats
	for _, c := range ix.everyCrew() {
		c.mu.Lock()
		s.Starting += c.starting
		s.Busy += c.busy
		s.Waiting += c.queue.len()
		s.Restarts += c.restarts
		s.Recycled += c.recycled
		for w := range c.workers {
			if !w.retired {
				s.Workers++
			}
			s.Pids = append(s.Pids, w.handle.Pid())
		}
		c.mu.Unlock()
	}
	for i := range ix.tools {
		if name := ix.tools[i].Name; ix.byName[name].quarantine.active.Load() {
			s.Quarantined = append(s.Quarantined, name)
		}
	}
	s.Spawned = int(ix.spawned.Load())
	for _, f := range ix.families {
		if f.forkUnsafe != "" {
			s.ForkUnsafe = f.forkUnsafe
		}
		f.mu.Lock()
		if z := f.current; z != nil && s.Root == 0 {
			s.Root = z.proc.Pid()
		}
		f.mu.Unlock()
	}
	sort.Ints(s.Pids)
	return s
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
