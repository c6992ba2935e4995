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

// Group is one control group: the processes that were added, and all that they
// start. Safe for concurrent use. Of nil, which bounds nothing, Kills, Refused and Close may
// be asked.
type Group struct {
	tree *Tree
	kind Kind
	dir  string
	// tasks is the folder that bounds processes: dir, or with version 1 one of another
	// hierarchy; empty where nothing does.
	tasks string

	closing sync.Once
}

// files are the names of the kernel's files in a group that bounds memory.
type files struct{ limit, usage, peak, events string }

var filesOf = map[Kind]files{
	V1: {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"},
	V2: {"memory.max", "memory.current", "memory.peak", "memory.events"},
}

// make makes the group.
func (g *Group) make() error {
	k := g.tree.kernel
	if err := k.mkdir(g.dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		return fmt.Errorf("no group can be made in %s: %w", filepath.Dir(g.dir), cause(err))
	}
	var err error
	if g.kind == V2 {
		// Without the first one of the processes would be killed, without the
		// second all go to the swap space first. Old kernels lack the first,
		// machines without swap the second.
		err = errors.Join(g.option("memory.oom.group", "1"), g.option("memory.swap.max", "0"))
	} else {
		err = g.option("memory.oom_control", "0") // a parent's choice may have been to wait for ever
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
		return fmt.Errorf("a group cannot be set up: %w", err)
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

// option writes a file that a kernel may not have.
func (g *Group) option(name, value string) error {
	err := g.tree.kernel.write(g.file(name), value)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

// Add moves a process into the group, with all that it starts from now on; its
// children so far stay where they are. A process that has ended is no error.
func (g *Group) Add(pid int) error {
	if pid <= 1 { // 0 would be ourselves
		return fmt.Errorf("there is no process %d to move into a group", pid)
	}
	for _, dir := range g.dirs() {
		err := g.tree.kernel.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("process %d cannot be moved into a group: %w", pid, cause(err))
		}
	}
	return nil
}

// LimitTasks bounds the processes and threads of the group: the kernel refuses to
// start more. It does nothing where the kernel cannot.
func (g *Group) LimitTasks(n int) error {
	if g.tasks == "" || n == 0 {
		return nil
	}
	if err := g.tree.kernel.write(filepath.Join(g.tasks, "pids.max"), strconv.Itoa(n)); err != nil {
		return fmt.Errorf("the processes of a group cannot be bounded: %w", cause(err))
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

// Limit bounds the memory that is charged to the group, in bytes: pages that its processes
// touched first, with those of files in memory and those that the kernel holds on their
// behalf. Pages that a process had before it was added are not charged.
func (g *Group) Limit(bytes int64) error {
	text := strconv.FormatInt(bytes, 10)
	err := g.tree.kernel.write(g.file(filesOf[g.kind].limit), text)
	if err == nil && g.kind == V1 {
		err = g.option("memory.memsw.limit_in_bytes", text)
	}
	if err != nil {
		return fmt.Errorf("the memory of a group cannot be bounded: %w", cause(err))
	}
	return nil
}

// Usage is the memory that is charged to the group now, in bytes.
func (g *Group) Usage() (int64, error) { return g.number(filesOf[g.kind].usage) }

// Peak is the most memory that was ever charged to the group, in bytes; 0 where the kernel
// does not tell.
func (g *Group) Peak() int64 {
	n, _ := g.number(filesOf[g.kind].peak)
	return n
}

func (g *Group) number(name string) (int64, error) {
	text, err := g.tree.kernel.read(g.file(name))
	if err != nil {
		return 0, fmt.Errorf("the memory of a group is not known: %w", cause(err))
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}

// Kills is how many of its processes the kernel has killed for want of memory; 0 of a closed group.
func (g *Group) Kills() int {
	if g == nil {
		return 0
	}
	n, _ := g.kills()
	return n
}

func (g *Group) kills() (int, error) { return g.counter(g.file(filesOf[g.kind].events), "oom_kill") }

// Reached reports whether the group ran into its own limit, and not the machine,
// or a group above it, out of memory.
func (g *Group) Reached() bool {
	if g.kind == V1 {
		// Newer kernels count no failures here (memory.failcnt). What was refused may
		// have been a page of the large kind, and what is handed out beforehand.
		limit, err := g.number(filesOf[V1].limit)
		peak := g.Peak()
		return err == nil && peak > 0 && peak > limit-4<<20
	}
	n, _ := g.counter(g.file("memory.events"), "max")
	return n > 0
}

// counter reads one line of a file of names and numbers.
func (g *Group) counter(file, name string) (int, error) {
	text, err := g.tree.kernel.read(file)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, cmp.Or(err, fmt.Errorf("the kernel does not count %s (%s)", name, filepath.Base(file)))
}

// Close removes the group in the background, and kills what still runs in it. It
// may be called several times.
func (g *Group) Close() {
	if g == nil {
		return
	}
	g.closing.Do(func() {
		t := g.tree
		t.mu.Lock()
		delete(t.groups, g)
		closed := t.closed
		if !closed {
			t.wg.Go(g.close)
		}
		t.mu.Unlock()
		if closed {
			g.close()
		}
	})
}

func (g *Group) close() {
	for _, dir := range g.dirs() {
		g.tree.remove(dir, time.Now().Add(removeTimeout))
	}
}
