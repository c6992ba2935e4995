package venv

import (
	"fmt"
	"io/fs"
	"syscall"
)

// stateOf is the size of a file and the times of the last changes of it and of its inode.
func stateOf(info fs.FileInfo) string {
	changed := syscall.Timespec{}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		changed = stat.Ctim
	}
	return fmt.Sprintf("%d %d %d", info.Size(), info.ModTime().UnixNano(), changed.Nano())
}
