//go:build !linux

package main

import (
	"os/exec"
	"strconv"
	"strings"
)

// processID tells a process from a later one of its pid: the time at which it
// started. It is empty for a pid that no process has.
func processID(pid int) string {
	out, err := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
