//go:build !unix

package access

import "os"

// others are the bits of a key's mode that let others at it.
func others(os.FileInfo) os.FileMode { return 0o077 }
