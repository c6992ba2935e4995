package index

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// neverTaken are folders that no index brings along, ignored or not.
var neverTaken = map[string]bool{".git": true, "__pycache__": true, ".venv": true}

// skipped says whether a name has a folder that is never taken.
func skipped(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if neverTaken[part] {
			return true
		}
	}
	return false
}

// walk lists the files of a folder without git. An ignored file could be a secret, so
// rules that only git can read are an error.
func walk(ctx context.Context, dir string, limits Limits) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
		case neverTaken[entry.Name()] && entry.IsDir():
			return fs.SkipDir
		case entry.IsDir(), neverTaken[entry.Name()]:
			return ctx.Err()
		case entry.Name() == ".gitignore":
			return failed(reasonGitMissing, "git is needed to read %s and was not found; install git on this machine", name)
		case len(names) == limits.Files:
			return tooMany(limits)
		}
		names = append(names, name)
		return nil
	})
	return names, err
}

// regularFiles returns those of the named files of a folder that are files or
// symbolic links, and warns of others. Files that were removed meanwhile are left out.
func regularFiles(dir *os.Root, names []string) (files, warnings []string, err error) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if err := checkName(name); err != nil {
			return nil, nil, err
		}
		if skipped(name) {
			continue
		}
		info, err := dir.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // tracked, but deleted on disk
		case err != nil:
			return nil, nil, failed(reasonFolder, "%s cannot be read: %w", name, err)
		case info.Mode().IsRegular(), info.Mode()&fs.ModeSymlink != 0:
			files = append(files, name)
		case info.IsDir():
			warnings = append(warnings, name+" is a repository of its own and was left out")
		default:
			warnings = append(warnings, name+" is neither a file nor a folder and was left out")
		}
	}
	return files, warnings, nil
}

func tooMany(l Limits) error {
	return failed(reasonTooLarge, "the source has more than %d files; ignore what the index does not need (.gitignore)", l.Files)
}

func tooLarge(l Limits) error {
	return failed(reasonTooLarge, "the source is larger than %d MB; ignore what the index does not need (.gitignore)", l.Bytes/1e6)
}

// fileMode is the part of a mode that a bundle keeps: whether the file is executable.
func fileMode(mode fs.FileMode) fs.FileMode {
	if mode&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// Git LFS stores a large file in a repository as a short text that begins so (the
// pointer format of git-lfs, version 1).
const (
	pointerBegin = "version https://git-lfs.github.com/spec/v1\n"
	pointerMost  = 1024 // bytes
)

// warnOfPointers warns of files that are pointers to content elsewhere.
func (t *Tree) warnOfPointers() {
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return // reading the manifest fails too, and says so
	}
	defer root.Close()
	var pointers []string
	for _, name := range t.Files {
		info, err := root.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || info.Size() > pointerMost || info.Size() < int64(len(pointerBegin)) {
			continue
		}
		if data, err := root.ReadFile(name); err == nil && strings.HasPrefix(string(data), pointerBegin) {
			pointers = append(pointers, name)
		}
	}
	if len(pointers) > 0 {
		t.Warnings = append(t.Warnings, "files of Git LFS are not fetched, and are pointers here: "+some(pointers, namedInWarning))
	}
}
