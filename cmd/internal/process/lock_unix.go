//go:build unix

package process

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks a file until the process ends. The error is ErrInUse if another one holds the lock.
func tryLock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}
