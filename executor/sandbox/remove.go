package sandbox

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// How deep folders may be. What is removed is cut into pieces of levels, since the removal of
// a folder has a descriptor open for each. What is lent has no more than mostLevels when it
// comes back: paths that programs use are shorter.
const levels, mostLevels = 100, 1000

// RemoveAll is os.RemoveAll for a folder that others could write, and nobody writes any more:
// however deep they have made it, few descriptors are needed.
func RemoveAll(path string) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	return removeAll(root, filepath.Base(path))
}

// removeAll removes a folder in root. Pieces of it are moved up, into the folder itself.
func removeAll(root *os.Root, folder string) error {
	pieces := []string{folder}
	var cut func(at string, depth int)
	cut = func(at string, depth int) {
		f, err := root.Open(at)
		if err != nil {
			return // its removal says why
		}
		entries, _ := f.ReadDir(-1)
		_ = f.Close()
		for _, entry := range entries {
			below := filepath.Join(at, entry.Name())
			if !entry.IsDir() {
				continue
			}
			if depth < levels {
				cut(below, depth+1)
			} else if piece := filepath.Join(folder, rand.Text()); root.Rename(below, piece) == nil {
				pieces = append(pieces, piece)
			}
		}
	}
	if info, err := root.Lstat(folder); err == nil && info.IsDir() {
		for n := 0; n < len(pieces); n++ {
			cut(pieces[n], 1)
		}
	}
	return root.RemoveAll(folder)
}
