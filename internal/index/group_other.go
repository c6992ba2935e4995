//go:build !unix

package index

import "os/exec"

// endWholeGroup does nothing here: the context ends git itself, whose helpers
// end when their pipe closes.
func endWholeGroup(*exec.Cmd) {}
