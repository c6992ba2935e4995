//go:build !linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/tool"
)

func systemLevels() []Level { return []Level{LevelReaper} }

func attributes(Level, tool.Sandbox) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// baseAttributes says that no process can be copied here.
func baseAttributes() (*syscall.SysProcAttr, error) { return nil, errors.ErrUnsupported }

func requestOf(Level, tool.Sandbox) copyRequest { return copyRequest{} }

// restrictions says that there are none here.
func restrictions() (landlock int, why string) { return 0, "only Linux has it" }

func commandDeath(*syscall.SysProcAttr) {}

func newPageFile() (*os.File, error) {
	file, err := os.CreateTemp("", "toolmesh-page-*")
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("page: %w", err)
	}
	return file, nil
}

// Handle names one process. Here it is its id alone: signal it only while its
// parent has not reaped it.
type Handle struct {
	mu  sync.Mutex
	pid int
}

// NewHandle names the process; there are no pidfds here.
func NewHandle(fd, pid int) *Handle {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return &Handle{pid: pid}
}

// Pid is the process's id.
func (h *Handle) Pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pid
}

// Signal sends a signal; nil when the process is gone already.
func (h *Handle) Signal(sig syscall.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pid <= 0 {
		return nil
	}
	if err := unix.Kill(h.pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Close gives the hold up; signals go nowhere from then on.
func (h *Handle) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pid = 0
}

// Usage is not known here.
func (h *Handle) Usage() (Usage, bool) { return Usage{}, false }

// Share is not known here.
func (h *Handle) Share() (int64, bool) { return 0, false }

// Descendants are not known here.
func (h *Handle) Descendants() []int { return nil }

// Below is not known here.
func (p *Process) Below() (Usage, bool) { return Usage{}, false }

// BelowShare is not known here.
func (p *Process) BelowShare() (int64, bool) { return 0, false }
