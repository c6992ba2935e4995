//go:build !linux

package connect

import (
	"os/exec"
	"strconv"
	"strings"
)

// ProcessID tells a process from a later one of its pid: the time at which it
// started. It is empty for a pid that no process has.
func ProcessID(pid int) string {
	out, err := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
