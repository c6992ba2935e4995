package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// peerLook is how often a node that has been silent about a request is looked
	// after.
	peerLook = 500 * time.Millisecond
	// peerLookAgain is when the second look follows, which decides.
	peerLookAgain = 100 * time.Millisecond
	// peerPing bounds the question whether our own connection is the silent one.
	peerPing = 2 * time.Second
)

// peer is the node that works on an administrative request, once its answer has
// named it: its heartbeat says whether it still does. Its methods are for one
// goroutine; the connection's notes what it hears.
type peer struct {
	l    *link
	node subjects.NodeID // "": not named yet, or by no header
	sub  *nats.Subscription
	// quiet says that the last look heard nothing over a connection that is well.
	quiet bool

	mu    sync.Mutex
	boot  string
	heard time.Time // the last message of this boot, of either kind
	other bool      // the last heartbeat was another boot's
}

func (p *peer) met(h nats.Header) {
	node, boot := codec.ParseNameHeader[subjects.NodeID](h.Get(codec.HeaderNode)), h.Get(codec.HeaderBoot)
	if node == "" || boot == "" {
		return // an agent of an earlier version
	}
	p.mu.Lock()
	p.boot, p.heard = boot, time.Now()
	p.mu.Unlock()
	if p.sub != nil {
		return
	}
	subject, err := subjects.Heartbeat(node)
	if err != nil {
		return
	}
	if p.sub, err = p.l.nc.Subscribe(subject, p.beat); err == nil {
		p.node = node
	}
}

func (p *peer) beat(m *nats.Msg) {
	var b codec.Heartbeat
	if json.Unmarshal(m.Data, &b) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.other = b.Boot != p.boot; !p.other {
		p.heard = time.Now()
	}
}

func (p *peer) sign() (heard time.Time, other bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard, p.other
}

func (p *peer) close() {
	if p.sub != nil {
		_ = p.sub.Unsubscribe()
	}
}

// silence is how long nothing may arrive before the node is looked after.
func (p *peer) silence() time.Duration {
	switch {
	case p.node == "":
		return adminSilence
	case p.quiet:
		return peerLookAgain
	}
	return peerLook
}

// gone returns why no answer will come any more, nil while one may.
func (p *peer) gone(ctx context.Context) error {
	if p.node == "" {
		if p.l.noMesh(ctx) != nil {
			return toolmesh.Errorf(toolmesh.CodeNodeLost, "the agent that was asked is gone: whether it went through is not known").WithOrigin(toolmesh.OriginCaller)
		}
		return nil
	}
	heard, other := p.sign()
	if other {
		return p.lost("has restarted")
	}
	made := p.l.bus.State().Since
	if made.After(heard) {
		heard = made // what the node said before went to the connection that is gone
	}
	if time.Since(heard) < registry.Silence {
		p.quiet = false
		return nil
	}
	if p.l.bus.StalledSince(heard) { // this process was frozen: listen anew
		p.mu.Lock()
		p.heard = time.Now()
		p.mu.Unlock()
		return nil
	}
	ping, cancel := context.WithTimeout(ctx, peerPing)
	defer cancel()
	if err := p.l.bus.Ping(ping); err != nil {
		if ctx.Err() != nil {
			return nil // the caller sees it
		}
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the connection to the mesh was lost: what has become of the request is not known: %w", err).
			WithOrigin(toolmesh.OriginCaller)
	}
	// The ping's answer came after everything that was on its way to us, which may
	// still wait for the goroutine that looks at it: so the next look decides.
	if again, _ := p.sign(); again.After(heard) || p.l.bus.State().Since != made {
		p.quiet = false
		return nil
	}
	if !p.quiet {
		p.quiet = true
		return nil
	}
	return p.lost("has been silent for " + registry.Silence.String())
}

func (p *peer) lost(why string) error {
	return toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s %s: whether it went through is not known", p.node, why).
		WithOrigin(toolmesh.OriginCaller).WithDetail("node", string(p.node))
}
