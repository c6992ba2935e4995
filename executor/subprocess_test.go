package executor_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// nobody is the id of an ordinary user that every system has.
const nobody = 65534

// whileParentLives ends this process with the test that started it, however that
// ends: the pipe on its standard input is the test's.
func whileParentLives() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
}

// beside prepares a process of this test's binary, as root or as an ordinary user, and a folder
// of its own with files. It runs no tests, and calls whileParentLives first.
func beside(t *testing.T, user string, files map[string]string) (*exec.Cmd, string) {
	t.Helper()
	drop := user == "ordinary" && os.Geteuid() == 0
	dir := writeFiles(t, files)
	binary := os.Args[0]
	cmd := exec.Command(binary, "-test.run=^$")
	cmd.Env = os.Environ()
	if drop {
		// Neither the binary nor the folder is somewhere that the user may go.
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		binary = filepath.Join(filepath.Dir(dir), "test")
		copyFile(t, os.Args[0], binary)
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, nobody, nobody)
		})
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.Command(binary, "-test.run=^$")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: false}}
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir}
		if _, err := os.Stat("/usr/bin/python3"); err != nil {
			if _, err := os.Stat("/usr/local/bin/python3"); err != nil {
				t.Skip("no interpreter that another user could run")
			}
		}
	}
	if user == "refused" {
		intoNamespace(cmd)
	}
	cmd.Dir = dir
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil { // closed by Wait
		t.Fatal(err)
	}
	return cmd, dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // read only
	// A child that another test forks meanwhile would hold it open: text file busy.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
