package venv

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
)

// Options configure a [Store]. Logger must be set.
type Options struct {
	Logger *slog.Logger
	// Environ is the environment, as os.Environ returns it, in which interpreters and uv are
	// looked up. uv, pip and builds see only the variables that they need. Defaults to empty.
	Environ []string
	// UV is the uv executable. Defaults to the one on PATH, else to one that is installed
	// below the store's folder on first use.
	UV string
	// Confined runs a job that an index caused, isolated as far as the machine can, with a
	// user of its own for each role where possible. Must be set.
	Confined func(ctx context.Context, as Role, job Job) (stdout []byte, stderr string, err error)
	// Warm is a folder of Python files that are compiled for every interpreter of an
	// environment. Defaults to none.
	Warm string
	// Shared is a folder of environments, and of uv's cache, that stores of this and other
	// machines share: see shared.go. Defaults to none.
	Shared string
}

// Role is the purpose of a confined program; it decides the user and the folders.
type Role string

// The roles. A packager resolves and installs without running code of packages, and uses the
// cache that all indexes share. A builder runs code of packages. A compiler makes bytecode.
// A fetcher brings the source of an index. The agent itself installs uv: unconfined, and it ends
// with this process.
const (
	Agent    Role = "agent"
	Fetcher  Role = "fetches"
	Packager Role = "packages"
	Builder  Role = "builds"
	Compiler Role = "compiler"
)

// Job is a program that runs isolated as far as the machine can. Of the agent's folders it
// sees only those named here.
type Job struct {
	Interpreter string // of this machine
	Dir         string // working directory
	// Tmp and Write are the only folders that it can write; they belong to its user until it
	// ends. Keep stays its user's; empty for none. Read are folders that it sees, with the
	// permissions of all users.
	Tmp         string
	Keep        string
	Write, Read []string
	Argv, Env   []string
	Above       []string  // variables of the process above it, for interpreters that need some
	Stdout      io.Writer // nil: its output is returned
}

// Step reports progress to people: the start or the end of one step.
type Step struct {
	Name    string // interpreter, uv, lock, environment or packages
	State   string // running or done
	Percent int    // of the whole, roughly
}

// Progress receives steps; nil ignores them.
type Progress func(Step)

func (p Progress) report(name, state string, percent int) {
	if p != nil {
		p(Step{Name: name, State: state, Percent: percent})
	}
}

// Store makes locks and environments below one folder, which is its own. Safe for concurrent use.
type Store struct {
	dir     string
	shared  string // Options.Shared
	log     *slog.Logger
	environ []string
	uvPath  string
	foundUV string // under the key uv
	warm    string
	confine func(context.Context, Role, Job) ([]byte, string, error)
	probing sync.Mutex
	probed  map[string]*Interpreter // by candidate, each probed once; nil if it cannot be used
	keys    keys
	uses    uses
	// verified are the digests of the environments that this process has built or checked.
	verified sync.Map

	running sync.WaitGroup
	life    context.Context // ends with Close
	stop    context.CancelFunc
}

// NewStore makes a store in dir.
func NewStore(dir string, o Options) *Store {
	life, stop := context.WithCancel(context.Background())
	s := &Store{
		dir: dir, shared: o.Shared, log: o.Logger, environ: among(o.Environ, ownVariables, ownFamilies), uvPath: o.UV, warm: o.Warm, confine: o.Confined,
		probed: map[string]*Interpreter{},
		uses:   uses{held: map[string]int{}, left: map[string]time.Time{}},
		life:   life, stop: stop,
	}
	s.sweep()
	return s
}

// Variables for the machine's interpreters, pip and uv, by name or prefix. Builds see fewer:
// see runUV.
var (
	ownVariables = slices.Concat(machineVariables, []string{"HOME", "USER", "LOGNAME", "TMPDIR", "NETRC", "LD_LIBRARY_PATH"})
	ownFamilies  = []string{"LC_", "UV_", "PIP_", "XDG_", "PYENV_"}
)

// among returns the variables with these names or prefixes.
func among(environ, names, families []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		name = strings.ToUpper(name) // proxies are written in both cases
		return !slices.Contains(names, name) &&
			!slices.ContainsFunc(families, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}

// sweep removes unfinished folders and files of killed processes, which it knows by the prefix
// of their names.
func (s *Store) sweep() {
	for _, pattern := range []string{filepath.Join(s.dir, "new-*"), filepath.Join(s.dir, "envs", "new-*"), filepath.Join(s.dir, "records", ".new-*")} {
		unfinished, _ := filepath.Glob(pattern)
		for _, folder := range unfinished {
			if err := deep.RemoveAll(folder); err != nil {
				s.log.Warn("unfinished folder could not be removed", slog.String("dir", folder), slog.String("error", err.Error()))
			}
		}
	}
}

// Close stops running builds and waits for them.
func (s *Store) Close() {
	s.stop()
	s.running.Wait()
}

// begin counts an operation and returns a context that Close ends, too.
func (s *Store) begin(ctx context.Context) (context.Context, func()) {
	s.running.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	unwatch := context.AfterFunc(s.life, cancel)
	return ctx, func() { unwatch(); cancel(); s.running.Done() }
}

// do runs work until it ends or Close is called. An error of work that is not this package's
// becomes install_failed with the text failure.
func do[T any](ctx context.Context, s *Store, failure string, work func(ctx context.Context) (T, error)) (T, error) {
	ctx, end := s.begin(ctx)
	defer end()
	made, err := work(ctx)
	if err != nil && s.life.Err() != nil {
		err = toolmesh.Errorf(toolmesh.CodeUnavailable, "the executor is closed").WithOrigin(toolmesh.OriginAgent)
	} else if err != nil && ctx.Err() != nil {
		err = toolmesh.AsError(ctx.Err()).WithOrigin(toolmesh.OriginAgent)
	}
	if typed := new(toolmesh.Error); err != nil && !errors.As(err, &typed) {
		err = failed(err, "", "%s", failure)
	}
	return made, err
}

// keys are locks by name: each has one holder at a time.
type keys struct{ held sync.Map }

// take waits for the lock key; the returned function releases it.
func (k *keys) take(ctx context.Context, key string) (free func(), err error) {
	select {
	case k.of(key) <- struct{}{}:
		return func() { <-k.of(key) }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (k *keys) of(key string) chan struct{} {
	held, _ := k.held.LoadOrStore(key, make(chan struct{}, 1))
	return held.(chan struct{}) //nolint:forcetypeassert // nothing else is stored
}

// run runs a program of this machine, which no index controls, and returns its output.
func (s *Store) run(ctx context.Context, interpreter, dir string, argv ...string) (stdout []byte, said string, err error) {
	return s.confine(ctx, Agent, Job{Interpreter: interpreter, Dir: dir, Argv: argv, Env: s.environ, Above: s.environ})
}

// failed makes an install_failed error; said is the output of a command.
func failed(err error, said, format string, args ...any) *toolmesh.Error {
	made := toolmesh.Errorf(toolmesh.CodeInstallFailed, format, args...).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	made.Message = redact(made.Message)
	if said = redact(said); said != "" {
		// The beginning of the output shows the command's steps, the end the cause of its failure.
		const limit = 4 << 10
		cause := causeIn(said)
		if len(said) > limit {
			said = strings.ToValidUTF8(said[:limit/4], "") + "\n…\n" + strings.ToValidUTF8(said[len(said)-limit*3/4:], "")
		}
		made.Message += ": " + fewLines(said, 12)
		if !strings.Contains(made.Message, cause) {
			made.Message += "\n" + cause
		}
		made = made.WithDetail("stderr", said)
	} else if err != nil {
		made.Message += ": " + redact(err.Error())
	}
	return made
}

// causes matches the lines in which compilers, interpreters and build tools name a failure's cause.
var causes = regexp.MustCompile(`(?m)^.*(?:\bfatal error:|\berror:|^\s*\w*(?:Error|Exception|NotFound):).*$`)

// causeIn is the first line of a text that names the cause of a failure, "" without one.
func causeIn(text string) string {
	line := strings.TrimSpace(causes.FindString(text))
	return strings.ToValidUTF8(line[:min(len(line), 300)], "")
}

// fewLines returns at most n lines of a text: some of its first and more of its last ones.
func fewLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	if len(lines) > n {
		lines = slices.Concat(lines[:n/3], []string{"…"}, lines[len(lines)-(n-n/3-1):])
	}
	return strings.Join(lines, "\n")
}

// workFolder makes a folder for one step that other users can read.
func (s *Store) workFolder() (string, error) {
	work, err := os.MkdirTemp(s.dir, "new-work-")
	if err == nil {
		err = os.Chmod(work, 0o755) //nolint:gosec // no secret
	}
	return work, err
}
