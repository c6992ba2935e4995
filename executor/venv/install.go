package venv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/executor/sandbox"
)

// wanted is one package of a lock.
type wanted struct {
	line string // of a requirements file, with its options
	name string // in one way; empty for a path without one
	at   string // the address or the path that it comes from; empty for a release
}

// packages are those of a lock.
func packages(lock Lock) (all []wanted) {
	for _, line := range logical(lock.Requirements) {
		w := wanted{line: strings.TrimPrefix(line.text, "-e ")} // of an older lock: an installed index does not change
		if found := release(w.line); found != "" {
			w.name, _, _ = strings.Cut(found, "==")
		} else {
			name, place, _ := cutPlace(w.line)
			name, _, _ = strings.Cut(strings.TrimSuffix(name, " @ "), "[")
			w.name, w.at = normalized(strings.TrimSpace(name)), place
		}
		all = append(all, w)
	}
	return all
}

// wheel reports whether a package is one as it comes.
func (w wanted) wheel() bool {
	return strings.HasSuffix(strings.ToLower(withoutFragment(w.at)), ".whl")
}

// address reports whether a package comes from a place on the network that an index names.
func (w wanted) address() bool { return strings.Contains(w.at, "://") }

// install brings the packages of a lock into an environment, from wheels alone, which runs
// nothing of them. Those that have none are built first, apart.
func (s *Store) install(ctx context.Context, sourceDir string, lock Lock, making Making, i Interpreter, env string, progress Progress) error {
	uv, err := s.uv(ctx, progress)
	if err != nil {
		return err
	}
	progress.report("packages", "running", 60)
	work, err := os.MkdirTemp(s.dir, "new-work-")
	if err != nil {
		return err
	}
	defer sandbox.RemoveAll(work)                 //nolint:errcheck // swept at the next start
	if err := os.Chmod(work, 0o755); err != nil { //nolint:gosec // other users read it
		return err
	}
	login, err := lock.logins(making.Vars)
	if err != nil {
		return err
	}
	in := installation{s: s, work: work, sourceDir: sourceDir, login: login, i: i, env: env, uv: uv}
	for _, w := range packages(lock) {
		switch {
		case w.at == "":
			in.ready = append(in.ready, w)
		case w.wheel() && w.address():
			in.ready, in.apart = append(in.ready, w), true
		case w.wheel():
			if err := in.bring(&w); err != nil {
				return failed(err, "", "the index's dependencies cannot be installed")
			}
			in.ready = append(in.ready, w)
		default:
			in.build = append(in.build, w)
		}
	}
	// What has no wheel is found out one by one, without installing anything.
	said, err := in.take(ctx, len(in.build) > 0)
	for err != nil && ctx.Err() == nil && in.without(said) {
		// What failed may have left start-up files, and its words may be a package's.
		if err = errors.Join(os.RemoveAll(env), os.Mkdir(env, 0o755), skeleton(env, i)); err == nil { //nolint:gosec // see build
			said, err = in.take(ctx, true)
		}
	}
	if err == nil && len(in.build) > 0 {
		if making.NoBuild {
			return in.refused()
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

// installation is the way of the packages of one lock into an environment.
type installation struct {
	s         *Store
	work      string // a folder of ours, which others read
	sourceDir string
	login     logins
	i         Interpreter
	env, uv   string
	apart     bool // something comes from an address of the index

	ready []wanted // wheels, as far as is known
	build []wanted // what has none
	built []string // the files that were made of it
}

// bring copies a wheel of the index's folder, which the packager does not see.
func (in *installation) bring(w *wanted) error {
	source, err := os.OpenRoot(in.sourceDir)
	if err != nil {
		return err
	}
	defer source.Close()                                                         //nolint:errcheck // only read
	if err := os.MkdirAll(filepath.Join(in.work, "wheels"), 0o755); err != nil { //nolint:gosec // no secret
		return err
	}
	target, err := os.OpenRoot(filepath.Join(in.work, "wheels"))
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // the file is closed
	name := filepath.Base(w.at)
	if err := copyNew(source, filepath.Clean(w.at), target, name); err != nil {
		return err
	}
	w.line = strings.Replace(w.line, w.at, fileURL(filepath.Join(in.work, "wheels", name)), 1)
	return nil
}

func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// take installs what is ready and what was built. With dry it only finds out whether all
// that is ready has wheels.
func (in *installation) take(ctx context.Context, dry bool) (said string, err error) {
	var text strings.Builder
	for _, w := range in.ready {
		text.WriteString(w.line + "\n")
	}
	for _, file := range in.built {
		text.WriteString(fileURL(file) + "\n")
	}
	if text.Len() == 0 {
		return "", nil
	}
	file := filepath.Join(in.work, "wheels.txt")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil { //nolint:gosec // no secret
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

// without has a package built of which uv has said that it has no wheel; false where it has
// said no such thing.
func (in *installation) without(said string) bool {
	for _, found := range unbuilt.FindAllStringSubmatch(said, -1) {
		name, _, _ := strings.Cut(found[1], "==")
		name = normalized(name)
		at := slices.IndexFunc(in.ready, func(w wanted) bool { return w.name == name && w.at == "" })
		if at >= 0 {
			in.build = append(in.build, in.ready[at])
			in.ready = slices.Delete(in.ready, at, at+1)
			return true
		}
	}
	return false
}

// refused says what would have to be built.
func (in *installation) refused() error {
	var names []string
	for _, w := range in.build {
		names = append(names, cmp.Or(w.name, w.at))
	}
	return builds(names...)
}

// make builds what has no wheel, as a user and in a folder of its own, and takes the wheels
// that come of it: of all else that the build has done nothing is left.
func (in *installation) make(ctx context.Context) (said string, err error) {
	var text strings.Builder
	local := false
	for _, w := range in.build {
		text.WriteString(w.line + "\n")
		local = local || w.at != "" && !w.address()
	}
	file, target, wheels := filepath.Join(in.work, "builds.txt"), filepath.Join(in.work, "target"), filepath.Join(in.work, "built")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil { //nolint:gosec // no secret
		return "", err
	}
	if err := errors.Join(os.Mkdir(target, 0o755), os.Mkdir(wheels, 0o755)); err != nil { //nolint:gosec // no secret
		return "", err
	}
	st := step{role: Builder, dir: in.work, read: []string{in.work}, write: []string{target}, login: in.login}
	if local {
		// A backend writes beside its sources, and what it leaves there is not the index's.
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

// collect takes the wheels of what was installed into target out of the cache of the uv
// that has built them.
func (in *installation) collect(cache, target, wheels string) error {
	installed, err := os.ReadDir(target)
	if err != nil {
		return err
	}
	from, err := os.OpenRoot(cache)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // only read
	var made []string
	err = fs.WalkDir(from.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != "." && !strings.Contains(path, "/") && !strings.HasPrefix(path, "sdists-") {
			return fs.SkipDir
		}
		if entry.Type().IsRegular() && strings.HasSuffix(path, ".whl") {
			made = append(made, path)
		}
		return nil
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
			return fmt.Errorf("%s was built, and uv has kept no wheel of it", about)
		}
		file := filepath.Join(wheels, filepath.Base(made[at]))
		// A copy of it would have no holes, and could be as large as a build likes.
		err := errors.Join(from.Chmod(made[at], 0o644), os.Rename(filepath.Join(cache, made[at]), file))
		if err != nil {
			return err
		}
		in.built = append(in.built, file)
	}
	return nil
}
