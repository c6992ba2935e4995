package cgroup

import (
	"os"
	"syscall"
)

// kernel is what the kernel does with the files of its control groups. Tests put
// another one in its place.
type kernel struct {
	pid   int
	mkdir func(dir string) error
	rmdir func(dir string) error
	read  func(file string) (string, error)
	write func(file, text string) error
	// kill ends a process if still says, once no other can take its id, that it is
	// the one that is meant.
	kill func(pid int, still func() bool)
}

func system() kernel {
	return kernel{
		pid:   os.Getpid(),
		mkdir: func(dir string) error { return os.Mkdir(dir, 0o755) }, //nolint:gosec // as the kernel's own
		rmdir: rmdir,
		read: func(file string) (string, error) {
			data, err := os.ReadFile(file)
			return string(data), err
		},
		write: write,
		kill:  kill,
	}
}

// rmdir removes a folder though it has files: the kernel's go with it.
func rmdir(dir string) error {
	if err := syscall.Rmdir(dir); err != nil {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// write writes to a file that is there.
func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
