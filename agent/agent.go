package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/member"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Options adjusts an [Agent].
type Options struct {
	// Node is the node's id. Defaults to "agent" and a random end; give one that
	// stays the same across starts.
	Node subjects.NodeID
	// Labels describe the node: an index may be for nodes with some of them alone.
	// Defaults to none.
	Labels map[string]string
	// Slots is how many calls run at once. Defaults to host.DefaultSlots.
	Slots int
	// Sandbox is the level of tools that demand none, as far as the machine gives
	// it: none, guard, strict or offline. Defaults to guard.
	Sandbox string
	// Limits apply to calls of tools that declare none; MaxLimits is the max that tools are
	// granted. Defaults: see [executor.Options].
	Limits, MaxLimits tool.Limits
	// WorkerUser is the user, by name or number, that tools run as at all levels except none;
	// "root" for root. Only an agent that runs as root can set another user than its own. Defaults
	// to one user for each index if the agent runs as root.
	WorkerUser string
	// MaxTimeout bounds calls of tools that declare no timeout. Defaults to
	// host.DefaultMaxTimeout.
	MaxTimeout time.Duration
	// Version is the program's version.
	Version string
	// SessionPolicy is "open" (the default: any session exists) or "strict" (only
	// those that were created).
	SessionPolicy     string
	host.StoreOptions // how the mesh's streams are made
	// AuditArguments adds the arguments to the events of calls, except those that indexes declare
	// as secret.
	AuditArguments bool
	// PayloadMax bounds one payload; see [host.Options].
	PayloadMax int64
	// StreamQuota bounds the stored streams of a session; see [host.Options].
	StreamQuota int64
	// CacheBytes and CacheEntries bound the results that are kept; see [host.Options].
	CacheBytes   int64
	CacheEntries int
	// PrivateSources lets installs fetch from this machine (file URLs, loopback) and from
	// private networks. Defaults to false.
	PrivateSources bool
	// UV is the uv executable. Defaults to the one on the PATH of Environ, else
	// one that is put into the agent's folder.
	UV string
	// Environments is a folder, below the agent's, of environments that other agents have,
	// too; see [executor.Options]. Defaults to none.
	Environments string
	// EnvironmentAge is how long an environment that no index uses is kept.
	// Defaults to 3 min.
	EnvironmentAge time.Duration
	// Environ is the environment that interpreters, uv and git are found and run
	// in, as os.Environ gives it. Workers see PATH, HOME, LANG, TMPDIR and ToolEnv of it
	// and nothing else. Defaults to a PATH of the system's folders.
	Environ []string
	// ToolEnv names variables of Environ that every tool gets. Defaults to those of proxies
	// and certificates: see [executor.ToolEnv].
	ToolEnv []string
	// Last says that the mesh ends with this agent; see [host.Options].
	Last bool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// check returns the first invalid option, or nil. [Agent.Start] checks those that depend on the
// machine.
func (o *Options) check() error {
	if _, err := tool.ParseSandbox(o.Sandbox); err != nil {
		return fmt.Errorf("agent.Options.Sandbox: %w", err)
	}
	if _, err := subjects.EncodeToken(string(o.Node)); err != nil {
		return fmt.Errorf("agent.Options.Node: %w", err)
	}
	for name, limits := range map[string]tool.Limits{"Limits": o.Limits, "MaxLimits": o.MaxLimits} {
		if err := limits.Check(); err != nil {
			return fmt.Errorf("agent.Options.%s: %w", name, err)
		}
	}
	for name, n := range map[string]int64{
		"Slots": int64(o.Slots), "MaxTimeout": int64(o.MaxTimeout), "PayloadMax": o.PayloadMax, "StreamQuota": o.StreamQuota,
		"CacheBytes": o.CacheBytes, "CacheEntries": int64(o.CacheEntries), "EnvironmentAge": int64(o.EnvironmentAge),
	} {
		if n < 0 {
			return fmt.Errorf("agent.Options.%s is %d: it must not be negative", name, n)
		}
	}
	return nil
}

// Agent is one machine of the mesh: a member of it with an executor and installs. Its
// methods may be called concurrently.
type Agent struct {
	opts   Options
	dir    string
	log    *slog.Logger
	member *member.Member
	done   chan struct{}
	admins sync.WaitGroup
	base   context.Context // ends with Stop; administrative requests run under it
	end    context.CancelFunc

	stop    sync.Once
	stopErr error

	running atomic.Pointer[deploy.Manager] // nil until Start is done
	served  atomic.Bool                    // each index that was installed at the start was built, or failed

	instances struct { // imported and not closed
		sync.Mutex
		open map[*instance]struct{}
	}
	published published
	noticed   chan struct{} // of capacity 1: an instance is to be published again

	mu       sync.Mutex
	executor *executor.Executor
	deploy   *deploy.Manager
	subs     []*nats.Subscription
	watch    sync.WaitGroup
	drained  bool
	lost     error // set before done is closed, unless the agent was closed on request
	stopping bool
}

// New makes an agent on a connection, which it leaves open, with its files below
// dir. The caller sees to it that dir has no second user. Start it.
func New(nc *nats.Conn, dir string, opts *Options) (*Agent, error) {
	o := *cmp.Or(opts, &Options{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Sandbox = cmp.Or(o.Sandbox, string(tool.SandboxGuard))
	o.Node = cmp.Or(o.Node, subjects.NodeID("agent-"+uuid.NewString()[:8]))
	o.EnvironmentAge = cmp.Or(o.EnvironmentAge, environmentAge)
	if err := o.check(); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the data folder %q cannot be made absolute: %w", dir, err)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // other users, as which tools may run, see it where it is
	}
	m, err := member.New(nc, member.Options{
		Type: "agent.Options", SessionPolicy: o.SessionPolicy, Store: o.StoreOptions, View: registry.ViewOptions{Sparing: true, Reaps: true}, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	a := &Agent{opts: o, dir: dir, log: o.Logger, member: m, done: make(chan struct{})}
	a.instances.open, a.published.by = map[*instance]struct{}{}, map[key]*instance{}
	a.noticed = make(chan struct{}, 1)
	a.base, a.end = context.WithCancel(context.Background())
	return a, nil
}

// Node is the node's id.
func (a *Agent) Node() subjects.NodeID { return a.opts.Node }

// Done is closed when the agent has nothing left to do: it was drained by an
// administrative request, or another process took its node's id. Stop it then.
func (a *Agent) Done() <-chan struct{} { return a.done }

// Err says why the agent is done, if another process has become its node; nil otherwise.
func (a *Agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// Start makes this process a node and begins to serve the installed indexes. The errors are those
// of [host.Host.Start], and unavailable if the machine cannot run workers.
func (a *Agent) Start(ctx context.Context) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() {
		if err != nil {
			a.release(context.WithoutCancel(ctx))
		}
	}()
	if a.executor, err = executor.New(filepath.Join(a.dir, "executor"), &executor.Options{
		Logger: a.log, Sandbox: tool.Sandbox(a.opts.Sandbox), Limits: a.opts.Limits, MaxLimits: a.opts.MaxLimits, UV: a.opts.UV, Environ: a.opts.Environ, ToolEnv: a.opts.ToolEnv, Sealed: a.dir,
		Environments: a.opts.Environments,
		Shown:        []string{filepath.Join(a.dir, "indexes")}, Users: cmp.Or(a.opts.WorkerUser, "each"), Homes: filepath.Join(a.dir, deploy.HomesDir),
	}); err != nil {
		return err
	}
	prepare := a.executor.Prepare
	a.watch.Go(func() { prepare(a.base) })
	effective, reasons := a.executor.Sandbox()
	limits, most := a.executor.Limits()
	if err = a.member.Serve(ctx, host.Options{
		Node: a.opts.Node, Version: a.opts.Version, Slots: a.opts.Slots, MaxTimeout: a.opts.MaxTimeout,
		StreamQuota: a.opts.StreamQuota, CacheBytes: a.opts.CacheBytes, CacheEntries: a.opts.CacheEntries, Labels: a.opts.Labels, PayloadMax: a.opts.PayloadMax, AuditArguments: a.opts.AuditArguments,
		Sandbox: registry.SandboxState{Asked: a.opts.Sandbox, Effective: string(effective)}, Reasons: reasons,
		Memory: a.executor.MemoryGuard(), Limits: limits, MaxLimits: most, Service: "mesh-agent", Queued: a.queued, Last: a.opts.Last,
	}); err != nil {
		return err
	}
	a.followSessions()
	if err = a.member.RunTasks(ctx); err != nil {
		return err
	}
	a.member.TellAwaited()
	b := &builder{a: a}
	a.deploy = deploy.New(a.member.Bus, a.member.View, a.member.Store, b, b, a.dir, &deploy.Options{
		Logger: a.log, PrivateSources: a.opts.PrivateSources, Apart: &index.Apart{Dir: a.executor.Fetches(), Run: a.executor.Fetch}, Node: a.opts.Node, Labels: a.member.Host.Labels,
	})
	a.deploy.Start()
	a.watch.Go(a.publishNotices)
	ready, remove := a.deploy.Ready, a.executor.RemoveUnused
	a.watch.Go(func() { tidy(a.base, ready, remove, a.opts.EnvironmentAge) })
	if err = a.subscribeAdmin(); err != nil {
		return err
	}
	// Once the agent has started, callers may ask at once over another connection.
	if err = a.member.Bus.Ping(ctx); err != nil && a.member.Bus.Connected() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the broker did not confirm the agent's subscriptions: %w", err)
	}
	err = nil
	a.running.Store(a.deploy)
	h := a.member.Host
	a.watch.Go(func() {
		select {
		case <-h.Lost():
			a.log.Error("the node is lost to another process: stopping", slog.String("error", h.Err().Error()))
			a.mu.Lock()
			a.lost = h.Err()
			a.mu.Unlock()
			a.finish()
		case <-a.base.Done():
		}
	})
	return nil
}

// finish closes done, once.
func (a *Agent) finish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.drained {
		a.drained = true
		close(a.done)
	}
}

// Ready waits until every index that is installed is served here or has failed
// here.
func (a *Agent) Ready(ctx context.Context) error {
	a.mu.Lock()
	d := a.deploy
	a.mu.Unlock()
	if d == nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the agent has not started")
	}
	err := d.Ready(ctx)
	if err == nil {
		_, _ = a.Condition() // from now on a later index leaves it ready, also if the first probe comes after that
	}
	return err
}

// Stop drains the node, ends its calls and its workers. When ctx ends first, the
// calls that still run are stopped. It may be called more than once.
func (a *Agent) Stop(ctx context.Context) error {
	a.stop.Do(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.stopErr = a.release(ctx)
	})
	return a.stopErr
}

// release ends everything that Start began; a.mu is held.
func (a *Agent) release(ctx context.Context) error {
	var errs []error
	for _, sub := range a.subs {
		_ = sub.Unsubscribe()
	}
	a.subs = nil
	a.stopping = true
	a.end()
	errs = append(errs, a.member.Leave(ctx))
	a.mu.Unlock()
	a.admins.Wait()
	a.watch.Wait()
	a.mu.Lock()
	if a.deploy != nil {
		errs = append(errs, a.deploy.Stop(ctx))
		a.deploy = nil
	}
	a.member.CloseView() // its node was removed; closing the executor takes time
	if a.executor != nil {
		errs = append(errs, a.executor.Close())
		a.executor = nil
	}
	a.member.Close() // no tool runs any more
	return errors.Join(errs...)
}

// queued is the number of admitted calls that wait for a worker or for a command's slot.
func (a *Agent) queued() (n int) {
	for _, i := range a.open() {
		if i.index != nil {
			n += i.index.Stats().Waiting
		}
		if i.commands != nil {
			n += i.commands.Waiting()
		}
	}
	return n
}

// open are the instances that are imported and not closed.
func (a *Agent) open() []*instance {
	a.instances.Lock()
	defer a.instances.Unlock()
	return slices.Collect(maps.Keys(a.instances.open))
}
