package meshtest

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
)

// PublishRaw sends one message as a client of another make may: with a header
// block that is no header block. nats.go refuses to write one. It returns once
// the broker has the message.
func (s *Server) PublishRaw(t testing.TB, subject, reply, header, body string) {
	t.Helper()
	var d net.Dialer
	nc, err := d.DialContext(t.Context(), "tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close() //nolint:errcheck // all was sent
	if reply != "" {
		reply += " "
	}
	_, err = fmt.Fprintf(nc, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nHPUB %s %s%d %d\r\n%s%s\r\nPING\r\n",
		subject, reply, len(header), len(header)+len(body), header, body)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(nc); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "-ERR"):
			t.Fatalf("the broker refuses %q: %s", header, line)
		case line == "PONG":
			return
		}
	}
	t.Fatal("the broker hangs up")
}
