package index

import (
	"os"
	"strings"
)

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
