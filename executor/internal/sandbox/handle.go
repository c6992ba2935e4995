package sandbox

import (
	"errors"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handle refers to one process even after its id is reused: it holds a pidfd. Where the system
// has none it holds the id alone; signal it then only while its parent has not reaped it.
// Safe for concurrent use.
type Handle struct {
	mu  sync.Mutex
	fd  int
	pid int
}

// NewHandle takes over a pidfd, or names a process of our own namespace by its
// id when fd is negative. pid is its id in its own namespace.
func NewHandle(fd, pid int) *Handle {
	h := &Handle{fd: fd, pid: pid}
	if fd >= 0 {
		if own, known := hostPid(fd); known {
			h.pid = max(own, 0) // it has none after its end; pid may be another process's here
		} else {
			h.pid = -1 // not a pidfd
		}
	}
	return h
}

// Below reports whether the process has ended, or is root, a child of root, or a grandchild.
// Code of an index may have sent the pidfd of any process, even of this one. It is true where
// the system cannot tell.
func (h *Handle) Below(root int) bool {
	pid, ok := h.Pid(), true
	if runtime.GOOS != "linux" {
		return true
	}
	for range 2 {
		if pid == root {
			return true
		}
		if pid, ok = parentOf(pid); !ok {
			return h.fd >= 0 && h.pid >= 0 // ended
		}
	}
	return pid == root
}

// Pid is the process's id in our namespace.
func (h *Handle) Pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pid
}

// Signal sends a signal; nil if the process has ended.
func (h *Handle) Signal(sig syscall.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.fd >= 0 {
		err = signalFd(h.fd, sig)
	} else if h.pid > 0 {
		err = unix.Kill(h.pid, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Close releases the handle; later signals do nothing.
func (h *Handle) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fd >= 0 {
		CloseSent(h.fd)
	}
	h.fd, h.pid = -1, 0
}

// CloseSent closes a descriptor that code of an index may have sent: it may be a socket that lets its last
// close wait for a peer which reads nothing.
func CloseSent(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	_ = unix.Close(fd)
}
