package venv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"
)

// Lock is what declared dependencies were resolved to: the same on every node.
type Lock struct {
	// Requirements is a requirements file with exact versions, markers and
	// hashes; empty when nothing is declared.
	Requirements []byte
	// Python is the constraint on the interpreter; empty means any that works.
	Python string
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
	BuildSystem map[string]any `toml:"build-system"`
	Tool        struct {
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
			d := declared{python: p.Project.RequiresPython}
			for _, field := range p.Project.Dynamic {
				d.builds = d.builds || field == "dependencies"
			}
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
func blank(data []byte) bool {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// Lock resolves what sourceDir declares. See executor.Executor.Lock.
func (s *Store) Lock(ctx context.Context, sourceDir, python string, progress func(Step)) (Lock, error) {
	if progress == nil {
		progress = func(Step) {}
	}
	ctx, end := s.begin(ctx)
	defer end()
	lock, err := s.lock(ctx, sourceDir, python, progress)
	if err != nil {
		if stop := stopped(ctx, s); stop != nil {
			return Lock{}, stop
		}
		return Lock{}, err
	}
	return lock, nil
}

func (s *Store) lock(ctx context.Context, sourceDir, python string, progress func(Step)) (Lock, error) {
	d, err := declaration(sourceDir)
	if err != nil {
		return Lock{}, failed(err, "", "the dependencies cannot be read")
	}
	return s.resolve(ctx, sourceDir, python, d, progress)
}

// resolve makes the lock of what is declared.
func (s *Store) resolve(ctx context.Context, sourceDir, python string, d declared, progress func(Step)) (Lock, error) {
	if d.python != "" { // the manifest's python counts only where there is no requires-python
		python = d.python
	}
	if d.file == "" {
		return Lock{Python: python}, nil
	}
	progress(Step{Name: "interpreter", State: "running"})
	interpreter, err := s.pythons.find(ctx, python)
	if err != nil {
		return Lock{}, err
	}
	uv, err := s.uv(ctx, progress)
	if err != nil {
		return Lock{}, err
	}
	progress(Step{Name: "lock", State: "running", Percent: 20})
	dir := sourceDir
	if d.builds {
		// A build backend writes beside its sources.
		if dir, err = os.MkdirTemp(s.dir, "new-lock-"); err != nil {
			return Lock{}, failed(err, "", "lock")
		}
		defer os.RemoveAll(dir) //nolint:errcheck // temporary
		if err := copyTree(sourceDir, dir); err != nil {
			return Lock{}, failed(err, "", "lock")
		}
	}
	// First for every Python that the constraint allows, so that other nodes
	// may have other ones; some packages then have no version left.
	wanted, _ := parseConstraint(python)
	lower, bounded := wanted.lower()
	if !bounded || lower < oldest {
		lower = oldest
	}
	file := d.file
	if d.path != "" {
		file = d.path
	}
	tries := []string{fmt.Sprintf("3.%d", lower)}
	if own := interpreter.Minor(); own != tries[0] {
		tries = append(tries, own)
	}
	var said string
	for n, version := range tries {
		var out []byte
		out, said, err = s.runUV(ctx, dir, uv, "pip", "compile", file, "--universal", "--generate-hashes",
			"--no-header", "--no-annotate", "--quiet", "--python", interpreter.Path, "--python-version", version)
		if err == nil {
			if n > 0 || python == "" {
				python = strings.TrimPrefix(python+",>="+version, ",")
			}
			if d.file == "requirements.txt" {
				out = hold(out, pinned(filepath.Join(dir, d.file)))
			}
			if out, err = notePaths(out, dir); err != nil {
				return Lock{}, failed(err, "", "what the dependencies in %s point to cannot be read", d.file)
			}
			progress(Step{Name: "lock", State: "done", Percent: 50})
			return Lock{Requirements: out, Python: python}, nil
		}
		if ctx.Err() != nil {
			return Lock{}, ctx.Err()
		}
	}
	return Lock{}, failed(err, said, "the dependencies in %s cannot be resolved", d.file)
}

// copyTree copies the files that a build may need.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case entry.IsDir():
			if entry.Name() == ".git" || entry.Name() == ".venv" {
				return filepath.SkipDir
			}
			return os.MkdirAll(target, 0o755) //nolint:gosec // temporary copy
		case entry.Type().IsRegular():
			data, err := os.ReadFile(name) //nolint:gosec // the source's own file
			if err != nil {
				return err
			}
			return os.WriteFile(target, data, 0o644) //nolint:gosec // temporary copy
		}
		return nil
	})
}
