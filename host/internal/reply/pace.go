package reply

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/stream"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// PacedFrom is the size of the smallest result that is paced, in bytes.
	PacedFrom = 64 << 10
	// pacedMost is how many bytes of such results may be on their way to one connection: a
	// broker cuts one for which 64 MiB wait, and several nodes may answer it.
	pacedMost = 16 << 20
	// readWithin is how long a caller that confirms reading may be silent before it counts as
	// having read, or as gone. readGuess is the same for one that does not confirm: it gets
	// pacedMost within each.
	readWithin = 5 * time.Second
	readGuess  = 250 * time.Millisecond
	// waitsMost is how many results may wait for one connection before its new calls are refused:
	// each holds its place on the node.
	waitsMost = 16
)

// pacer holds large results back while too many bytes are on their way to the connection of
// their caller.
type pacer struct {
	account func(subjects.SessionID) subjects.SessionID // the account that a session counts for

	waiting atomic.Int64 // results for all connections

	mu     sync.Mutex // no other lock is taken under it
	inbox  map[string]*outbox
	unread map[admit.Key]unread // by the call that it is the result of
}

// outbox is the results that go to one connection.
type outbox struct {
	turn  chan struct{} // of capacity 1: held by the one that goes next
	read  chan struct{} // of capacity 1: less is unread
	bytes int           // unread
	waits int
}

// unread is a result on its way.
type unread struct {
	to    *outbox
	size  int
	until time.Time // then it counts as read
}

// wait returns when a result may be sent, or when done is closed. One goes however large it
// is. told says that the caller tells when it has read it.
func (p *pacer) wait(done <-chan struct{}, r *stream.Reader, size int, told bool) {
	name := p.outboxName(r)
	lasts := readGuess
	if told {
		lasts = readWithin
	}
	call := admit.Key{Session: subjects.WireName(r.Request.Session), RPC: subjects.WireName(r.Request.RPCID)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inbox == nil {
		p.inbox, p.unread = make(map[string]*outbox), make(map[admit.Key]unread)
	}
	p.forget(call) // it is sent again: the first one was lost
	to := p.inbox[name]
	if to == nil {
		to = &outbox{turn: make(chan struct{}, 1), read: make(chan struct{}, 1)}
		p.inbox[name] = to
	}
	to.waits++
	p.waiting.Add(1)
	defer func() { to.waits--; p.waiting.Add(-1) }()
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case to.turn <- struct{}{}: // waiters get it in the order of arrival
		defer func() { <-to.turn }()
	case <-done:
		return
	}
	for !p.goes(to, call, size, lasts) {
		select {
		case <-to.read:
		case <-done:
			return
		}
	}
}

// outboxName is equal for results of an account to the same connection, and for those of a session
// that another node passes on: all its callers there may share one connection.
func (p *pacer) outboxName(r *stream.Reader) string {
	if r.Request.Hops > 0 {
		return " " + string(r.Request.Session)
	}
	name := r.Reply
	if at := strings.LastIndexByte(name, '.'); at > strings.IndexByte(name, '.') {
		name = name[:at] // a connection has one inbox, with a token for each request
	}
	// A caller may name another connection's: keepalives of a call that was passed on tell a member's.
	return name + " " + string(p.account(r.Request.Session))
}

// Unread refuses a new call of a connection that does not read earlier results: those would take
// the places of others. It returns nil for most.
func (p *pacer) Unread(r *stream.Reader) *toolmesh.Error {
	if p.waiting.Load() < waitsMost {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	to := p.inbox[p.outboxName(r)]
	if to == nil || to.waits < waitsMost {
		return nil
	}
	return admit.Refusal(toolmesh.Errorf(toolmesh.CodeBusy, "%d large results wait until their caller has read others: read them, then call again", to.waits)).
		WithDetail("limit", "unread").WithDetail("max", waitsMost).WithDetail("retry_after_ms", readGuess.Milliseconds())
}

// goes has a result go, if there is room.
func (p *pacer) goes(to *outbox, call admit.Key, size int, lasts time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to.bytes > 0 && to.bytes+size > pacedMost {
		return false
	}
	p.forget(call)
	to.bytes += size
	p.unread[call] = unread{to, size, time.Now().Add(lasts)}
	return true
}

// forget takes a result off those on their way; mu is held.
func (p *pacer) forget(call admit.Key) {
	if u, ok := p.unread[call]; ok {
		u.to.bytes -= u.size
		delete(p.unread, call)
		wake.Up(u.to.read)
	}
}

// Read notes that a caller has read the answer of a call.
func (p *pacer) Read(call admit.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(call)
}

// Tick counts results as read that have been in transit for long enough. The node calls it a few
// times a second.
func (p *pacer) Tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for call, u := range p.unread {
		if !now.Before(u.until) {
			p.forget(call)
		}
	}
	for name, to := range p.inbox {
		if to.bytes == 0 && to.waits == 0 {
			delete(p.inbox, name)
		}
	}
}
