//go:build unix

package bus

import (
	"errors"
	"syscall"
)

// attempt is one write that does not block.
type attempt struct {
	p     []byte
	taken int
	err   error
}

func (a *attempt) write(fd uintptr) (done bool) {
	for {
		a.taken, a.err = syscall.Write(int(fd), a.p) // Go's sockets do not block
		if !errors.Is(a.err, syscall.EINTR) {
			return true
		}
	}
}

// try writes what the socket takes at once, and no error where that is less.
func (s *socket) try(p []byte) (taken int, err error) {
	a := &s.attempt
	a.p = p
	err = s.raw.Write(a.write)
	a.p = nil
	switch {
	case err != nil: // closed
		return 0, err
	case errors.Is(a.err, syscall.EAGAIN):
		return 0, nil
	case a.err != nil:
		return 0, a.err
	}
	return a.taken, nil
}
