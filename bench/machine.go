package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// processTree returns a process and all below it; only itself where there is no
// /proc.
func processTree(root int) []int {
	all := []int{root}
	for i := 0; i < len(all); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i])) // the pattern is well-formed
		for _, name := range lists {
			data, _ := os.ReadFile(name) //nolint:gosec // of /proc; a thread that has ended has none
			for text := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(text); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	return all
}

// memoryOf returns a process's resident memory and its fair share of it, where
// pages that several processes map are divided among them. Bytes; 0 where that
// is not known.
func memoryOf(pid int) (resident, share int64) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "Rss":
			resident = kb << 10
		case "Pss":
			share = kb << 10
		}
	}
	return resident, share
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
