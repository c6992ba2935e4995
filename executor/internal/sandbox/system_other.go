//go:build !linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/toolmesh/toolmesh/tool"
)

func systemLevels() []Level { return []Level{LevelReaper} }

func mayMap() bool { return false }

func attributes(Level, tool.Sandbox, bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

func trial(level Level, box tool.Sandbox, all bool) *syscall.SysProcAttr {
	return attributes(level, box, all)
}

// baseAttributes fails: processes cannot be copied here.
func baseAttributes() (*syscall.SysProcAttr, error) { return nil, errors.ErrUnsupported }

func requestOf(Level, tool.Sandbox, bool) copyRequest { return copyRequest{} }

// restrictions says that this system has none.
func restrictions() string { return "only Linux has it" }

func keepDescriptors() {}

// boottime uses the wall clock, which other processes have, too.
func boottime() time.Duration { return time.Duration(time.Now().UnixNano()) }

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

func sealPage(*os.File) error { return nil }

// This system has no pidfds: no process sends one.

func signalFd(int, syscall.Signal) error { return errors.ErrUnsupported }
func hostPid(int) (int, bool)            { return 0, false }
func parentOf(int) (int, bool)           { return 0, false }

// Usage and descendants of processes are unknown here.

func UsageOf(int, bool, int) (Usage, bool)    { return Usage{}, false }
func ShareOf(int, bool) (int64, bool)         { return 0, false }
func ProcessorTime(int) (time.Duration, bool) { return 0, false }
func Descendants(int) []int                   { return nil }

func FilesOf(string, int, int64) int64 { return 0 }
