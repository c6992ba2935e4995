package connect

import (
	"os"
	"strconv"
	"strings"
)

// ProcessID tells a process from a later one of its pid: the machine's boot and
// the time since then at which it started. It is empty for a pid that no process
// has, or one that has ended and is not waited for yet.
func ProcessID(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The command's name is in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	fields := strings.Fields(rest) // from field 3, the state, on
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + fields[19]
}
