package host

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/host/stream"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// pacedFrom is the size of the smallest result that is paced, in bytes.
	pacedFrom = 64 << 10
	// pacedMost is how many bytes of such results may be on their way to one connection: a
	// broker cuts one for which 64 MiB wait, and several nodes may answer it.
	pacedMost = 16 << 20
	// readWithin is how long a caller that says what it has read may be silent until it is
	// believed to have read it, or to be gone; readGuess is the same of one that does not:
	// it gets pacedMost within each.
	readWithin = 5 * time.Second
	readGuess  = 250 * time.Millisecond
	// maxPaced is how many results may wait. What is more goes at once.
	maxPaced = 10_000
)

// pacer holds large results back while too many bytes are on their way to the connection of
// their caller. The zero value is ready.
type pacer struct {
	mu     sync.Mutex
	waits  int // in all turns
	inbox  map[string]*paced
	unread map[admit.Key]unread // by the call that it is the result of
}

// paced is the results that go to one connection.
type paced struct {
	bytes int // unread
	turns []turn
}

// turn is a result that waits.
type turn struct {
	unread
	call admit.Key
	come chan struct{} // closed when it may go
}

// unread is a result on its way.
type unread struct {
	to    *paced
	size  int
	until time.Time // then it counts as read
	lasts time.Duration
}

// wait returns when a result may be sent, or when done is closed.
func (p *pacer) wait(done <-chan struct{}, r *stream.Reader, size int) {
	name := r.Reply
	if at := strings.LastIndexByte(name, '.'); at > strings.IndexByte(name, '.') {
		name = name[:at] // a connection has one inbox, and a token of it for each request
	}
	lasts := readGuess
	if r.Request.Read {
		lasts = readWithin
	}
	come := make(chan struct{})
	p.mu.Lock()
	if p.inbox == nil {
		p.inbox, p.unread = make(map[string]*paced), make(map[admit.Key]unread)
	}
	to := p.inbox[name]
	if p.waits >= maxPaced {
		p.mu.Unlock()
		return
	}
	if to == nil {
		to = &paced{}
		p.inbox[name] = to
	}
	call := admit.Key{Session: subjects.WireName(r.Request.Session), RPC: subjects.WireName(r.Request.RPCID)}
	p.forget(call) // it is sent again: the first one was lost
	p.waits++
	to.turns = append(to.turns, turn{unread{to: to, size: size, lasts: lasts}, call, come})
	p.next(to, time.Now())
	p.mu.Unlock()
	select {
	case <-come:
	case <-done:
		p.mu.Lock()
		if i := slices.IndexFunc(to.turns, func(t turn) bool { return t.come == come }); i >= 0 {
			to.turns = slices.Delete(to.turns, i, i+1)
			p.waits--
		}
		p.mu.Unlock()
	}
}

// next lets those go that are next and find room; mu is held. One goes however large it is.
func (p *pacer) next(to *paced, now time.Time) {
	for len(to.turns) > 0 && (to.bytes == 0 || to.bytes+to.turns[0].size <= pacedMost) {
		t := to.turns[0]
		to.turns = to.turns[1:]
		p.waits--
		t.until = now.Add(t.lasts)
		p.forget(t.call)
		to.bytes += t.size
		p.unread[t.call] = t.unread
		close(t.come)
	}
}

// forget takes a result off those on their way; mu is held.
func (p *pacer) forget(call admit.Key) {
	if u, ok := p.unread[call]; ok {
		u.to.bytes -= u.size
		delete(p.unread, call)
	}
}

// read notes that a caller has read the result of a call.
func (p *pacer) read(call admit.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u, ok := p.unread[call]; ok {
		p.forget(call)
		p.next(u.to, time.Now())
	}
}

// tick lets go what has been on its way for long enough; the ticker calls it.
func (p *pacer) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for call, u := range p.unread {
		if !now.Before(u.until) {
			p.forget(call)
		}
	}
	for name, to := range p.inbox {
		if p.next(to, now); to.bytes == 0 {
			delete(p.inbox, name)
		}
	}
}
