package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/executor/internal/venv"
	"github.com/toolmesh/toolmesh/executor/internal/zygote"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// Options configure an [Executor]. The zero value of each field means its default.
type Options struct {
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// Environ is the environment, as os.Environ returns it, in which interpreters and uv are
	// looked up. uv, pip and builds see only the variables that they need, a worker PATH HOME
	// LANG TMPDIR and those of ToolEnv. Defaults to a PATH of the system's folders.
	Environ []string
	// ToolEnv names variables of Environ, in upper or lower case, for every tool; an index's own
	// variables replace them. Credentials in URLs among their values are removed from texts for
	// people. Defaults to [ToolEnv].
	ToolEnv []string
	// Environments is a folder of environments that executors, on machines that may differ,
	// share: one builds, the others reuse. It is below Sealed, so that tools cannot change it.
	// Environments with files of an index's folder, or changed by commands of the index, stay in
	// the executor's own folder. Defaults to none.
	Environments string
	// UV is the uv executable. Defaults to the one on PATH, else to one that is installed
	// into the executor's folder on first use.
	UV string
	// Grace is the time from a call's cancellation until its worker is killed. Defaults to
	// 500 ms.
	Grace time.Duration
	// StartTimeout is the time for the import of one module, and for the start of a worker.
	// Defaults to 60 s.
	StartTimeout time.Duration
	// MaxWorkers is the maximum of workers of one index. Defaults to four for each
	// processor, at least 8.
	MaxWorkers int
	// MaxSessions is the maximum of workers of one index that are leased to sessions.
	// Defaults to 64.
	MaxSessions int
	// SessionIdle is the idle time after which a session's worker is ended. Defaults to
	// 10 minutes.
	SessionIdle time.Duration
	// SessionHold is the idle time after which a session's worker may be given to another
	// session if there are no more. Defaults to 10 seconds.
	SessionHold time.Duration
	// IdleAfter is the idle time after which a worker is ended, except the last one. Defaults to
	// a minute.
	IdleAfter time.Duration
	// Recycle configures when a warm worker is replaced, plus or minus a tenth. Its fields
	// default to 10,000 calls, 24 h, and a growth of 512 MiB; negative: never.
	Recycle Recycle
	// CrashLimit crashes of a tool's workers within CrashWindow put it into quarantine, in which
	// one call per TrialEvery is made. Defaults to 5 crashes, a minute, and a minute.
	CrashLimit  int
	CrashWindow time.Duration
	TrialEvery  time.Duration
	// MaxResult is the maximum of a result, an item and the arguments of a call, in bytes
	// of JSON. Defaults to 64 MiB.
	MaxResult int
	// Limits are for calls whose tools declare none: Memory, Pids, OpenFiles and TempFiles.
	// They default to a quarter of the machine's memory (see [MemoryShare]), 256, 1,024, and
	// 1 GB, or to MaxLimits if these are lower. OpenFiles is at least 256.
	Limits tool.Limits
	// MaxLimits are the highest limits of tools, whatever they declare. Default to no maximum.
	MaxLimits tool.Limits
	// Sandbox is the level of tools that demand none: this one, or the tightest looser one that
	// the machine has. Defaults to guard.
	Sandbox tool.Sandbox
	// Sealed is the folder with all files of the agent. Under every level except none, processes
	// of an index see of it their source, their environment, their temporary files and their
	// home, and can write only the latter two. Defaults to the executor's own folder.
	Sealed string
	// Shown are further folders below Sealed that contain such folders, made if missing: where
	// mounting is impossible, other users must be able to pass through them. Defaults to none.
	Shown []string
	// Users is the user of such processes: "each" for one user per index, or a user's name or
	// number. The executor must run as root and be able to mount; Sandbox returns the reason
	// if it cannot. Defaults to the user of the executor.
	Users string
	// Homes is the folder, below Sealed, of their homes, one for each account. Defaults
	// to homes.
	Homes string

	// For tests: the ways of keeping processes together, best first, in place of all of the system; and
	// whether only the watchdog keeps limits.
	levels  []sandbox.Level
	watched bool
}

func (o *Options) withDefaults() Options {
	var r Options
	if o != nil {
		r = *o
	}
	r.Logger = cmp.Or(r.Logger, slog.New(slog.DiscardHandler))
	if r.Environ == nil {
		r.Environ = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	}
	if r.ToolEnv == nil {
		r.ToolEnv = ToolEnv()
	}
	r.Grace = cmp.Or(r.Grace, 500*time.Millisecond)
	r.StartTimeout = cmp.Or(r.StartTimeout, time.Minute)
	r.MaxWorkers = cmp.Or(r.MaxWorkers, max(8, 4*runtime.GOMAXPROCS(0)))
	r.MaxSessions = cmp.Or(r.MaxSessions, 64)
	r.SessionIdle = cmp.Or(r.SessionIdle, 10*time.Minute)
	r.SessionHold = cmp.Or(r.SessionHold, 10*time.Second)
	r.IdleAfter = cmp.Or(r.IdleAfter, time.Minute)
	r.Recycle.Calls = cmp.Or(r.Recycle.Calls, 10_000)
	r.Recycle.Age = cmp.Or(r.Recycle.Age, 24*time.Hour)
	r.Recycle.Memory = cmp.Or(r.Recycle.Memory, 512<<20)
	r.CrashLimit = cmp.Or(r.CrashLimit, 5)
	r.CrashWindow = cmp.Or(r.CrashWindow, time.Minute)
	r.TrialEvery = cmp.Or(r.TrialEvery, time.Minute)
	r.MaxResult = cmp.Or(r.MaxResult, 64<<20)
	r.Sandbox = cmp.Or(r.Sandbox, tool.SandboxGuard)
	r.Limits = r.Limits.Within(tool.Limits{Memory: MemoryShare(25), Pids: 256, OpenFiles: 1024, TempFiles: 1e9}, r.MaxLimits)
	return r
}

// check returns the fault of options, nil without one.
func (o *Options) check() error {
	for name, n := range map[string]int64{
		"Grace": int64(o.Grace), "StartTimeout": int64(o.StartTimeout), "SessionIdle": int64(o.SessionIdle), "SessionHold": int64(o.SessionHold),
		"IdleAfter": int64(o.IdleAfter), "CrashWindow": int64(o.CrashWindow), "TrialEvery": int64(o.TrialEvery), "CrashLimit": int64(o.CrashLimit),
		"MaxWorkers": int64(o.MaxWorkers), "MaxSessions": int64(o.MaxSessions), "MaxResult": int64(o.MaxResult),
	} {
		if n < 0 {
			return fmt.Errorf("executor.Options.%s must not be negative", name)
		}
	}
	for name, limits := range map[string]tool.Limits{"Limits": o.Limits, "MaxLimits": o.MaxLimits} {
		if err := limits.Check(); err != nil {
			return fmt.Errorf("executor.Options.%s: %w", name, err)
		}
	}
	switch _, err := tool.ParseSandbox(string(o.Sandbox)); {
	case err != nil:
		return fmt.Errorf("executor.Options.Sandbox: %w", err)
	case o.MaxResult > 1<<30:
		return errors.New("executor.Options.MaxResult must be at most 1 GB")
	case o.Limits.OpenFiles < leastFiles:
		return fmt.Errorf("executor.Options.Limits and MaxLimits must leave at least %d open files", leastFiles)
	}
	return nil
}

// leastFiles is the minimum of open files of all workers of a zygote, whose own descriptors have
// numbers from 200 on.
const leastFiles = 256

// Types of package venv under the names that callers use.
type (
	// Lock is the resolution of an index's dependencies.
	Lock = venv.Lock
	// LockOptions configure [Executor.Lock].
	LockOptions = venv.LockOptions
	// Making says for which index an environment is made, and how.
	Making = venv.Making
	// Env is an environment that is ready to be used.
	Env = venv.Env
	// Step is progress of a lock or an environment, for people.
	Step = venv.Step
	// StepFunc takes the steps as they begin; it may be nil.
	StepFunc = venv.Progress

	venvs = venv.Store
)

// Executor makes environments and serves indexes in a folder of its own. Its
// methods may be called concurrently.
type Executor struct {
	*venvs
	opts    Options
	log     *slog.Logger
	dir     string
	sealed  string // Options.Sealed, without symbolic links
	files   string // the folder that holds the worker package
	spawner *sandbox.Spawner
	groups  *cgroup.Tree // its Kind is empty without groups
	zygotes *zygote.Starter
	users   *sandbox.Users // nil if all processes run as the executor's user
	mapped  bool           // a user namespace maps them, too
	asRoot  string         // why that is so against Options.Users
	openUp  func() string  // see passage

	mu     sync.Mutex
	closed bool
	open   map[closer]struct{} // indexes, and runners of commands
}

// closer serves an index.
type closer interface {
	Close(ctx context.Context) error
}

// New makes an executor in dir, which is its own and is made if missing.
func New(dir string, opts *Options) (_ *Executor, err error) {
	o := opts.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if dir, err = makeFolder(dir); err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	files := filepath.Join(dir, "worker")
	if err := writeWorker(files); err != nil {
		return nil, fmt.Errorf("executor: write the worker's files: %w", err)
	}
	sealed, err := realPath(cmp.Or(o.Sealed, dir))
	if err != nil {
		return nil, fmt.Errorf("executor: Options.Sealed: %w", err)
	}
	if o.Environments != "" {
		if o.Environments, err = sharedFolder(o.Environments, sealed); err != nil {
			return nil, err
		}
		o.Shown = append(slices.Clip(o.Shown), o.Environments)
	}
	spawner := sandbox.NewSpawner(o.Logger, o.levels...)
	x := &Executor{opts: o, log: o.Logger, dir: dir, sealed: sealed, files: files, spawner: spawner, open: map[closer]struct{}{}}
	x.openUp = sync.OnceValue(x.passage)
	x.opts.Homes = cmp.Or(o.Homes, filepath.Join(sealed, "homes"))
	defer func() {
		if err != nil {
			spawner.Close()
		}
	}()
	if err := x.findUsers(); err != nil {
		return nil, err
	}
	folders := []string{sealed, "", files} // see levels.py
	for _, folder := range append([]string{dir}, o.Shown...) {
		if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // other users are to read it
			return nil, fmt.Errorf("executor: %w", err)
		}
		if x.users == nil {
			continue
		}
		if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // as above, also if it was there
			return nil, fmt.Errorf("executor: %w", err)
		}
	}
	if x.users != nil {
		folders[1] = "other users"
	}
	if err := os.WriteFile(filepath.Join(files, "folders"), []byte(strings.Join(folders, "\x00")), 0o644); err != nil { //nolint:gosec // no secret
		return nil, fmt.Errorf("executor: %w", err)
	}
	// Remains of an earlier process: the folder is ours alone.
	if err := deep.RemoveAll(filepath.Join(dir, scratch)); err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	if err := os.Mkdir(filepath.Join(dir, scratch), 0o711); err != nil { //nolint:gosec // the folders below belong to their users
		return nil, fmt.Errorf("executor: %w", err)
	}
	x.groups = &cgroup.Tree{}
	if !o.watched {
		x.groups = cgroup.Open(cgroup.NameOf(dir), filepath.Join(dir, "cgroup"), o.Logger)
	}
	if why := x.groups.Why(); why != "" {
		o.Logger.Info("control groups are not available: the watchdog enforces memory limits", slog.String("reason", why))
	}
	x.venvs = venv.NewStore(dir, venv.Options{
		Logger: o.Logger, Environ: o.Environ, UV: o.UV, Warm: filepath.Join(files, python.WorkerPackage), Confined: x.help,
		Shared: o.Environments,
	})
	x.zygotes = zygote.NewStarter(spawner, zygote.Options{
		Logger: o.Logger, Dir: filepath.Join(dir, scratch), Files: files, Cgroups: x.groups, StartTimeout: o.StartTimeout,
		ImportMemory: int64(MemoryShare(75)), ImportTasks: manyTasks(),
		MaxResult: o.MaxResult, MaxFrame: o.maxFrame(),
	})
	return x, nil
}

// MaxArgs is the maximum of a call's arguments, in bytes.
func (x *Executor) MaxArgs() int64 { return int64(x.opts.MaxResult) }

// makeFolder makes a folder if it is missing and returns its path without symbolic links.
func makeFolder(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // interpreters of other users may read it
		return "", err
	}
	return realPath(dir)
}

// sharedFolder makes the folder of environments that executors share.
func sharedFolder(dir, sealed string) (string, error) {
	real, err := makeFolder(dir)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the folder of shared environments: %w", err)
	}
	if real == sealed || !within(real, sealed) {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"the folder of shared environments, %s, is not below the data folder %s, where tools cannot change it: mount it there", dir, sealed)
	}
	return real, nil
}

// findUsers determines the users of processes of an index.
func (x *Executor) findUsers() (err error) {
	name, own := x.opts.Users, x.opts.Users == "each"
	if own {
		name = ""
	}
	if x.opts.Users == "" || own && os.Geteuid() != 0 {
		return nil
	}
	x.users, err = sandbox.NewUsers(x.opts.Homes, name)
	if err != nil && own {
		x.asRoot = err.Error()
		return nil
	}
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tools cannot run as %q: %w", name, err)
	}
	x.mapped = x.users != nil && x.spawner.ForUsers()
	return nil
}

// User is the number of the user of an account's processes in a sandbox level, "" for that of
// [Options.Sandbox].
func (x *Executor) User(account string, box tool.Sandbox) (id int, err error) {
	u, own, err := x.user(account, cmp.Or(box, x.opts.Sandbox))
	if err != nil {
		return 0, err
	}
	if own == nil {
		return os.Geteuid(), nil
	}
	return u.ID, nil
}

// user is the user of processes of an index with this sandbox level, whether the machine has it
// or not, and that user's variables.
func (x *Executor) user(account string, asked tool.Sandbox) (sandbox.User, map[string]string, error) {
	if !x.hasUsers(asked) {
		return sandbox.User{}, nil, nil
	}
	u, err := x.users.Of(account)
	if err != nil {
		return u, nil, fmt.Errorf("a user of its own: %w", err)
	}
	vars := map[string]string{"HOME": u.Home}
	if folder := variable(x.opts.Environ, "TMPDIR"); folder != "" {
		if info, err := os.Stat(folder); err != nil || info.Mode()&0o002 == 0 {
			vars["TMPDIR"] = "/tmp"
		}
	}
	return u, vars, nil
}

// writeWorker writes the embedded files to dir, an entry of an interpreter's path.
// Existing files of this version stay, with their bytecode.
func writeWorker(dir string) error {
	files, err := fs.Sub(python.Worker, python.WorkerDir)
	if err != nil {
		return err
	}
	folder, same := filepath.Join(dir, python.WorkerPackage), true
	err = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		want, err := fs.ReadFile(files, name)
		there, missing := os.ReadFile(filepath.Join(folder, name)) //nolint:gosec // our own folder
		same = same && missing == nil && bytes.Equal(there, want)
		return err
	})
	if err != nil || same {
		return err
	}
	if err := deep.RemoveAll(dir); err != nil {
		return err
	}
	return os.CopyFS(folder, files)
}

// Environment makes or finds the environment of a lock: equal locks share one, with the
// exceptions of [Making]. Its packages come from wheels, whose installation runs no code;
// packages without a wheel are built separately. An interrupted build starts again. sourceDir is
// the base of relative paths in requirements. progress may be nil. Errors are install_failed.
// The environment stays until [Executor.Release].
func (x *Executor) Environment(ctx context.Context, sourceDir string, lock Lock, making Making, progress func(Step)) (*Env, error) {
	env, err := x.venvs.Environment(ctx, sourceDir, lock, making, progress)
	if err == nil {
		x.zygotes.Warm(env.Base)
	}
	return env, err
}

// Prepare finds interpreters, compiles the worker's files and starts bases, so that the first
// index need not wait for them.
func (x *Executor) Prepare(ctx context.Context) {
	for _, python := range x.venvs.Prepare(ctx) {
		x.zygotes.Warm(python)
	}
}

// Command runs a command of an index, like its init, in its folder: as the account's user, see
// [Spec], in the level of tools that demand none, with paths from [Executor.Paths]. It sees the
// same as the index's tools, with the environment's programs first on PATH, and may also write
// its folder and the environment. The error is install_failed, without the values of secrets.
func (x *Executor) Command(ctx context.Context, env *Env, account, dir string, argv []string, vars map[string]string, secrets []string, paths Given,
) error {
	box := x.defaultSandbox()
	user, own, err := x.user(account, x.opts.Sandbox)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInstallFailed, "%w", err)
	}
	confined := func(ctx context.Context, job venv.Job) ([]byte, string, error) {
		return x.confined(ctx, box, user, job, paths)
	}
	environ := x.workerEnv(filepath.Join(env.Dir, "bin"), own, vars)
	return x.venvs.Command(ctx, env, dir, argv, environ, x.redactor(secrets).Text, confined)
}

// Close stops every index, waits for the end of the last process, and ends the
// executor. Running calls fail.
func (x *Executor) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	open := slices.Collect(maps.Keys(x.open))
	x.mu.Unlock()
	at, cancel := context.WithCancel(context.Background())
	cancel()
	for _, one := range open {
		_ = one.Close(at)
	}
	x.venvs.Close()
	x.zygotes.Close()
	x.groups.Close()
	x.spawner.Close()
	return nil
}

func (o Options) maxFrame() uint32 {
	return uint32(o.MaxResult) + 1<<20 //nolint:gosec // validated
}

// opened registers an index, or a runner of commands, for Close.
func (x *Executor) opened(one closer) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return unavailable("the executor is closed")
	}
	x.open[one] = struct{}{}
	return nil
}

func (x *Executor) ended(one closer) {
	x.mu.Lock()
	delete(x.open, one)
	x.mu.Unlock()
}
