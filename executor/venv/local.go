package venv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// pathNote begins what [notePaths] adds to a lock.
var pathNote = []byte("# content of ")

// notePaths completes a lock that uv made of tree, which is dir or a copy of it: paths are
// relative to it, and a comment for each says by a digest what it leads to. So locks of
// equal text are equal, and the environment of one is that of the other. What a package
// itself requires comes from uv: a path out of the tree, or an address that no
// requirement may have, is an error.
func notePaths(lock []byte, tree, dir string) ([]byte, error) {
	var out, notes bytes.Buffer
	for line := range strings.Lines(string(lock)) {
		if line = strings.TrimRight(line, "\n"); line == "" || strings.HasPrefix(line, " ") || line[0] == '#' || release(line) != "" {
			out.WriteString(line + "\n")
			continue
		}
		// uv gives every package of an index its version: this is a path or an address.
		name, place, rest := cutPlace(line)
		if isAddress(place) {
			if err := (&reader{d: &declared{}}).address(new(requirement), place); err != nil {
				return nil, fmt.Errorf("%s: %w", redact(strings.TrimSpace(name+place)), err)
			}
			out.WriteString(line + "\n")
			continue
		}
		inside, err := insideOf(tree, place)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(name+place), err)
		}
		digest, err := contentOf(dir, inside)
		if err != nil {
			return nil, err
		}
		out.WriteString(name + "./" + inside + rest + "\n") // uv would take a bare name for a package of the index
		fmt.Fprintf(&notes, "%s./%s: sha256:%s\n", pathNote, inside, digest)
	}
	return append(out.Bytes(), notes.Bytes()...), nil
}

// insideOf gives a path that uv names as relative to the tree.
func insideOf(tree, place string) (string, error) {
	if address, isURL := strings.CutPrefix(place, "file:"); isURL {
		path, err := url.PathUnescape(strings.TrimPrefix(address, "//"))
		if err != nil {
			return "", err
		}
		place = path
	}
	real, _ := filepath.EvalSymlinks(tree) // a backend may say this
	for _, root := range []string{tree, real} {
		if inside, err := filepath.Rel(root, place); err == nil && filepath.IsAbs(place) && filepath.IsLocal(inside) && pathPattern.MatchString(inside) {
			return inside, nil
		}
	}
	return "", errors.New("it leads out of the index's folder, or has a character that a path of a requirement may not have")
}

// contentOf is a digest of the names and contents of a file or of all files of a
// folder in dir, also by way of links that stay in it, as a build would find them.
func contentOf(dir, inside string) (string, error) {
	sum := sha256.New()
	seen := map[string]bool{}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	var add func(path, as string) error
	add = func(path, as string) error {
		real, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a link to nothing
		}
		if err != nil || seen[real] {
			return err
		}
		if within, err := filepath.Rel(dir, real); err != nil || !filepath.IsLocal(within) {
			return nil // it leads out of the index, where its name alone counts
		}
		return filepath.WalkDir(real, func(file string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(real, file)
			if err != nil {
				return err
			}
			switch name := filepath.Join(as, rel); {
			case entry.IsDir():
				if seen[file] || entry.Name() == ".git" || entry.Name() == "__pycache__" {
					return filepath.SkipDir
				}
				seen[file] = true
			case entry.Type()&fs.ModeSymlink != 0:
				target, _ := os.Readlink(file)
				fmt.Fprintf(sum, "%q -> %q\n", name, target)
				return add(file, name)
			case entry.Type().IsRegular():
				f, err := os.Open(file) //nolint:gosec // what the requirement names
				if err != nil {
					return err
				}
				defer f.Close() //nolint:errcheck // only read
				one := sha256.New()
				if _, err := io.Copy(one, f); err != nil {
					return err
				}
				fmt.Fprintf(sum, "%q %x\n", name, one.Sum(nil))
			}
			return nil
		})
	}
	if err := add(filepath.Join(dir, inside), ""); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
