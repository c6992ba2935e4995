package cgroup

import "os"

// kernel has the operations of the kernel on the files of its control groups. Tests put
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
		rmdir: os.Remove,                                              // though it has files: the kernel's go with it
		read: func(file string) (string, error) {
			data, err := os.ReadFile(file)
			return string(data), err
		},
		write: write,
		kill:  kill,
	}
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
