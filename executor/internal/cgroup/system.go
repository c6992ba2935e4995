package cgroup

import "os"

// kernel has the operations on the kernel's files of control groups. Tests replace it.
type kernel struct {
	pid   int
	mkdir func(dir string) error
	rmdir func(dir string) error
	read  func(file string) (string, error)
	write func(file, text string) error
	// kill ends a process if still returns true once no other process can take its id.
	kill func(pid int, still func() bool)
}

func system() kernel {
	return kernel{
		pid:   os.Getpid(),
		mkdir: func(dir string) error { return os.Mkdir(dir, 0o755) }, //nolint:gosec // as the kernel's own
		rmdir: os.Remove,                                              // its files are the kernel's and are removed with it
		read: func(file string) (string, error) {
			data, err := os.ReadFile(file)
			return string(data), err
		},
		write: write,
		kill: func(pid int, still func() bool) {
			if p, err := os.FindProcess(pid); err == nil { // holds it by a pidfd
				if still() {
					_ = p.Kill()
				}
				_ = p.Release()
			}
		},
	}
}

// write writes to an existing file.
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
