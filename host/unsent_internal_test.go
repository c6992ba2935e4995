package host

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
)

// What is kept for the connection to come back is bounded in bytes: the newest keepalive
// of each call, behind all answers, and of these no session has all the room.
func TestWhatIsUnsentIsBounded(t *testing.T) {
	t.Parallel()
	var u unsent
	log := slog.New(slog.DiscardHandler)
	u.send(log, func(*nats.Msg) error { return nil }, func() bool { return true }) // of the first connection
	beat := func(n, i int) *nats.Msg {
		return &nats.Msg{Subject: fmt.Sprintf("_INBOX.a.%d", n), Header: nats.Header{"Mesh-Keepalive": {"1"}, "Mesh-Progress": {fmt.Sprint(i)}}}
	}
	for i := range 1000 {
		for n := range 10 {
			u.hold(log, beat(n, i), false)
		}
	}
	for n := range 100_000 { // of as many calls
		u.hold(log, beat(100+n, 0), false)
	}
	if u.beats > maxKeepalives || u.beats < maxKeepalives/2 {
		t.Errorf("%d bytes of keepalives", u.beats)
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
	if flood, other := fill("_INBOX_greedy.1.x"), fill("_INBOX_other.2."); flood < 60 || other < 25 {
		t.Errorf("one session has room for %d answers, and the next one for %d", flood, other)
	}
	u.hold(log, &nats.Msg{Subject: "_INBOX.a.0", Data: []byte("1")}, false) // the end of a call
	var sent []*nats.Msg
	up := true
	publish := func(m *nats.Msg) error {
		if len(sent) == 10 && up {
			up = false
			return nats.ErrDisconnected
		}
		sent = append(sent, m)
		return nil
	}
	u.send(log, publish, func() bool { return up })
	if len(sent) != 10 || !u.holding.Load() {
		t.Fatalf("%d were sent until the connection was lost again", len(sent))
	}
	u.send(log, publish, func() bool { return true })
	if u.holding.Load() || len(u.answers) != 0 || u.beats != 0 || len(u.keepalives) != 0 {
		t.Errorf("what is left: %d answers, %d bytes of keepalives", len(u.answers), u.beats)
	}
	answers, of := 0, make(map[string]string)
	for i, m := range sent {
		if !keepalive(m) {
			if answers++; answers != i+1 {
				t.Fatal("an answer behind a keepalive")
			}
			continue
		}
		if of[m.Subject] != "" {
			t.Fatalf("two keepalives of %s", m.Subject)
		}
		of[m.Subject] = m.Header.Get("Mesh-Progress")
	}
	if of["_INBOX.a.0"] != "" || of["_INBOX.a.1"] != "999" {
		t.Errorf("of a call that has ended %q, of one that runs %q", of["_INBOX.a.0"], of["_INBOX.a.1"])
	}
}
