package index

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// FetchOptions says how to fetch. nil is legal.
type FetchOptions struct {
	// Rev is the revision to fetch: a branch, a tag, a full or a short commit.
	// Defaults to the source's own, else the repository's default branch. It
	// must not contradict the source's own.
	Rev string
	// Git is the git command. Defaults to "git", looked up in PATH.
	Git string
	// Timeout bounds the whole fetch, on top of the context. Defaults to 5 min.
	Timeout time.Duration
	// Limits bound what is fetched.
	Limits Limits
	// Progress hears of steps ("resolve", "fetch", "checkout", "copy") and their
	// percentage, -1 where it is unknown. It is called from one goroutine at a
	// time and must not block. Defaults to nothing.
	Progress func(step string, percent int)
}

func (o *FetchOptions) withDefaults() FetchOptions {
	var d FetchOptions
	if o != nil {
		d = *o
	}
	if d.Git == "" {
		d.Git = "git"
	}
	if d.Timeout <= 0 {
		d.Timeout = 5 * time.Minute
	}
	if d.Progress == nil {
		d.Progress = func(string, int) {}
	}
	d.Limits = d.Limits.withDefaults()
	return d
}

// Tree is a fetched source.
type Tree struct {
	// Dir holds the files and nothing else.
	Dir string
	// Files are the slash-separated names below Dir, sorted: regular files and
	// symbolic links.
	Files []string
	// Revision names the content: the full commit of a git source, else the
	// digest of the bundle of the files alone.
	Revision string
	// Rev is the revision that was asked for, "" for the default.
	Rev string
	// Warnings are texts for people, e.g. a submodule that was left out.
	Warnings []string
}

// Fetch brings a source's files into the folder dest, which it creates and
// which must not exist; nothing is left there if it fails. All errors are
// install_failed with details.reason, except the context's own cancellation.
// Fetch may run concurrently for different dest.
func Fetch(ctx context.Context, src Source, dest string, options *FetchOptions) (*Tree, error) {
	o := options.withDefaults()
	if o.Rev != "" && src.Rev != "" && o.Rev != src.Rev {
		return nil, failed(reasonRevision, "the source says revision %q and the option %q; give one of them", src.Rev, o.Rev)
	}
	rev := o.Rev
	if rev == "" {
		rev = src.Rev
	}
	if rev != "" {
		if err := validRev(rev); err != nil {
			return nil, err
		}
	}
	bounded, cancel := context.WithTimeoutCause(ctx, o.Timeout, errTimeout)
	defer cancel()
	dest, err := filepath.Abs(dest)
	if err != nil {
		return nil, failed(reasonFolder, "the path %q cannot be made absolute: %w", dest, err)
	}
	if err := os.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
		return nil, failed(reasonFolder, "the folder above %s cannot be made: %w", dest, err)
	}
	if err := os.Mkdir(dest, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, failed(reasonExists, "%s exists already; fetch into a new folder", dest)
		}
		return nil, failed(reasonFolder, "%s cannot be made: %w", dest, err)
	}
	tree, err := fetchInto(bounded, src, rev, dest, o)
	if err != nil {
		_ = os.RemoveAll(dest)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(context.Cause(bounded), errTimeout) {
			return nil, failed(reasonTimeout, "fetching %s took longer than %s; raise the limit or try again", src, o.Timeout)
		}
		return nil, err
	}
	tree.warnOfPointers()
	return tree, nil
}

var errTimeout = errors.New("fetch timeout")

func fetchInto(ctx context.Context, src Source, rev, dest string, o FetchOptions) (*Tree, error) {
	g := git{command: o.Git, progress: o.Progress}
	switch src.Kind {
	case KindGit:
		return g.fetch(ctx, src.Location, src.login, rev, dest, o.Limits)
	case KindFolder:
		info, err := os.Stat(src.Location)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, failed(reasonFolder, "there is no folder %s", src.Location)
		case err != nil:
			return nil, failed(reasonFolder, "the folder %s cannot be read: %w", src.Location, err)
		case !info.IsDir():
			return nil, failed(reasonFolder, "%s is not a folder", src.Location)
		}
		if rev == "" {
			return fetchFolder(ctx, g, src.Location, dest, o)
		}
		root, err := g.root(ctx, src.Location)
		if err != nil {
			return nil, err
		}
		if !root {
			return nil, failed(reasonRevision, "a revision needs the root of a git repository, and %s is none; leave --rev out to take the folder as it is", src.Location)
		}
		return g.fetch(ctx, src.Location, nil, rev, dest, o.Limits)
	case KindFile:
		if rev != "" {
			return nil, failed(reasonRevision, "a single file has no revisions; leave --rev out")
		}
		return fetchFile(ctx, src.Location, dest, o)
	default:
		return nil, failed(reasonSource, "the source is empty")
	}
}

// fetchFolder takes a folder as it is on disk, without what is ignored.
func fetchFolder(ctx context.Context, g git, dir, dest string, o FetchOptions) (*Tree, error) {
	if within(dir, dest) {
		return nil, failed(reasonFolder, "%s is inside the folder that is to be installed", dest)
	}
	o.Progress("copy", -1)
	names, err := g.list(ctx, dir)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil || len(names) == 0 {
		// No work tree, no git, or a folder that its work tree ignores as a whole.
		if names, err = walk(ctx, dir, o.Limits.Files); err != nil {
			return nil, err
		}
	}
	return snapshot(ctx, dir, dest, names, o)
}

// fetchFile takes a single file. Of a link it takes what it leads to, under the
// link's own name: that is the one that was given.
func fetchFile(ctx context.Context, file, dest string, o FetchOptions) (*Tree, error) {
	info, err := os.Lstat(file)
	if err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return snapshot(ctx, filepath.Dir(file), dest, []string{filepath.Base(file)}, o)
	}
	real, name := "", filepath.Base(file)
	if err == nil {
		real, err = filepath.EvalSymlinks(file)
	}
	if err != nil {
		return nil, failed(reasonFolder, "the file %s cannot be read: %w", file, err)
	}
	tree, err := snapshot(ctx, filepath.Dir(real), dest, []string{filepath.Base(real)}, o)
	if err != nil || filepath.Base(real) == name {
		return tree, err
	}
	if err := os.Rename(filepath.Join(dest, filepath.Base(real)), filepath.Join(dest, name)); err != nil {
		return nil, failed(reasonFolder, "%s cannot be written: %w", name, err)
	}
	tree.Files = []string{name}
	tree.Revision, err = treeDigest(ctx, dest, tree.Files, o.Limits)
	return tree, err
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// snapshot copies the named files of dir, so that what is digested is what is
// packed, whatever an editor does meanwhile.
func snapshot(ctx context.Context, dir, dest string, names []string, o FetchOptions) (*Tree, error) {
	from, err := os.OpenRoot(dir)
	if err != nil {
		return nil, failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
	}
	defer from.Close()
	to, err := os.OpenRoot(dest)
	if err != nil {
		return nil, failed(reasonFolder, "the folder %s cannot be written: %w", dest, err)
	}
	defer to.Close()
	tree := &Tree{Dir: dest}
	c := copier{from: from, to: to, left: o.Limits.Bytes, limits: o.Limits}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > o.Limits.Files {
		return nil, c.tooMany()
	}
	for i, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if i%256 == 0 {
			o.Progress("copy", 100*i/len(names))
		}
		copied, warning, err := c.copy(name)
		if err != nil {
			return nil, err
		}
		if warning != "" {
			tree.Warnings = append(tree.Warnings, warning)
		}
		if copied {
			tree.Files = append(tree.Files, name)
		}
	}
	if len(tree.Files) == 0 {
		return nil, failed(reasonFolder, "the folder %s has no files that are not ignored", dir)
	}
	if tree.Revision, err = treeDigest(ctx, dest, tree.Files, o.Limits); err != nil {
		return nil, err
	}
	o.Progress("copy", 100)
	return tree, nil
}
