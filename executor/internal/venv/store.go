package venv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
)

// Options configure a [Store]. Logger must be set.
type Options struct {
	Logger *slog.Logger
	// Environ is the environment that interpreters and uv are looked up in, as
	// os.Environ gives it. uv and pip, and what they build with, see of it what they
	// need alone. Defaults to empty.
	Environ []string
	// UV is the uv executable. Defaults to the one on PATH, else one installed
	// below the store's folder when it is first needed.
	UV string
	// Confined runs what an index has made run: as far apart as the machine lets it be, as a
	// user of its own for each role where there can be one. Must be set.
	Confined func(ctx context.Context, as Role, job Job) (stdout []byte, stderr string, err error)
	// Warm is a folder of Python files that are compiled for every interpreter
	// that an environment is made for. Defaults to none.
	Warm string
	// Shared is a folder of environments, and uv's cache, that other stores have, too, on
	// this machine and others: see shared.go. Defaults to none.
	Shared string
}

// Role is on whose behalf a program runs.
type Role string

// The roles. A packager resolves and installs, and runs no code of a package; it keeps the
// cache of packages that all indexes share. A builder runs that code. A compiler makes
// bytecode. A fetcher brings the source of an index.
const (
	Fetcher  Role = "fetches"
	Packager Role = "packages"
	Builder  Role = "builds"
	Compiler Role = "compiler"
)

// Job is a program that is run as far apart as the machine lets it be. Of the folders of
// the agent it sees those that are named here.
type Job struct {
	Interpreter string // of this machine
	Dir         string // where it begins
	// Tmp and Write are all that it writes, and its user's until it has ended. Keep is a
	// folder that stays its user's, empty for none. Read are folders that it sees, as far as
	// all users may.
	Tmp         string
	Keep        string
	Write, Read []string
	Argv, Env   []string
	Stdout      io.Writer // nil: what it writes is returned
}

// Step is progress, for people: one thing that begins, or ends.
type Step struct {
	Name    string // interpreter, uv, lock, environment, packages
	State   string // running or done
	Percent int    // of the whole, roughly
}

// Progress is told of steps; nil is not.
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
	probed  map[string]*Interpreter // Pythons of this machine, by candidate, asked once; nil: none that we can use
	keys    keys
	uses    uses
	// verified are the environments, by digest, that this process has made or looked
	// at.
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

// Variables that the machine's interpreters, pip and uv read, by name or by how the name begins.
// Builds see fewer: see runUV.
var (
	ownVariables = slices.Concat(machineVariables, []string{"HOME", "USER", "LOGNAME", "TMPDIR", "NETRC", "LD_LIBRARY_PATH"})
	ownFamilies  = []string{"LC_", "UV_", "PIP_", "XDG_", "PYENV_"}
)

// among is the part of an environment with these names, or names that begin so.
func among(environ, names, families []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		name = strings.ToUpper(name) // proxies are spelt in both ways
		return !slices.Contains(names, name) &&
			!slices.ContainsFunc(families, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}

// sweep removes folders and files that a killed process was making: they are made next to
// their places, under names that begin so.
func (s *Store) sweep() {
	for _, pattern := range []string{filepath.Join(s.dir, "new-*"), filepath.Join(s.dir, "envs", "new-*"), filepath.Join(s.dir, "records", ".new-*")} {
		unfinished, _ := filepath.Glob(pattern)
		for _, folder := range unfinished {
			if err := deep.RemoveAll(folder); err != nil {
				s.log.Warn("unfinished folder not removed", slog.String("dir", folder), slog.String("error", err.Error()))
			}
		}
	}
}

// Close stops what is being built, and waits for it.
func (s *Store) Close() {
	s.stop()
	s.running.Wait()
}

// begin counts an operation and gives it a context that Close ends too.
func (s *Store) begin(ctx context.Context) (context.Context, func()) {
	s.running.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	unwatch := context.AfterFunc(s.life, cancel)
	return ctx, func() { unwatch(); cancel(); s.running.Done() }
}

// do does work that Close ends too. An error of work that is none of this package's becomes
// install_failed with the text failure.
func do[T any](ctx context.Context, s *Store, failure string, work func(ctx context.Context) (T, error)) (T, error) {
	ctx, end := s.begin(ctx)
	defer end()
	made, err := work(ctx)
	if stop := stopped(ctx, s); err != nil && stop != nil {
		err = stop
	}
	if typed := new(toolmesh.Error); err != nil && !errors.As(err, &typed) {
		err = failed(err, "", "%s", failure)
	}
	return made, err
}

// keys lets one builder at a time at each name.
type keys struct{ held sync.Map }

// take waits for its turn at key; the returned function gives it up.
func (k *keys) take(ctx context.Context, key string) (free func(), err error) {
	select {
	case k.of(key) <- struct{}{}:
		return func() { <-k.of(key) }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// try is take without waiting.
func (k *keys) try(key string) (free func(), ok bool) {
	select {
	case k.of(key) <- struct{}{}:
		return func() { <-k.of(key) }, true
	default:
		return nil, false
	}
}

func (k *keys) of(key string) chan struct{} {
	held, _ := k.held.LoadOrStore(key, make(chan struct{}, 1))
	return held.(chan struct{}) //nolint:forcetypeassert // nothing else is stored
}

// run runs a program of this machine, which no index has a part in, and returns its output.
// When it ends, or ctx does, what it started is killed.
func (s *Store) run(ctx context.Context, dir, name string, args ...string) (stdout []byte, stderr string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, s.environ, &syscall.SysProcAttr{Setsid: true}
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what it left behind and that holds its output open
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	if err = cmd.Wait(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well: what it left behind is killed now
	}
	_ = cmd.Cancel()
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	return out.Bytes(), strings.TrimSpace(strings.ToValidUTF8(words.String(), "\uFFFD")), err
}

// failed makes an install_failed error; said is the output of a command.
func failed(err error, said, format string, args ...any) *toolmesh.Error {
	made := toolmesh.Errorf(toolmesh.CodeInstallFailed, format, args...).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	made.Message = redact(made.Message)
	if said = redact(said); said != "" {
		// How it began says what was tried, and the end why it failed.
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

// causes are the lines in which compilers, interpreters and build tools say why they failed.
var causes = regexp.MustCompile(`(?m)^.*(?:\bfatal error:|\berror:|^\s*\w*(?:Error|Exception|NotFound):).*$`)

// causeIn is the first line of a text that says why a command failed, "" if none does.
func causeIn(text string) string {
	line := strings.TrimSpace(causes.FindString(text))
	return strings.ToValidUTF8(line[:min(len(line), 300)], "")
}

// fewLines returns the first lines of a text and more of its last ones, n at most.
func fewLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	if len(lines) > n {
		lines = slices.Concat(lines[:n/3], []string{"…"}, lines[len(lines)-(n-n/3-1):])
	}
	return strings.Join(lines, "\n")
}

// stopped maps the end of a context; nil when err is something else.
func stopped(ctx context.Context, s *Store) error {
	if ctx.Err() == nil {
		return nil
	}
	if s.life.Err() != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the executor is closed").WithOrigin(toolmesh.OriginAgent)
	}
	return toolmesh.AsError(ctx.Err()).WithOrigin(toolmesh.OriginAgent)
}

// workFolder is a new folder of a step, which other users read.
func (s *Store) workFolder() (string, error) {
	work, err := os.MkdirTemp(s.dir, "new-work-")
	if err == nil {
		err = os.Chmod(work, 0o755) //nolint:gosec // no secret
	}
	return work, err
}
