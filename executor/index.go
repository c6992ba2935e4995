package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
	"github.com/toolmesh/toolmesh/executor/internal/zygote"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/tool"
)

// Spec describes an index and how it is served.
type Spec struct {
	Name     string // for messages
	Revision string // for messages
	// Account is a file name for the user and the home of its processes, where Options.Users
	// gives each index its own. Defaults to Name.
	Account string
	// SourceDir is the index's folder: first on the modules' path and the
	// working directory. Within Options.Sealed only the level none can write it.
	SourceDir string
	Env       *Env
	// Tools are the declared names, module.function. No others are served.
	Tools []string
	// Vars are the environment variables that all tools see.
	Vars map[string]string
	// Secrets are values that errors, output and reasons must not contain. Results are not
	// checked.
	Secrets []string
	// Policies configure tools by name. A tool without one has the defaults.
	Policies map[string]Policy
	// Turns tells that calls of the index hold lanes: workers are ended by their zygote when
	// a hold ends, even if this process does not run.
	Turns bool
	// Paths are folders for the tools, from [Executor.Paths].
	Paths Given
	// Concurrency is the maximum of simultaneous calls. Defaults to none for the index: the
	// executor's MaxWorkers applies to plain functions.
	Concurrency int
	// Quarantined is called with the reason when a tool's quarantine begins, and with "" when it
	// ends. Calls wait meanwhile: it must return at once, and must not call the index. May be
	// nil.
	Quarantined func(tool, reason string)
}

// root is the index's folder without symbolic links.
func (s Spec) root() (string, error) {
	if s.Env == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInternal, "executor: Spec.Env is missing").WithOrigin(toolmesh.OriginAgent)
	}
	root, err := realPath(s.SourceDir)
	if err != nil {
		return "", openFailed(s, err)
	}
	return root, nil
}

// served is a tool that can be called. It is immutable.
type served struct {
	*zygote.Tool
	slot       uint16 // its index in its group's list
	group      *group
	policy     Policy
	quarantine *pool.Quarantine
	key        poolKey // of its calls, unless they ask for another isolation
	pool       *leased // of key; nil for isolation session
}

// group is the tools that were imported together, and their processes.
type group struct {
	*zygote.Group
	key    groupKey
	config zygote.Config
}

// Index is one bundle of tools being served. Its methods may be called
// concurrently.
type Index struct {
	x    *Executor
	spec Spec
	log  *slog.Logger

	redact *output.Redactor // nil without secrets

	// Set by Open.
	tools       []Function
	byName      map[string]*served
	unavailable []NotServed
	groups      []*group

	alive context.Context //nolint:containedctx // until the index is closed
	stop  context.CancelFunc
	wg    sync.WaitGroup // Open, the end of idle sessions, ended pools

	poolsMu sync.Mutex
	pools   map[poolKey]*leased
	taken   map[poolKey]time.Time // see lease
	ended   bool                  // no further pools

	inFlight  atomic.Int64
	closing   atomic.Bool
	drained   chan struct{}
	drainOnce sync.Once
	closeOnce sync.Once
}

// Open imports an index's tools and returns when they are described and the first worker is
// warm. [Index.Unavailable] lists tools that cannot be served; an index without any servable tool
// is opened, too. The error is unavailable or, if the interpreter itself does not work,
// install_failed.
func (x *Executor) Open(ctx context.Context, spec Spec) (*Index, error) {
	root, err := spec.root()
	if err != nil {
		return nil, err
	}
	ix := &Index{
		x: x, spec: spec, drained: make(chan struct{}),
		log: x.log.With(slog.String("index", spec.Name), slog.String("revision", spec.Revision)),
	}
	ix.alive, ix.stop = context.WithCancel(context.Background())
	ix.pools, ix.taken = map[poolKey]*leased{}, map[poolKey]time.Time{}
	ix.redact = x.redactor(spec.Secrets)
	if err := ix.group(root); err != nil {
		return nil, openFailed(spec, err)
	}
	if err := x.opened(ix); err != nil {
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

func openFailed(spec Spec, err error) error {
	var known *toolmesh.Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return toolmesh.AsError(err).WithOrigin(toolmesh.OriginAgent)
	}
	return unavailable("the index %s cannot be served: %w", spec.Name, err)
}

func unavailable(format string, args ...any) *toolmesh.Error {
	return failure.Unavailable(format, args...).WithOrigin(toolmesh.OriginAgent)
}

// realPath is a folder's absolute path without symbolic links.
func realPath(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// ToolEnv are the variables of the agent for tools, unless replaced: the proxies of a company's
// network, and the certificates that are trusted there.
func ToolEnv() []string {
	return []string{"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
}

// forTools reports whether tools get a variable of the agent. Proxies are written in both cases.
func (x *Executor) forTools(name string) bool {
	return slices.ContainsFunc(x.opts.ToolEnv, func(one string) bool { return strings.EqualFold(one, name) })
}

// Redactor returns a function that removes secrets, and the credentials of the agent's proxies,
// from a text.
func (x *Executor) Redactor(secrets []string) func(text string) string {
	return x.redactor(secrets).Text
}

// redactor removes secrets, and the credentials in URLs of the agent's variables. Programs accept
// URLs that [url.Parse] refuses, so it does not parse them.
func (x *Executor) redactor(secrets []string) *output.Redactor {
	secrets = slices.Clip(secrets)
	for _, line := range x.opts.Environ {
		name, value, _ := strings.Cut(line, "=")
		_, rest, found := strings.Cut(value, "://")
		proxy := strings.HasSuffix(strings.ToUpper(name), "_PROXY") // builds always get them
		if !found && proxy {
			rest = value
		}
		if end := strings.LastIndex(rest, "@"); end > 0 && (proxy || x.forTools(name)) {
			_, password, _ := strings.Cut(rest[:end], ":")
			plain, _ := url.PathUnescape(password)
			secrets = append(secrets, rest[:end], password, plain)
		}
	}
	return output.NewRedactor(secrets)
}

// workerEnv is a worker's whole environment. bin comes first on PATH, as in an activated
// environment, for programs of the dependencies. Later vars replace earlier ones.
func (x *Executor) workerEnv(bin string, vars ...map[string]string) []string {
	env := map[string]string{
		"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
		"NUMEXPR_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1",
	}
	for _, line := range x.opts.Environ {
		name, value, _ := strings.Cut(line, "=")
		switch {
		case name == "PATH":
			env[name] = bin + string(os.PathListSeparator) + value
		case slices.Contains([]string{"HOME", "LANG", "TMPDIR"}, name), x.forTools(name):
			env[name] = value
		}
	}
	for _, more := range vars {
		maps.Copy(env, more)
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// group makes the groups: tools that may share a process are imported together.
func (ix *Index) group(root string) error {
	paths := []string{root}
	src := filepath.Join(root, "src")
	if info, err := os.Stat(src); err == nil && info.IsDir() {
		paths = append(paths, src)
	}
	byKey, pids := map[groupKey]*group{}, ix.x.opts.Limits.Pids
	o := ix.x.opts
	for _, name := range ix.spec.Tools {
		policy := ix.spec.Policies[name].withDefaults(ix.x.defaultSandbox())
		if err := policy.check(); err != nil {
			return fmt.Errorf("the policy of %s: %w", name, err)
		}
		if why := ix.x.Lacks(ix.spec.Policies[name].Sandbox); why != "" {
			ix.unavailable = append(ix.unavailable, NotServed{Name: name, Reason: why})
			continue
		}
		user, own, err := ix.x.user(cmp.Or(ix.spec.Account, ix.spec.Name), cmp.Or(ix.spec.Policies[name].Sandbox, ix.x.opts.Sandbox))
		if err != nil {
			return err
		}
		env := ix.x.workerEnv(filepath.Dir(ix.spec.Env.Python), own, ix.spec.Vars, policy.Vars)
		key := groupKey{sandbox: policy.Sandbox, env: strings.Join(env, "\x00")}
		g := byKey[key]
		if g == nil {
			g = &group{key: key, config: zygote.Config{
				Logger: ix.log, Redact: ix.redact, Python: ix.spec.Env.Python, Base: ix.spec.Env.Base, Env: env, User: user,
				Setup: zygote.Setup{
					Root: root, Paths: paths, Sandbox: key.sandbox, OpenFiles: [2]int{o.Limits.OpenFiles, o.Limits.OpenFiles},
					Given: append(ix.x.seen(root, ix.spec.Env, user), ix.spec.Paths.paths...),
				},
			}}
			byKey[key] = g
			ix.groups = append(ix.groups, g)
		}
		setup, limits := &g.config.Setup, policy.Limits.Within(o.Limits, o.MaxLimits)
		setup.Tools, setup.OpenFiles[1] = append(setup.Tools, name), max(setup.OpenFiles[1], limits.OpenFiles)
		pids = max(pids, limits.Pids)
	}
	for _, g := range ix.groups {
		g.config.Setup.Processes = ix.x.processes(g.config.User, pids)
		g.Group = ix.x.zygotes.NewGroup(g.config)
	}
	return nil
}

func (ix *Index) open(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ix.alive, cancel)()
	ix.byName = map[string]*served{}
	for _, g := range ix.groups {
		if err := ix.openGroup(ctx, g); err != nil {
			return err
		}
	}
	for _, t := range ix.byName {
		ix.tools = append(ix.tools, *t.Tool)
		if t.key = t.keyOf(Call{}); t.key.isolation == toolmesh.IsolationSession {
			continue
		}
		p, err := ix.pool(t.group, t.key)
		if err != nil {
			return err
		}
		t.pool = p
	}
	slices.SortFunc(ix.tools, func(a, b Function) int { return strings.Compare(a.Name, b.Name) })
	for key, p := range ix.everyPool() {
		if key.isolation == toolmesh.IsolationFresh {
			continue // a new interpreter is too expensive for a guess
		}
		if err := p.Warm(); err != nil {
			return err
		}
	}
	ix.wg.Go(func() {
		for wake.After(ix.alive, max(ix.x.opts.IdleAfter/4, time.Millisecond)) {
			ix.expireSessions()
		}
	})
	return nil
}

// openGroup imports the tools of a group. An error means that the index cannot be served without
// them.
func (ix *Index) openGroup(ctx context.Context, g *group) error {
	tools, unavailable, err := g.Open(ctx)
	switch {
	case err != nil && (len(ix.groups) == 1 || ctx.Err() != nil):
		return err
	case err != nil:
		// Tools of other groups are not affected.
		ix.log.Error("some tools of the index cannot be served", slog.Any("tools", g.config.Setup.Tools), slog.String("error", err.Error()))
		for _, name := range g.config.Setup.Tools {
			ix.unavailable = append(ix.unavailable, NotServed{Name: name, Reason: err.Error()})
		}
		return nil
	case len(tools) > 1<<16-1:
		return fmt.Errorf("it declares %d tools, more than %d", len(tools), 1<<16-1)
	}
	ix.unavailable = append(ix.unavailable, unavailable...)
	why := g.ForkUnsafe()
	if why != "" {
		ix.log.Warn("the index's tools cannot be forked: each worker imports them again", slog.String("reason", why))
	}
	for i := range tools {
		t := &served{
			Tool: &tools[i], slot: uint16(i), group: g, //nolint:gosec // checked above
			policy: ix.spec.Policies[tools[i].Name].withDefaults(g.key.sandbox), quarantine: ix.quarantine(tools[i].Name),
		}
		switch {
		case why == "":
		case t.policy.Isolation == toolmesh.IsolationFork:
			t.Warnings = append(t.Warnings, "isolation fork starts a new interpreter for each call: "+why)
		default:
			t.Warnings = append(t.Warnings, "its worker is not forked but imports the index anew: "+why)
		}
		ix.byName[t.Name] = t
	}
	return nil
}

// quarantine makes the quarantine of a tool.
func (ix *Index) quarantine(name string) *pool.Quarantine {
	o := ix.x.opts
	return pool.NewQuarantine(pool.QuarantineConfig{
		Tool: name, CrashLimit: o.CrashLimit, Window: o.CrashWindow, TrialEvery: o.TrialEvery,
		Changed: func(reason string) {
			if reason == "" {
				ix.log.Info("quarantine of a tool has ended", slog.String("tool", name))
			} else {
				ix.log.Warn("quarantine of a tool has begun", slog.String("tool", name), slog.String("reason", reason))
			}
			if ix.spec.Quarantined != nil {
				ix.spec.Quarantined(name, reason)
			}
		},
	})
}

func (t *served) keyOf(call Call) poolKey {
	key := poolKey{groupKey: t.group.key, async: t.Kind.Async(), isolation: t.policy.Isolation.Tighter(call.Isolation), limits: t.policy.Limits}
	switch {
	case key.isolation == toolmesh.IsolationSession:
		key.session, key.epoch, key.home = call.Session, call.Epoch, call.Home
	case key.isolation == toolmesh.IsolationFresh:
		key.tool = t.Name
	case key.isolation == toolmesh.IsolationWarm && key.async && t.quarantine.Suspect():
		key.suspect = t.Name
	}
	return key
}

// pool finds or makes the pool of a key. Those of sessions come from lease.
func (ix *Index) pool(g *group, key poolKey) (*leased, *toolmesh.Error) {
	ix.poolsMu.Lock()
	defer ix.poolsMu.Unlock()
	return ix.find(g, key)
}

// find finds or makes the pool of a key. poolsMu is held.
func (ix *Index) find(g *group, key poolKey) (*leased, *toolmesh.Error) {
	if own := ix.pools[key]; own != nil {
		return own, nil
	}
	if ix.ended {
		return nil, failure.Unavailable("the index %s is closed", ix.spec.Name)
	}
	worker := zygote.Worker{
		Async: key.async, Isolation: key.isolation, Limits: key.limits.Within(tool.Limits{}, ix.x.opts.MaxLimits), Tool: key.tool, Turns: ix.spec.Turns,
		Bounds: key.limits.Within(ix.x.opts.Limits, ix.x.opts.MaxLimits),
	}
	own := &leased{Pool: pool.New(ix.poolConfig(key), func(ctx context.Context) (pool.Process, error) { return g.Start(ctx, worker) })}
	ix.pools[key] = own
	return own, nil
}

// poolConfig is the configuration of the pool of a key.
func (ix *Index) poolConfig(key poolKey) pool.Config {
	o := ix.x.opts
	cfg := pool.Config{
		Index: ix.spec.Name, Logger: ix.log, Redact: ix.redact,
		Async: key.async, Once: key.isolation == toolmesh.IsolationFork || key.isolation == toolmesh.IsolationFresh,
		MinIdle: 1, Session: key.isolation == toolmesh.IsolationSession,
		MaxWorkers: o.MaxWorkers, MaxCalls: ix.spec.Concurrency, Limits: key.limits.Within(o.Limits, o.MaxLimits), Declared: key.limits,
		Grace: o.Grace, StartTimeout: o.StartTimeout, IdleAfter: o.IdleAfter,
		Recycle: o.Recycle, MaxFrame: o.maxFrame(),
	}
	if ix.spec.Concurrency > 0 {
		cfg.MaxWorkers = min(ix.spec.Concurrency, o.MaxWorkers)
	}
	if !key.async {
		cfg.MaxCalls = cfg.MaxWorkers
	}
	if key.isolation == toolmesh.IsolationFork {
		cfg.Spares = 1 // a ready worker is still faster than a fork
	}
	if key.suspect != "" {
		cfg.MinIdle = 0
	}
	return cfg
}

func (ix *Index) everyPool() map[poolKey]*leased {
	ix.poolsMu.Lock()
	defer ix.poolsMu.Unlock()
	return maps.Clone(ix.pools)
}

// Tools are the served tools, ordered by name. The caller must not change them.
func (ix *Index) Tools() []Function { return ix.tools }

// Unavailable are the declared tools that are not served, with reasons.
func (ix *Index) Unavailable() []NotServed { return ix.unavailable }

// Call runs a tool and returns its result as JSON; nil for a stream, whose items go to the sink.
// When ctx ends the call is stopped: Call returns only after that, which takes at most the grace
// and a moment. Every error is a [*toolmesh.Error] that tells whether the tool's code had begun,
// except errors of [Output.Item].
func (ix *Index) Call(ctx context.Context, call Call, sink Output) (json.RawMessage, error) {
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
			return nil, failure.NotStarted(toolmesh.CodeInvalidRequest, "%w", err)
		}
	}
	if size := len(call.Args) + len(call.VarArgs); size > ix.x.opts.MaxResult {
		return nil, failure.NotStarted(toolmesh.CodePayloadTooLarge, "the arguments have %d bytes, the max is %d", size, ix.x.opts.MaxResult)
	}
	trial, refused := t.quarantine.Enter()
	if refused != nil {
		return nil, refused
	}
	var verdict pool.Verdict
	defer func() { t.quarantine.Leave(trial, verdict) }()
	body, verdict, err := ix.attempt(ctx, t, call, sink)
	if e := diedBefore(err); e != nil {
		// A worker that ended before the call began costs the call nothing. If a second one does, the
		// call itself ends them, and must not be retried.
		body, verdict, err = ix.attempt(ctx, t, call, sink)
		if e := diedBefore(err); e != nil {
			return nil, e.WithRetryable(false).WithDetail("workers", 2)
		}
	}
	if err != nil {
		err = failure.SetBy(err, t.policy.Limits, t.policy.Limits.Within(ix.x.opts.Limits, ix.x.opts.MaxLimits))
	}
	return body, err
}

// diedBefore is err if a worker ended before the call began; else nil.
func diedBefore(err error) *toolmesh.Error {
	if e, ok := err.(*toolmesh.Error); ok && e.Code == toolmesh.CodeWorkerCrashed && e.Started == toolmesh.StartedNo { //nolint:errorlint // our own, unwrapped
		return e
	}
	return nil
}

// attempt makes a call once.
func (ix *Index) attempt(ctx context.Context, t *served, call Call, sink Output) (json.RawMessage, pool.Verdict, error) {
	key, p := t.keyOf(call), t.pool
	var err *toolmesh.Error
	switch {
	case key.isolation == toolmesh.IsolationSession:
		if p, err = ix.lease(t.group, key); err == nil {
			defer ix.release(p)
		}
	case key != t.key:
		p, err = ix.pool(t.group, key)
	}
	if err != nil {
		return nil, pool.Verdict{}, err
	}
	if call.Slot, call.Sink = t.slot, sink; key.tool != "" {
		call.Slot = 0 // its workers import this tool only
	}
	return p.Call(ctx, call)
}

func (ix *Index) notServed(name string) error {
	for _, u := range ix.unavailable {
		if u.Name == name {
			return failure.Unavailable("%s is not served: %s", name, u.Reason).WithRetryable(false)
		}
	}
	return failure.NotStarted(toolmesh.CodeToolNotFound, "the index %s has no tool %s", ix.spec.Name, name)
}

func (ix *Index) leave() {
	if ix.inFlight.Add(-1) == 0 && ix.closing.Load() {
		ix.drainOnce.Do(func() { close(ix.drained) })
	}
}

// Close refuses new calls, waits for running ones until ctx ends, and then ends every process of
// the index. It returns after their end, with ctx's error if calls were cut off.
func (ix *Index) Close(ctx context.Context) error {
	ix.closing.Store(true)
	if ix.inFlight.Load() == 0 {
		ix.drainOnce.Do(func() { close(ix.drained) })
	}
	var cut error
	select {
	case <-ix.drained:
	case <-ctx.Done():
		if ix.inFlight.Load() > 0 {
			cut = context.Cause(ctx)
		}
	}
	ix.closeOnce.Do(func() {
		ix.stop()
		var all sync.WaitGroup
		ix.poolsMu.Lock()
		ix.ended = true
		for _, p := range ix.pools {
			all.Go(p.Close)
		}
		ix.poolsMu.Unlock()
		for _, g := range ix.groups {
			all.Go(g.Close)
		}
		all.Wait()
		ix.wg.Wait()
		ix.x.ended(ix)
	})
	return cut
}

// Stats counts the workers and calls of all pools now.
func (ix *Index) Stats() (all Workers) {
	for _, p := range ix.everyPool() {
		all.Add(p.Stats())
	}
	slices.Sort(all.Pids)
	return all
}
