package examples

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

//go:embed indexes
var files embed.FS

// Write puts the files of one example index into the folder dir, which it makes.
func Write(index, dir string) error {
	source, err := fs.Sub(files, path.Join("indexes", index))
	if err != nil {
		return fmt.Errorf("example %s: %w", index, err)
	}
	if _, err := fs.Stat(source, "."); err != nil {
		return fmt.Errorf("there is no example index %q: %w", index, err)
	}
	err = fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := fs.ReadFile(source, name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644) //nolint:gosec // source files
	})
	if err != nil {
		return fmt.Errorf("write the example %s: %w", index, err)
	}
	return nil
}
