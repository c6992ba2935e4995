package index

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
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
	// Rev is the revision that was asked for.
	Rev string `json:"rev,omitempty"`
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
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(8<<20))
	if err != nil {
		return "", failed(reasonBundle, "zstd cannot be used: %w", err)
	}
	digest, err = writeTar(ctx, z, dir, files, meta, defaultLimits)
	if closeErr := z.Close(); err == nil && closeErr != nil {
		err = failed(reasonBundle, "the bundle cannot be written: %w", closeErr)
	}
	return digest, err
}

// treeDigest is the digest of the bundle of the files alone.
func treeDigest(ctx context.Context, dir string, files []string, limits Limits) (string, error) {
	return writeTar(ctx, io.Discard, dir, files, nil, limits)
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
	p := packer{tar: tar.NewWriter(io.MultiWriter(w, hash)), root: root, left: limits.Bytes, limits: limits}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		if data := entries[name]; data != nil {
			err = p.write(name, 0o644, int64(len(data)), bytes.NewReader(data))
		} else {
			err = p.file(name)
		}
		if err != nil {
			return "", err
		}
	}
	if err := p.tar.Close(); err != nil {
		return "", failed(reasonBundle, "the bundle cannot be written: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

type packer struct {
	tar    *tar.Writer
	root   *os.Root
	left   int64
	limits Limits
}

func (p *packer) file(name string) error {
	info, err := p.root.Lstat(name)
	if err != nil {
		return failed(reasonFolder, "%s cannot be read: %w", name, err)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(name)
		if err != nil {
			return failed(reasonFolder, "%s cannot be read: %w", name, err)
		}
		if target, err = checkLink(name, target); err != nil {
			return err
		}
		return p.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: time.Unix(0, 0)})
	case info.Mode().IsRegular():
		f, err := p.root.Open(name)
		if err != nil {
			return failed(reasonFolder, "%s cannot be read: %w", name, err)
		}
		defer f.Close()
		return p.write(name, int64(fileMode(info.Mode())), info.Size(), f)
	default:
		return failed(reasonUnsafe, "%s is neither a file nor a symbolic link", name)
	}
}

func (p *packer) header(h *tar.Header) error {
	if err := p.tar.WriteHeader(h); err != nil {
		return failed(reasonBundle, "%s cannot be packed: %w", h.Name, err)
	}
	return nil
}

func (p *packer) write(name string, mode, size int64, r io.Reader) error {
	if p.left -= size; p.left < 0 {
		return tooLarge(p.limits)
	}
	if err := p.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	n, err := io.Copy(p.tar, io.LimitReader(r, size))
	if err != nil {
		return failed(reasonBundle, "%s cannot be packed: %w", name, err)
	}
	if n != size {
		return failed(reasonFolder, "%s became shorter while it was packed; try again", name)
	}
	return nil
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
	case strings.ContainsAny(name, "\\:") && filepath.Separator == '\\':
		return bad("it has a backslash or a colon")
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

// isGit reports whether git sees a part of a name as .git on some file system: macOS ignores
// some characters, Windows endings of names, and has a short form of it.
func isGit(part string) bool {
	part = strings.Map(func(r rune) rune {
		if r >= 0x200c && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x206a && r <= 0x206f || r == 0xfeff {
			return -1
		}
		return r
	}, part)
	part, _, _ = strings.Cut(part, ":")
	part = strings.ToLower(strings.TrimRight(part, " ."))
	return part == ".git" || part == "git~1"
}

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

// errTooLong ends the reading of an archive that is over its limit.
var errTooLong = errors.New("archive over its limit")

// boundedReader hashes its data and ends with ctx and at its limit.
type boundedReader struct {
	err  func() error // of the context
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if err := b.err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
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
	r = &boundedReader{err: ctx.Err, r: r, left: limits.Bytes + int64(limits.Files)*4096 + 1<<16}
	x := extractor{root: root, left: limits.Bytes, limits: limits, pass: pass}
	err := x.all(tar.NewReader(r))
	if err == nil {
		// The archive's end mark and everything after it count for the digest.
		_, err = io.Copy(io.Discard, r)
	}
	var own *toolmesh.Error
	switch {
	case err == nil:
		return x.names, nil
	case errors.As(err, &own), ctx.Err() != nil:
		return nil, err
	case errors.Is(err, errTooLong), errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return nil, tooLarge(limits)
	}
	return nil, failed(reasonBundle, "the bundle is not readable: %w", err)
}

type extractor struct {
	root   *os.Root
	names  []string // of all entries
	left   int64
	limits Limits
	pass   func(h *tar.Header) bool
}

// all extracts the entries; symbolic links are made last, so that no file can
// be written through one.
func (x *extractor) all(archive *tar.Reader) error {
	links := map[string]string{}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if x.pass != nil && x.pass(h) {
			continue
		}
		if err := checkName(h.Name); err != nil {
			return err
		}
		if x.names = append(x.names, h.Name); len(x.names) > x.limits.Files {
			return tooMany(x.limits)
		}
		if inMeta := h.Name == MetaDir || strings.HasPrefix(h.Name, MetaDir+"/"); inMeta && (h.Typeflag != tar.TypeReg || path.Dir(h.Name) != MetaDir) {
			return failed(reasonUnsafe, "the entry %q is not a file in %s, which is reserved", h.Name, MetaDir)
		}
		if dir := path.Dir(h.Name); dir != "." {
			if err := x.root.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		switch h.Typeflag {
		case tar.TypeReg:
			err = x.file(h, archive)
		case tar.TypeSymlink:
			links[h.Name], err = checkLink(h.Name, h.Linkname)
		default:
			err = failed(reasonUnsafe, "the entry %q is neither a file nor a symbolic link", h.Name)
		}
		if err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := x.root.Symlink(target, name); err != nil {
			return err
		}
	}
	return nil
}

func (x *extractor) file(h *tar.Header, r io.Reader) error {
	mode := fs.FileMode(h.Mode)
	if mode != 0o644 && mode != 0o755 {
		return failed(reasonUnsafe, "the entry %q has mode %o; only 644 and 755 are used", h.Name, h.Mode)
	}
	if x.left -= h.Size; h.Size < 0 || x.left < 0 {
		return errTooLong
	}
	f, err := x.root.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
