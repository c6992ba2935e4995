package venv

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// notePaths completes a lock that uv made of tree, which is dir or a copy of it. It makes paths
// relative and adds the digest of each path's content as a comment, so that equal locks give
// equal environments. Requirements of packages were read by uv alone: a path out of the tree and
// an address that no requirement may have are errors.
func notePaths(lock []byte, tree, dir string) ([]byte, error) {
	var out, notes strings.Builder
	for _, l := range packages(lock) {
		said := redact(l.text)
		var err error
		if isAddress(l.at) {
			err = (&reader{d: &declared{}}).address(new(requirement), l.at)
		} else if l.at != "" {
			var inside, digest string
			if inside, err = insideOf(tree, l.at); err == nil {
				digest, err = contentOf(dir, inside)
			}
			l = l.placeIn("./" + inside) // uv would take a bare name for a package of the index
			fmt.Fprintf(&notes, "# content of ./%s: sha256:%s\n", inside, digest)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", said, err)
		}
		out.WriteString(l.String())
	}
	return []byte(out.String() + notes.String()), nil
}

// insideOf returns a path of uv's output, relative to the tree.
func insideOf(tree, place string) (string, error) {
	place, err := pathOf(place)
	if err != nil {
		return "", err
	}
	real, _ := filepath.EvalSymlinks(tree) // a backend may print the resolved path
	for _, root := range []string{tree, real} {
		if inside, err := filepath.Rel(root, place); err == nil && filepath.IsAbs(place) && filepath.IsLocal(inside) && pathPattern.MatchString(inside) {
			return inside, nil
		}
	}
	return "", errors.New("it leads out of the index's folder, or has a character that a path of a requirement may not have")
}

// pathOf is a path that may be written as file:PATH.
func pathOf(place string) (string, error) {
	if !schemePattern.MatchString(place) {
		return place, nil
	}
	path, err := url.PathUnescape(strings.TrimPrefix(place[len("file:"):], "//"))
	if err != nil {
		return "", fmt.Errorf("it is not an address: %w", err)
	}
	return path, nil
}

// contentOf is a digest of the names and contents of a file or of all files of a folder in dir.
// It follows links that stay in dir, as a build would.
func contentOf(dir, inside string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close() //nolint:errcheck // only read
	sum := sha256.New()
	seen := map[string]bool{}
	var add func(file, as string) error
	add = func(file, as string) error {
		real, _ := filepath.EvalSymlinks(file)
		within, err := filepath.Rel(dir, real)
		if err != nil || !filepath.IsLocal(within) || seen[within] {
			fmt.Fprintf(sum, "%q\n", as) // a broken link, or one out of the index, counts by name alone
			return nil
		}
		info, err := root.Lstat(within)
		switch {
		case err != nil:
		case info.Mode().IsRegular():
			var content string
			content, err = sumOf(root, within)
			fmt.Fprintf(sum, "%q %s\n", as, content)
		case info.IsDir():
			seen[within] = true
			var entries []os.DirEntry
			entries, err = os.ReadDir(real)
			for _, entry := range entries {
				if name := entry.Name(); name != ".git" && name != bytecode {
					err = errors.Join(err, add(filepath.Join(real, name), filepath.Join(as, name)))
				}
			}
		}
		return err
	}
	if err := add(filepath.Join(dir, inside), ""); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
