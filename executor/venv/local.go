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
	"regexp"
	"strings"
)

// editable finds requirements that are used where they lie.
var editable = regexp.MustCompile(`(?m)^-e `)

// pathNote begins what [notePaths] adds to a lock.
var pathNote = []byte("# content of ")

// notePaths completes a lock that uv made in dir: paths into dir are relative to
// it, and a comment for each says by a digest what it leads to. So locks of equal
// text are equal, and the environment of one is that of the other.
func notePaths(lock []byte, dir string) ([]byte, error) {
	var out, notes bytes.Buffer
	for line := range strings.Lines(string(lock)) {
		if line = strings.TrimRight(line, "\n"); line == "" || strings.HasPrefix(line, " ") || line[0] == '#' || release(line) != "" {
			out.WriteString(line + "\n")
			continue
		}
		// uv gives every package of an index its version: this is a path or an address.
		option, rest := "", line
		if editable.MatchString(line) {
			option, rest = "-e ", strings.TrimPrefix(line, "-e ")
		}
		name, place, isNamed := strings.Cut(rest, " @ ")
		if !isNamed {
			name, place = "", rest
		} else {
			name += " @ "
		}
		end := len(place)
		for _, mark := range []string{" ;", " \\"} {
			if n := strings.Index(place, mark); n >= 0 {
				end = min(end, n)
			}
		}
		place, rest = place[:end], place[end:]
		if strings.Contains(place, "://") && !strings.HasPrefix(place, "file:") {
			out.WriteString(line + "\n")
			continue
		}
		if address, isURL := strings.CutPrefix(place, "file:"); isURL {
			if path, err := url.PathUnescape(strings.TrimPrefix(address, "//")); err == nil {
				place = path
			}
		}
		if inside, err := filepath.Rel(dir, place); err == nil && filepath.IsLocal(inside) {
			place = inside // a member of a workspace
		}
		path := place
		if !filepath.IsAbs(place) {
			path = filepath.Join(dir, place)
		}
		if _, err := os.Stat(path); err != nil {
			path = dir // it is written with a variable, and may be anything that the index brings along
		} else if !strings.Contains(place, "/") {
			place = "./" + place // uv would take it for a package of the index
		}
		digest, err := contentOf(path)
		if err != nil {
			return nil, err
		}
		out.WriteString(option + name + place + rest + "\n")
		fmt.Fprintf(&notes, "%s%s: sha256:%s\n", pathNote, place, digest)
	}
	return append(out.Bytes(), notes.Bytes()...), nil
}

// contentOf is a digest of the names and contents of a file or of all files of a
// folder, also by way of links, as a build would find them.
func contentOf(path string) (string, error) {
	sum := sha256.New()
	seen := map[string]bool{}
	var add func(path, as string) error
	add = func(path, as string) error {
		real, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a link to nothing
		}
		if err != nil || seen[real] {
			return err
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
	if err := add(path, ""); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
