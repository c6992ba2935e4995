package venv

import (
	"context"
	"errors"
	"strings"
)

// Command runs an index's own set-up command in dir through confined, with environ as its whole
// environment, whose PATH begins with the programs of env. Its error is install_failed with the end of the command's output; clean takes
// secrets out of it. Changes that the command makes in the environment are noted so that they
// are not taken for damage; they are no more trusted than the command.
func (s *Store) Command(ctx context.Context, env *Env, dir string, argv, environ []string, clean func(string) string,
	confined func(context.Context, Job) ([]byte, string, error),
) error {
	_, said, err := confined(ctx, Job{
		Interpreter: env.Base, Dir: dir, Write: []string{dir, env.Dir}, Argv: argv, Env: append([]string{"VIRTUAL_ENV=" + env.Dir}, environ...),
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return failed(errors.New(clean(err.Error())), clean(said), "the index's init command %q failed", clean(strings.Join(argv, " ")))
	}
	if err = s.noteFiles(ctx, place{s.dir, env.Digest}); err != nil {
		return failed(err, "", "the files of the environment cannot be recorded")
	}
	return nil
}

// noteFiles seals an environment again and records its files.
func (s *Store) noteFiles(ctx context.Context, at place) error {
	release, err := s.keys.take(ctx, at.digest)
	if err != nil {
		return err
	}
	defer release()
	m, err := at.marker()
	if err != nil {
		return err
	}
	if err := seal(at.env(), m.Interpreter); err != nil {
		return err
	}
	files, err := list(at.env(), nil, m.Compiled)
	if err != nil {
		return err
	}
	return writeJSON(at.file(listingName), files)
}
