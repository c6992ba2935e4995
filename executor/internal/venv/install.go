package venv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// install brings the packages of a lock into an environment, from wheels alone, which runs no
// code of theirs. Packages without a wheel are built first, in a folder of their own.
func (s *Store) install(ctx context.Context, sourceDir string, lock Lock, making Making, i Interpreter, env string, progress Progress) error {
	uv, err := s.uv(ctx, progress)
	if err != nil {
		return err
	}
	progress.report("packages", "running", 60)
	work, err := s.workFolder()
	if err != nil {
		return err
	}
	defer deep.RemoveAll(work) //nolint:errcheck // swept at the next start
	login, err := lock.logins(making.Vars)
	if err != nil {
		return err
	}
	in := installation{s: s, work: work, sourceDir: sourceDir, login: login, i: i, env: env, uv: uv}
	for n, w := range packages(lock.Requirements) {
		switch {
		case w.at == "":
			in.ready = append(in.ready, w)
		case w.wheel() && isAddress(w.at):
			in.ready, in.apart = append(in.ready, w), true
		case w.wheel():
			// The packager does not see the index's folder.
			name, folder := filepath.Base(w.at), filepath.Join(work, strconv.Itoa(n)) // two may share a name
			err := os.Mkdir(folder, 0o755)                                            //nolint:gosec // no secret
			if err == nil {
				err = copyNew(sourceDir, filepath.Clean(w.at), folder, name)
			}
			if err != nil {
				return failed(err, "", "the index's dependencies cannot be installed")
			}
			in.ready = append(in.ready, w.placeIn(fileURL(filepath.Join(folder, name))))
		default:
			in.build = append(in.build, w)
		}
	}
	// Packages without a wheel are found one by one, without installing anything.
	said, err := in.take(ctx, len(in.build) > 0)
	for err != nil && ctx.Err() == nil && in.without(said) {
		// The failed step may have left start-up files, and its output may come from a package.
		if err = errors.Join(deep.RemoveAll(env), os.Mkdir(env, 0o755), skeleton(env, i)); err == nil { //nolint:gosec // see build
			said, err = in.take(ctx, true)
		}
	}
	if err == nil && len(in.build) > 0 {
		if making.NoBuild {
			return builds(namesOf(in.build)...)
		}
		progress.report("builds", "running", 70)
		if said, err = in.make(ctx); err == nil {
			said, err = in.take(ctx, false)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return failed(err, said, "the index's dependencies cannot be installed")
	}
	return nil
}

// installation brings the packages of one lock into an environment.
type installation struct {
	s         *Store
	work      string // a folder of ours, which others read
	sourceDir string
	login     logins
	i         Interpreter
	env, uv   string
	apart     bool // something comes from an address of the index

	ready []lockLine // have wheels, as far as is known
	build []lockLine // have no wheel
}

func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

func (in *installation) requirements(name string, all []lockLine) (file string, err error) {
	file = filepath.Join(in.work, name)
	return file, os.WriteFile(file, []byte(textOf(all)), 0o644) //nolint:gosec // no secret
}

// take installs the packages that are ready. With dry it only finds out whether all have wheels.
func (in *installation) take(ctx context.Context, dry bool) (said string, err error) {
	if len(in.ready) == 0 {
		return "", nil
	}
	file, err := in.requirements("wheels.txt", in.ready)
	if err != nil {
		return "", err
	}
	args := []string{"pip", "install", "--quiet", "--no-deps", "--no-build", "--no-sources",
		"--python", filepath.Join(in.env, "bin", "python"), "--requirements", file}
	if dry {
		args = append(args, "--dry-run")
	}
	st := step{role: Packager, apart: in.apart, dir: in.work, read: []string{in.work}, write: []string{in.env}, login: in.login}
	_, said, err = in.s.runUV(ctx, in.i, in.uv, st, nil, args...)
	return said, err
}

// without moves the package for which uv reported no wheel to those to be built; false if uv
// reported no such package.
func (in *installation) without(said string) bool {
	for _, found := range withoutWheel(said) {
		name, _, _ := strings.Cut(found, "==")
		name = normalized(name)
		at := slices.IndexFunc(in.ready, func(w lockLine) bool { return w.name == name && w.at == "" })
		if at >= 0 {
			in.build = append(in.build, in.ready[at])
			in.ready = slices.Delete(in.ready, at, at+1)
			return true
		}
	}
	return false
}

// make builds the packages without a wheel, as a user and in a folder of its own, and keeps
// the wheels alone.
func (in *installation) make(ctx context.Context) (said string, err error) {
	file, err := in.requirements("builds.txt", in.build)
	if err != nil {
		return "", err
	}
	target, wheels := filepath.Join(in.work, "target"), filepath.Join(in.work, "built")
	if err := errors.Join(os.Mkdir(target, 0o755), os.Mkdir(wheels, 0o755)); err != nil { //nolint:gosec // no secret
		return "", err
	}
	st := step{role: Builder, dir: in.work, read: []string{in.work}, write: []string{target}, login: in.login}
	if slices.ContainsFunc(in.build, func(l lockLine) bool { return l.at != "" && !isAddress(l.at) }) {
		// A backend writes next to its sources; those files are not the index's.
		st.dir = filepath.Join(in.work, "source")
		if err := os.CopyFS(st.dir, os.DirFS(in.sourceDir)); err != nil {
			return "", err
		}
		st.write = append(st.write, st.dir)
	}
	_, said, err = in.s.runUV(ctx, in.i, in.uv, st, func(tmp string) error { return in.collect(filepath.Join(tmp, "cache"), target, wheels) },
		"pip", "install", "--quiet", "--no-deps", "--no-sources", "--python", in.i.Path, "--target", target, "--requirements", file)
	return said, err
}

// collect moves the wheels of the packages that were installed into target out of the cache of
// the uv that built them.
func (in *installation) collect(cache, target, wheels string) error {
	installed, err := os.ReadDir(target)
	if err != nil {
		return err
	}
	var made []string
	err = filepath.WalkDir(cache, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && strings.HasSuffix(path, ".whl") && strings.HasPrefix(path, filepath.Join(cache, "sdists-")) {
			made = append(made, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, one := range installed {
		about, ok := strings.CutSuffix(one.Name(), ".dist-info")
		if !ok || !one.IsDir() {
			continue
		}
		at := slices.IndexFunc(made, func(path string) bool { return strings.HasPrefix(filepath.Base(path), about+"-") })
		if at < 0 {
			return fmt.Errorf("%s was built, but uv kept no wheel of it", about)
		}
		file := filepath.Join(wheels, filepath.Base(made[at]))
		// A copy would have no holes and could fill the disk.
		if err := errors.Join(os.Chmod(made[at], 0o644), os.Rename(made[at], file)); err != nil { //nolint:gosec // no secret
			return err
		}
		in.ready = append(in.ready, lockLine{text: fileURL(file)})
	}
	return nil
}
