package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// leaf is the group to which this process moves, as version 2 allows no processes next to groups
// of its own.
const leaf = "toolmesh-agent"

// removeTimeout is how long killed processes of a group may take to end.
const removeTimeout = 5 * time.Second

// Tree is the place for groups. Safe for concurrent use.
type Tree struct {
	log    *slog.Logger
	kernel kernel
	name   string
	record string

	kind       Kind
	controller string
	dir        string // parent of the groups
	tasks      string // parent of those that limit processes: dir with version 2; empty without that controller
	why        string
	next       atomic.Uint64

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // removals of groups
}

// NameOf derives a name for a [Tree] from its owner's name, which must be unique on the
// machine.
func NameOf(owner string) string {
	digest := sha256.Sum256([]byte(owner))
	return "toolmesh-" + hex.EncodeToString(digest[:8])
}

// Open finds out whether this process may make groups that limit memory, and removes groups and
// processes that an earlier process left under the same name. The name must be unique; see
// [NameOf]. Without groups [Tree.Kind] is empty. Close it.
//
// record is a file with the place of the groups, for the process that follows a killed one: it
// may start in another group.
func Open(name, record string, log *slog.Logger) *Tree {
	return open(name, record, log, system(), "memory")
}

func open(name, record string, log *slog.Logger, k kernel, controller string) *Tree {
	t := &Tree{log: log, kernel: k, controller: controller, name: name, record: record}
	t.forget()
	mounts, errMounts := k.read("/proc/self/mountinfo")
	own, errOwn := k.read("/proc/self/cgroup")
	if errMounts != nil || errOwn != nil {
		t.why = "the system has no control groups"
		return t
	}
	var why []string
	for _, p := range places(mounts, own, controller) {
		dir, err := t.prepare(p)
		if err == nil {
			t.kind, t.dir = p.kind, dir
			t.tasks = t.forTasks(places(mounts, own, "pids"))
			t.remember()
			return t
		}
		if !errors.Is(err, errElsewhere) {
			why = append(why, fmt.Sprintf("%s: %v", p.kind, err))
		}
	}
	if len(why) == 0 {
		why = []string{"no control groups with a " + controller + " controller are mounted"}
	}
	t.why = strings.Join(why, "; ")
	return t
}

// Kind is the version in use; empty without groups.
func (t *Tree) Kind() Kind { return t.kind }

// Why is the reason why this process can make no groups; empty if it can.
func (t *Tree) Why() string { return t.why }

// errElsewhere: another hierarchy has the controller.
var errElsewhere = errors.New("the controller is not in this hierarchy")

// prepare finds the folder for groups below this process's own, or why there can be none.
func (t *Tree) prepare(p place) (string, error) {
	own := p.dir
	if p.kind == V2 {
		if filepath.Base(own) == leaf {
			own = filepath.Dir(own) // an earlier executor of this process moved it
		}
		if err := t.enable(own, t.controller); err != nil {
			return "", err
		}
	} else if text, err := t.kernel.read(filepath.Join(own, "memory.use_hierarchy")); err == nil && strings.TrimSpace(text) == "0" {
		return "", fmt.Errorf("control group %s does not limit the groups below it (memory.use_hierarchy)", own)
	}
	dir := filepath.Join(own, t.name)
	t.clear(dir)
	err := t.folder(p.kind, dir)
	if err == nil && t.controller == "memory" {
		err = t.try(p.kind, dir)
	}
	_ = t.kernel.rmdir(dir) // until it is needed
	return dir, err
}

// forTasks finds the folder of the groups that limit processes; empty if none can be made: the
// memory limits still work then.
func (t *Tree) forTasks(own []place) string {
	if t.kind == V2 {
		if t.kernel.write(filepath.Join(filepath.Dir(t.dir), "cgroup.subtree_control"), "+pids") != nil {
			return ""
		}
		return t.dir
	}
	for _, p := range own {
		dir := filepath.Join(p.dir, t.name)
		if p.kind != V1 {
			continue
		}
		t.clear(dir)
		if t.folder(V1, dir) == nil {
			_ = t.kernel.rmdir(dir) // until it is needed
			return dir
		}
	}
	return ""
}

// folder makes the folder of the groups if it is missing.
func (t *Tree) folder(kind Kind, dir string) error {
	if err := t.kernel.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a control group in %s: %w", filepath.Dir(dir), cause(err))
	}
	if kind == V2 {
		if t.tasks != "" {
			_ = t.kernel.write(filepath.Join(dir, "cgroup.subtree_control"), "+pids") // making a group reports the failure
		}
		if err := t.kernel.write(filepath.Join(dir, "cgroup.subtree_control"), "+"+t.controller); err != nil {
			return fmt.Errorf("turn on the %s controller in %s: %w", t.controller, dir, cause(err))
		}
	}
	return nil
}

// enable turns a controller of version 2 on for groups below own. If own may then have no
// processes itself, this process moves to a group below it; others are not moved.
func (t *Tree) enable(own, controller string) error {
	file := func(name string) string { return filepath.Join(own, name) }
	has := func(name string) (bool, error) {
		text, err := t.kernel.read(file(name))
		return slices.Contains(strings.Fields(text), controller), err
	}
	there, err := has("cgroup.controllers")
	if err != nil {
		return fmt.Errorf("read control group %s: %w", own, cause(err))
	}
	if !there {
		return errElsewhere
	}
	if on, err := has("cgroup.subtree_control"); err == nil && on {
		return nil
	}
	err = t.kernel.write(file("cgroup.subtree_control"), "+"+controller)
	if err == nil {
		return nil
	}
	if !errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("control group %s is not delegated to this process: %w", own, cause(err))
	}
	text, err := t.kernel.read(file("cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read control group %s: %w", own, cause(err))
	}
	self := strconv.Itoa(t.kernel.pid)
	for _, pid := range strings.Fields(text) {
		if pid != self {
			return fmt.Errorf("control group %s of this process has other processes: start this one in a group of its own (systemd: Delegate=yes)", own)
		}
	}
	if err := t.kernel.mkdir(file(leaf)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a control group in %s: %w", own, cause(err))
	}
	err = t.kernel.write(filepath.Join(own, leaf, "cgroup.procs"), self)
	if err == nil {
		if err = t.kernel.write(file("cgroup.subtree_control"), "+"+controller); err == nil {
			t.log.Info("this process moved to a control group of its own, to limit the memory of workers", slog.String("group", file(leaf)))
			return nil
		}
		_ = t.kernel.write(file("cgroup.procs"), self)
	}
	_ = t.kernel.rmdir(file(leaf))
	return fmt.Errorf("turn on the %s controller in %s: %w", controller, own, cause(err))
}

// try makes a group and limits it, as for a worker.
func (t *Tree) try(kind Kind, dir string) error {
	g := &Group{tree: t, kind: kind, dir: filepath.Join(dir, "trial")}
	if err := g.make(); err != nil {
		return err
	}
	defer g.close()
	return g.Limit(1 << 30)
}

// ForLimits makes a group for a memory limit, which is set later, or a limit on processes and
// threads; nil without a limit, or if no group can be made.
func (t *Tree) ForLimits(memory int64, tasks int) *Group {
	if t == nil || t.kind == "" || memory == 0 && (tasks == 0 || t.tasks == "") {
		return nil
	}
	group, err := t.New()
	if err == nil {
		if err = group.LimitTasks(tasks); err != nil {
			group.Close()
		}
	}
	if err != nil {
		t.log.Warn("process runs without a control group", slog.String("error", err.Error()))
		return nil
	}
	return group
}

// New makes a group without limits and processes.
func (t *Tree) New() (*Group, error) {
	if t.kind == "" {
		return nil, errors.New("control groups are not available")
	}
	// Made with each group, as most processes need none: a killed process leaves nothing then, and others may clean up.
	if err := t.folder(t.kind, t.dir); err != nil {
		return nil, err
	}
	if t.tasks != "" && t.tasks != t.dir {
		if err := t.folder(t.kind, t.tasks); err != nil {
			return nil, err
		}
	}
	for {
		name := "w" + strconv.FormatUint(t.next.Add(1), 10)
		g := &Group{tree: t, kind: t.kind, dir: filepath.Join(t.dir, name)}
		if t.tasks != "" {
			g.tasks = filepath.Join(t.tasks, name)
		}
		err := g.make()
		if errors.Is(err, fs.ErrExist) {
			continue // left over, could not be removed at the start
		}
		if err != nil {
			return nil, err
		}
		return g, nil
	}
}

// Close waits until closed groups are removed, and removes their parent with all that is left. No
// group may be made meanwhile.
func (t *Tree) Close() {
	t.mu.Lock()
	t.closed = true // groups that are closed from here on are among what is left
	t.mu.Unlock()
	t.wg.Wait()
	if t.kind != "" {
		t.clear(t.dir)
		if t.tasks != "" {
			t.clear(t.tasks)
		}
		_ = os.Remove(t.record)
	}
}

// inBackground runs a removal, which Close waits for. A call that was cut off closes its worker's group
// when the tree may be closed already.
func (t *Tree) inBackground(remove func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.wg.Go(remove)
	}
}

// forget removes the groups of the record.
func (t *Tree) forget() {
	text, err := os.ReadFile(t.record)
	if err != nil {
		return
	}
	for _, dir := range strings.Split(string(text), "\n") {
		if dir = strings.TrimSpace(dir); filepath.IsAbs(dir) && filepath.Base(dir) == t.name {
			t.clear(dir)
		}
	}
	_ = os.Remove(t.record)
}

func (t *Tree) remember() {
	if err := os.WriteFile(t.record, []byte(t.dir+"\n"+t.tasks+"\n"), 0o600); err != nil {
		t.log.Warn("place of the control groups could not be recorded: they stay if this process is killed", slog.String("error", err.Error()))
	}
}

// clear removes a folder of groups, the groups in it, and their processes.
func (t *Tree) clear(dir string) {
	if _, err := os.Stat(dir); err == nil {
		end := time.Now().Add(removeTimeout)
		t.below(dir, end)
		t.remove(dir, end)
	}
}

// below removes the groups in a group, which its processes may have made.
func (t *Tree) below(dir string, end time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			t.remove(filepath.Join(dir, entry.Name()), end)
		}
	}
}

// remove removes a group and kills its processes, trying until end.
func (t *Tree) remove(dir string, end time.Time) {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := t.kernel.rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			t.log.Warn("control group could not be removed", slog.String("group", dir), slog.String("error", err.Error()))
			return
		}
		t.empty(dir)
		t.below(dir, end)
		time.Sleep(wait)
	}
}

// empty kills the processes of a group.
func (t *Tree) empty(dir string) {
	if t.kernel.write(filepath.Join(dir, "cgroup.kill"), "1") == nil {
		return
	}
	file := filepath.Join(dir, "cgroup.procs")
	members := func() []string {
		text, _ := t.kernel.read(file)
		return strings.Fields(text)
	}
	for _, text := range members() {
		if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
			// Checked again once we hold the process: its id may have been reused.
			t.kernel.kill(pid, func() bool { return slices.Contains(members(), text) })
		}
	}
}

// cause is the system's own error.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
