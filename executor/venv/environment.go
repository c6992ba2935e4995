package venv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// Env is an environment that is ready to be used.
type Env struct {
	Dir     string // the environment's folder; its name is its content
	Python  string // the interpreter inside it
	Version string // of the interpreter: 3.12.1
	Digest  string // of lock, minor version and platform
}

// marker is the last file written into an environment: without it, it is not one.
type marker struct {
	Digest      string      `json:"digest"`
	Interpreter Interpreter `json:"interpreter"`
}

const markerName = "toolmesh-environment.json"

// Environment makes or finds an environment, and holds it until [Store.Release].
// See executor.Executor.Environment.
func (s *Store) Environment(ctx context.Context, sourceDir string, lock Lock, progress func(Step)) (*Env, error) {
	if progress == nil {
		progress = func(Step) {}
	}
	ctx, end := s.begin(ctx)
	defer end()
	env, err := s.environment(ctx, sourceDir, lock, progress)
	if err != nil {
		if stop := stopped(ctx, s); stop != nil {
			return nil, stop
		}
		return nil, err
	}
	return env, nil
}

func (s *Store) environment(ctx context.Context, sourceDir string, lock Lock, progress func(Step)) (_ *Env, err error) {
	progress(Step{Name: "interpreter", State: "running", Percent: 50})
	interpreter, err := s.pythons.find(ctx, lock.Python)
	if err != nil {
		return nil, err
	}
	requirements := lock.Requirements
	if blank(requirements) {
		requirements = nil
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "1 %s %s %s\n", interpreter.Minor(), interpreter.CacheTag, interpreter.Platform)
	sum.Write(requirements)
	digest := hex.EncodeToString(sum.Sum(nil))[:32]

	release, err := s.keys.take(ctx, digest)
	if err != nil {
		return nil, err
	}
	defer release()
	s.uses.take(digest) // under its key: who removes it has that too
	defer func() {
		if err != nil {
			s.uses.give(digest)
		}
	}()
	if err := s.warmUp(ctx, interpreter); err != nil {
		return nil, err
	}
	final := s.path("envs", digest)
	env := &Env{
		Dir: final, Python: filepath.Join(final, "bin", "python"), Version: interpreter.Version, Digest: digest,
	}
	if valid(final, digest) {
		progress(Step{Name: "environment", State: "done", Percent: 100})
		return env, nil
	}
	if _, err := os.Lstat(final); err == nil {
		s.log.Warn("an environment is not valid and is built anew", slog.String("digest", digest))
		if err := os.RemoveAll(final); err != nil {
			return nil, failed(err, "", "the environment cannot be replaced")
		}
	}
	if err := s.build(ctx, sourceDir, requirements, interpreter, final, digest, progress); err != nil {
		return nil, err
	}
	progress(Step{Name: "environment", State: "done", Percent: 100})
	return env, nil
}

// valid reports whether a folder is a complete environment whose interpreter is
// still there and still the same minor version.
func valid(dir, digest string) bool {
	data, err := os.ReadFile(filepath.Join(dir, markerName)) //nolint:gosec // our own folder
	if err != nil {
		return false
	}
	var m marker
	if json.Unmarshal(data, &m) != nil || m.Digest != digest {
		return false
	}
	target, err := filepath.EvalSymlinks(filepath.Join(dir, "bin", "python"))
	return err == nil && target == m.Interpreter.Path && isExecutable(target) && isDir(sitePackages(dir, m.Interpreter))
}

func sitePackages(dir string, i Interpreter) string {
	return filepath.Join(dir, "lib", "python"+i.Minor(), "site-packages")
}

func (s *Store) build(ctx context.Context, sourceDir string, requirements []byte, i Interpreter, final, digest string,
	progress func(Step),
) error {
	progress(Step{Name: "environment", State: "running", Percent: 55})
	parent := filepath.Dir(final)
	if err := os.MkdirAll(parent, 0o755); err != nil { //nolint:gosec // interpreters of other users may read it
		return failed(err, "", "the environment cannot be made")
	}
	beside, err := os.MkdirTemp(parent, "new-")
	if err != nil {
		return failed(err, "", "the environment cannot be made")
	}
	defer os.RemoveAll(beside) //nolint:errcheck // gone after the rename
	if err := skeleton(beside, i); err != nil {
		return failed(err, "", "the environment cannot be made")
	}
	if len(requirements) > 0 {
		uv, err := s.uv(ctx, progress)
		if err != nil {
			return err
		}
		progress(Step{Name: "packages", State: "running", Percent: 60})
		file := filepath.Join(beside, "requirements.txt")
		if err := os.WriteFile(file, requirements, 0o644); err != nil { //nolint:gosec // no secret
			return failed(err, "", "the environment cannot be made")
		}
		dir := sourceDir
		if !isDir(dir) {
			dir = beside
		}
		_, said, err := s.runUV(ctx, dir, uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode",
			"--python", filepath.Join(beside, "bin", "python"), "--requirements", file)
		if err != nil {
			return failed(err, said, "the index's dependencies cannot be installed")
		}
		progress(Step{Name: "packages", State: "done", Percent: 95})
	}
	data, err := json.Marshal(marker{Digest: digest, Interpreter: i})
	if err != nil {
		return failed(err, "", "the environment cannot be made")
	}
	if err := os.WriteFile(filepath.Join(beside, markerName), data, 0o644); err != nil { //nolint:gosec // no secret
		return failed(err, "", "the environment cannot be made")
	}
	if err := os.Rename(beside, final); err != nil {
		return failed(err, "", "the environment cannot be put in place")
	}
	return nil
}

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

// warmUp compiles the files of Options.Warm for an interpreter, once. Bytecode
// that is never checked against its source starts fastest, and the files never
// change.
func (s *Store) warmUp(ctx context.Context, i Interpreter) error {
	if s.warm == "" {
		return nil
	}
	mark := filepath.Join(s.warm, "__pycache__", "compiled."+i.CacheTag)
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	release, err := s.keys.take(ctx, mark)
	if err != nil {
		return err
	}
	defer release()
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	const script = `import glob, os, py_compile, sys
for file in glob.glob(os.path.join(sys.argv[1], "**", "*.py"), recursive=True):
    py_compile.compile(file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
open(sys.argv[2], "w").close()`
	if _, said, err := s.run(ctx, s.dir, nil, i.Path, "-I", "-c", script, s.warm, mark); err != nil {
		return failed(err, lastLine(said), "the worker's files cannot be compiled by %s", i.Path)
	}
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
