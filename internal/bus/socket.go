package bus

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// maxBacklog is how much may be unwritten before a write waits all the same: as
	// much as the broker keeps for a client that does not read.
	maxBacklog = 64 << 20
	// directWrite is how long a write waits for the socket before the rest of it
	// goes to the backlog.
	directWrite = time.Millisecond
	// stallTimeout is how long a socket may take nothing at all, as the broker's
	// own write_deadline is.
	stallTimeout = 10 * time.Second
	maxPiece     = 64 << 10 // of the backlog in one write
)

// dialer makes the sockets of [ConnectOptions].
type dialer struct{ net.Dialer }

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return newSocket(conn, stallTimeout), nil
}

// socket is a connection whose writes do not wait for a broker that does not read. nats.go
// writes under the lock of all its methods: there, a waiting write stops everything that the
// process does on the connection, including calls whose time is up and the shutdown. Data that
// the socket does not accept at once is the backlog, written by a goroutine that lives as long
// as there is any.
type socket struct {
	net.Conn
	timeout time.Duration // without any progress

	mu      sync.Mutex
	room    sync.Cond // the backlog is shorter, or err is set
	backlog []byte
	writing bool // the goroutine runs
	err     error
}

func newSocket(conn net.Conn, timeout time.Duration) *socket {
	s := &socket{Conn: conn, timeout: timeout}
	s.room.L = &s.mu
	return s
}

// Write implements [net.Conn].
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && len(s.backlog) > 0 && len(s.backlog)+len(p) > maxBacklog {
		s.room.Wait()
	}
	if s.err != nil {
		return 0, s.err
	}
	written := 0
	if !s.writing {
		var err error
		if written, err = s.write(p, directWrite); err != nil || written == len(p) {
			return written, err
		}
		s.writing = true
		go s.drain() // ends with the backlog, or when Close or the timeout fails its write
	}
	s.backlog = append(s.backlog, p[written:]...)
	return len(p), nil
}

// write writes as much as the socket accepts within a time.
func (s *socket) write(p []byte, within time.Duration) (int, error) {
	if err := s.Conn.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return 0, err
	}
	n, err := s.Conn.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, err
}

// drain writes the backlog.
func (s *socket) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.backlog) > 0 && s.err == nil {
		p := s.backlog[:min(len(s.backlog), maxPiece)]
		s.mu.Unlock()
		n, err := s.write(p, s.timeout)
		if n == 0 && err == nil {
			err = os.ErrDeadlineExceeded
		}
		s.mu.Lock()
		s.backlog = s.backlog[n:]
		if err != nil {
			s.err = err
			_ = s.Conn.Close() // nats.go reads of it, and connects anew
		}
		s.room.Broadcast()
	}
	s.backlog, s.writing = nil, false
}

// SetWriteDeadline implements [net.Conn]: how long a write waits is for Write to say.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }
