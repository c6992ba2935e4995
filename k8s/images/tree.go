package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tree is the files of a layer by their paths, which are relative and clean. Hard links
// are two paths of one node.
type tree map[string]*node

// node is what of a file becomes part of an image. Times, names of owners and extended
// attributes do not: they differ between machines.
type node struct {
	kind     byte // tar.TypeReg, TypeDir or TypeSymlink
	mode     fs.FileMode
	uid, gid int
	target   string // of a symbolic link
	data     []byte
}

const sticky = 0o1000 // of a tar header's mode

// add puts a node at a path, below folders that everyone may enter.
func (t tree) add(name string, n *node) {
	t[name] = n
	for dir := path.Dir(name); dir != "." && t[dir] == nil; dir = path.Dir(dir) {
		t[dir] = &node{kind: tar.TypeDir, mode: 0o755}
	}
}

func (t tree) file(name string, mode fs.FileMode, data []byte) {
	t.add(name, &node{kind: tar.TypeReg, mode: mode, data: data})
}

// folder adds a folder of the images' user.
func (t tree) folder(name string, mode fs.FileMode) {
	t.add(name, &node{kind: tar.TypeDir, mode: mode, uid: userID, gid: userID})
}

// readTree reads a tar without the paths that drop says, and without what no image has a use
// for: devices, and modes by which a program gains rights.
func readTree(r io.Reader, drop func(name string) bool) (tree, error) {
	t := make(tree)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(strings.TrimPrefix(path.Clean("/"+h.Name), "/"))
		if name == "." || drop(name) {
			continue
		}
		n := &node{kind: h.Typeflag, mode: fs.FileMode(h.Mode) & 0o777, uid: h.Uid, gid: h.Gid}
		switch h.Typeflag {
		case tar.TypeReg:
			if n.data, err = io.ReadAll(in); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		case tar.TypeDir:
			n.mode |= fs.FileMode(h.Mode) & sticky
		case tar.TypeSymlink:
			n.target, n.mode = h.Linkname, 0o777
		case tar.TypeLink:
			if n = t[strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")]; n == nil {
				return nil, fmt.Errorf("%s is a link to %s, which is not there", name, h.Linkname)
			}
		case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
			continue
		default:
			return nil, fmt.Errorf("%s is of a kind that images do not have: %q", name, h.Typeflag)
		}
		t[name] = n
	}
}

// tar is the tree as bytes that depend on nothing else.
func (t tree) tar() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	first := make(map[*node]string)
	for _, name := range slices.Sorted(maps.Keys(t)) {
		n := t[name]
		h := &tar.Header{Name: name, Typeflag: n.kind, Mode: int64(n.mode), Uid: n.uid, Gid: n.gid, ModTime: time.Unix(0, 0), Linkname: n.target, Size: int64(len(n.data))}
		if other, ok := first[n]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, other, 0
		} else {
			first[n] = name
		}
		if n.kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(n.data); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close() // which writes the end of the archive
	return out.Bytes(), err
}

// layer is the tree as a layer, compressed once.
func (t tree) layer() (v1.Layer, error) {
	data, err := t.tar()
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// unpack writes the tree below a folder. It leaves owners alone.
func (t tree) unpack(folder string) error {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		n, file := t[name], filepath.Join(folder, filepath.FromSlash(name))
		mode := n.mode & 0o777
		if n.mode&sticky != 0 {
			mode |= fs.ModeSticky
		}
		var err error
		switch n.kind {
		case tar.TypeDir:
			err = os.MkdirAll(file, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(n.target, file)
		default:
			err = os.WriteFile(file, n.data, 0o600)
		}
		if err == nil && n.kind != tar.TypeSymlink {
			err = os.Chmod(file, mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
