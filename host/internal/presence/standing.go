package presence

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
)

const (
	// confirmWait is how long the registry may take to say whose the node is.
	confirmWait = 2 * time.Second
	// pingWait is how long the broker may take to answer at all before that.
	pingWait = time.Second
	// confirmTries is how often it is asked for one request.
	confirmTries = 3
	// maxBeats is how many heartbeats may be on their way back at once.
	maxBeats = 16
)

// Certain reports whether this process is the node, and no other can be, right now.
func (p *Presence) Certain() bool { return !p.lost.Load() && p.certain(time.Now()) }

// certain looks at both clocks: the monotonic one may stand while a machine sleeps.
func (p *Presence) certain(now time.Time) bool {
	until := p.until.Load()
	return until != nil && now.Before(*until) && now.Round(0).Before(until.Round(0))
}

// Confirm reports whether this process is the node, and has the registry asked where
// that is not certain: it waits for at most three answers of 3 s each. Where nobody
// answers at all the process is not the node: the request waited in a connection that
// is gone.
func (p *Presence) Confirm(ctx context.Context) bool {
	for range confirmTries {
		if p.lost.Load() {
			return false
		}
		if p.certain(time.Now()) {
			return true
		}
		select {
		case <-p.ask():
		case <-p.done:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return p.Certain()
}

// Taken reports whether another process is known to be the node.
func (p *Presence) Taken() bool { return p.lost.Load() }

// extend notes that the node was this process's when something was sent; p.mu is held.
func (p *Presence) extend(sent time.Time) {
	until := sent.Add(registry.Silence)
	if old := p.until.Load(); old == nil || until.After(*old) {
		p.until.Store(&until)
	}
}

// lose notes that another process is the node.
func (p *Presence) lose(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = why
	p.lost.Store(true)
}

// Announce has a heartbeat sent now, if it is certain that this process is the node.
func (p *Presence) Announce() { wake.Up(p.announce) }

// ask has the registry asked whose the node is, and closes what it returns when that
// is known. All that wait at the same time share one answer.
func (p *Presence) ask() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking == nil {
		p.asking = make(chan struct{})
		wake.Up(p.question)
	}
	return p.asking
}

// speak is the goroutine that sends heartbeats, and asks whose the node is.
func (p *Presence) speak(ctx context.Context) {
	beat := time.NewTimer(p.untilBeat())
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.question:
			p.confirm(ctx)
			p.mu.Lock()
			asking := p.asking
			p.asking = nil
			overdue := time.Since(p.beat) >= BeatEvery
			p.mu.Unlock()
			close(asking)
			if !overdue || !p.Certain() {
				continue
			}
		case <-p.announce:
		case <-beat.C:
			beat.Reset(p.untilBeat())
		}
		p.say()
	}
}

// untilBeat is the time until the next heartbeat. Those of all nodes fall together, on the
// mesh's seconds: what comes at once is passed on and read at once, which takes a router a
// quarter of the processor time, and brokers three quarters (measured with 300 nodes).
func (p *Presence) untilBeat() time.Duration {
	now := p.bus.Time().Now
	next := now.Truncate(BeatEvery).Add(BeatEvery)
	if next.Sub(now) < BeatEvery/4 { // the one that is just being sent
		next = next.Add(BeatEvery)
	}
	return next.Sub(now)
}

// say sends a heartbeat, if this process is the node for certain.
func (p *Presence) say() {
	if p.lost.Load() || !p.bus.Connected() {
		return
	}
	if !p.Certain() {
		p.ask() // and beats then
		return
	}
	body := codec.Encode(p.opts.Heartbeat())
	p.speaking.Lock()
	defer p.speaking.Unlock()
	now := time.Now()
	p.mu.Lock()
	p.beat = now
	if len(p.sent) < maxBeats {
		p.sent = append(p.sent, now)
	}
	p.mu.Unlock()
	_ = p.bus.Conn().Publish(p.subject, body) // one that is lost does not come back: it is known by that
}

// reconnected notes a new connection: what was sent on the old one does not come back.
func (p *Presence) reconnected() {
	p.speaking.Lock()
	defer p.speaking.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = nil
}

// heard takes a heartbeat of this node's id.
func (p *Presence) heard(m *nats.Msg) {
	var b codec.Heartbeat
	if json.Unmarshal(m.Data, &b) != nil || b.Boot == "" {
		return
	}
	if b.Boot != p.boot {
		// After a partition two processes may be the node: the lease says which is.
		p.mu.Lock()
		p.doubts++
		p.until.Store(nil)
		p.mu.Unlock()
		p.ask()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sent) == 0 {
		return
	}
	sent := p.sent[0]
	p.sent = p.sent[1:]
	// Only an unbroken row of them counts: in a pause another process may have
	// taken over.
	if p.certain(time.Now()) {
		p.extend(sent)
	}
}

// confirm finds out whose the node is. The broker is asked for a sign first: what
// the registry does not answer then is not held back on the way, and nobody can take
// a node from a registry that is not there.
func (p *Presence) confirm(ctx context.Context) {
	p.mu.Lock()
	doubts, lease := p.doubts, p.lease
	p.mu.Unlock()
	ping, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	if err := p.bus.Ping(ping); err != nil {
		return
	}
	asked := time.Now()
	if lease != nil {
		write, cancel := context.WithTimeout(ctx, confirmWait)
		defer cancel()
		err := lease.Update(write, func(*registry.NodeRecord) {})
		if why := lease.Err(); why != nil {
			p.lose(why)
			p.log.Warn("requests are left to the process that has taken the node over")
			return
		}
		if err != nil {
			p.log.Warn("whether the lease stands is not known", slog.String("error", err.Error()))
			asked = time.Now()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doubts == doubts { // else the answer may be older than what was heard meanwhile
		p.extend(asked)
	}
}
