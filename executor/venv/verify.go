package venv

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// filesName is the list of what an environment has, beside its marker.
const filesName = "toolmesh-files.json"

// listing is what is noted of each file by its path: for all but links its size
// and the time of its last change. That a file has other content of the same size
// and the same time is not found.
type listing map[string]string

// bytecode is the folder that Python, and libraries that compile, add to by
// themselves.
const bytecode = "__pycache__"

// list reads what there is in a folder.
func list(dir string) (listing, error) {
	all := listing{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(entry.Name(), "toolmesh-") {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
		if info.Mode()&fs.ModeSymlink != 0 {
			if note, err = os.Readlink(path); err != nil {
				return err
			}
		}
		all[path[len(dir)+1:]] = note
		return nil
	})
	return all, err
}

// damage says what an environment is not as it was when its list was written;
// empty when it is. changed says that a file may have been written to that other
// environments and the cache of packages have too.
func damage(dir string) (what string, changed bool) {
	noted, err := readJSON[listing](filepath.Join(dir, filesName))
	var now listing
	if err == nil {
		now, err = list(dir)
	}
	if err != nil {
		return err.Error(), false
	}
	for path, note := range now {
		switch was, ok := noted[path]; {
		case !ok && filepath.Base(filepath.Dir(path)) != bytecode:
			what = path + " was added"
		case ok && was != note:
			return path + " was changed", true
		}
		delete(noted, path)
	}
	for path := range noted {
		what = path + " is gone"
	}
	return what, false
}

// note writes the list of an environment; with onlyBytecode what else is noted
// stays.
func note(dir string, onlyBytecode bool) error {
	now, err := list(dir)
	if err != nil {
		return err
	}
	if onlyBytecode {
		noted, err := readJSON[listing](filepath.Join(dir, filesName))
		if err != nil {
			return err
		}
		for path, note := range now {
			if filepath.Base(filepath.Dir(path)) == bytecode {
				noted[path] = note
			}
		}
		now = noted
	}
	return writeJSON(filepath.Join(dir, filesName), now)
}

// writeJSON puts a file in place as a whole.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil { //nolint:gosec // no secret
		return err
	}
	return os.Rename(path+".new", path)
}

// readMarker reads what was noted of an environment when it was finished.
func readMarker(dir string) (marker, error) { return readJSON[marker](filepath.Join(dir, markerName)) }

func readJSON[T any](path string) (value T, err error) {
	data, err := os.ReadFile(path) //nolint:gosec // our own folder
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	return value, err
}

// compile makes the bytecode of an environment in the background: what is used
// before it is there compiles its own part. Its end is noted, so that what a
// process leaves that ends before is done by the next.
func (s *Store) compile(env *Env, m marker) {
	s.uses.take(env.Digest)
	ctx, end := s.begin(context.Background())
	s.running.Go(func() {
		defer s.uses.give(env.Digest)
		defer end()
		said, err := s.runCompiler(ctx, m.Interpreter, sitePackages(env.Dir, m.Interpreter), sitePackages(env.Dir, m.Interpreter), "19")
		if err == nil {
			var release func()
			if release, err = s.keys.take(ctx, env.Digest); err == nil {
				defer release()
				m.Compiled = true
				if err = note(env.Dir, true); err == nil {
					err = writeJSON(filepath.Join(env.Dir, markerName), m)
				}
			}
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("the packages of an environment are not compiled", slog.String("digest", env.Digest),
				slog.Any("error", err), slog.String("said", lastLine(said)))
		}
	})
}

// compileIn makes the bytecode of an environment before it is put in its place. One
// without is as good, and slower.
func (s *Store) compileIn(ctx context.Context, beside, final string, i Interpreter) {
	if said, err := s.runCompiler(ctx, i, sitePackages(beside, i), sitePackages(final, i), "0"); err != nil && ctx.Err() == nil {
		s.log.Warn("the packages of an environment are not compiled", slog.String("digest", filepath.Base(final)),
			slog.Any("error", err), slog.String("said", lastLine(said)))
	}
}

// runCompiler compiles all modules of a folder, which is to be called as said by then, with
// that much less of a claim to the processors.
func (s *Store) runCompiler(ctx context.Context, i Interpreter, folder, called, nice string) (said string, err error) {
	const script = `import compileall, os, py_compile, sys
os.nice(int(sys.argv[3]))
compileall.compile_dir(sys.argv[1], ddir=sys.argv[2], quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`
	_, said, err = s.run(ctx, s.dir, nil, i.Path, "-I", "-S", "-c", script, folder, called, nice)
	return said, err
}

// dropBytecode removes what a compilation that was stopped has left.
func dropBytecode(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == bytecode {
			if err = os.RemoveAll(path); err == nil {
				return filepath.SkipDir
			}
		}
		return err
	})
}
