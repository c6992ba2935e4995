package bus

import (
	"io"
	"net"
	"testing"
	"time"
)

// After a backlog, writes go on as before: also when the time that it had is over.
func TestSocketAfterABacklog(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // all has been said
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	conn, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // to itself
	if err != nil {
		t.Fatal(err)
	}
	s := newSocket(conn, time.Second)
	defer s.Close() //nolint:errcheck // as above
	peer := <-accepted
	defer peer.Close() //nolint:errcheck // as above
	// A buffer whose size is set does not grow: some systems' do, beyond all bounds.
	if err := peer.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	const size = 16 << 20 // more than the sockets hold
	if n, err := s.Write(make([]byte, size)); n != size || err != nil {
		t.Fatal(n, err)
	}
	if _, err := io.CopyN(io.Discard, peer, size); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-time.After(s.timeout / 2)
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatalf("a write after a backlog: %v", err)
		}
	}
	// A peer that reads nothing any more ends the connection.
	if n, err := s.Write(make([]byte, size)); n != size || err != nil {
		t.Fatal(n, err)
	}
	if _, err := io.Copy(io.Discard, s); err == nil {
		t.Error("the connection goes on")
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a write that cannot leave is no error")
	}
}
