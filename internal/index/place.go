package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// A bundle is unpacked to two folders. One has the index's files, which processes of the index
// read and its init command may write. The other is the agent's own: the agent reads an index
// again only there. It has
const (
	metaFolder     = "meta"      // the bundle's files of MetaDir
	manifestFolder = "manifest"  // the files of the manifest
	namesFile      = "files.txt" // the names of all files of the bundle
)

// unpack unpacks a bundle to the folder dest, which must not exist, and the agent's own folder.
// It writes to folders next to them, and renames these once everything is written and the
// archive has the digest: dest is whole or absent even if the process dies, but not if the
// machine loses power, as nothing is synced. Names and links that leave the folder, devices,
// everything else that [Pack] does not write, and more than the limits allow are refused. The
// error is install_failed or the context's; for an existing dest it has details.reason "exists"
// and wraps [fs.ErrExist].
func unpack(ctx context.Context, r io.Reader, dest, own, digest string, limits Limits) error {
	dest, err := filepath.Abs(dest)
	if err != nil {
		return failed(reasonFolder, "the path %q cannot be made absolute: %w", dest, err)
	}
	if _, err := os.Lstat(dest); err == nil {
		return failed(reasonExists, "%s exists already: %w", dest, fs.ErrExist)
	}
	beside, err := besides(dest, 0o755)
	if err != nil {
		return err
	}
	defer deep.RemoveAll(beside) // gone already when it was renamed
	names, got, err := extract(ctx, r, beside, limits)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if got != digest {
		return failed(reasonBundle, "the bundle's digest is %s, not %s: it is damaged or another one", got, digest)
	}
	besideOwn, err := besides(own, 0o700)
	if err != nil {
		return err
	}
	defer os.RemoveAll(besideOwn) // likewise
	if err := keep(beside, besideOwn, names); err != nil {
		return failed(reasonFolder, "the agent's record of the bundle cannot be written: %w", err)
	}
	if err := os.Rename(beside, dest); err != nil {
		if _, statErr := os.Lstat(dest); statErr == nil {
			return failed(reasonExists, "%s exists already: %w", dest, fs.ErrExist)
		}
		return failed(reasonFolder, "%s cannot be made: %w", dest, err)
	}
	if err := errors.Join(deep.RemoveAll(own), os.Rename(besideOwn, own)); err != nil {
		return failed(reasonFolder, "%s cannot be made: %w", own, err)
	}
	return nil
}

// besides makes a temporary folder next to a later one.
func besides(folder string, mode fs.FileMode) (string, error) {
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(parent, mode); err != nil {
		return "", failed(reasonFolder, "%s cannot be made: %w", parent, err)
	}
	beside, err := os.MkdirTemp(parent, ".unpack-*")
	if err == nil {
		err = os.Chmod(beside, mode)
	}
	if err != nil {
		return "", failed(reasonFolder, "no temporary folder: %w", err)
	}
	return beside, nil
}

// keep moves the agent's files out of a new tree, and copies the index's manifest: links there
// may lead elsewhere once the index has written to the tree.
func keep(tree, own string, names []string) error {
	err := os.Rename(filepath.Join(tree, MetaDir), filepath.Join(own, metaFolder))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(own, manifestFolder), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(own, namesFile), []byte(strings.Join(names, "\n")+"\n"), 0o600)
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range names {
		if strings.Contains(name, "/") || !ofManifest(name) || firstFile(root.FS(), name) == "" {
			continue
		}
		data, err := readBegin(root.FS(), name) // more is refused by its reader
		if err == nil {
			err = os.WriteFile(filepath.Join(own, manifestFolder, name), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Placed is an unpacked bundle, as the agent's own folder has it.
type Placed struct {
	Manifest *Manifest
	Files    []string          // names of the index's files
	Meta     map[string][]byte // files of [MetaDir], by name
	// Replaced says that a folder with other content was replaced.
	Replaced bool
}

// Place makes sure that dest has the content of a bundle, and own the agent's files of it.
// Existing folders stay if dest has every file of the bundle unchanged and, unless the
// index has an init command, nothing else. Otherwise both are replaced by the bundle that open
// returns: whole or not at all, and without anything that [Pack] does not write. The errors are
// open's, install_failed, and the context's.
func Place(ctx context.Context, dest, own, digest string, open func() (io.ReadCloser, error)) (p Placed, err error) {
	if p, err = placed(ctx, dest, own, digest); err == nil {
		return p, nil
	}
	if ctx.Err() != nil {
		return p, context.Cause(ctx)
	}
	_, missing := os.Lstat(dest)
	bundle, err := open()
	if err != nil {
		return p, err
	}
	defer bundle.Close()
	// The agent's own is removed first: its notes must not outlive the other.
	for _, dir := range []string{own, dest} {
		if err := deep.RemoveAll(dir); err != nil {
			return p, failed(reasonFolder, "%s is damaged and cannot be replaced: %w", dir, err)
		}
	}
	if err = unpack(ctx, bundle, dest, own, digest, defaultLimits); err == nil {
		p, err = read(own)
	}
	p.Replaced = missing == nil
	return p, err
}

// placed is an unpacked bundle that is whole.
func placed(ctx context.Context, dest, own, digest string) (Placed, error) {
	p, err := read(own)
	if err != nil {
		return p, err
	}
	if err := undamaged(dest, p.Files, len(p.Manifest.Init) == 0); err != nil {
		return p, err
	}
	got, err := writeTar(ctx, io.Discard, dest, p.Files, p.Meta, defaultLimits)
	if err == nil && got != digest {
		err = errors.New("its files differ from the bundle's")
	}
	return p, err
}

// read reads the agent's own folder.
func read(own string) (p Placed, err error) {
	p.Meta = map[string][]byte{}
	list, err := os.ReadFile(filepath.Join(own, namesFile))
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSuffix(name, "\n")
		if part, ours := strings.CutPrefix(name, MetaDir+"/"); !ours {
			p.Files = append(p.Files, name)
		} else if p.Meta[part], err = os.ReadFile(filepath.Join(own, metaFolder, part)); err != nil {
			break
		}
	}
	if err != nil {
		return p, failed(reasonFolder, "the agent's record of the bundle cannot be read: %w", err)
	}
	p.Manifest, err = Load(filepath.Join(own, manifestFolder))
	return p, err
}

// undamaged refuses a tree whose folders are not those of its bundle, or are links. alone also
// refuses further files, and modes that let others write. Bytecode is removed instead: Python
// writes it where it may.
func undamaged(dir string, files []string, alone bool) error {
	known, folders := map[string]bool{}, map[string]bool{".": true}
	for _, name := range files {
		known[name] = true
		for above := path.Dir(name); !folders[above]; above = path.Dir(above) {
			folders[above] = true
		}
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return errors.Join(err, errors.New("it is not a folder"))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name := range folders {
		if info, err := root.Lstat(name); err != nil || !info.IsDir() {
			return errors.Join(err, fmt.Errorf("%s is not a folder", name))
		}
	}
	if !alone {
		return nil
	}
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !known[name] && !folders[name] {
			if !entry.IsDir() || entry.Name() != "__pycache__" {
				return fmt.Errorf("%s was added", name)
			}
			if err = deep.RemoveIn(root, name); err == nil {
				err = fs.SkipDir
			}
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode()&fs.ModeSymlink == 0 && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|0o022) != 0 {
			err = fmt.Errorf("%s has the mode %s", name, info.Mode())
		}
		return err
	})
}
