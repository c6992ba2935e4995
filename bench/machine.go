package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// residentMemory of a process in bytes; 0 where that is not known.
func residentMemory(pid int) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(kb, 10, 64)
	return n << 10
}

func machine() string {
	load := "unknown"
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(data)); len(f) > 2 {
			load = strings.Join(f[:3], " ")
		}
	}
	return fmt.Sprintf("%s/%s, %d cores, load average %s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load, runtime.Version())
}
