package reply

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// maxHeldAnswers bounds the bytes of answers that wait for the connection or, of calls
	// without a slot, for a slow caller. An inbox prefix, of which each session with a key has
	// its own, gets at most as many as it leaves free, so that the next one gets some, too.
	maxHeldAnswers = 64 << 20
	// heldCost is the approximate memory of a message besides its bytes.
	heldCost = 512
)

// unsent is the answers and chunks that wait for the connection to come back.
type unsent struct {
	room *fair.Room[string] // in bytes, by inbox prefix

	mu      sync.Mutex  // no other lock of the host is taken under it; messages are published under it, in order
	answers []*nats.Msg // in order
	holding atomic.Bool // there are some; changes under mu
}

// hold keeps a message, unless only behind others and there are none. It reports whether
// the message is seen to; where there is no room for it, that is an error in the log.
// Keepalives are not kept: the next ones say the same.
func (u *unsent) hold(log *slog.Logger, m *nats.Msg, behind bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case behind && !u.holding.Load():
		return false
	case len(m.Data) == 0 && len(m.Header[codec.HeaderKeepalive]) > 0:
	case u.room.Take(inboxPrefix(m.Subject), heldSize(m)):
		u.answers = append(u.answers, m)
		u.holding.Store(true)
	default:
		log.Error("reply lost: the connection is down and too many bytes wait", slog.String("subject", m.Subject), slog.Int("bytes", len(m.Data)))
	}
	return true
}

func heldSize(m *nats.Msg) int64 { return int64(m.Size() + heldCost) }

// inboxPrefix is the first token of a reply subject. All of those of the mesh's own members are
// one: any caller may name any of them.
func inboxPrefix(reply string) string {
	if strings.HasPrefix(reply, subjects.MemberInboxes) {
		return subjects.MemberInboxes
	}
	prefix, _, _ := strings.Cut(reply, ".")
	return prefix
}

// send publishes the kept replies in order, until the connection is down again.
func (u *unsent) send(log *slog.Logger, publish func(*nats.Msg) error, connected func() bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.answers) > 0 {
		m := u.answers[0]
		if err := publish(m); err != nil && !connected() {
			return
		} else if err != nil {
			log.Error("reply could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
		}
		u.answers[0] = nil
		u.answers = u.answers[1:]
		u.room.Give(inboxPrefix(m.Subject), heldSize(m))
	}
	u.answers = nil
	u.holding.Store(false)
}
