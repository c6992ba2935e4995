package venv

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// LockRequirements resolves requirements that stand in no file of their own. See
// executor.Executor.LockRequirements.
func (s *Store) LockRequirements(ctx context.Context, name, python string, requirements []string, progress func(Step)) (Lock, error) {
	if progress == nil {
		progress = func(Step) {}
	}
	ctx, end := s.begin(ctx)
	defer end()
	if len(requirements) == 0 {
		return Lock{Python: python}, nil
	}
	// Nothing of the index lies beside them: uv finds no settings and no project.
	dir, err := os.MkdirTemp(s.dir, "new-lock-")
	if err != nil {
		return Lock{}, failed(err, "", "lock")
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	path := filepath.Join(dir, "requirements.in")
	if err := os.WriteFile(path, []byte(strings.Join(requirements, "\n")+"\n"), 0o600); err != nil {
		return Lock{}, failed(err, "", "lock")
	}
	lock, err := s.resolve(ctx, dir, python, declared{file: name, path: path}, progress)
	if err != nil {
		if stop := stopped(ctx, s); stop != nil {
			return Lock{}, stop
		}
		return Lock{}, err
	}
	return lock, nil
}
