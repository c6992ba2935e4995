package venv

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
)

// Command runs an index's own set-up command in dir through confined, with environ as its whole
// environment. Its error is install_failed with the end of the command's output; clean takes
// secrets out of it. Changes that the command makes in the environment are noted so that they
// are not taken for damage; they are no more trusted than the command.
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
	_, said, err := confined(ctx, Job{
		Interpreter: env.Base, Dir: dir, Write: []string{dir, env.Dir}, Argv: append([]string{name}, argv[1:]...), Env: extra,
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return failed(errors.New(clean(err.Error())), clean(said), "the index's init command %q failed", clean(strings.Join(argv, " ")))
	}
	release, err := s.keys.take(ctx, env.Digest)
	if err != nil {
		return err
	}
	defer release()
	at := place{s.dir, env.Digest}
	m, err := at.marker()
	if err == nil {
		err = seal(at.env(), m.Interpreter)
	}
	var files listing
	if err == nil {
		files, err = list(at.env(), nil, false)
	}
	if err == nil {
		err = writeJSON(at.file(listingName), files)
	}
	if err != nil {
		return failed(err, "", "the files of the environment cannot be recorded")
	}
	return nil
}
