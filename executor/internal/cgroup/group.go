package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Group is one control group: the processes that were added, and all that they start. Safe for
// concurrent use. Kills, Refused and Close work on nil, which limits nothing.
type Group struct {
	tree *Tree
	kind Kind
	dir  string
	// tasks is the folder that limits processes: dir, or with version 1 one of another
	// hierarchy; empty without that controller.
	tasks string

	closing sync.Once
}

// files are the names of the kernel's files in a group that limits memory.
type files struct{ limit, usage, peak, events string }

var filesOf = map[Kind]files{
	V1: {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"},
	V2: {"memory.max", "memory.current", "memory.peak", "memory.events"},
}

func (g *Group) make() error {
	k := g.tree.kernel
	if err := k.mkdir(g.dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		return fmt.Errorf("make a control group in %s: %w", filepath.Dir(g.dir), cause(err))
	}
	var err error
	if g.kind == V2 {
		// Without the first one of the processes would be killed alone, without the second
		// everything would be swapped first. Old kernels lack the first, machines without swap
		// the second.
		err = errors.Join(g.option("memory.oom.group", "1"), g.option("memory.swap.max", "0"))
	} else {
		err = g.option("memory.oom_control", "0") // a parent may have set it to wait for ever
	}
	if err == nil {
		_, err = g.kills()
	}
	if err == nil && g.tasks != "" && g.tasks != g.dir {
		err = k.mkdir(g.tasks)
	}
	if err == nil && g.tasks != "" {
		_, err = g.counter(filepath.Join(g.tasks, "pids.events"), "max")
	}
	if err != nil {
		for _, dir := range g.dirs() {
			_ = k.rmdir(dir)
		}
		return fmt.Errorf("set up a control group: %w", err)
	}
	return nil
}

// dirs are the group's folders, one in each hierarchy.
func (g *Group) dirs() []string {
	if g.tasks == "" || g.tasks == g.dir {
		return []string{g.dir}
	}
	return []string{g.dir, g.tasks}
}

func (g *Group) file(name string) string { return filepath.Join(g.dir, name) }

// option writes a file that some kernels lack.
func (g *Group) option(name, value string) error {
	err := g.tree.kernel.write(g.file(name), value)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

// Add moves a process, and all that it starts from now on, into the group; its existing
// children stay. A process that has ended is not an error.
func (g *Group) Add(pid int) error {
	if pid <= 1 { // 0 would be this process
		return fmt.Errorf("process %d cannot be moved into a control group: invalid id", pid)
	}
	for _, dir := range g.dirs() {
		err := g.tree.kernel.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("move process %d into a control group: %w", pid, cause(err))
		}
	}
	return nil
}

// LimitTasks limits the processes and threads of the group: the kernel refuses to
// start more. It does nothing without that controller.
func (g *Group) LimitTasks(n int) error {
	if g.tasks == "" || n == 0 {
		return nil
	}
	if err := g.tree.kernel.write(filepath.Join(g.tasks, "pids.max"), strconv.Itoa(n)); err != nil {
		return fmt.Errorf("limit the processes of a control group: %w", cause(err))
	}
	return nil
}

// Refused is how many processes and threads the kernel has refused to start; 0 of a closed group.
func (g *Group) Refused() int {
	if g == nil || g.tasks == "" {
		return 0
	}
	n, _ := g.counter(filepath.Join(g.tasks, "pids.events"), "max")
	return n
}

// Limit limits the memory charged to the group, in bytes: pages that its processes touched
// first, including files in memory and the kernel's own pages for them. Pages that a process had
// before it was added are not charged.
func (g *Group) Limit(bytes int64) error {
	text := strconv.FormatInt(bytes, 10)
	err := g.tree.kernel.write(g.file(filesOf[g.kind].limit), text)
	if err == nil && g.kind == V1 {
		err = g.option("memory.memsw.limit_in_bytes", text)
	}
	if err != nil {
		return fmt.Errorf("limit the memory of a control group: %w", cause(err))
	}
	return nil
}

// Usage is the memory charged to the group now, in bytes.
func (g *Group) Usage() (int64, error) { return g.number(filesOf[g.kind].usage) }

// Peak is the highest memory that was charged to the group, in bytes; 0 where the kernel does
// not tell.
func (g *Group) Peak() int64 {
	n, _ := g.number(filesOf[g.kind].peak)
	return n
}

func (g *Group) number(name string) (int64, error) {
	text, err := g.tree.kernel.read(g.file(name))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a control group: %w", cause(err))
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}

// Kills is how many of its processes the kernel has killed for lack of memory; 0 of a closed group.
func (g *Group) Kills() int {
	if g == nil {
		return 0
	}
	n, _ := g.kills()
	return n
}

func (g *Group) kills() (int, error) { return g.counter(g.file(filesOf[g.kind].events), "oom_kill") }

// Reached reports whether the group reached its own limit, and not that of the machine or
// of a group above it.
func (g *Group) Reached() bool {
	if g.kind == V1 {
		// Newer kernels do not count failures here (memory.failcnt). The refused page may have been
		// a huge one, and the kernel charges in advance.
		limit, err := g.number(filesOf[V1].limit)
		peak := g.Peak()
		return err == nil && peak > 0 && peak > limit-4<<20
	}
	n, _ := g.counter(g.file("memory.events"), "max")
	return n > 0
}

// counter reads one line of a file with names and numbers.
func (g *Group) counter(file, name string) (int, error) {
	text, err := g.tree.kernel.read(file)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, cmp.Or(err, fmt.Errorf("the kernel does not count %s (%s)", name, filepath.Base(file)))
}

// Close removes the group in the background and kills its processes. It may be called several
// times.
func (g *Group) Close() {
	if g != nil {
		g.closing.Do(func() { g.tree.inBackground(g.close) })
	}
}

func (g *Group) close() {
	for _, dir := range g.dirs() {
		g.tree.remove(dir, time.Now().Add(removeTimeout))
	}
}
