package index

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh"
)

// A bundle is a tar archive compressed with zstd. The archive is canonical:
// files and symbolic links only, sorted by name, times and owners zero, modes
// 0644 and 0755. Its name is its digest, the hex SHA-256 of the archive before
// compression, so that another compressor does not make another bundle.
const (
	// MetaDir is the folder in a bundle that is ours; no index may have it.
	MetaDir = ".toolmesh"
	// LockFile holds the resolved dependencies, one pinned requirement a line.
	LockFile = "lock.txt"
	// InfoFile describes the bundle's source, as a JSON object.
	InfoFile = "bundle.json"
)

// Info is the content of [InfoFile].
type Info struct {
	// Source is the source as it may be shown, without credentials.
	Source string `json:"source"`
	// Revision is the revision that it was.
	Revision string `json:"revision"`
	// Upload says that a client packed it for an agent to install, which makes
	// another bundle of it: nothing that is installed is this one.
	Upload bool `json:"upload,omitempty"`
}

// Pack writes the named files of dir (a [Tree]'s) as a bundle, with meta as the
// files of [MetaDir] by their names, e.g. [LockFile], and returns its digest.
// Equal trees give equal bytes. The error is install_failed, the context's, or w's.
func Pack(ctx context.Context, w io.Writer, dir string, files []string, meta map[string][]byte) (digest string, err error) {
	z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(8<<20)) // these are valid
	digest, err = writeTar(ctx, z, dir, files, meta, defaultLimits)
	if closeErr := z.Close(); err == nil && closeErr != nil {
		err = failed(reasonBundle, "the bundle cannot be written: %w", closeErr)
	}
	return digest, err
}

// writeTar writes the archive of a bundle and returns its digest.
func writeTar(ctx context.Context, w io.Writer, dir string, files []string, meta map[string][]byte, limits Limits) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
	}
	defer root.Close()
	entries := map[string][]byte{} // nil: a file of dir
	for _, name := range files {
		if err := checkName(name); err != nil {
			return "", err
		}
		if name == MetaDir || strings.HasPrefix(name, MetaDir+"/") {
			return "", failed(reasonUnsafe, "the index has a file %s; the folder %s is reserved", name, MetaDir)
		}
		entries[name] = nil
	}
	for name, data := range meta {
		entries[MetaDir+"/"+name] = append([]byte{}, data...)
	}
	if len(entries) > limits.Files {
		return "", tooMany(limits)
	}
	hash := sha256.New()
	archive, left := tar.NewWriter(io.MultiWriter(w, hash)), limits.Bytes
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		h, content, err := entryOf(root, name, entries[name])
		if err != nil {
			return "", err
		}
		if left -= h.Size; left < 0 {
			err = tooLarge(limits)
		} else if err = add(archive, h, content); err != nil && toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed {
			err = failed(reasonBundle, "%s cannot be packed: %w", name, err)
		}
		_ = content.Close()
		if err != nil {
			return "", err
		}
	}
	if err := archive.Close(); err != nil {
		return "", failed(reasonBundle, "the bundle cannot be written: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// entryOf is an entry of a bundle: the content of a file of [MetaDir], else a file of the tree.
func entryOf(root *os.Root, name string, meta []byte) (*tar.Header, io.ReadCloser, error) {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(meta)), ModTime: time.Unix(0, 0)}
	content := io.NopCloser(bytes.NewReader(meta))
	if meta != nil {
		return h, content, nil
	}
	info, err := root.Lstat(name)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = root.Readlink(name); err == nil {
			h.Linkname, err = checkLink(name, h.Linkname)
			return h, content, err
		}
	case info.Mode().IsRegular():
		h.Mode, h.Size = int64(fileMode(info.Mode())), info.Size()
		content, err = root.Open(name)
	default:
		return nil, nil, failed(reasonUnsafe, "%s is neither a file nor a symbolic link", name)
	}
	if err != nil {
		return nil, nil, failed(reasonFolder, "%s cannot be read: %w", name, err)
	}
	return h, content, nil
}

// add writes an entry.
func add(archive *tar.Writer, h *tar.Header, content io.Reader) error {
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(archive, io.LimitReader(content, h.Size))
	if err == nil && n != h.Size {
		err = failed(reasonFolder, "%s became shorter while it was packed; try again", h.Name)
	}
	return err
}

// Bounds on names, those of the common file systems.
const (
	maxName = 1024
	maxPart = 255
)

// checkName refuses a name that is not plainly a file below its folder on every
// system.
func checkName(name string) error {
	bad := func(why string) error {
		if len(name) > 100 {
			name = name[:100] + "…"
		}
		return failed(reasonUnsafe, "the file name %q is refused: %s", name, why)
	}
	switch {
	case len(name) > maxName:
		return bad("it is longer than 1024 bytes")
	case !fs.ValidPath(name) || name == ".":
		return bad("it is not a plain relative path in UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }):
		return bad("it has a control character or a backslash")
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxPart {
			return bad("a part of it is longer than 255 bytes")
		}
		if isGit(part) {
			return bad("a .git folder is not taken along")
		}
	}
	return nil
}

// isGit reports whether git sees a part of a name as its folder, on file systems that ignore case.
func isGit(part string) bool { return strings.EqualFold(part, ".git") }

// checkLink returns the clean target of a symbolic link, or refuses one that may
// lead out of the tree. Going up is allowed only at the beginning, where it
// passes real folders: behind another link it could lead anywhere.
func checkLink(name, target string) (string, error) {
	bad := failed(reasonUnsafe, "the symbolic link %s points to %q, which is outside of the index or not plain; copy the file, or link inside the index", name, target)
	if target == "" || len(target) > maxName || path.IsAbs(target) || strings.ContainsAny(target, "\\\x00") {
		return "", bad
	}
	down := false
	depth := strings.Count(name, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; down || depth < 0 {
				return "", bad
			}
		default:
			down = true
			if isGit(part) {
				return "", bad
			}
		}
	}
	return path.Clean(target), nil
}

// extract unpacks a bundle into an empty folder and returns the names of its entries, and its
// digest.
func extract(ctx context.Context, r io.Reader, dir string, limits Limits) (names []string, digest string, err error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, "", failed(reasonBundle, "the bundle is not readable: %w", err)
	}
	defer z.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", failed(reasonFolder, "%s cannot be written: %w", dir, err)
	}
	defer root.Close()
	hash := sha256.New()
	names, err = extractTar(ctx, io.TeeReader(z, hash), root, limits, nil)
	return names, hex.EncodeToString(hash.Sum(nil)), err
}

// fill makes a tree of the archive that write writes, except entries for which pass returns
// true.
func (t *Tree) fill(ctx context.Context, limits Limits, pass func(h *tar.Header) bool, write func(w io.Writer) error) error {
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return failed(reasonFolder, "the folder %s cannot be written: %w", t.Dir, err)
	}
	defer root.Close()
	r, w := io.Pipe()
	var writer errgroup.Group
	writer.Go(func() error { return w.CloseWithError(write(w)) })
	t.Files, err = extractTar(ctx, r, root, limits, pass) // its error has the writer's, if that was the first
	_ = r.CloseWithError(err)
	_ = writer.Wait()
	if err != nil {
		return err
	}
	if len(t.Files) == 0 {
		return failed(reasonFolder, "the source has no files that are not ignored")
	}
	slices.Sort(t.Files)
	return nil
}

// extractTar extracts an archive to its end and returns the names of its entries.
func extractTar(ctx context.Context, r io.Reader, root *os.Root, limits Limits, pass func(h *tar.Header) bool) ([]string, error) {
	// In addition to the files an archive has a header of 512 bytes, or three with
	// extended records and their padding, for each entry.
	bounded := &io.LimitedReader{R: r, N: limits.Bytes + int64(limits.Files)*4096 + 1<<16}
	names, err := extractAll(ctx, tar.NewReader(bounded), root, limits, pass)
	if err == nil {
		// The archive's end mark and everything after it count for the digest.
		_, err = io.Copy(io.Discard, bounded)
	}
	var own *toolmesh.Error
	switch {
	case errors.As(err, &own), ctx.Err() != nil:
		return nil, cmp.Or(err, ctx.Err())
	case bounded.N <= 0, errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return nil, tooLarge(limits)
	case err != nil:
		return nil, failed(reasonBundle, "the bundle is not readable: %w", err)
	}
	return names, nil
}

// extractAll extracts the entries; symbolic links are made last, so that no file can
// be written through one.
func extractAll(ctx context.Context, archive *tar.Reader, root *os.Root, limits Limits, pass func(h *tar.Header) bool) (names []string, err error) {
	links, left := map[string]string{}, limits.Bytes
	for ctx.Err() == nil {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if pass != nil && pass(h) {
			continue
		}
		if err := checkName(h.Name); err != nil {
			return nil, err
		}
		if names = append(names, h.Name); len(names) > limits.Files {
			return nil, tooMany(limits)
		}
		if inMeta := h.Name == MetaDir || strings.HasPrefix(h.Name, MetaDir+"/"); inMeta && (h.Typeflag != tar.TypeReg || path.Dir(h.Name) != MetaDir) {
			return nil, failed(reasonUnsafe, "the entry %q is not a file in %s, which is reserved", h.Name, MetaDir)
		}
		if err := root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return nil, err
		}
		switch mode := fs.FileMode(h.Mode); {
		case h.Typeflag == tar.TypeSymlink:
			links[h.Name], err = checkLink(h.Name, h.Linkname)
		case h.Typeflag != tar.TypeReg:
			err = failed(reasonUnsafe, "the entry %q is neither a file nor a symbolic link", h.Name)
		case mode != 0o644 && mode != 0o755:
			err = failed(reasonUnsafe, "the entry %q has mode %o; only 644 and 755 are used", h.Name, h.Mode)
		case h.Size < 0 || h.Size > left:
			err = tooLarge(limits)
		default:
			left -= h.Size
			err = extractFile(root, h.Name, mode, archive)
		}
		if err != nil {
			return nil, err
		}
	}
	for name, target := range links {
		if err := root.Symlink(target, name); err != nil {
			return nil, err
		}
	}
	return names, ctx.Err()
}

func extractFile(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
