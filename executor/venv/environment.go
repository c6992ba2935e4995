package venv

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Env is an environment that is ready to be used.
type Env struct {
	Dir     string // the environment's folder; its name is its content
	Python  string // the interpreter inside it, which runs confined alone
	Base    string // the machine's interpreter behind it
	Version string // of the interpreter: 3.12.1
	Digest  string // of lock, minor version and platform
	Build   string // of this making of it: one that was damaged is made anew
}

// marker is the last file written into an environment: without it, it is not one.
type marker struct {
	Digest      string      `json:"digest"`
	Interpreter Interpreter `json:"interpreter"`
	Wanted      string      `json:"wanted"` // digest of the lock
	Build       string      `json:"build"`
	Compiled    bool        `json:"compiled"` // all its bytecode is there and noted, or is made no more
}

const markerName = "toolmesh-environment.json"

// Environment makes or finds an environment, and holds it until [Store.Release].
// See executor.Executor.Environment.
func (s *Store) Environment(ctx context.Context, sourceDir string, lock Lock, progress Progress) (*Env, error) {
	var env *Env
	err := s.do(ctx, "the environment cannot be made", func(ctx context.Context) (err error) {
		env, err = s.environment(ctx, sourceDir, lock, progress)
		return err
	})
	return env, err
}

func (s *Store) environment(ctx context.Context, sourceDir string, lock Lock, progress Progress) (_ *Env, err error) {
	progress.report("interpreter", "running", 50)
	requirements := lock.Requirements
	if blank(requirements) {
		requirements = nil
	}
	content := string(requirements)
	if editable.Match(requirements) {
		content += "\n" + sourceDir
	}
	if lock.Own != "" {
		content += "\n# of " + lock.Own
	}
	wanted := digestOf(lock.Python, content)
	interpreter, known := s.made(wanted)
	if !known {
		if interpreter, err = s.find(ctx, lock.Python); err != nil {
			return nil, err
		}
	}
	key := []string{"1", interpreter.Minor(), interpreter.CacheTag, interpreter.Platform, content}
	folder := s.path("envs")
	shared := s.shared != "" && shareable(lock)
	if shared {
		key = append(key, interpreter.Version, interpreter.Libc) // machines differ
		folder = s.sharedEnvs()
	}
	digest := digestOf(key...)

	release, err := s.keys.take(ctx, digest)
	if err != nil {
		return nil, err
	}
	defer release()
	s.uses.take(digest) // under its key, as removing it is
	defer func() {
		if err != nil {
			s.uses.give(digest)
		}
	}()
	if err := s.warmUp(ctx, interpreter); err != nil {
		return nil, err
	}
	final := filepath.Join(folder, digest)
	env := &Env{
		Dir: final, Python: filepath.Join(final, "bin", "python"), Base: interpreter.Path, Version: interpreter.Version, Digest: digest,
	}
	if shared {
		s.touch(final)
	}
	m, what, changed := s.verify(final, digest)
	if what != "" {
		m = marker{Digest: digest, Interpreter: interpreter, Wanted: wanted, Build: rand.Text(), Compiled: shared || len(requirements) == 0}
		if _, err := os.Lstat(final); err == nil {
			s.log.Warn("an environment is not valid and is built anew", slog.String("digest", digest), slog.String("reason", what))
		}
		began := time.Now()
		if err := s.build(ctx, sourceDir, requirements, m, final, changed, progress); err != nil {
			return nil, err
		}
		if m, err = readMarker(final); err != nil { // that of another store, if it was faster
			return nil, err
		}
		s.log.Info("environment built", slog.String("digest", digest), slog.Bool("shared", shared), slog.Duration("took", time.Since(began)))
	}
	env.Build = m.Build
	if _, before := s.verified.LoadOrStore(digest, true); !m.Compiled && (what != "" || !before) {
		s.compile(env, m)
	}
	progress.report("environment", "done", 100)
	return env, nil
}

// digestOf is a short digest of texts.
func digestOf(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(sum, "%d %s\n", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}

// made returns the interpreter of an environment that was made of a lock and that
// is still what it was: an index stays with its interpreter, and a start need not
// look for one.
func (s *Store) made(wanted string) (Interpreter, bool) {
	for _, m := range s.finished() {
		if m.Wanted == wanted {
			return m.Interpreter, true
		}
	}
	return Interpreter{}, false
}

// finished are the folders of environments whose interpreters are still what they
// were.
func (s *Store) finished() iter.Seq2[string, marker] {
	return func(yield func(string, marker) bool) {
		for _, folder := range []string{s.path("envs"), s.sharedEnvs()} {
			entries, _ := os.ReadDir(folder)
			for _, entry := range entries {
				dir := filepath.Join(folder, entry.Name())
				if strings.HasPrefix(entry.Name(), "new-") {
					continue // it is going to be renamed
				}
				if m, err := readMarker(dir); err == nil && m.Interpreter.unchanged() && !yield(dir, m) {
					return
				}
			}
		}
	}
}

// verify says what is wrong with an environment, empty when nothing is, and
// whether a file of it was changed, see [damage]. All files are looked at once:
// what another process left may be damaged.
func (s *Store) verify(dir, digest string) (m marker, what string, changed bool) {
	m, err := readMarker(dir)
	if err != nil {
		return m, err.Error(), false
	}
	target, err := filepath.EvalSymlinks(filepath.Join(dir, "bin", "python"))
	switch {
	case err != nil:
		return m, err.Error(), false
	case m.Digest != digest, target != m.Interpreter.Path, !isExecutable(target), !isDir(sitePackages(dir, m.Interpreter)):
		return m, "it is not what its marker says", false
	}
	if _, before := s.verified.Load(digest); before {
		return m, "", false
	}
	if !m.Compiled {
		if err := dropBytecode(dir); err != nil {
			return m, err.Error(), false
		}
	}
	what, changed = damage(dir)
	return m, what, changed
}

func sitePackages(dir string, i Interpreter) string {
	return filepath.Join(dir, "lib", "python"+i.Minor(), "site-packages")
}

// build makes the environment that a marker describes. With cleared no package
// comes from the cache.
func (s *Store) build(ctx context.Context, sourceDir string, requirements []byte, m marker, final string, cleared bool,
	progress Progress,
) error {
	progress.report("environment", "running", 55)
	parent := filepath.Dir(final)
	if err := os.MkdirAll(parent, 0o755); err != nil { //nolint:gosec // interpreters of other users may read it
		return err
	}
	beside, err := os.MkdirTemp(parent, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(beside) //nolint:errcheck // gone after the rename
	if err := skeleton(beside, m.Interpreter); err != nil {
		return err
	}
	if len(requirements) > 0 {
		uv, err := s.uv(ctx, progress)
		if err != nil {
			return err
		}
		if cleared {
			if _, said, err := s.runUV(ctx, beside, uv, "cache", "clean", "--quiet"); err != nil {
				return failed(err, said, "the cache of packages cannot be emptied")
			}
		}
		progress.report("packages", "running", 60)
		file := filepath.Join(beside, "requirements.txt")
		if err := os.WriteFile(file, requirements, 0o644); err != nil { //nolint:gosec // no secret
			return err
		}
		dir := sourceDir
		if !isDir(dir) {
			dir = beside
		}
		args := []string{"pip", "install", "--quiet", "--no-deps",
			"--python", filepath.Join(beside, "bin", "python"), "--requirements", file}
		local := bytes.Contains(requirements, pathNote)
		if local {
			args = append(args, "--refresh") // uv looks at a few files alone to see whether a folder has changed
		}
		write := []string{beside}
		if local {
			write = append(write, dir) // a backend writes beside its sources
		}
		err, said := errBuilds, ""
		refused := refusesBuilds(ctx)
		if refused || s.confine != nil && !local {
			_, said, err = s.runUV(ctx, dir, uv, append(args[:len(args):len(args)], "--no-build")...)
		}
		if err != nil && refused {
			if refused := wouldBuild(said); refused != nil {
				return refused
			}
		} else if err != nil && ctx.Err() == nil {
			progress.report("builds", "running", 62)
			_, said, err = s.buildUV(ctx, m.Interpreter, dir, uv, write, args...)
		}
		if err != nil {
			return failed(err, said, "the index's dependencies cannot be installed")
		}
		progress.report("packages", "done", 95)
		if m.Compiled {
			s.compileIn(ctx, beside, final, m.Interpreter)
		}
	}
	if err := note(beside, false); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(beside, markerName), m); err != nil {
		return err
	}
	return s.publish(beside, final, m.Digest)
}

// publish puts an environment in its place. What is there already is kept if it is
// whole, as another store may have made it meanwhile. Otherwise it goes as the new one
// comes: processes of others may be using it.
func (s *Store) publish(beside, final, digest string) error {
	err := os.Rename(beside, final)
	if _, there := os.Lstat(final); err == nil || there != nil {
		return err
	}
	if _, what, _ := s.verify(final, digest); what == "" {
		return nil
	}
	// Below what is swept, should this be the last that the process does.
	old, err := os.MkdirTemp(filepath.Dir(final), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(old) //nolint:errcheck // swept at the next start
	if err := os.Rename(final, filepath.Join(old, digest)); err != nil {
		return err
	}
	return os.Rename(beside, final)
}

// errBuilds stands for the failure of what was not tried, as it builds something.
var errBuilds = errors.New("it builds packages")

// skeleton makes an empty virtual environment by hand: what python -m venv --without-pip
// would make of it in a hundred times the time.
func skeleton(dir string, i Interpreter) error {
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see build
		return err
	}
	for _, folder := range []string{filepath.Join(dir, "bin"), sitePackages(dir, i)} {
		if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // see build
			return err
		}
	}
	for _, name := range []string{"python", "python3", "python" + i.Minor()} {
		if err := os.Symlink(i.Path, filepath.Join(dir, "bin", name)); err != nil {
			return err
		}
	}
	// relocatable makes uv write scripts that survive the rename.
	text := fmt.Sprintf("home = %s\ninclude-system-site-packages = false\nversion = %s\nrelocatable = true\n",
		filepath.Dir(i.Path), i.Version)
	return os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(text), 0o644) //nolint:gosec // no secret
}

// Bare makes an environment in dir, in which nothing is installed, with the
// interpreter of the environment env, which a [Store] made. It returns the
// interpreter inside it.
func Bare(dir, env string) (string, error) {
	m, err := readMarker(env)
	if err != nil {
		return "", fmt.Errorf("not an environment: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // see build
		return "", err
	}
	if err := skeleton(dir, m.Interpreter); err != nil {
		return "", err
	}
	return filepath.Join(dir, "bin", "python"), nil
}

// Prepare returns the interpreters of environments that an earlier process left,
// one of each kind, whose environments are not verified yet. Where there is none
// it does what the first one will wait for: it finds the interpreter that most indexes have and compiles the
// files of Options.Warm.
func (s *Store) Prepare(ctx context.Context) (pythons []string) {
	ctx, end := s.begin(ctx)
	defer end()
	seen := map[string]bool{}
	for dir, m := range s.finished() {
		python := filepath.Join(dir, "bin", "python")
		if target, _ := filepath.EvalSymlinks(python); target == m.Interpreter.Path && !seen[target] {
			seen[target] = true
			pythons = append(pythons, python)
		}
	}
	if len(pythons) > 0 {
		return pythons
	}
	i, err := s.find(ctx, "")
	if err == nil {
		err = s.warmUp(ctx, i)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Debug("nothing is prepared for indexes", slog.Any("error", err))
	}
	return nil
}

// warmUp compiles the files of Options.Warm for an interpreter, once. Bytecode
// that is never checked against its source starts fastest, and the files never
// change.
func (s *Store) warmUp(ctx context.Context, i Interpreter) error {
	if s.warm == "" {
		return nil
	}
	mark := filepath.Join(s.warm, "compiled."+i.CacheTag)
	// whole reports whether what was compiled is there as it was noted.
	whole := func() bool {
		was, err := readJSON[listing](mark)
		return err == nil && maps.Equal(was, compiledBy(s.warm, i))
	}
	if whole() {
		return nil
	}
	release, err := s.keys.take(ctx, mark)
	if err != nil {
		return err
	}
	defer release()
	if whole() {
		return nil
	}
	const script = `import glob, os, py_compile, sys
for file in glob.glob(os.path.join(sys.argv[1], "**", "*.py"), recursive=True):
    py_compile.compile(file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`
	_, said, err := s.run(ctx, s.dir, nil, i.Path, "-I", "-c", script, s.warm)
	if err == nil {
		err = writeJSON(mark, compiledBy(s.warm, i))
	}
	if err != nil {
		return failed(err, lastLine(said), "the worker's files cannot be compiled by %s", i.Path)
	}
	return nil
}

// compiledBy lists the bytecode of an interpreter below a folder.
func compiledBy(folder string, i Interpreter) listing {
	all, _ := list(folder)
	maps.DeleteFunc(all, func(name, _ string) bool { return !strings.HasSuffix(name, "."+i.CacheTag+".pyc") })
	return all
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
