package bus

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// backlogMost is how much may be behind before a write waits all the same: as
	// much as the broker keeps for a client that does not read.
	backlogMost = 64 << 20
	// takenWithin is how long a socket may take nothing at all, as the broker's
	// own write_deadline is.
	takenWithin = 10 * time.Second
	pieceMost   = 64 << 10 // of the backlog in one write
)

// dialer makes the sockets of [ConnectOptions].
type dialer struct{ net.Dialer }

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	raw, err := conn.(syscall.Conn).SyscallConn() // a *net.TCPConn is one
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &socket{Conn: conn, raw: raw}
	s.room.L = &s.mu
	return s, nil
}

// socket is a connection whose writes do not wait for a broker that does not
// read. nats.go writes under the lock that every one of its methods takes: there,
// a write that waits stops all that the process does on the connection, calls
// whose time is up and the shutdown included. What the socket does not take is
// written by a goroutine that lives as long as there is any of it. A connection
// that stays so is found by its pings.
type socket struct {
	net.Conn
	raw    syscall.RawConn
	behind sync.WaitGroup // the goroutine

	mu      sync.Mutex
	room    sync.Cond
	backlog []byte
	writing bool // the goroutine runs
	err     error
	attempt attempt
}

// Write implements [net.Conn].
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && len(s.backlog) > 0 && len(s.backlog)+len(p) > backlogMost {
		s.room.Wait()
	}
	if s.err != nil {
		return 0, s.err
	}
	taken := 0
	if !s.writing {
		var err error
		if taken, err = s.try(p); err != nil || taken == len(p) {
			return taken, err
		}
		s.writing = true
		s.behind.Go(s.write)
	}
	s.backlog = append(s.backlog, p[taken:]...)
	return len(p), nil
}

// write writes the backlog.
func (s *socket) write() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.backlog) > 0 && s.err == nil {
		piece := s.backlog[:min(len(s.backlog), pieceMost)]
		s.mu.Unlock()
		_ = s.Conn.SetWriteDeadline(time.Now().Add(takenWithin))
		n, err := s.Conn.Write(piece)
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

// Close implements [net.Conn]. What is behind is lost.
func (s *socket) Close() error {
	err := s.Conn.Close()
	s.behind.Wait()
	return err
}
