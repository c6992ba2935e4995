package reply

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/subjects"
)

// Large results to one connection are held back, in their order, until its caller says that
// it has read others, or has had the time; results to others are not.
func TestResultsArePaced(t *testing.T) {
	t.Parallel()
	const size, fit = 1 << 20, pacedMost >> 20
	p := pacer{account: func(s subjects.SessionID) subjects.SessionID { return s[:1] }}
	reader := func(n int, inbox string) *stream.Reader {
		return &stream.Reader{Reply: fmt.Sprintf("_INBOX.%s.%d", inbox, n), Request: &codec.Request{Call: codec.Call{Session: "s", RPCID: subjects.RPCID(fmt.Sprint(inbox, n))}}}
	}
	sent := make(chan int, 100)
	var done chan struct{} // nil: never
	go func() {
		for n := range 3 * fit {
			p.wait(done, reader(n, "a"), size, true)
			sent <- n
		}
	}()
	next := func(want int) {
		t.Helper()
		if got := <-sent; got != want {
			t.Fatalf("result %d was sent, %d is next", got, want)
		}
	}
	waits := func(n int) {
		t.Helper()
		for {
			now := 0
			p.mu.Lock()
			for _, to := range p.inbox {
				now += to.waits
			}
			p.mu.Unlock()
			if now == n {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if len(sent) > 0 {
			t.Fatal("more is on its way than may be")
		}
	}
	for n := range fit {
		next(n)
	}
	waits(1)
	p.wait(done, reader(0, "b"), size, true) // another connection
	other := reader(1000, "a")               // another session names the connection's inbox
	other.Request.Session = "t"
	p.wait(done, other, size, true)
	p.wait(done, reader(0, "c"), 2*pacedMost, false) // larger than all that may be: alone it goes
	p.Tick(time.Now().Add(readWithin - time.Second))
	waits(1)
	p.Read(admit.Key{Session: "s", RPC: "a3"})
	p.Read(admit.Key{Session: "s", RPC: "a3"}) // once more is nothing
	p.Read(admit.Key{Session: "t", RPC: "a4"}) // another session's
	next(fit)
	waits(1)
	p.Tick(time.Now().Add(readWithin)) // gone, or it never says anything
	for n := range fit {
		next(fit + 1 + n)
	}
	waits(1)
	given := make(chan struct{})
	close(given)
	p.wait(given, reader(99, "a"), size, true) // its time is up
	waits(1)
	invented := reader(98, "a") // another session of the account, for the same connection
	invented.Request.Session = "s2"
	p.wait(given, invented, size, true)
	p.mu.Lock()
	if p.unread[admit.Key{Session: "s2", RPC: "a98"}].to != nil {
		t.Error("another session of an account has room of its own on the way to a connection")
	}
	p.mu.Unlock()
	for n := range 3 * fit {
		p.Read(admit.Key{Session: "s", RPC: subjects.RPCID(fmt.Sprint("a", n))})
		p.Tick(time.Now().Add(time.Minute))
	}
	for n := 2*fit + 1; n < 3*fit; n++ {
		next(n)
	}
	p.Tick(time.Now().Add(time.Minute))
	if len(p.inbox) != 0 || len(p.unread) != 0 {
		t.Errorf("left: %d inboxes, %d results", len(p.inbox), len(p.unread))
	}
	// A caller that says nothing has as much again soon.
	for range 4 {
		p.wait(done, reader(0, "d"), pacedMost, false)
		p.Tick(time.Now().Add(readGuess))
	}
}
