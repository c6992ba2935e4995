package stream

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
)

// deserted reports whether nobody reads the stream any more, neither its caller
// nor one that has joined it: none of them gives credit, and what is sent to the
// others meets nobody. A subscriber of mesh.live does not stand in for a caller
// that gives credit.
func (s *Stream) deserted(now time.Time) bool {
	credited, here := false, false
	look := func(req *codec.Request, p *probe) {
		switch {
		case req.HasCredit:
			credited = true
		case req.Delivery == codec.DeliverLive:
			here = here || !s.live.gone(readerGone)
		default:
			here = here || !p.gone(readerGone)
		}
	}
	s.readers.mu.Lock()
	look(s.req, &s.readers.first.probe)
	for _, j := range s.readers.joined {
		if !j.over {
			look(j.Request, &j.probe)
		}
	}
	s.readers.mu.Unlock()
	if here {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !credited || now.Sub(s.creditAt) >= readerGone
}

// probeEvery is how often one chunk finds out whether a reader is there.
const probeEvery = time.Second

// probe finds out whether a reader that gives no credit is there: one chunk a
// second has a reply subject, where the broker says so if the chunk meets nobody.
// The zero value is ready; one that is never sent finds nobody gone.
type probe struct {
	mu     sync.Mutex
	inbox  Inbox
	closed bool
	at     time.Time // when the last one was sent
	nobody bool      // that met no interest
	goneAt time.Time // when the first of an unbroken row of them did,
	lastAt time.Time // and the last one
}

// subject returns the reply subject for a chunk, empty for most.
func (p *probe) subject(store Store, req *codec.Request, c *codec.Chunk) string {
	if req.HasCredit || c.Terminal() {
		return ""
	}
	return p.next(store)
}

// next returns the reply subject of a message, empty for most.
func (p *probe) next(store Store) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.closed || now.Sub(p.at) < probeEvery {
		return ""
	}
	if !p.nobody {
		p.goneAt = time.Time{}
	}
	if p.inbox == nil {
		inbox, err := store.Probe(p.answered)
		if err != nil {
			return ""
		}
		p.inbox = inbox
	}
	p.at, p.nobody = now, false
	return p.inbox.Subject()
}

func (p *probe) answered(m *nats.Msg, err error) {
	if err != nil || !bus.NoResponders(m) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.nobody = true
	if p.goneAt.IsZero() {
		p.goneAt = now
	}
	p.lastAt = now
}

// gone reports whether the reader has not been there for a time.
func (p *probe) gone(since time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nobody && p.lastAt.Sub(p.goneAt) >= since
}

// met notes that a reader was heard of in another way.
func (p *probe) met() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nobody, p.goneAt = false, time.Time{}
}

func (p *probe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.inbox != nil {
		p.inbox.Close()
	}
}
