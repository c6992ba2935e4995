//go:build !linux

package connect

import (
	"os/exec"
	"strconv"
	"strings"
)

// ProcessID tells a process from a later one of its pid: the time at which it
// started. It is empty for a pid that no process has, or one that has ended and is not
// waited for yet.
func ProcessID(pid int) string {
	out, err := exec.Command("ps", "-o", "stat=", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output()
	state, start, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(start)
}
