package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
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

// attributes are how a process is started: kept together in the way of level, in
// the namespaces of box.
func attributes(level Level, box tool.Sandbox) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true} // a terminal of the agent is nobody else's
	switch level {
	case LevelPID:
		attr.Cloneflags = syscall.CLONE_NEWPID
	case LevelUser:
		attr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
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

// trial is attributes, and has the process mount: where a system lets namespaces be
// made, it may yet take their capabilities away.
func trial(level Level, box tool.Sandbox) *syscall.SysProcAttr {
	attr := attributes(level, box)
	attr.Unshareflags = attr.Cloneflags & syscall.CLONE_NEWNS
	return attr
}

// baseAttributes are how a base is started: it ends with the agent.
func baseAttributes() (*syscall.SysProcAttr, error) {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}, nil
}

// requestOf says what attributes says of a program, for a copy.
func requestOf(level Level, box tool.Sandbox) copyRequest {
	attr := attributes(level, box)
	r := copyRequest{Flags: attr.Cloneflags, Death: attr.Pdeathsig == syscall.SIGKILL}
	if attr.Cloneflags&syscall.CLONE_NEWUSER != 0 {
		r.Mapped = []int{attr.UidMappings[0].HostID, attr.GidMappings[0].HostID}
		if os.Geteuid() != 0 {
			// As many as a program would be left with.
			r.Capabilities = append([]uintptr{}, attr.AmbientCaps...)
		}
	}
	return r
}

// restrictions says why the kernel cannot restrict what the level strict does; empty when it can.
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

// commandDeath lets a plain program die with us; it is no reaper.
func commandDeath(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

func newPageFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("toolmesh-page", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "page"), nil
}

func signalFd(fd int, sig syscall.Signal) error { return unix.PidfdSendSignal(fd, sig, nil, 0) }

// keepDescriptors keeps from programs what this process was itself started with: Go
// closes none but its own files.
func keepDescriptors() {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, one := range fds {
		if fd, err := strconv.Atoi(one.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// hostPid is the id that a process has in our namespace, not positive when it is
// gone; false where the system does not tell.
func hostPid(fd int) (int, bool) {
	data, _ := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	pid, known := numberIn(data, "Pid:")
	return int(pid), known
}
