package cgroup

import (
	"bufio"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kind is a version of control groups.
type Kind string

// The versions.
const (
	V1 Kind = "cgroup v1"
	V2 Kind = "cgroup v2"
)

// place is the folder of this process's own group in one hierarchy.
type place struct {
	kind Kind
	dir  string
}

// places finds this process's own groups for a controller, version 2 before version 1, in the
// texts of /proc/self/mountinfo and /proc/self/cgroup.
func places(mounts, groups, controller string) []place {
	var found []place
	for _, m := range mountsOf(mounts) {
		for line := range strings.Lines(groups) {
			// number:controllers:path; version 2 has number 0 and no controllers.
			number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			controllers, path, ok := strings.Cut(rest, ":")
			if !ok {
				continue
			}
			var kind Kind
			switch {
			case m.kind == V2 && number == "0" && controllers == "":
				kind = V2
			case m.kind == V1 && slices.Contains(strings.Split(controllers, ","), controller) &&
				slices.Contains(m.controllers, controller):
				kind = V1
			default:
				continue
			}
			if below, ok := beneath(m.root, path); ok {
				found = append(found, place{kind: kind, dir: filepath.Join(m.point, below)})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b place) int { return strings.Compare(string(b.kind), string(a.kind)) })
	return found
}

// beneath is a group's path below a mount's root; false if it is not below it, as in a
// container that sees less than its own path.
func beneath(root, path string) (string, bool) {
	if path == root {
		return "", true
	}
	if strings.HasPrefix(path, "/..") {
		return "", false
	}
	if root != "/" {
		root += "/"
	}
	return strings.CutPrefix(path, root)
}

// mount is a mounted hierarchy.
type mount struct {
	kind        Kind
	root, point string
	controllers []string // of version 1
}

func mountsOf(text string) []mount {
	var found []mount
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		// id parent device root point options… - type source options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(kind) < 3 {
			continue
		}
		m := mount{root: unescape(fields[3]), point: unescape(fields[4])}
		switch kind[0] {
		case "cgroup2":
			m.kind = V2
		case "cgroup":
			m.kind, m.controllers = V1, strings.Split(kind[2], ",")
		default:
			continue
		}
		found = append(found, m)
	}
	return found
}

// unescape undoes the kernel's escapes of white space and backslashes.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// Memory is the memory in bytes that this process can have: that of the machine, or less if one
// of its groups is limited. 0 where the system does not tell.
func Memory() int64 {
	k, kb := system(), int64(0)
	text, _ := k.read("/proc/meminfo")
	_, _ = fmt.Sscanf(text, "MemTotal: %d", &kb)
	return memoryOf(k, kb<<10)
}

func memoryOf(k kernel, machine int64) int64 {
	mounts, _ := k.read("/proc/self/mountinfo")
	own, _ := k.read("/proc/self/cgroup")
	least := machine
	for _, p := range places(mounts, own, "memory") {
		for dir := p.dir; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			text, _ := k.read(filepath.Join(dir, filesOf[p.kind].limit)) // version 2 lacks it in the root
			if bound, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
				least = min(least, bound) // otherwise it is "max"
			}
		}
	}
	return least
}
