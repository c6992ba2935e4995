//go:build !unix

package bus

import (
	"errors"
	"os"
	"time"
)

type attempt struct{}

// try writes what the socket takes within a millisecond, and no error where that
// is less.
func (s *socket) try(p []byte) (taken int, err error) {
	if err := s.Conn.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return 0, err
	}
	if taken, err = s.Conn.Write(p); errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return taken, err
}
