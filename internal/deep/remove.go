package deep

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// levels is how deep the pieces are that a folder is cut into: its removal has a descriptor
// open for each level.
const levels = 100

// RemoveAll is os.RemoveAll for a folder of any depth, with few descriptors. Others may have
// written there, and no process may write there any more.
func RemoveAll(path string) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	return RemoveIn(root, filepath.Base(path))
}

// RemoveIn is RemoveAll for a folder in root. Pieces of it are moved up, into the folder itself.
func RemoveIn(root *os.Root, folder string) error {
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
