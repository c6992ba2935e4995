package venv

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// Env is an environment that is ready to be used.
type Env struct {
	Dir     string // the environment's folder, named by Digest
	Python  string // the interpreter inside it, which only runs confined
	Base    string // the machine's interpreter behind it
	Version string // of the interpreter: 3.12.1
	Digest  string // of lock, minor version and platform
	Build   string // of this build: a damaged environment is built anew
}

// Making says for which index an environment is made, and how.
type Making struct {
	// Account names the index. An environment is of that index alone if its packages come from
	// addresses or folders of the index, or if a command of the index adds to it.
	Account string
	// Own says that a command of the index adds to the environment.
	Own bool
	// Vars are the variables of the index that its requirements name.
	Vars map[string]string
	// NoBuild fails with details.reason "builds" instead of running code of a package.
	NoBuild bool
}

// marker describes an environment. It lies outside of it, as its [listing] does: an index can
// change the files inside.
type marker struct {
	Interpreter Interpreter `json:"interpreter"`
	Wanted      string      `json:"wanted"` // digest of the lock
	Build       string      `json:"build"`
	Compiled    bool        `json:"compiled"` // its bytecode is complete and listed, or will not be made
}

// Environment makes or finds an environment, and holds it until [Store.Release].
// See executor.Executor.Environment.
func (s *Store) Environment(ctx context.Context, sourceDir string, lock Lock, making Making, progress Progress) (*Env, error) {
	return do(ctx, s, "the environment cannot be made", func(ctx context.Context) (*Env, error) {
		return s.environment(ctx, sourceDir, lock, making, progress)
	})
}

func (s *Store) environment(ctx context.Context, sourceDir string, lock Lock, making Making, progress Progress) (_ *Env, err error) {
	progress.report("interpreter", "running", 50)
	content := string(lock.Requirements)
	if making.Own {
		content += "\n# of " + making.Account
	} else if lock.foreign() {
		content += "\n# for " + making.Account
	}
	wanted := digestOf(lock.Python, content)
	// An index stays with its interpreter, and a start need not look for one.
	var interpreter Interpreter
	finished := s.finished()
	if i := slices.IndexFunc(finished, func(m marker) bool { return m.Wanted == wanted }); i >= 0 {
		interpreter = finished[i].Interpreter
	} else if interpreter, err = s.find(ctx, lock.Python); err != nil {
		return nil, err
	}
	key := []string{"2", interpreter.Minor(), interpreter.CacheTag, interpreter.Platform, content}
	at := place{folder: s.dir}
	shared := s.shared != "" && !making.Own && len(lock.Requirements) > 0
	if shared {
		key = append(key, interpreter.Version, interpreter.Libc) // machines differ
		at.folder = s.shared
	}
	at.digest = digestOf(key...)

	release, err := s.keys.take(ctx, at.digest)
	if err != nil {
		return nil, err
	}
	defer release()
	s.uses.take(at.digest) // with the key held, which its removal needs, too
	defer func() {
		if err != nil {
			s.uses.give(at.digest)
		}
	}()
	if err := s.warmUp(ctx, interpreter); err != nil {
		return nil, err
	}
	if shared {
		s.touch(at)
	}
	m, invalid := s.verify(at)
	if invalid != nil {
		m = marker{Interpreter: interpreter, Wanted: wanted, Build: rand.Text(), Compiled: shared || len(lock.Requirements) == 0}
		if _, err := os.Lstat(at.env()); err == nil {
			s.log.Warn("environment is invalid and is built anew", slog.String("digest", at.digest), slog.String("reason", invalid.Error()))
		}
		began := time.Now()
		if err := s.build(ctx, sourceDir, lock, making, m, at, progress); err != nil {
			return nil, err
		}
		if m, err = at.marker(); err != nil { // of another store that was faster
			return nil, err
		}
		s.log.Info("environment built", slog.String("digest", at.digest), slog.Bool("shared", shared), slog.Duration("took", time.Since(began)))
	}
	if _, before := s.verified.LoadOrStore(at.digest, true); !m.Compiled && (invalid != nil || !before) {
		s.compile(at, m)
	}
	progress.report("environment", "done", 100)
	return &Env{
		Dir: at.env(), Python: at.python(), Base: interpreter.Path, Version: interpreter.Version, Digest: at.digest, Build: m.Build,
	}, nil
}

// digestOf is a short digest of texts.
func digestOf(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(sum, "%d %s\n", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}

// finished returns the environments whose interpreters are unchanged.
func (s *Store) finished() (all []marker) {
	for _, at := range s.places() {
		if m, err := at.marker(); err == nil && m.Interpreter.unchanged() {
			all = append(all, m)
		}
	}
	return all
}

// places returns all environments, finished or not, that are shared or of this store.
func (s *Store) places() (all []place) {
	for _, folder := range slices.Compact([]string{cmp.Or(s.shared, s.dir), s.dir}) {
		entries, _ := os.ReadDir(place{folder: folder}.envs()) // the folder may not exist yet
		for _, entry := range entries {
			all = append(all, place{folder, entry.Name()})
		}
	}
	return all
}

// verify returns the marker of an environment, and an error if that is not valid. All files are
// checked once in a process, as those of an earlier process may be damaged.
func (s *Store) verify(at place) (marker, error) {
	m, err := at.marker()
	switch {
	case err != nil:
		return m, err
	case !m.Interpreter.unchanged() || !isExecutable(at.python()):
		return m, errors.New("its interpreter has changed or is gone")
	}
	if _, before := s.verified.Load(at.digest); before {
		return m, nil
	}
	if !m.Compiled {
		if err := dropBytecode(at.env()); err != nil {
			return m, err
		}
	}
	return m, damage(at.env(), at.file(listingName))
}

func sitePackages(dir string, i Interpreter) string {
	return filepath.Join(dir, "lib", "python"+i.Minor(), "site-packages")
}

// build makes the environment that a marker describes.
func (s *Store) build(ctx context.Context, sourceDir string, lock Lock, making Making, m marker, at place, progress Progress) error {
	progress.report("environment", "running", 55)
	for _, folder := range []string{at.envs(), at.records()} {
		if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // interpreters of other users read it
			return err
		}
	}
	beside, err := os.MkdirTemp(at.envs(), "new-")
	if err != nil {
		return err
	}
	defer deep.RemoveAll(beside) //nolint:errcheck // gone after the rename
	if err := skeleton(beside, m.Interpreter); err != nil {
		return err
	}
	if len(lock.Requirements) > 0 {
		if err := s.install(ctx, sourceDir, lock, making, m.Interpreter, beside, progress); err != nil {
			return err
		}
		if err := seal(beside, m.Interpreter); err != nil {
			return failed(err, "", "the index's dependencies cannot be installed")
		}
		progress.report("packages", "done", 95)
		if m.Compiled {
			if err := s.compileTo(ctx, m.Interpreter, beside, at.env(), "0"); err != nil { // it works without bytecode, but slower
				s.log.Warn("packages of an environment could not be compiled", slog.String("digest", at.digest), slog.String("error", err.Error()))
			}
		}
	}
	files, err := list(beside, nil, m.Compiled)
	if err != nil {
		return err
	}
	return s.publish(beside, at, m, files)
}

// publish renames an environment into its place, then its listing and its marker. A valid one
// that another store has put there meanwhile is kept. An invalid one is moved away, not
// removed: processes may be using it.
func (s *Store) publish(beside string, at place, m marker, files listing) error {
	if err := os.Rename(beside, at.env()); err != nil {
		if _, invalid := s.verify(at); invalid == nil {
			return nil
		}
		old, moved := at.moveAway()
		if moved != nil {
			return errors.Join(err, moved)
		}
		defer deep.RemoveAll(old) //nolint:errcheck // swept at the next start
		if err := os.Rename(beside, at.env()); err != nil {
			return err
		}
	}
	if err := writeJSON(at.file(listingName), files); err != nil {
		return err
	}
	return writeJSON(at.file(markerName), m)
}

// bins are the names of the interpreter in an environment.
func bins(i Interpreter) []string {
	return []string{"bin/python", "bin/python3", "bin/python" + i.Minor()}
}

// skeleton makes an empty virtual environment like python -m venv --without-pip, in a hundredth
// of the time.
func skeleton(dir string, i Interpreter) error {
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see build
		return err
	}
	for _, folder := range []string{filepath.Join(dir, "bin"), sitePackages(dir, i)} {
		if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // see build
			return err
		}
	}
	for _, name := range bins(i) {
		if err := os.Symlink(i.Path, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// relocatable makes uv write scripts that survive the rename.
	text := fmt.Sprintf("home = %s\ninclude-system-site-packages = false\nversion = %s\nrelocatable = true\n",
		filepath.Dir(i.Path), i.Version)
	return os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(text), 0o644) //nolint:gosec // no secret
}

// seal writes the files of the environment itself again after packages were installed: a wheel
// may overwrite any of them. All users may read the packages.
func seal(dir string, i Interpreter) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	for _, name := range append(bins(i), "pyvenv.cfg") {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	library := "lib/python" + i.Minor()
	for _, folder := range []string{"bin", "lib", library, library + "/site-packages"} {
		if info, err := root.Lstat(folder); err != nil || !info.IsDir() {
			return fmt.Errorf("a package has replaced the folder %s", folder)
		}
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm()&0o755 | 0o644
		if entry.IsDir() {
			mode = 0o755
		}
		return root.Chmod(path, mode)
	})
	if err != nil {
		return err
	}
	return skeleton(dir, i)
}

// Prepare returns the machine's interpreters behind environments that an earlier process
// left. Without any it finds the interpreter that most indexes use and compiles the files of
// Options.Warm, so that the first environment need not wait for it.
func (s *Store) Prepare(ctx context.Context) (pythons []string) {
	ctx, end := s.begin(ctx)
	defer end()
	for _, m := range s.finished() {
		if !slices.Contains(pythons, m.Interpreter.Path) {
			pythons = append(pythons, m.Interpreter.Path)
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
		s.log.Debug("no interpreter could be prepared for indexes", slog.String("error", err.Error()))
	}
	return nil
}

// warmUp compiles the files of Options.Warm for an interpreter, once. The bytecode is never
// checked against its source, which starts fastest: the files never change.
func (s *Store) warmUp(ctx context.Context, i Interpreter) error {
	if s.warm == "" {
		return nil
	}
	record := filepath.Join(s.warm, bytecode, "compiled."+i.CacheTag)
	release, err := s.keys.take(ctx, record)
	if err != nil {
		return err
	}
	defer release()
	if damage(s.warm, record) == nil {
		return nil
	}
	const script = `import glob, os, py_compile, sys
for file in glob.glob(os.path.join(sys.argv[1], "**", "*.py"), recursive=True):
    py_compile.compile(file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`
	_, said, err := s.run(ctx, i.Path, s.dir, i.Path, "-I", "-S", "-c", script, s.warm)
	if err != nil {
		return failed(err, lastLine(said), "the worker's files cannot be compiled by %s", i.Path)
	}
	files, err := list(s.warm, nil, true)
	if err != nil {
		return err
	}
	maps.DeleteFunc(files, func(name string, _ noted) bool { // of other interpreters
		return isBytecode(name) && !strings.HasSuffix(name, "."+i.CacheTag+".pyc")
	})
	return writeJSON(record, files)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
