package client

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// tell sends a control message to the node of the call.
func (p *pending) tell(n subjects.NodeID, body []byte) {
	if subject, err := subjects.NodeCtl(n, p.s.session, p.s.rpc); err == nil {
		_ = p.c.bus.Conn().Publish(subject, body)
	}
}

// watch waits on for a call that has been quiet for a while, and finds out
// whether its node is lost.
func (p *pending) watch(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	for {
		p.seek(ctx)
		p.attend()
		// That it was asked again is no sign of the node.
		if err := p.alive(ctx, p.sent); err != nil {
			return nil, err
		}
		if err := p.resend(msg, p.asked); err != nil {
			return nil, err
		}
		select {
		case a := <-p.answers:
			return a.msg, a.err
		case <-ctx.Done():
			return nil, p.abandon(ctx)
		case <-ticker.C:
		}
	}
}

// cut reports whether the connection was made anew since the call was sent: its answer may
// have gone to the one before.
func (p *pending) cut() bool { return p.c.bus.State().Since.After(p.sent) }

// seekEvery is how often it is asked which node has a call.
const seekEvery = time.Second

// seek finds the node of a call of which none is known after the connection was cut, so
// that it can be asked again.
func (p *pending) seek(ctx context.Context) {
	if p.node.Load() != nil || p.batch || !p.cut() || !p.c.bus.Connected() || time.Since(p.sought) < seekEvery {
		return
	}
	p.sought = time.Now()
	subject, err := subjects.Ctl(p.s.session, p.s.rpc)
	if err != nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, whereWait)
	defer cancel()
	var at codec.Where
	if m, err := p.c.ask(asking, subject, codec.Control{Type: codec.ControlWhere}.Encode()); err == nil && json.Unmarshal(m.Data, &at) == nil {
		p.heard(at.Node, at.Boot)
	}
}

// attend listens to the call's node from when it is known on.
func (p *pending) attend() {
	if n := p.node.Load(); n != p.attended {
		p.attended = n
		p.c.shared.nodes.attend(n)
	}
}

// resend asks the node again for a call of which it, alive and the same as ever,
// has said nothing since last: the request or its answer got lost. That start of
// the node knows the rpc_id, or that it may have forgotten it, and runs it once at
// most; another one must not.
func (p *pending) resend(msg *nats.Msg, last time.Time) error {
	n := p.node.Load()
	if n == nil || time.Since(p.lastSign(last)) < silence || !n.wellSince(silence) || !p.c.bus.Connected() {
		return nil
	}
	subject, err := p.subject(n)
	if err != nil {
		return err
	}
	p.asked = time.Now()
	p.close() // this node may begin it from now on
	p.inbox.Taken()
	header := maps.Clone(msg.Header)
	sentAgain(header, n.boot, time.Since(p.sent))
	m := &nats.Msg{Subject: subject, Reply: p.inbox.Subject() + again, Header: header, Data: msg.Data}
	_ = p.c.bus.Conn().PublishMsg(m) // what fails is tried again
	return nil
}

// sentAgain says in a request that it was sent before, so long ago, to a start of a node:
// it joins the call there, and begins none.
func sentAgain(header nats.Header, boot subjects.BootID, ago time.Duration) {
	header[codec.HeaderBoot] = []string{string(boot)}
	// Rounded up: what the node remembers begins earlier then, never later.
	header[codec.HeaderAgain] = []string{strconv.FormatInt(ago.Milliseconds()+1, 10)}
}

// lastSign is when the call was last heard of, at least last.
func (p *pending) lastSign(last time.Time) time.Time {
	if ns := p.sign.Load(); ns > bus.Mono(last) {
		return bus.MonoTime(ns)
	}
	return last
}

// alive returns an error once the call's node, silent since asked, counts as
// lost, or once the caller's own connection is what is lost.
func (p *pending) alive(ctx context.Context, asked time.Time) error {
	n := p.node.Load()
	last := p.lastSign(asked)
	if n != nil {
		if n.other.Load() {
			return p.lost(n, "has restarted")
		}
		if heard := n.lastHeard(); heard.After(last) {
			last = heard
		}
	}
	made := p.c.bus.State().Since
	if made.After(last) {
		last = made // what the node said before went to the connection that is gone
	}
	if quiet := time.Since(last); quiet < silence {
		p.quiet = false
		if quiet > missing && !p.batch {
			p.c.missed(routeKey{p.s.session, p.id})
		}
		return nil
	}
	// Nothing is heard: is our own connection the silent one?
	if p.c.bus.StalledSince(last) {
		p.sign.Store(bus.Mono(time.Now())) // this process was frozen: listen anew
		return nil
	}
	ping, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	if err := p.c.bus.Ping(ping); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the connection to the mesh was lost while the call ran: %w", err).
			WithOrigin(toolmesh.OriginCaller)
	}
	// The ping's answer came after everything that was on its way to us, which may
	// still wait for the goroutines that look at it: so the next look decides.
	if p.c.bus.State().Since != made || p.lastSign(asked).After(last) || len(p.answers) > 0 || n != nil && n.lastHeard().After(last) || p.node.Load() != n {
		return nil
	}
	if !p.quiet {
		p.quiet = true
		return nil
	}
	if p.close() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the router is silent at which the call waited for a node, and had not asked to pass it on: send it again").
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	return p.lost(n, "has been silent for "+silence.String())
}

// reasonCut is details.reason of a call whose answer is lost with the connection.
const reasonCut = "connection_cut"

func (p *pending) lost(n *node, why string) error {
	if n == nil && !p.batch && p.cut() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the connection to the mesh was cut while the call ran, and no node says that it has the call: whether the tool ran is not known. A broker cuts a connection that does not read "+
			"what waits for it, by default 64 MiB or for 10 s").WithOrigin(toolmesh.OriginCaller).WithDetail("reason", reasonCut)
	}
	name := "the call's node"
	if n != nil {
		name = "node " + string(n.id)
		p.c.shared.routes.forgetNode(n.id)
		p.c.shared.nodes.doubt(n)
	}
	e := toolmesh.Errorf(toolmesh.CodeNodeLost, "%s %s: whether the tool ran is not known", name, why).WithOrigin(toolmesh.OriginCaller)
	if n != nil {
		e = e.WithDetail("node", string(n.id))
	}
	return e
}
