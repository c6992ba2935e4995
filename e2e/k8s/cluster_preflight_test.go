package k8s

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// packages are Debian packages by a program of each.
var packages = map[string]string{
	"etcd":                "etcd-server",
	"containerd":          "containerd",
	"runc":                "runc",
	"iptables":            "iptables",
	"conntrack":           "conntrack",
	"ip":                  "iproute2",
	"mmdebstrap":          "mmdebstrap",
	"/usr/lib/cni/bridge": "containernetworking-plugins",
}

// preflight installs missing packages if it may, and returns why this machine cannot run a cluster, or "".
func preflight(ctx context.Context) string {
	if os.Getuid() != 0 {
		return "it takes root: containers, network and mounts are made"
	}
	probe := exec.CommandContext(ctx, "true")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	if err := probe.Run(); err != nil {
		return fmt.Sprintf("namespaces of PID, mount and network cannot be made (CAP_SYS_ADMIN): %v", err)
	}
	if err := makeCgroups(); err != nil {
		return fmt.Sprintf("control groups cannot be made: %v", err)
	}
	removeCgroups()
	for _, program := range []string{"go", "git", "make"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is missing"
		}
	}
	missing := missingPackages()
	if len(missing) == 0 {
		return ""
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "there is no apt-get, and these are missing: " + strings.Join(missing, " ")
	}
	fmt.Println("e2e-k8s: apt-get install", strings.Join(missing, " "))
	for _, args := range [][]string{{"update", "-qq"}, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)} {
		apt := exec.CommandContext(ctx, "apt-get", args...)
		apt.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1") // it starts no daemon
		if said, err := apt.CombinedOutput(); err != nil {
			return fmt.Sprintf("apt-get %s: %v: %s", strings.Join(args, " "), err, said)
		}
	}
	if missing = missingPackages(); len(missing) > 0 {
		return "installed, and their programs are not found: " + strings.Join(missing, " ")
	}
	return ""
}

func missingPackages() (missing []string) {
	for program, name := range packages {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}
