//go:build unix

package index

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// endWholeGroup makes the end of the context reach the helpers that git starts
// (git-remote-https, ssh), not git alone.
func endWholeGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
