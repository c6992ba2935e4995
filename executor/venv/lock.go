package venv

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// Lock is what declared dependencies were resolved to: the same on every node.
type Lock struct {
	// Requirements is a requirements file with exact versions, markers and
	// hashes; empty when nothing is declared.
	Requirements []byte
	// Python is the constraint on the interpreter; empty means any that works.
	Python string
	// Own has an environment that is shared with locks of the same Own alone, such as
	// one that a command of the index adds to. Defaults to sharing it with all.
	Own string
}

// declared is what a source says of its dependencies.
type declared struct {
	file   string // the file that uv compiles; empty: none
	path   string // where it is, if not in the source
	python string // requires-python
	builds bool   // uv has to run a build backend, which may write into the folder
}

type pyproject struct {
	Project *struct {
		Dependencies   []string `toml:"dependencies"`
		RequiresPython string   `toml:"requires-python"`
		Dynamic        []string `toml:"dynamic"`
	} `toml:"project"`
	Tool struct {
		Poetry *struct {
			Dependencies map[string]any `toml:"dependencies"`
		} `toml:"poetry"`
	} `toml:"tool"`
}

// declaration reads what a source declares: pyproject.toml, else setup.py, else
// requirements.txt. A pyproject.toml that says nothing of a project, only of
// tools like a linter, does not count.
func declaration(dir string) (declared, error) {
	data, err := os.ReadFile(filepath.Join(dir, "pyproject.toml")) //nolint:gosec // the source's own file
	if err == nil {
		var p pyproject
		if err := toml.Unmarshal(data, &p); err != nil {
			return declared{}, fmt.Errorf("pyproject.toml: %w", err)
		}
		switch {
		case p.Project != nil:
			d := declared{python: p.Project.RequiresPython, builds: slices.Contains(p.Project.Dynamic, "dependencies")}
			if d.builds || len(p.Project.Dependencies) > 0 {
				d.file = "pyproject.toml"
			}
			return d, nil
		case p.Tool.Poetry != nil:
			d := declared{builds: true}
			for name, value := range p.Tool.Poetry.Dependencies {
				if name == "python" {
					d.python, _ = value.(string)
				} else {
					d.file = "pyproject.toml"
				}
			}
			return d, nil
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "setup.py")); err == nil {
		return declared{file: "setup.py", builds: true}, nil
	}
	data, err = os.ReadFile(filepath.Join(dir, "requirements.txt")) //nolint:gosec // the source's own file
	if err == nil && !blank(data) {
		return declared{file: "requirements.txt"}, nil
	}
	return declared{}, nil
}

// blank reports whether a requirements file has comments and empty lines alone.
func blank(data []byte) bool { return len(logical(data)) == 0 }

// Lock resolves the dependencies that sourceDir declares, for every platform and
// every Python that the constraint allows, with the hashes of every file. Where
// nothing is declared it runs nothing, and the lock has no requirements.
//
// python is a version constraint like ">=3.11"; empty means what the source
// declares, or any. progress may be nil. Errors are install_failed.
func (s *Store) Lock(ctx context.Context, sourceDir, python string, progress Progress) (lock Lock, err error) {
	err = s.do(ctx, "the dependencies cannot be read", func(ctx context.Context) error {
		d, err := declaration(sourceDir)
		if err == nil {
			lock, err = s.resolve(ctx, sourceDir, python, d, progress)
		}
		return err
	})
	return lock, err
}

// LockRequirements resolves requirements that no file of their own declares, as
// [Store.Lock] does. name is what declares them, for messages. Each requirement is
// one line of a requirements file that is no option.
func (s *Store) LockRequirements(ctx context.Context, name, python string, requirements []string, progress Progress) (lock Lock, err error) {
	if len(requirements) == 0 {
		return Lock{Python: python}, nil
	}
	err = s.do(ctx, "the dependencies cannot be read", func(ctx context.Context) error {
		// Nothing of the index lies beside them: uv finds no settings and no project.
		dir, err := os.MkdirTemp(s.dir, "new-lock-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // temporary
		path := filepath.Join(dir, "requirements.in")
		if err := os.WriteFile(path, []byte(strings.Join(requirements, "\n")+"\n"), 0o600); err != nil {
			return err
		}
		lock, err = s.resolve(ctx, dir, python, declared{file: name, path: path}, progress)
		return err
	})
	return lock, err
}

// resolve makes the lock of what is declared.
func (s *Store) resolve(ctx context.Context, sourceDir, python string, d declared, progress Progress) (Lock, error) {
	if d.python != "" { // the manifest's python counts only where there is no requires-python
		python = d.python
	}
	if d.file == "" {
		return Lock{Python: python}, nil
	}
	progress.report("interpreter", "running", 0)
	interpreter, err := s.find(ctx, python)
	if err != nil {
		return Lock{}, err
	}
	uv, err := s.uv(ctx, progress)
	if err != nil {
		return Lock{}, err
	}
	progress.report("lock", "running", 20)
	dir := sourceDir
	apart := func() error { return nil }
	if d.path == "" && (d.builds || s.confine != nil) {
		// A build backend writes beside its sources, and what it leaves there is not the index's.
		apart = sync.OnceValue(func() (err error) {
			if dir, err = os.MkdirTemp(s.dir, "new-lock-"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(sourceDir))
		})
		defer func() {
			if dir != sourceDir {
				_ = os.RemoveAll(dir)
			}
		}()
	}
	// First for every Python that the constraint allows, so that other nodes
	// may have other ones; some packages then have no version left.
	wanted, _ := parseConstraint(python)
	tries := []string{fmt.Sprintf("3.%d", max(wanted.lower(), oldest))}
	if own := interpreter.Minor(); own != tries[0] {
		tries = append(tries, own)
	}
	var said string
	for n, version := range tries {
		var out []byte
		args := []string{"pip", "compile", cmp.Or(d.path, d.file), "--universal", "--generate-hashes",
			"--no-header", "--no-annotate", "--quiet", "--python", interpreter.Path, "--python-version", version}
		err = errBuilds
		if refused := refusesBuilds(ctx); refused && d.builds {
			return Lock{}, builds(d.file)
		} else if refused || s.confine != nil && !d.builds {
			out, said, err = s.runUV(ctx, dir, uv, append(args[:len(args):len(args)], "--no-build")...)
		}
		if err != nil && refusesBuilds(ctx) {
			if refused := wouldBuild(said); refused != nil {
				return Lock{}, refused
			}
		} else if err != nil && ctx.Err() == nil {
			progress.report("builds", "running", 25)
			if err := apart(); err != nil {
				return Lock{}, err
			}
			out, said, err = s.buildUV(ctx, interpreter, dir, uv, []string{dir}, args...)
		}
		if err == nil {
			if n > 0 || python == "" {
				python = strings.TrimPrefix(python+",>="+version, ",")
			}
			out = bytes.ReplaceAll(out, []byte(dir), []byte(sourceDir))
			if d.file == "requirements.txt" {
				out = hold(out, pinned(filepath.Join(sourceDir, d.file)))
			}
			if out, err = notePaths(out, sourceDir); err != nil {
				return Lock{}, failed(err, "", "what the dependencies in %s point to cannot be read", d.file)
			}
			progress.report("lock", "done", 50)
			return Lock{Requirements: out, Python: python}, nil
		}
		if ctx.Err() != nil {
			return Lock{}, ctx.Err()
		}
	}
	return Lock{}, failed(err, said, "the dependencies in %s cannot be resolved", d.file)
}
