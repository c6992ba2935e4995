package index

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// fetching is how a source is fetched.
type fetching struct {
	git     string        // the command
	timeout time.Duration // of the whole fetch, on top of the context
	silence time.Duration // in whole seconds: an HTTP server that is silent for longer is given up
	limits  Limits
	lookup  resolver // nil: the source may be anywhere
	apart   *Apart   // nil: git runs as this process
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
	// Warnings are texts for people, e.g. a submodule that was left out.
	Warnings []string
}

// FetchOptions adjust [Fetch].
type FetchOptions struct {
	// Public is for a source that a remote caller names: one on this machine or in a private
	// network is refused with invalid_request.
	Public bool
	// Apart runs git where it needs nothing of this process's user. Defaults to this process.
	Apart *Apart
}

// Fetch brings a source's files into the folder dest, which it creates and
// which must not exist; nothing is left there if it fails. All errors are
// install_failed with details.reason, except the context's own cancellation.
// Fetch may run concurrently for different dest. rev is a branch, a tag, a full or
// a short commit; "" is the source's own, else the repository's default branch. It
// must not contradict the source's own.
func Fetch(ctx context.Context, src Source, dest, rev string, o FetchOptions) (*Tree, error) {
	how := fetching{git: "git", timeout: 5 * time.Minute, silence: 30 * time.Second, limits: defaultLimits, apart: o.Apart}
	if o.Public {
		how.lookup = net.DefaultResolver.LookupNetIP
	}
	return how.fetch(ctx, src, dest, rev)
}

func (o fetching) fetch(ctx context.Context, src Source, dest, rev string) (*Tree, error) {
	if rev != "" && src.Rev != "" && rev != src.Rev {
		return nil, failed(reasonRevision, "the source says revision %q and the option %q; give one of them", src.Rev, rev)
	}
	if rev = cmp.Or(rev, src.Rev); rev != "" {
		if err := validRev(rev); err != nil {
			return nil, err
		}
	}
	bounded, cancel := context.WithTimeoutCause(ctx, o.timeout, errTimeout)
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
	tree, err := o.into(bounded, src, rev, dest)
	if err != nil {
		_ = os.RemoveAll(dest)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(context.Cause(bounded), errTimeout) {
			return nil, failed(reasonTimeout, "fetching %s took longer than %s; raise the limit or try again", src, o.timeout)
		}
		return nil, err
	}
	tree.warnOfPointers()
	return tree, nil
}

var errTimeout = errors.New("fetch timeout")

func (o fetching) into(ctx context.Context, src Source, rev, dest string) (*Tree, error) {
	g := git{command: o.git, silence: o.silence}
	if o.lookup != nil {
		var err error
		if g.pin, err = g.public(ctx, src, o.lookup); err != nil {
			return nil, err
		}
	}
	switch src.Kind {
	case KindGit:
		return g.fetch(ctx, src.Location, src.login, rev, dest, o.limits, o.apart)
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
			return fetchFolder(ctx, g, src.Location, dest, o.limits)
		}
		if _, err := os.Lstat(filepath.Join(src.Location, ".git")); err != nil {
			return nil, failed(reasonRevision, "a revision needs the root of a git repository, and %s is none; leave --rev out to take the folder as it is", src.Location)
		}
		return g.fetch(ctx, src.Location, nil, rev, dest, o.limits, o.apart)
	case KindFile:
		if rev != "" {
			return nil, failed(reasonRevision, "a single file has no revisions; leave --rev out")
		}
		return fetchFile(ctx, src.Location, dest, o.limits)
	default:
		return nil, failed(reasonSource, "the source is empty")
	}
}

// fetchFolder takes a folder as it is on disk, without ignored files. It copies the folder, so
// that the packed files are the digested ones even if an editor writes meanwhile.
func fetchFolder(ctx context.Context, g git, dir, dest string, limits Limits) (*Tree, error) {
	if within(dir, dest) {
		return nil, failed(reasonFolder, "%s is inside the folder that is to be installed", dest)
	}
	var names []string
	_, err := exec.LookPath(g.command)
	if err == nil {
		names, err = g.list(ctx, dir, filepath.Dir(dest))
	} else {
		names, err = walk(ctx, dir, limits)
	}
	if err != nil {
		return nil, err
	}
	from, err := os.OpenRoot(dir)
	if err != nil {
		return nil, failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
	}
	defer from.Close()
	tree := &Tree{Dir: dest}
	if names, tree.Warnings, err = regularFiles(from, names); err != nil {
		return nil, err
	}
	return tree, tree.fill(ctx, limits, nil, func(w io.Writer) (err error) {
		tree.Revision, err = writeTar(ctx, w, dir, names, nil, limits)
		return err
	})
}

// fetchFile takes a single file, of a link the target under the link's own name.
func fetchFile(ctx context.Context, file, dest string, limits Limits) (*Tree, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, failed(reasonFolder, "the file %s cannot be read: %w", file, err)
	case !info.Mode().IsRegular():
		return nil, failed(reasonFolder, "%s is not a file", file)
	case info.Size() > limits.Bytes:
		return nil, tooLarge(limits)
	}
	tree := &Tree{Dir: dest, Files: []string{filepath.Base(file)}}
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(dest, tree.Files[0]), data, fileMode(info.Mode()))
	}
	if err != nil {
		return nil, failed(reasonFolder, "the file %s cannot be copied: %w", file, err)
	}
	tree.Revision, err = writeTar(ctx, io.Discard, dest, tree.Files, nil, limits)
	return tree, err
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}
