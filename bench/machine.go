package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc/<pid>/stat: USER_HZ, which is 100 on
// every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// process is what /proc says of one; the zero value where there is no /proc.
type process struct {
	pid, parent int
	cpu         time.Duration
}

func readProcess(pid int) (p process, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	// The name, in parentheses, may hold anything.
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	f := strings.Fields(rest)
	if len(f) < 13 {
		return process{}, false
	}
	parent, _ := strconv.Atoi(f[1])
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return process{pid: pid, parent: parent, cpu: time.Duration(user+system) * clockTick}, true
}

// processTree returns a process and all below it.
func processTree(root int) []process {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	children := make(map[int][]process)
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(filepath.Base(e))
		if err != nil {
			continue
		}
		p, ok := readProcess(pid)
		if !ok {
			continue
		}
		if pid == root {
			all = append(all, p)
		}
		children[p.parent] = append(children[p.parent], p)
	}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all
}

// spent is what processes have used since they began.
type spent struct {
	cpu    time.Duration
	waits  int    // how often one of their threads went to sleep
	allocs uint64 // of the first of them alone
}

// less is what was used since before.
func (s spent) less(before spent) spent {
	return spent{s.cpu - before.cpu, s.waits - before.waits, s.allocs - before.allocs}
}

// spentBy adds up a process with all below it.
func spentBy(pid int) (total spent) {
	for _, p := range processTree(pid) {
		total.cpu += p.cpu
		total.waits += waitsOf(p.pid)
	}
	return total
}

// waitsOf counts the voluntary context switches of a process's threads.
func waitsOf(pid int) (n int) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return 0
	}
	for _, name := range threads {
		data, err := os.ReadFile(name) //nolint:gosec // of /proc
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(data), "\nvoluntary_ctxt_switches:")
		count, _, _ := strings.Cut(rest, "\n")
		one, _ := strconv.Atoi(strings.TrimSpace(count))
		n += one
	}
	return n
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
