//go:build !linux

package venv

import (
	"fmt"
	"io/fs"
)

// stateOf is the size of a file and the time of its last change.
func stateOf(info fs.FileInfo) string {
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
}
