package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
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

// leaf is the group that this process moves to where version 2 allows no
// processes beside groups of its own.
const leaf = "toolmesh-agent"

// removeTimeout is how long killed processes of a group may take to end.
const removeTimeout = 5 * time.Second

// Tree is the place where groups are made. Safe for concurrent use.
type Tree struct {
	log    *slog.Logger
	kernel kernel
	name   string
	record string

	kind       Kind
	controller string
	dir        string // holds the groups
	tasks      string // holds those that bound processes: dir with version 2; empty where none can
	why        string
	next       atomic.Uint64

	mu     sync.Mutex
	closed bool
	groups map[*Group]struct{}
	wg     sync.WaitGroup // removals
}

// NameOf makes a name for a [Tree] from the name of its owner, which must be unique on the
// machine.
func NameOf(owner string) string {
	digest := sha256.Sum256([]byte(owner))
	return "toolmesh-" + hex.EncodeToString(digest[:8])
}

// Open finds out whether this process may make groups that bound memory, removes
// what an earlier process left under the same name, and what still runs there,
// and makes ready. The name must be the tree's alone; see [NameOf]. Where no groups
// can be had, [Tree.Kind] is empty. Close the tree when every group is closed.
//
// record is a file that says where the groups are, for the process that comes after
// one that was killed: it may start in another group.
func Open(name, record string, log *slog.Logger) *Tree {
	return open(name, record, log, system(), "memory")
}

func open(name, record string, log *slog.Logger, k kernel, controller string) *Tree {
	t := &Tree{log: log, kernel: k, controller: controller, name: name, record: record, groups: map[*Group]struct{}{}}
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

// Kind is the version in use; empty where no groups can be made.
func (t *Tree) Kind() Kind { return t.kind }

// Why is the reason why this process can make no groups; empty where it can.
func (t *Tree) Why() string { return t.why }

// errElsewhere says that another hierarchy has the controller.
var errElsewhere = errors.New("the controller is not there")

// prepare finds out whether there may be groups below this process's own, and in
// which folder.
func (t *Tree) prepare(p place) (string, error) {
	own := p.dir
	if p.kind == V2 {
		if filepath.Base(own) == leaf {
			own = filepath.Dir(own) // an executor of this process was here before
		}
		if err := t.enable(own, t.controller); err != nil {
			return "", err
		}
	} else if text, err := t.kernel.read(filepath.Join(own, "memory.use_hierarchy")); err == nil && strings.TrimSpace(text) == "0" {
		return "", fmt.Errorf("the group %s does not bound what is below it (memory.use_hierarchy)", own)
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

// forTasks finds the folder of the groups that bound processes; empty where none can
// be made, which is no reason to do without the others.
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

// folder makes the folder of the groups, if it is not there.
func (t *Tree) folder(kind Kind, dir string) error {
	if err := t.kernel.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("no group can be made in %s: %w", filepath.Dir(dir), cause(err))
	}
	if kind == V2 {
		if t.tasks != "" {
			_ = t.kernel.write(filepath.Join(dir, "cgroup.subtree_control"), "+pids") // a group says if it failed
		}
		if err := t.kernel.write(filepath.Join(dir, "cgroup.subtree_control"), "+"+t.controller); err != nil {
			return fmt.Errorf("the %s controller cannot be turned on in %s: %w", t.controller, dir, cause(err))
		}
	}
	return nil
}

// enable turns a controller of version 2 on for groups below own. Where that
// allows no processes in own itself, this process moves to a group beside them;
// others are not moved.
func (t *Tree) enable(own, controller string) error {
	file := func(name string) string { return filepath.Join(own, name) }
	has := func(name string) (bool, error) {
		text, err := t.kernel.read(file(name))
		return slices.Contains(strings.Fields(text), controller), err
	}
	there, err := has("cgroup.controllers")
	if err != nil {
		return fmt.Errorf("the group %s cannot be read: %w", own, cause(err))
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
		return fmt.Errorf("the group %s is not delegated to this process: %w", own, cause(err))
	}
	text, err := t.kernel.read(file("cgroup.procs"))
	if err != nil {
		return fmt.Errorf("the group %s cannot be read: %w", own, cause(err))
	}
	self := strconv.Itoa(t.kernel.pid)
	for _, pid := range strings.Fields(text) {
		if pid != self {
			return fmt.Errorf("other processes are in the group %s of this one: start it in one of its own (systemd: Delegate=yes)", own)
		}
	}
	if err := t.kernel.mkdir(file(leaf)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("no group can be made in %s: %w", own, cause(err))
	}
	err = t.kernel.write(filepath.Join(own, leaf, "cgroup.procs"), self)
	if err == nil {
		if err = t.kernel.write(file("cgroup.subtree_control"), "+"+controller); err == nil {
			t.log.Info("moved to a group of its own, to bound the memory of workers", slog.String("group", file(leaf)))
			return nil
		}
		_ = t.kernel.write(file("cgroup.procs"), self)
	}
	_ = t.kernel.rmdir(file(leaf))
	return fmt.Errorf("the %s controller cannot be turned on in %s: %w", controller, own, cause(err))
}

// try makes a group and bounds it, as if for a worker.
func (t *Tree) try(kind Kind, dir string) error {
	g := &Group{tree: t, kind: kind, dir: filepath.Join(dir, "trial")}
	if err := g.make(); err != nil {
		return err
	}
	defer g.close()
	return g.Limit(1 << 30)
}

// ForLimits makes a group for a limit on memory, which is set later, or on processes and
// threads; nil without a limit, or where no group can be made.
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
		t.log.Warn("a process gets no control group", slog.String("error", err.Error()))
		return nil
	}
	return group
}

// New makes a group without a bound and without processes.
func (t *Tree) New() (*Group, error) {
	if t.kind == "" {
		return nil, errors.New("no groups are to be had")
	}
	// Made with each group: most processes need none, one that is killed leaves nothing then, and others may tidy up.
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
			continue // what could not be removed at the start
		}
		if err != nil {
			return nil, err
		}
		t.mu.Lock()
		closed := t.closed
		if !closed {
			t.groups[g] = struct{}{}
		}
		t.mu.Unlock()
		if closed {
			g.close()
			return nil, errors.New("the tree is closed")
		}
		return g, nil
	}
}

// Close closes the groups that are open, waits until all are removed, and removes
// the place that held them.
func (t *Tree) Close() {
	t.mu.Lock()
	t.closed = true
	open := slices.Collect(maps.Keys(t.groups))
	t.mu.Unlock()
	for _, g := range open {
		g.Close()
	}
	t.wg.Wait()
	if t.kind != "" {
		t.clear(t.dir)
		if t.tasks != "" {
			t.clear(t.tasks)
		}
		_ = os.Remove(t.record)
	}
}

// forget removes the groups that the record tells of.
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
		t.log.Warn("the place of the control groups cannot be noted", slog.String("error", err.Error()))
	}
}

// clear removes a folder of groups, the groups in it, and what still runs there.
func (t *Tree) clear(dir string) {
	if _, err := os.Stat(dir); err == nil {
		end := time.Now().Add(removeTimeout)
		t.below(dir, end)
		t.remove(dir, end)
	}
}

// below removes the groups in a group: what runs there may have made some.
func (t *Tree) below(dir string, end time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			t.remove(filepath.Join(dir, entry.Name()), end)
		}
	}
}

// remove removes a group and ends what still runs there, trying until end.
func (t *Tree) remove(dir string, end time.Time) {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := t.kernel.rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			t.log.Warn("a control group cannot be removed", slog.String("group", dir), slog.String("error", err.Error()))
			return
		}
		t.empty(dir)
		t.below(dir, end)
		time.Sleep(wait)
	}
}

// empty kills what runs in a group.
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
			// Looked at again once we hold it: by then the id may be another's.
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
