package venv

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// placed makes the paths of a lock relative, which uv made of tree: dir or a copy of it. It returns
// comments with the digest of each path's content, so that equal locks give equal environments.
// Requirements of packages were read by uv alone, and a build can write to its output: a path out of
// the tree, an address and anything else that no requirement may have are errors.
func placed(lock []lockLine, tree, dir string) (notes string, err error) {
	for i, l := range lock {
		read := l
		if l.at != "" && !isAddress(l.at) {
			var inside, digest string
			if inside, err = insideOf(tree, l.at); err == nil {
				digest, err = contentOf(dir, inside)
			}
			lock[i] = l.placeIn("./" + inside) // uv would take a bare name for a package of the index
			notes += fmt.Sprintf("# content of ./%s: sha256:%s\n", inside, digest)
			read = l.placeIn("https://tree") // for the rest of the line
		}
		if err == nil {
			_, err = (&reader{d: &declared{}}).parse(read.text, "")
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", redact(l.text), err)
		}
	}
	return notes, nil
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

// contentOf is a digest of the names and contents of a file or of all files of a folder in dir. A
// build follows links, so with a link in the folder it is of all files of dir.
func contentOf(dir, inside string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close() //nolint:errcheck // only read
	info, err := root.Stat(inside)
	if err != nil {
		return "", err
	}
	if info.Mode().IsRegular() {
		return sumOf(root, inside)
	}
	files, err := list(filepath.Join(dir, inside), nil, true)
	names := slices.Sorted(maps.Keys(files))
	if err == nil && slices.ContainsFunc(names, func(name string) bool { return files[name].Link != "" }) {
		files, err = list(dir, nil, true)
		names = slices.Sorted(maps.Keys(files))
	}
	var all []string
	for _, name := range names {
		if parts := strings.Split(name, "/"); !slices.Contains(parts, ".git") && !isBytecode(name) {
			all = append(all, name, files[name].Sum, files[name].Link)
		}
	}
	return digestOf(all...), err
}
