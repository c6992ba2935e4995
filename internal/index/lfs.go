package index

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
)

// What Git LFS keeps in a repository in the place of a large file: a short text
// that begins so (the pointer format of git-lfs, version 1).
const (
	pointerBegin = "version https://git-lfs.github.com/spec/v1\n"
	pointerMost  = 1024 // bytes
)

// warnOfPointers warns of files whose content is elsewhere. It looks only where
// the tree says that it uses Git LFS.
func (t *Tree) warnOfPointers() {
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return // reading the manifest fails too, and says so
	}
	defer root.Close()
	uses := false
	for _, name := range t.Files {
		if path.Base(name) == ".gitattributes" && bytes.Contains(beginning(root, name, 1<<20), []byte("filter=lfs")) {
			uses = true
			break
		}
	}
	if !uses {
		return
	}
	first, more := "", 0
	for _, name := range t.Files {
		if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() > pointerMost {
			continue
		}
		switch {
		case !bytes.HasPrefix(beginning(root, name, int64(len(pointerBegin))), []byte(pointerBegin)):
		case first == "":
			first = name
		default:
			more++
		}
	}
	if first == "" {
		return
	}
	text := "the file " + first + " is a pointer of Git LFS: what it stands for is not fetched"
	if more > 0 {
		text = fmt.Sprintf("the file %s and %d more are pointers of Git LFS: what they stand for is not fetched", first, more)
	}
	t.Warnings = append(t.Warnings, text)
}

// beginning returns the first bytes of a file, nothing if it cannot be read.
func beginning(root *os.Root, name string, n int64) []byte {
	f, err := root.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, n))
	if err != nil {
		return nil
	}
	return data
}
