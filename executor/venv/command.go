package venv

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
)

// Command runs an index's own set-up command in dir, with environ as its whole
// environment. confined runs it, nil for as everything else. The error is
// install_failed with the end of what it printed, as clean, which takes secrets out,
// gives it.
func (s *Store) Command(ctx context.Context, env *Env, dir string, argv, environ []string, clean func(string) string,
	confined func(context.Context, Job) ([]byte, string, error),
) error {
	bin := filepath.Join(env.Dir, "bin")
	extra := append([]string{"VIRTUAL_ENV=" + env.Dir}, environ...)
	name := argv[0]
	if name == "python" || name == "python3" {
		name = env.Python
	} else if !strings.ContainsRune(name, filepath.Separator) {
		if path := filepath.Join(bin, name); isExecutable(path) {
			name = path
		}
	}
	var said string
	var err error
	if confined != nil {
		_, said, err = confined(ctx, Job{Interpreter: env.Base, Dir: dir, Write: []string{dir, env.Dir}, Argv: append([]string{name}, argv[1:]...), Env: extra})
	} else {
		_, said, err = s.runWith(ctx, dir, extra, name, argv[1:]...)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return failed(errors.New(clean(err.Error())), clean(said), "the index's init command %q failed", clean(strings.Join(argv, " ")))
	}
	// What it has added to the environment belongs to it now.
	release, err := s.keys.take(ctx, env.Digest)
	if err != nil {
		return err
	}
	defer release()
	if err := note(env.Dir, false); err != nil {
		return failed(err, "", "what the environment has cannot be noted")
	}
	return nil
}
