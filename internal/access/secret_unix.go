//go:build unix

package access

import (
	"os"
	"syscall"
)

// others are the bits of a key's mode that let others at it. A group may read a file of
// root's where this process is not root: so files come that are given to it, as those of a
// Secret in Kubernetes, and PostgreSQL's clients have the same rule.
func others(info os.FileInfo) os.FileMode {
	if of, ok := info.Sys().(*syscall.Stat_t); ok && of.Uid == 0 && os.Geteuid() != 0 {
		return 0o037
	}
	return 0o077
}
