package sandbox

import (
	"bytes"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// Descendants are the processes below one, by their ids in our namespace. A process whose
// parent has ended is missed.
func Descendants(pid int) []int {
	all := slices.Collect(treeOf(pid))
	return all[min(1, len(all)):]
}

// treeOf yields a process, first, and all below it; nothing if pid is not a process.
func treeOf(pid int) iter.Seq[int] {
	return func(yield func(pid int) bool) {
		tree, seen := []int{pid}, map[int]bool{pid: true}
		for at := 0; pid > 0 && at < len(tree) && at < mostProcesses; at++ {
			if !yield(tree[at]) {
				return
			}
			for _, child := range children(tree[at]) {
				if !seen[child] { // its parent may have changed meanwhile
					seen[child] = true
					tree = append(tree, child)
				}
			}
		}
	}
}

// UsageOf measures all processes below one, and itself if that counts, at this moment. False
// after its end. It stops when they have more than most processes and threads, unless most is
// 0: a fork bomb is not counted to its end.
func UsageOf(pid int, itself bool, most int) (u Usage, alive bool) {
	for next := range treeOf(pid) {
		below, ended, ok := one(next)
		switch {
		case next == pid && !ok:
			return Usage{}, false
		case next == pid && !itself:
			below = Usage{}
		}
		if ok {
			alive = true
			u.CPU += below.CPU + ended
			u.Memory += below.Memory
			u.Tasks += below.Tasks
			u.Processes++
		}
		if most > 0 && u.Tasks > most {
			break
		}
	}
	return u, alive
}

// ShareOf is the memory of these processes with shared pages counted once, and without pages of
// mapped files if the kernel tells them apart. It costs far more than UsageOf. False where the
// system does not tell.
func ShareOf(pid int, itself bool) (total int64, told bool) {
	for next := range treeOf(pid) {
		if next == pid && !itself {
			continue
		}
		data, _ := os.ReadFile("/proc/" + strconv.Itoa(next) + "/smaps_rollup")
		kb, ok := numberIn(data, "Pss_Anon:")
		if shared, apart := numberIn(data, "Pss_Shmem:"); apart {
			kb += shared
		} else {
			kb, ok = numberIn(data, "Pss:")
		}
		if ok {
			total += kb << 10
			told = true
		}
	}
	return total, told
}

// FilesOf is the disk space in bytes of the files in a folder, with removed files that a process,
// or one below it, has open. Each file counts for at least a block; beyond limit the total is not
// exact.
func FilesOf(folder string, pid int, limit int64) (total int64) {
	seen := map[uint64]bool{} // files with several names, or none
	add := func(info os.FileInfo) bool {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if ok && (stat.Nlink == 1 || !seen[stat.Ino]) {
			seen[stat.Ino] = stat.Nlink != 1
			total += max(stat.Blocks*512, 4096)
		}
		return total <= limit
	}
	var of syscall.Stat_t
	if err := syscall.Stat(folder, &of); err != nil {
		return 0
	}
	_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return nil //nolint:nilerr // it has gone, or is not to be read: the others count
		}
		if info, err := entry.Info(); err == nil && !add(info) {
			return filepath.SkipAll
		}
		return nil
	})
	for next := range treeOf(pid) {
		dir := "/proc/" + strconv.Itoa(next) + "/fd"
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			info, err := os.Stat(filepath.Join(dir, fd.Name()))
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 0 && stat.Dev == of.Dev && !add(info) {
				return total
			}
		}
	}
	return total
}

// numberIn reads the number behind a name in a file of /proc; false without one.
func numberIn(data []byte, name string) (int64, bool) {
	for line := range bytes.Lines(data) {
		if fields := bytes.Fields(line); len(fields) >= 2 && string(fields[0]) == name {
			n, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// one reads /proc/<pid>/stat: the usage of the process, and the processor time of its ended
// children.
func one(pid int) (u Usage, ended time.Duration, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return u, 0, false
	}
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return u, 0, false
	}
	fields := bytes.Fields(data[end+1:]) // from field 3, the state
	if len(fields) < 22 || fields[0][0] == 'Z' {
		return u, 0, false
	}
	number := func(field int) int64 {
		n, _ := strconv.ParseInt(string(fields[field-3]), 10, 64)
		return n
	}
	u = Usage{Tasks: int(number(20)), Memory: number(24) * int64(os.Getpagesize())}
	if u.CPU, ok = ProcessorTime(pid); !ok {
		u.CPU = time.Duration(number(14)+number(15)) * tick
	}
	return u, time.Duration(number(16)+number(17)) * tick, true
}

// parentOf is the parent of a process; false after its end.
func parentOf(pid int) (int, bool) {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	parent, ok := numberIn(data, "PPid:")
	return int(parent), ok
}

// ProcessorTime is the processor time of a process without those below it; false if it is
// unknown. It costs a small part of UsageOf.
func ProcessorTime(pid int) (time.Duration, bool) {
	var now unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &now) //nolint:gosec // the clock of a process, by its id
	return time.Duration(now.Nano()), err == nil
}

// children are the direct children of a process.
func children(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var found []int
	for _, task := range tasks {
		data, err := os.ReadFile(filepath.Join(dir, task.Name(), "children"))
		if err != nil {
			continue
		}
		for _, field := range bytes.Fields(data) {
			if n, err := strconv.Atoi(string(field)); err == nil {
				found = append(found, n)
			}
		}
	}
	return found
}
