package venv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// place has the paths of an environment and of its records, which lie outside of it, where an
// index cannot write.
type place struct{ folder, digest string }

// The records of an environment.
const (
	markerName  = ".json"       // a [marker]
	listingName = ".files.json" // a [listing]
)

func (p place) envs() string            { return filepath.Join(p.folder, "envs") }
func (p place) env() string             { return filepath.Join(p.envs(), p.digest) }
func (p place) python() string          { return filepath.Join(p.env(), "bin", "python") }
func (p place) records() string         { return filepath.Join(p.folder, "records") }
func (p place) file(name string) string { return filepath.Join(p.records(), p.digest+name) }

// marker reads the marker of a finished environment.
func (p place) marker() (marker, error) { return readJSON[marker](p.file(markerName)) }

// moveAway moves an environment, which processes may be using, to a folder that is swept, in
// case this process ends before its caller has removed it.
func (p place) moveAway() (folder string, err error) {
	if folder, err = os.MkdirTemp(p.envs(), "new-"); err != nil {
		return "", err
	}
	if err = os.Rename(p.env(), filepath.Join(folder, p.digest)); err != nil {
		_ = os.Remove(folder)
	}
	return folder, err
}

// forget removes the records, which makes the environment invalid.
func (p place) forget() error {
	return errors.Join(os.RemoveAll(p.file(markerName)), os.RemoveAll(p.file(listingName)))
}

// listing has the record of each file by its path.
type listing map[string]noted

// noted is the record of a file, or the target of a link. State is its size and the times of
// its last changes; only root can set back that of its inode. Sum is the SHA-256 of its content,
// computed together with the bytecode.
type noted struct {
	State string `json:"state,omitempty"`
	Sum   string `json:"sum,omitempty"`
	Link  string `json:"link,omitempty"`
}

// bytecode is the folder to which Python, and libraries that compile, add files at any time.
const bytecode = "__pycache__"

func isBytecode(path string) bool { return filepath.Base(filepath.Dir(path)) == bytecode }

// maxFiles bounds the bytes read of a folder: an index may make a sparse file of any size.
const maxFiles = 100 << 30

// list lists the files of a folder. Files with the same state as in known have the record that
// they have there; with sums it reads the contents of all others.
func list(dir string, known listing, sums bool) (listing, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read
	all, left := listing{}, int64(maxFiles)
	var unread []string
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, path), &st); err != nil {
			return err
		}
		if left -= st.Size; left < 0 {
			return fmt.Errorf("its files are larger than %d bytes in all", int64(maxFiles))
		}
		now := noted{State: fmt.Sprintf("%d %d %d", st.Size, st.Mtim.Nano(), st.Ctim.Nano())}
		switch was := known[path]; {
		case entry.Type()&fs.ModeSymlink != 0:
			now.State = ""
			now.Link, err = root.Readlink(path)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is not a regular file", path)
		case was.State == now.State:
			now = was
		case sums:
			unread = append(unread, path)
		}
		all[path] = now
		return err
	})
	for i := 0; i < len(unread) && err == nil; i++ { // once the size of all is known
		now := all[unread[i]]
		now.Sum, err = sumOf(root, unread[i])
		all[unread[i]] = now
		if errors.Is(err, fs.ErrNotExist) { // of bytecode that Python writes, or as if it had gone before
			delete(all, unread[i])
			err = nil
		}
	}
	return all, err
}

func sumOf(root *os.Root, path string) (string, error) {
	f, err := root.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), err
}

// damage returns an error if a folder differs from its listing, the file record. A file that was
// only touched or copied is recorded again.
func damage(dir, record string) error {
	was, err := readJSON[listing](record)
	if err != nil {
		return err
	}
	now, err := list(dir, was, true)
	if err != nil {
		return err
	}
	for path, found := range now {
		before, ok := was[path]
		before.State = found.State
		switch {
		case !ok && isBytecode(path):
			delete(now, path)
		case !ok:
			return fmt.Errorf("%s was added", path)
		case before != found:
			return fmt.Errorf("%s was changed", path)
		}
	}
	for path := range was {
		if _, ok := now[path]; !ok {
			return fmt.Errorf("%s is gone", path)
		}
	}
	if !maps.Equal(now, was) {
		_ = writeJSON(record, now) // otherwise the next check only takes longer
	}
	return nil
}

// writeJSON replaces a file atomically. Only this process writes in its folder.
func writeJSON(path string, value any) error {
	data, _ := json.Marshal(value) // of texts and numbers
	beside, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = beside.Write(data)
	err = errors.Join(err, beside.Chmod(0o644), beside.Close())
	if err == nil {
		err = os.Rename(beside.Name(), path)
	}
	if err != nil {
		_ = os.Remove(beside.Name())
	}
	return err
}

func readJSON[T any](path string) (value T, err error) {
	data, err := os.ReadFile(path) //nolint:gosec // our own folder
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	return value, err
}

// compile makes the bytecode of an environment in the background; tools that start earlier run
// without it. Its end is recorded, so that the next process compiles again if this one ends before.
func (s *Store) compile(at place, m marker) {
	s.uses.take(at.digest)
	ctx, end := s.begin(context.Background())
	s.running.Go(func() {
		defer s.uses.give(at.digest)
		defer end()
		err := s.compileTo(ctx, m.Interpreter, at.env(), at.env(), "19")
		if err == nil {
			err = s.noteBytecode(ctx, at, m)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("packages of an environment could not be compiled", slog.String("digest", at.digest), slog.String("error", err.Error()))
		}
	})
}

// noteBytecode adds the existing bytecode, and checksums, to the records of an environment.
func (s *Store) noteBytecode(ctx context.Context, at place, m marker) error {
	release, err := s.keys.take(ctx, at.digest)
	if err != nil {
		return err
	}
	defer release()
	was, err := readJSON[listing](at.file(listingName))
	if err != nil {
		return err
	}
	now, err := list(at.env(), nil, true)
	if err != nil {
		return err
	}
	for path, found := range now {
		if before := was[path]; isBytecode(path) || before.State == found.State && before.Link == found.Link {
			was[path] = found
		}
	}
	if err := writeJSON(at.file(listingName), was); err != nil {
		return err
	}
	m.Compiled = true
	return writeJSON(at.file(markerName), m)
}

// compileTo compiles all modules of an environment that will lie at final, with the given
// niceness. The compiler can read the environment and write to a folder of its own; its files
// are then copied into the environment where none exists.
func (s *Store) compileTo(ctx context.Context, i Interpreter, env, final, nice string) error {
	const script = `import compileall, os, py_compile, sys
os.nice(int(sys.argv[3]))
compileall.compile_dir(sys.argv[1], ddir=sys.argv[2], quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`
	tmp, err := os.MkdirTemp(s.dir, "new-tmp-")
	if err != nil {
		return err
	}
	defer deep.RemoveAll(tmp) //nolint:errcheck // swept at the next start
	modules, called := sitePackages(env, i), sitePackages(final, i)
	_, said, err := s.confine(ctx, Compiler, Job{
		Interpreter: i.Path, Dir: tmp, Tmp: tmp, Read: []string{env},
		Argv: []string{i.Path, "-I", "-S", "-X", "pycache_prefix=" + filepath.Join(tmp, "out"), "-c", script, modules, called, nice},
		Env:  []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin", "TMPDIR=" + tmp},
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(said))
	}
	return takeBytecode(filepath.Join(tmp, "out", modules), modules)
}

// takeBytecode copies bytecode from a folder with the layout of the modules to the places where
// Python looks for it.
func takeBytecode(from, modules string) error {
	if !isDir(from) {
		return nil // no modules
	}
	target, err := os.OpenRoot(modules)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // only for its folders
	return fs.WalkDir(os.DirFS(from), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !strings.HasSuffix(path, ".pyc") {
			return err
		}
		folder := filepath.Join(filepath.Dir(path), bytecode)
		_ = target.Mkdir(folder, 0o755)
		if info, err := target.Lstat(folder); err != nil || !info.IsDir() {
			return nil //nolint:nilerr // no such modules, or a package has another file there
		}
		return copyNew(from, path, modules, filepath.Join(folder, filepath.Base(path)))
	})
}

// copyNew copies a file from one folder to another unless it exists there. It follows no link
// out of either.
func copyNew(from, path, to, name string) error {
	in, err := os.OpenInRoot(from, path)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	target, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // the file is closed
	out, err := target.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// dropBytecode removes the bytecode of an interrupted compilation.
func dropBytecode(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == bytecode {
			if err = deep.RemoveAll(path); err == nil {
				return filepath.SkipDir
			}
		}
		return err
	})
}
