package venv

import (
	"context"
	"fmt"
	"path/filepath"
)

// Script runs a few lines of our own Python with the standard library alone on
// its path: neither an environment's packages nor its start-up files are seen.
// env names the interpreter; nil is any of the machine's that the constraint
// allows, and if there is none, any. It returns what the lines wrote to stdout;
// an error holds what they wrote to stderr.
func (s *Store) Script(ctx context.Context, env *Env, constraint, code string, args ...string) ([]byte, error) {
	ctx, end := s.begin(ctx)
	defer end()
	python := ""
	if env != nil {
		python = env.Python
	} else {
		i, err := s.find(ctx, constraint)
		if err != nil && ctx.Err() == nil {
			i, err = s.find(ctx, "")
		}
		if err != nil {
			return nil, err
		}
		python = i.Path
	}
	environ := []string{"LANG=C.UTF-8", "PATH=" + filepath.Dir(python)}
	out, said, err := s.runWith(ctx, "/", environ, python, append([]string{"-I", "-S", "-X", "utf8", "-c", code}, args...)...)
	if err != nil && said != "" && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: %s", err, said[max(0, len(said)-4<<10):])
	}
	return out, err
}
