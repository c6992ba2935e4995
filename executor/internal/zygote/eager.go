package zygote

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// eagerFor is how long a read polls before the goroutine sleeps. Waking it costs about as
	// much.
	eagerFor = 40 * time.Microsecond
	// After eagerTries polls in a row without an answer, only each eagerAgain'th read polls.
	eagerTries = 4
	eagerAgain = 64
)

// eager reads from a worker whose answer is expected within microseconds: it polls for a moment
// before it sleeps, as a mutex does. Its owner requests that while a processor would be idle;
// it stops where polls find nothing because calls are long. Not for concurrent use.
type eager struct {
	raw    syscall.RawConn
	eager  bool // poll; the owner sets it between reads
	failed int  // polls in a row without an answer
	passed int  // reads since the last poll

	into   []byte
	n      int
	err    error
	looked bool
	try    func(fd uintptr) bool // e.attempt, made once
}

func newEager(open *os.File) *eager {
	e := &eager{}
	e.raw, _ = open.SyscallConn()
	e.try = e.attempt
	return e
}

// Read implements [io.Reader].
func (e *eager) Read(b []byte) (int, error) {
	e.into, e.n, e.err, e.looked = b, 0, nil, false
	err := e.raw.Read(e.try)
	e.into = nil
	switch {
	case err != nil:
		return 0, err // the deadline, or the file is closed
	case e.err != nil:
		return 0, fmt.Errorf("read from the worker: %w", e.err)
	case e.n == 0:
		return 0, io.EOF
	}
	return e.n, nil
}

// attempt reports whether the read is done; otherwise it is called again when the pipe is
// readable.
func (e *eager) attempt(fd uintptr) bool {
	if e.once(fd) {
		return true
	}
	if e.looked || !e.look() {
		return false
	}
	e.looked = true
	began, found := time.Now(), false
	for !found && time.Since(began) < eagerFor {
		found = e.once(fd)
	}
	if found && time.Since(began) < eagerFor {
		e.failed = 0
	} else { // an answer that came later came once the worker had our processor
		e.failed++
	}
	return found
}

// look decides whether to poll again.
func (e *eager) look() bool {
	if !e.eager {
		return false
	}
	e.passed++
	if e.failed < eagerTries || e.passed >= eagerAgain {
		e.passed = 0
		return true
	}
	return false
}

func (e *eager) once(fd uintptr) bool {
	for {
		n, err := unix.Read(int(fd), e.into) //nolint:gosec // descriptors are small
		switch {
		case err == unix.EINTR: //nolint:errorlint // a plain errno
			continue
		case err == unix.EAGAIN: //nolint:errorlint // likewise
			return false
		case err != nil:
			e.err = err
		default:
			e.n = n
		}
		return true
	}
}
