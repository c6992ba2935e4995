package executor_test

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// intoNamespace has a process start as root of a user namespace of its own, whose
// limits it may set.
func intoNamespace(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// refuseNamespaces has the system refuse further user and PID namespaces to this
// process, which intoNamespace started.
func refuseNamespaces() error {
	for _, name := range []string{"max_pid_namespaces", "max_user_namespaces"} {
		if err := os.WriteFile("/proc/sys/user/"+name, []byte("0"), 0); err != nil {
			return fmt.Errorf("namespaces cannot be refused here: %w", err)
		}
	}
	return nil
}
