package bus

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Probe finds out whether anybody is there who is sent keepalives: each has a reply subject
// of the probe's, where the broker says so if it meets nobody. The zero value is ready; its
// methods may be called concurrently.
type Probe struct {
	mu     sync.Mutex
	inbox  *Inbox
	closed bool
	nobody bool      // the last keepalive met nobody
	since  time.Time // since when none has met anybody
}

// Next returns the reply subject of the next keepalive, empty for none, and for how long
// nobody has been there by the ones before.
func (p *Probe) Next(b *Bus) (reply string, gone time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inbox == nil && !p.closed {
		p.inbox, _ = b.Open(p.answered) // tried again with the next one
	}
	now := time.Now()
	switch {
	case p.inbox == nil:
		return "", 0
	case !p.nobody:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = now
	default:
		gone = now.Sub(p.since)
	}
	p.nobody = false
	return p.inbox.Subject(), gone
}

func (p *Probe) answered(m *nats.Msg, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nobody = p.nobody || err == nil && NoResponders(m)
}

// Close ends the probe.
func (p *Probe) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.inbox != nil {
		p.inbox.Close()
	}
}
