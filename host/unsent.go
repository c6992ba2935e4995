package host

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/fair"
)

const (
	// maxUnsent is how many bytes of answers are kept for the connection to come back.
	// Callers of one inbox prefix, as the sessions with a key have one each, have no more
	// of it than they leave free: whoever comes next has some, too.
	maxUnsent = 64 << 20
	// maxKeepalives is the same for keepalives, which have room of their own.
	maxKeepalives = 1 << 20
	// heldCost is about what a message costs in memory beside its bytes.
	heldCost = 512
)

// unsent is what waits for the connection to come back. The zero value is empty.
type unsent struct {
	mu         sync.Mutex
	answers    []*nats.Msg          // and chunks, in order
	keepalives map[string]*nats.Msg // the newest one of each call, by its reply subject
	room       *fair.Room[string]   // of answers, in bytes, by inbox prefix
	beats      int                  // of keepalives, in bytes
	holding    atomic.Bool          // there are answers; changes under mu
}

// hold keeps a message, unless only behind others and there are none. It reports whether
// the message is seen to; where there is no room for it, that is an error in the log.
func (u *unsent) hold(log *slog.Logger, m *nats.Msg, behind bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if behind && !u.holding.Load() {
		return false
	}
	if u.room == nil {
		u.room, u.keepalives = fair.NewRoom[string](maxUnsent), make(map[string]*nats.Msg)
	}
	u.forget(m.Subject) // it is older, and nothing once there is an answer
	size := heldSize(m)
	if keepalive(m) {
		if u.beats+size <= maxKeepalives {
			u.keepalives[m.Subject] = m
			u.beats += size
		}
		return true
	}
	if u.room.Take(inboxPrefix(m), int64(size)) {
		u.answers = append(u.answers, m)
		u.holding.Store(true)
	} else {
		log.Error("reply lost: the connection is down and too many bytes wait", slog.String("subject", m.Subject), slog.Int("bytes", len(m.Data)))
	}
	return true
}

// forget drops the keepalive of a call; mu is held.
func (u *unsent) forget(reply string) {
	if old := u.keepalives[reply]; old != nil {
		delete(u.keepalives, reply)
		u.beats -= heldSize(old)
	}
}

func heldSize(m *nats.Msg) int { return m.Size() + heldCost }

func keepalive(m *nats.Msg) bool {
	return len(m.Data) == 0 && len(m.Header[codec.HeaderKeepalive]) > 0
}

func inboxPrefix(m *nats.Msg) string {
	prefix, _, _ := strings.Cut(m.Subject, ".")
	return prefix
}

// send publishes what waits, answers first and in order, until the connection is down
// again.
func (u *unsent) send(log *slog.Logger, publish func(*nats.Msg) error, connected func() bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	down := func(m *nats.Msg) bool {
		err := publish(m)
		if err != nil && connected() {
			log.Error("reply could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
			return false
		}
		return err != nil
	}
	for len(u.answers) > 0 {
		m := u.answers[0]
		if down(m) {
			return
		}
		u.answers[0] = nil
		u.answers = u.answers[1:]
		u.room.Give(inboxPrefix(m), int64(heldSize(m)))
	}
	u.answers = nil
	u.holding.Store(false)
	for reply, m := range u.keepalives {
		if down(m) {
			return
		}
		u.forget(reply)
	}
}

// sendMsg publishes a reply and reports whether the connection takes its size; its header
// is the host's from then on. What cannot leave because the connection is down is kept
// and sent when it is back: the work is done, its answer should not be lost.
func (h *Host) sendMsg(m *nats.Msg) bool {
	if h.unsent.holding.Load() && h.unsent.hold(h.log, m, true) {
		return true // behind those that wait: chunks stay in order
	}
	err := h.bus.Conn().PublishMsg(m)
	switch {
	case err == nil:
		codec.Recycle(codec.Header(m.Header))
	case errors.Is(err, nats.ErrMaxPayload):
		return false
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrConnectionClosed):
		h.log.Error("reply could not be sent", slog.String("subject", m.Subject), slog.String("error", err.Error()))
	default:
		h.unsent.hold(h.log, m, false)
		if h.bus.Connected() {
			h.resend() // it came back in this instant, perhaps before it could wake us
		}
	}
	return true
}

// resend sends what waited for the connection.
func (h *Host) resend() {
	h.unsent.send(h.log, h.bus.Conn().PublishMsg, h.bus.Connected)
}
