package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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

	mu      sync.Mutex
	events  *os.File // counts what the kernel killed; nil once closed
	seen    int
	refusal *os.File // counts the processes that the kernel refused; nil where nothing does, and once closed

	closing sync.Once
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
		g.events, err = os.Open(g.file(map[Kind]string{V1: "memory.oom_control", V2: "memory.events"}[g.kind]))
	}
	if err == nil && g.tasks != "" {
		if g.tasks != g.dir {
			err = k.mkdir(g.tasks)
		}
		if err == nil {
			g.refusal, err = os.Open(filepath.Join(g.tasks, "pids.events"))
		}
	}
	if err != nil {
		for _, dir := range g.dirs() {
			_ = k.rmdir(dir)
		}
		if g.events != nil {
			_ = g.events.Close()
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

// option sets what a kernel may not have.
func (g *Group) option(name, value string) error {
	err := g.tree.kernel.write(g.file(name), value)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) {
		return nil
	}
	return err
}

// Add moves a process into the group, with what it starts from now on; what it
// has started stays where it is. A process that is gone is no error.
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

// Refused is how many processes and threads the kernel has refused to start.
func (g *Group) Refused() int {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refusal == nil {
		return 0
	}
	var buf [128]byte
	n, _ := g.refusal.ReadAt(buf[:], 0)
	count, _ := counter(string(buf[:n]), "max")
	return int(count)
}

// Limit bounds the memory of the group, in bytes. What is charged to it counts:
// pages that its processes touched first, those of files in memory and what the
// kernel holds on their behalf included; not what they had before they came.
func (g *Group) Limit(bytes int64) error {
	text := strconv.FormatInt(bytes, 10)
	name := map[Kind]string{V1: "memory.limit_in_bytes", V2: "memory.max"}[g.kind]
	err := g.tree.kernel.write(g.file(name), text)
	if err == nil && g.kind == V1 {
		err = g.option("memory.memsw.limit_in_bytes", text)
	}
	if err != nil {
		return fmt.Errorf("the memory of a group cannot be bounded: %w", cause(err))
	}
	return nil
}

// Usage is the memory that is charged to the group now, in bytes.
func (g *Group) Usage() (int64, error) {
	return g.number(map[Kind]string{V1: "memory.usage_in_bytes", V2: "memory.current"}[g.kind])
}

// Peak is the most that ever was, in bytes; 0 where the kernel does not tell.
func (g *Group) Peak() int64 {
	n, err := g.number(map[Kind]string{V1: "memory.max_usage_in_bytes", V2: "memory.peak"}[g.kind])
	if err != nil {
		return 0
	}
	return n
}

func (g *Group) number(name string) (int64, error) {
	text, err := g.tree.kernel.read(g.file(name))
	if err != nil {
		return 0, fmt.Errorf("the memory of a group is not known: %w", cause(err))
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}

// Kills is how many of its processes the kernel has killed for want of memory.
func (g *Group) Kills() int {
	if g == nil {
		return 0
	}
	n, _ := g.kills()
	return n
}

// kills is what was seen last where the kernel does not tell.
func (g *Group) kills() (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.events == nil {
		return g.seen, nil
	}
	var buf [512]byte
	n, _ := g.events.ReadAt(buf[:], 0)
	count, ok := counter(string(buf[:n]), "oom_kill")
	if !ok {
		return g.seen, errors.New("the kernel does not count what it kills (memory.oom_control)")
	}
	g.seen = int(count)
	return g.seen, nil
}

// Reached reports whether the group ran into its own limit, and not the machine,
// or a group above it, out of memory.
func (g *Group) Reached() bool {
	if g.kind == V1 {
		// Newer kernels count no failures here (memory.failcnt). What was refused may
		// have been a page of the large kind, and what is handed out beforehand.
		limit, err := g.number("memory.limit_in_bytes")
		peak := g.Peak()
		return err == nil && peak > 0 && peak > limit-4<<20
	}
	text, err := g.tree.kernel.read(g.file("memory.events"))
	n, _ := counter(text, "max")
	return err == nil && n > 0
}

// counter finds one line of a file of names and numbers.
func counter(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
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
	g.mu.Lock()
	if g.events != nil {
		_ = g.events.Close()
		g.events = nil
	}
	if g.refusal != nil {
		_ = g.refusal.Close()
		g.refusal = nil
	}
	g.mu.Unlock()
	for _, dir := range g.dirs() {
		g.tree.remove(dir, time.Now().Add(removeTimeout))
	}
}
