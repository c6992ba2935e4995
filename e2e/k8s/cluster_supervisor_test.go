package k8s

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The messages between the processes of one run.
const (
	roleVariable   = "TOOLMESH_K8S_ROLE"
	folderVariable = "TOOLMESH_K8S_FOLDER"
	cgroupName     = "toolmesh-e2e-k8s"
	cgroupRoot     = "/sys/fs/cgroup"
)

// leftovers is the name of the one test that runs outside, after the cluster has ended.
const leftovers = "TestNothingIsLeft"

// mainApart runs the tests of m in namespaces of their own, then done there, and afterwards the test [leftovers]
// outside of them. It returns the exit status.
func mainApart(m *testing.M, done func()) int {
	flag.Parse()
	switch os.Getenv(roleVariable) {
	case "init":
		return beInit()
	case "tests":
		defer done()
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	unlock, err := lock()
	if err != nil {
		fmt.Println("e2e-k8s:", err)
		return 1
	}
	defer unlock()
	if why := preflight(ctx); why != "" {
		fmt.Println("e2e-k8s SKIPPED, nothing was tested:", why)
		if os.Getenv("CI") == "true" {
			return 1
		}
		return 0
	}
	status, err := supervise(ctx)
	if err != nil {
		fmt.Println("e2e-k8s:", err)
		return 1
	}
	if flag.Lookup("test.list").Value.String() != "" {
		return status
	}
	for name, value := range map[string]string{"test.run": "^" + leftovers + "$", "test.skip": ""} {
		if err := flag.Set(name, value); err != nil {
			fmt.Println("e2e-k8s:", err)
			return 1
		}
	}
	return max(m.Run(), status)
}

// lock makes sure that there is one run at a time on this machine: its control groups
// have one name.
func lock() (unlock func(), err error) {
	folder, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run has %s locked: wait for it (%w)", f.Name(), err), f.Close())
	}
	return func() { f.Close() }, nil //nolint:errcheck // nothing was written
}

// supervise prepares a run, runs it, and removes the remains that the kernel leaves.
func supervise(ctx context.Context) (status int, err error) {
	folder, err := os.MkdirTemp("", "toolmesh-k8s-")
	if err != nil {
		return 0, err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // users of pods look up volumes through it
		return 0, err
	}
	if err := os.Setenv(folderVariable, folder); err != nil {
		return 0, err
	}
	removeCgroups() // of a run that was killed
	if found, err = readTunables(); err != nil {
		return 0, err
	}
	defer func() {
		removeCgroups()
		err = errors.Join(err, restoreTunables())
		if keep := os.Getenv("E2E_K8S_KEEP"); keep != "" && status != 0 {
			fmt.Println("e2e-k8s: logs are kept:", folder)
			return
		}
		err = errors.Join(err, os.RemoveAll(folder))
	}()
	if err := prepare(ctx, folder); err != nil {
		return 0, err
	}
	if err := makeCgroups(); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	args := append([]string{}, os.Args[1:]...)
	cmd := exec.CommandContext(ctx, self, append(args, "-test.skip=^"+leftovers+"$")...)
	cmd.Env = append(os.Environ(), roleVariable+"=init")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		return 0, fmt.Errorf("start in namespaces of its own: %w", err)
	}
	if status = cmd.ProcessState.ExitCode(); status < 0 {
		return 1, fmt.Errorf("the run was ended: %v", cmd.ProcessState)
	}
	return status, nil
}

// beInit is process 1 of the namespaces. It sets them up, runs the tests as a child, and
// waits for every process that has lost its parent until that one ends.
func beInit() int {
	child, err := enter()
	if err != nil {
		fmt.Println("e2e-k8s:", err)
		return 1
	}
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Println("e2e-k8s: wait:", err)
			return 1
		case pid == child && s.Exited():
			return s.ExitStatus()
		case pid == child && s.Signaled():
			fmt.Println("e2e-k8s: the tests were ended by", s.Signal())
			return 1
		}
	}
}

func enter() (pid int, err error) {
	folder := os.Getenv(folderVariable)
	mount := func(source, target, kind string, flags uintptr) {
		if err == nil && syscall.Mount(source, target, kind, flags, "") != nil {
			err = fmt.Errorf("mount %s on %s: not permitted", source, target)
		}
	}
	mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE) // nothing gets out
	mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED)  // the kubelet wants it so, within
	mount("proc", "/proc", "proc", 0)
	mount("tmpfs", "/run", "tmpfs", 0)
	// Folders that Kubernetes and containerd have fixed names for.
	for _, name := range []string{"lib", "log"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			return 0, err
		}
		mount(filepath.Join(folder, name), "/var/"+name, "", syscall.MS_BIND)
	}
	if err != nil {
		return 0, err
	}
	for _, args := range []string{
		"ip link set lo up",
		"ip address add " + address + "/32 dev lo",
		"ip route add 10.96.0.0/16 dev lo", // of Services: kube-proxy's rules apply to packets with a route
	} {
		if said, err := exec.Command(strings.Fields(args)[0], strings.Fields(args)[1:]...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s: %w: %s", args, err, said)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	if err := os.Setenv(roleVariable, "tests"); err != nil {
		return 0, err
	}
	return syscall.ForkExec(self, append([]string{self}, os.Args[1:]...), &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
}

// version2 reports whether the machine has one hierarchy of control groups.
func version2() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// hierarchies are the folders in which the cluster's control groups lie.
func hierarchies() ([]string, error) {
	if version2() {
		return []string{cgroupRoot}, nil
	}
	// Version 1 has many, and one of version 2 may exist, too.
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") && filepath.Dir(fields[1]) == cgroupRoot {
			found = append(found, fields[1])
		}
	}
	return found, nil
}

// makeCgroups makes the control group that the kubelet puts pods below.
func makeCgroups() error {
	folders, err := hierarchies()
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if err := os.MkdirAll(filepath.Join(folder, cgroupName), 0o755); err != nil {
			return err
		}
		// Without these a group of version 1 takes no process.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(folder, file)); err == nil && !version2() {
				if err := os.WriteFile(filepath.Join(folder, cgroupName, file), value, 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// cgroups are the cluster's existing control groups, the inner ones last.
func cgroups() []string {
	folders, _ := hierarchies()
	var found []string
	for _, folder := range folders {
		_ = filepath.WalkDir(filepath.Join(folder, cgroupName), func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				found = append(found, name)
			}
			return nil
		})
	}
	return found
}

// removeCgroups removes them once their processes are gone, which the kernel may take a
// moment for.
func removeCgroups() {
	for range 100 {
		left := cgroups()
		if len(left) == 0 {
			return
		}
		for i := len(left) - 1; i >= 0; i-- {
			_ = os.Remove(left[i])
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leftBehind lists the processes, mounts, control groups and folder that a run has left on this machine.
func leftBehind() []string {
	folder := os.Getenv(folderVariable)
	left := append(cgroups(), changedTunables()...)
	if _, err := os.Stat(folder); err == nil && os.Getenv("E2E_K8S_KEEP") == "" {
		left = append(left, folder)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), folder) {
		left = append(left, fmt.Sprintf("mounts of %s (%v)", folder, err))
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range processes {
		// All of a run inherit its folder, other than the supervisor, which has set it later.
		if environ, err := os.ReadFile(name); err == nil && strings.Contains(string(environ), folderVariable+"="+folder+"\x00") {
			left = append(left, "process "+name)
		}
	}
	return left
}
