package bus

import (
	"cmp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Opener makes inboxes, as a [Bus] does.
type Opener interface {
	Open(deliver func(*nats.Msg, error)) (*Inbox, error)
}

// probeEvery is the interval of messages that probe for a subscriber, if a probe has none of its own.
const probeEvery = 900 * time.Millisecond

// Probe finds out whether messages still have a subscriber: now and then one has a reply subject
// of the probe, on which the broker reports if there was none. The zero value is ready; its
// methods may be called concurrently.
type Probe struct {
	// Every is the interval of its messages. Defaults to 900 ms.
	Every time.Duration

	mu          sync.Mutex
	inbox       *Inbox
	closed      bool
	at          time.Time // when the last one was sent
	nobody      bool      // the last answered message had no subscriber
	since, last time.Time // when the first of an unbroken row of them did, and the last
}

// Pass is Next for a message of another process that this one passes on, with a reply subject of
// the other's own probe. It reports there that this process has no subscriber, which the broker
// tells only the publisher.
func (p *Probe) Pass(b *Bus, reply string) string {
	if p.Gone(0) {
		b.AnswerNoSubscriber(reply)
	}
	return p.Next(b)
}

// AnswerNoSubscriber answers the probe of another process whose messages this one passes on: they have
// no subscriber.
func (b *Bus) AnswerNoSubscriber(reply string) {
	_ = b.nc.PublishMsg(&nats.Msg{Subject: reply, Header: nats.Header{headerStatus: {statusNoResponders}}}) // again with the next one
}

// Next returns the reply subject of the next message, empty for most.
func (p *Probe) Next(b Opener) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.closed || now.Sub(p.at) < cmp.Or(p.Every, probeEvery) {
		return ""
	}
	if p.inbox == nil {
		inbox, err := b.Open(p.answered)
		if err != nil {
			return "" // tried again with the next one
		}
		p.inbox = inbox
	}
	if !p.nobody {
		p.since = time.Time{}
	}
	p.at, p.nobody = now, false
	return p.inbox.Subject()
}

func (p *Probe) answered(m *nats.Msg, err error) {
	if err != nil || !NoResponders(m) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nobody, p.last = true, time.Now()
	if p.since.IsZero() {
		p.since = p.last
	}
}

// Gone reports whether there was no subscriber for a time; without any message there is no
// such report.
func (p *Probe) Gone(since time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nobody && p.last.Sub(p.since) >= since
}

// NoSubscriber reports whether the last message with a known answer had no subscriber; one that is
// on its way does not count.
func (p *Probe) NoSubscriber() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.since.IsZero()
}

// Met records that the subscriber is known to exist from another source.
func (p *Probe) Met() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nobody, p.since = false, time.Time{}
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
