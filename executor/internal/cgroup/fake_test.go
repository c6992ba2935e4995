package cgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// self is the process that the fake kernel takes us for.
const self = 4711

// fake is a hierarchy of folders that keeps the kernel's rules for control
// groups. Version 2 with memory is not to be had on every machine.
type fake struct {
	t     *testing.T
	root  string // where the hierarchy is mounted
	kind  Kind
	proc  map[string]string
	ro    bool  // mounted so that nothing can be written
	alien error // error of making a group

	mu     sync.Mutex
	killed []string // by cgroup.kill and one by one
}

func newFake(t *testing.T, kind Kind) *fake {
	t.Helper()
	f := &fake{t: t, kind: kind, root: t.TempDir()}
	f.proc = map[string]string{"mountinfo": mountLine(kind, "/", f.root), "cgroup": groupLine(kind, "/service")}
	f.populate(f.root, []string{"cpu", "memory", "pids"})
	f.set("cgroup.subtree_control", "cpu memory pids")
	f.add("/service")
	f.join("/service", self)
	return f
}

func mountLine(kind Kind, root, point string) string {
	point = strings.ReplaceAll(point, " ", `\040`)
	if kind == V1 {
		return "35 31 0:32 " + root + " " + point + " rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	}
	return "41 31 0:38 " + root + " " + point + " rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
}

func groupLine(kind Kind, path string) string {
	if kind == V1 {
		return "9:name=systemd:/x\n4:memory:" + path + "\n3:cpu,cpuacct:/y\n"
	}
	return "0::" + path + "\n"
}

func (f *fake) kernel() kernel {
	return kernel{pid: self, mkdir: f.mkdir, rmdir: f.rmdir, read: f.read, write: f.write, kill: f.kill}
}

// add makes a group of another process.
func (f *fake) add(group string) {
	f.t.Helper()
	if err := f.mkdir(f.root + group); err != nil {
		f.t.Fatal(err)
	}
}

// join puts a process into a group.
func (f *fake) join(group string, pid int) {
	f.t.Helper()
	if err := f.write(f.root+group+"/cgroup.procs", strconv.Itoa(pid)); err != nil {
		f.t.Fatal(err)
	}
}

// set writes a file's content, below the root.
func (f *fake) set(file, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.root, file), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// get is a file's content, below the root; "-" without the file.
func (f *fake) get(file string) string {
	data, err := os.ReadFile(filepath.Join(f.root, file))
	if err != nil {
		return "-"
	}
	return strings.TrimSpace(string(data))
}

// groups are the paths of all groups.
func (f *fake) groups() []string {
	var found []string
	err := filepath.WalkDir(f.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != f.root {
			found = append(found, strings.TrimPrefix(path, f.root))
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// populate makes the files of a group that has these controllers.
func (f *fake) populate(dir string, controllers []string) {
	files := map[string]string{"cgroup.procs": ""}
	switch f.kind {
	case V1:
		files["memory.use_hierarchy"] = "1"
		files["memory.limit_in_bytes"] = "9223372036854771712"
		files["memory.memsw.limit_in_bytes"] = "9223372036854771712"
		files["memory.usage_in_bytes"], files["memory.max_usage_in_bytes"] = "0", "0"
		files["memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
	case V2:
		files["cgroup.controllers"] = strings.Join(controllers, " ")
		files["cgroup.subtree_control"], files["cgroup.kill"] = "", ""
		if slices.Contains(controllers, "memory") {
			files["memory.max"], files["memory.swap.max"], files["memory.oom.group"] = "max", "max", "0"
			files["memory.current"], files["memory.peak"] = "0", "0"
			files["memory.events"] = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"
		}
		if slices.Contains(controllers, "pids") {
			files["pids.max"], files["pids.events"] = "max", "max 0\n"
		}
	}
	for name, text := range files {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				f.t.Error(err)
			}
		}
	}
}

func (f *fake) mkdir(dir string) error {
	if f.ro {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.EROFS}
	}
	if f.alien != nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: f.alien}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	above, _ := f.read(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"))
	f.populate(dir, strings.Fields(above))
	return nil
}

func (f *fake) rmdir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	procs, _ := f.read(filepath.Join(dir, "cgroup.procs"))
	if slices.ContainsFunc(entries, fs.DirEntry.IsDir) || strings.TrimSpace(procs) != "" {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: syscall.EBUSY}
	}
	return os.RemoveAll(dir)
}

func (f *fake) read(file string) (string, error) {
	if name, ok := strings.CutPrefix(file, "/proc/self/"); ok {
		text, there := f.proc[name]
		if !there {
			return "", &fs.PathError{Op: "open", Path: file, Err: syscall.ENOENT}
		}
		return text, nil
	}
	data, err := os.ReadFile(file)
	return string(data), err
}

func (f *fake) write(file, text string) error {
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: file, Err: err} }
	if _, err := os.Stat(file); err != nil {
		return err
	}
	if f.ro {
		return fail(syscall.EROFS)
	}
	dir, name := filepath.Split(file)
	dir = filepath.Clean(dir)
	inner := func(dir string) bool { // it may have no processes next to groups
		on, _ := f.read(filepath.Join(dir, "cgroup.subtree_control"))
		return f.kind == V2 && dir != f.root && strings.TrimSpace(on) != ""
	}
	switch name {
	case "cgroup.procs":
		if inner(dir) {
			return fail(syscall.EBUSY)
		}
		f.leave(text)
		return f.appendTo(file, text+"\n")
	case "cgroup.subtree_control":
		controller := strings.TrimPrefix(text, "+")
		there, _ := f.read(filepath.Join(dir, "cgroup.controllers"))
		if !slices.Contains(strings.Fields(there), controller) {
			return fail(syscall.ENOENT)
		}
		if procs, _ := f.read(filepath.Join(dir, "cgroup.procs")); dir != f.root && strings.TrimSpace(procs) != "" {
			return fail(syscall.EBUSY)
		}
		return f.appendTo(file, " "+controller)
	case "memory.oom_control": // says more than it is told
		return nil
	case "cgroup.kill":
		procs, _ := f.read(filepath.Join(dir, "cgroup.procs"))
		for _, pid := range strings.Fields(procs) {
			f.end(pid)
		}
		return nil
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

func (f *fake) kill(pid int, still func() bool) {
	if still() {
		f.end(strconv.Itoa(pid))
	}
}

func (f *fake) end(pid string) {
	f.leave(pid)
	f.mu.Lock()
	f.killed = append(f.killed, pid)
	f.mu.Unlock()
}

// leave takes a process out of the group that it is in.
func (f *fake) leave(pid string) {
	for _, group := range append(f.groups(), "") {
		file := f.root + group + "/cgroup.procs"
		procs, _ := f.read(file)
		rest := slices.DeleteFunc(strings.Fields(procs), func(one string) bool { return one == pid })
		if err := os.WriteFile(file, []byte(strings.Join(rest, "\n")), 0o600); err != nil {
			f.t.Error(err)
		}
		if len(rest) > 0 {
			_ = f.appendTo(file, "\n")
		}
	}
}

func (f *fake) appendTo(file, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, text...), 0o600)
}
