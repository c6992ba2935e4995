package reply

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Messages that wait for the connection are bounded in bytes, with a share for each session, and
// are sent in order.
func TestUnsentMessagesAreBounded(t *testing.T) {
	t.Parallel()
	u := unsent{room: fair.NewRoom[string](maxHeldAnswers)}
	log := slog.New(slog.DiscardHandler)
	u.send(log, func(*nats.Msg) error { return nil }, func() bool { return true }) // of the first connection
	for n := range 100_000 {
		u.hold(log, &nats.Msg{Subject: fmt.Sprint("_INBOX.a.", n), Header: nats.Header{"Mesh-Keepalive": {"1"}}}, false)
	}
	const size = 500_000
	body := make([]byte, size)
	fill := func(inbox string) (n int) {
		for range 300 {
			before := len(u.answers)
			u.hold(log, &nats.Msg{Subject: inbox + fmt.Sprint(n), Data: body}, false)
			if len(u.answers) == before {
				break
			}
			n++
		}
		return n
	}
	flood, members := fill("_INBOX_greedy.1.x"), 0
	for n := range 100 { // a caller may name the inboxes of all of the mesh's members
		members += fill(fmt.Sprintf("_INBOX_mesh_%d.x", n))
	}
	other := fill("_INBOX_other.2.")
	if flood < 60 || members < 25 || other < 15 {
		t.Errorf("one session has room for %d answers, members for %d, and the next session for %d", flood, members, other)
	}
	var sent []string
	up := true
	publish := func(m *nats.Msg) error {
		if len(sent) == 10 && up {
			up = false
			return nats.ErrDisconnected
		}
		sent = append(sent, m.Subject)
		return nil
	}
	u.send(log, publish, func() bool { return up })
	if len(sent) != 10 || !u.holding.Load() {
		t.Fatalf("%d were sent until the connection was lost again", len(sent))
	}
	u.send(log, publish, func() bool { return true })
	if u.holding.Load() || len(u.answers) != 0 || len(sent) != flood+members+other {
		t.Errorf("%d of %d were sent, %d are left", len(sent), flood+members+other, len(u.answers))
	}
	for n, subject := range sent[:flood] {
		if subject != fmt.Sprint("_INBOX_greedy.1.x", n) {
			t.Fatalf("message %d goes to %s", n, subject)
		}
	}
	if again := fill("_INBOX_greedy.1.x"); again != flood {
		t.Errorf("afterwards there is room for %d answers, and was for %d", again, flood)
	}
}

// A result that waited to be sent and cannot leave takes no room twice: the last that fits is kept.
func TestAPacedResultThatCannotLeave(t *testing.T) {
	t.Parallel()
	b, err := bus.New(meshtest.Broker(t).Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var running sync.WaitGroup
	p := New(Options{Account: func(s subjects.SessionID) subjects.SessionID { return s }, Bus: b, Base: t.Context(), Log: slog.New(slog.DiscardHandler), Go: running.Go})
	p.unsent.holding.Store(true) // as while the connection is down
	p.unsent.room.Take("_INBOX", maxHeldAnswers/2-1<<20)
	r := &stream.Reader{Reply: "_INBOX.a.1", Request: &codec.Request{Call: codec.Call{Session: "default", RPCID: "r"}}, Identity: &codec.Identity{}}
	p.Answer(r, admit.Record{Result: make([]byte, 900<<10)})
	running.Wait()
	if n := len(p.unsent.answers); n != 1 {
		t.Errorf("%d answers wait for the connection, want the one", n)
	}
}
