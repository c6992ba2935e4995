package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/tool"
)

func systemLevels() []Level {
	if os.Geteuid() == 0 {
		return []Level{LevelPID, LevelUser, LevelReaper}
	}
	return []Level{LevelUser, LevelReaper}
}

// idsOf are the ids in a process's user namespace: those of its starter, or all of the
// starter's own namespace, by the same numbers.
func idsOf(all bool) (users, groups []syscall.SysProcIDMap) {
	if !all {
		return []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
			[]syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
	return extents("uid_map"), extents("gid_map")
}

func extents(name string) (ids []syscall.SysProcIDMap) {
	data, _ := os.ReadFile("/proc/self/" + name)
	for line := range strings.Lines(string(data)) {
		var id, outside, size int
		if n, _ := fmt.Sscan(line, &id, &outside, &size); n == 3 {
			ids = append(ids, syscall.SysProcIDMap{ContainerID: id, HostID: id, Size: size})
		}
	}
	return ids
}

// mayMap reports whether this process may make a user namespace that maps further users.
func mayMap() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	const needed = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETFCAP
	return os.Geteuid() == 0 && unix.Capget(&header, &data[0]) == nil && data[0].Effective&needed == needed
}

// attributes are for the start of a process that is kept together by level, in the namespaces
// of box. all is for idsOf.
func attributes(level Level, box tool.Sandbox, all bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true} // the agent's terminal is not for its children
	switch level {
	case LevelPID:
		attr.Cloneflags = syscall.CLONE_NEWPID
	case LevelUser:
		attr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER
		attr.UidMappings, attr.GidMappings = idsOf(all)
		attr.GidMappingsEnableSetgroups = all
	case LevelReaper:
		// No parent-death signal: the reaper has work to do when the agent dies.
		return attr
	}
	attr.Pdeathsig = syscall.SIGKILL
	switch box {
	case tool.SandboxOffline:
		attr.Cloneflags |= syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	case tool.SandboxStrict:
		attr.Cloneflags |= syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	case tool.SandboxGuard:
		attr.Cloneflags |= syscall.CLONE_NEWNS
	default:
		return attr
	}
	if level == LevelUser && os.Geteuid() != 0 {
		// Capabilities of the new namespaces alone, which an ordinary user would
		// lose with the program's start: to mount and to set the network up.
		attr.AmbientCaps = []uintptr{unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}
	}
	return attr
}

// trial is attributes, and the process mounts something: a system may allow namespaces but
// take their capabilities away.
func trial(level Level, box tool.Sandbox, all bool) *syscall.SysProcAttr {
	attr := attributes(level, box, all)
	attr.Unshareflags = attr.Cloneflags & syscall.CLONE_NEWNS
	return attr
}

// baseAttributes are for the start of a base, which ends with the agent.
func baseAttributes() (*syscall.SysProcAttr, error) {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}, nil
}

// requestOf makes the request of a copy from the attributes of a program.
func requestOf(level Level, box tool.Sandbox, all bool) copyRequest {
	attr := attributes(level, box, all)
	r := copyRequest{Flags: attr.Cloneflags, Death: attr.Pdeathsig == syscall.SIGKILL}
	if attr.Cloneflags&syscall.CLONE_NEWUSER != 0 {
		r.Maps = [][2]string{{"uid_map", lines(attr.UidMappings)}, {"setgroups", "deny"}, {"gid_map", lines(attr.GidMappings)}}
		if attr.GidMappingsEnableSetgroups {
			r.Maps = slices.Delete(r.Maps, 1, 2)
		}
		if os.Geteuid() != 0 {
			// The same capabilities that a program would have.
			r.Capabilities = append([]uintptr{}, attr.AmbientCaps...)
		}
	}
	return r
}

// lines is a mapping in the kernel's format.
func lines(ids []syscall.SysProcIDMap) string {
	var b strings.Builder
	for _, one := range ids {
		fmt.Fprintf(&b, "%d %d %d\n", one.ContainerID, one.HostID, one.Size)
	}
	return b.String()
}

// restrictions returns why the kernel cannot enforce the level strict; empty if it can.
func restrictions() string {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		return "the kernel has no Landlock"
	}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return "no system call filter is known for " + runtime.GOARCH
	}
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))) //nolint:gosec // as the call wants it
	if errno != 0 {
		return "the kernel has no system call filters"
	}
	return ""
}

func boottime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every kernel has it
	return time.Duration(now.Nano())
}

func newPageFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("toolmesh-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "page"), nil
}

// sealPage fixes the size of a page's file: this process would end with SIGBUS when it reads a page
// that a worker has cut off.
func sealPage(file *os.File) error {
	_, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return err
}

func signalFd(fd int, sig syscall.Signal) error { return unix.PidfdSendSignal(fd, sig, nil, 0) }

// keepDescriptors keeps the descriptors with which this process was started from programs: Go
// closes only its own files.
func keepDescriptors() {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, one := range fds {
		if fd, err := strconv.Atoi(one.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// hostPid is the id of a process in our namespace, not positive after its end; false where the
// system does not tell.
func hostPid(fd int) (int, bool) {
	data, _ := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	pid, known := numberIn(data, "Pid:")
	return int(pid), known
}
