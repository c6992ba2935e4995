package grants

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// limitLanes is details.limit of a refusal.
const limitLanes = "lanes"

// Ask is a call's request for a lane.
type Ask struct {
	Scope   tool.LaneScope // other than the batch
	Session subjects.SessionID
	RPCID   subjects.RPCID // for log lines
	Key     lane.Key
	// Tool and Rule: while calls of one tool hold, or wait for, lanes by different rules, as two
	// revisions may have, new calls run alone.
	Tool subjects.ToolID
	Rule string
	// Above are the [Grant.ID] of grants that calls above this one hold.
	Above []string
	// Lost is called once when the grant is about to end and cannot be renewed: the call must
	// stop. It must not block.
	Lost func(*toolmesh.Error)
	// Wait is called once if the lane is not granted at once.
	Wait func()
}

// Grant is a call's hold of a lane, or its wait for one.
type Grant struct {
	k   *Lanes
	ask Ask
	id  string
	key domainKey

	// The goroutine that waits.
	answers chan codec.LaneAnswer
	asked   map[uint64]time.Time // when requests were sent to the present owner, by their numbers

	// Guarded by the keeper's mu from when it is held.
	waits  bool   // it is not granted at once; changed under mu
	fence  uint64 // 0 until granted
	by     owner  // the owner that was asked, and granted it
	end    time.Time
	told   bool // Lost was called
	follow func(end time.Time)
	n      uint64    // of the renewal without an answer; 0 for none
	sent   time.Time // when that was first sent
}

// ID is the grant's name, unique in the mesh.
func (g *Grant) ID() string { return g.id }

// Fence is greater than that of each earlier grant in the lanes of its session or the mesh. A
// store that refuses writes with a smaller fence than it has seen cannot be written by a call
// that has lost its lane.
func (g *Grant) Fence() uint64 { return g.fence }

// Follow calls f with the time at which the call must have stopped unless the grant is renewed:
// now, and with each renewal, until the grant is released. f must not block.
func (g *Grant) Follow(f func(end time.Time)) {
	if !fenced {
		return
	}
	g.k.mu.Lock()
	g.follow = f
	end := g.end
	g.k.mu.Unlock()
	f(end.Add(-hard))
}

// Take waits for a call's lane. If ctx ends first the error is its cause; otherwise it is
// unavailable if the owner of the lanes cannot be found, and invalid_request or busy for a call
// that would wait for itself. The call has not begun. The grant must be released.
func (k *Lanes) Take(ctx context.Context, ask Ask) (*Grant, *toolmesh.Error) {
	g := &Grant{k: k, ask: ask, id: newID(), key: keyOf(ask.Scope, ask.Session), answers: make(chan codec.LaneAnswer, 4)}
	k.mu.Lock()
	k.asking[g.id] = g
	k.mu.Unlock()
	bad := g.take(ctx)
	if bad != nil {
		g.Release() // it may still be granted
		return nil, bad
	}
	return g, nil
}

func (g *Grant) take(ctx context.Context) *toolmesh.Error {
	k := g.k
	var owner owner
	var since time.Time
	for {
		who, err := k.find(ctx, g.key, true)
		if err != nil && ctx.Err() == nil {
			bad := toolmesh.Errorf(toolmesh.CodeUnavailable, "the node that owns the call's lane could not be found: %w", err)
			return bad.WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
		}
		if err == nil {
			g.by = who
			asked := time.Now()
			switch answer := g.await(ctx); answer.State {
			case codec.LaneGranted:
				return nil
			case codec.LaneRefused:
				return answer.Error
			}
			if owner != who || time.Since(asked) > 2*silence { // it is another one, or has answered meanwhile
				owner, since = who, asked
			}
			if time.Since(since) > deafFor && ctx.Err() == nil {
				return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s owns the call's lane, and has not answered for %v: restart it", who.Node, deafFor).
					WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
			}
		}
		if ctx.Err() != nil {
			return toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedNo).WithDetail("reason", "waiting_for_lane")
		}
		g.wait()
		k.disown(g.key, who)
		wake.After(ctx, lookAgain)
	}
}

// deafFor is how long a call waits for an owner that has a valid lease and does not answer; an
// owner without one is replaced earlier.
const deafFor = 30 * time.Second

// lookAgain is the pause before the store is asked again after an owner was not there.
const lookAgain = 300 * time.Millisecond

// wait reports once that the lane is not granted at once.
func (g *Grant) wait() {
	if !g.waits {
		g.k.mu.Lock()
		g.waits = true
		g.k.mu.Unlock()
		g.ask.Wait()
	}
}

// await asks the owner until it grants the lane, refuses it, or is elsewhere. The answer is
// empty when ctx ends.
func (g *Grant) await(ctx context.Context) codec.LaneAnswer {
	g.asked = make(map[uint64]time.Time)
	g.askOwner()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	heard := time.Now()
	for {
		select {
		case answer := <-g.answers:
			heard = time.Now()
			switch {
			case answer.State == codec.LaneWaiting:
				g.wait()
			case answer.State != codec.LaneGranted, g.hold(answer):
				return answer
			default: // this process was frozen, or the owner's lease ends soon: ask again
				g.wait()
				if wake.After(ctx, lookAgain) {
					g.askOwner()
				}
			}
		case now := <-ticker.C:
			g.wait()
			if now.Sub(heard) > silence {
				return codec.LaneAnswer{State: codec.LaneElsewhere}
			}
			g.askOwner()
		case <-ctx.Done():
			return codec.LaneAnswer{}
		}
	}
}

// askOwner asks for the lane, and records when.
func (g *Grant) askOwner() {
	now := time.Now()
	maps.DeleteFunc(g.asked, func(_ uint64, at time.Time) bool { return now.Sub(at) > askedFor })
	req := &codec.LaneRequest{
		Type: codec.LaneAsk, Tool: g.ask.Tool, Rule: g.ask.Rule, Place: g.ask.Key.Place, Read: g.ask.Key.Read, Above: g.ask.Above,
	}
	g.k.mu.Lock()
	g.k.counter++
	req.N = g.k.counter
	g.k.mu.Unlock()
	g.asked[req.N] = now
	g.k.send(g, g.by, req)
}

// send sends a request about a grant to an owner. The answers have the grant's id.
func (k *Lanes) send(g *Grant, to owner, req *codec.LaneRequest) {
	req.Mesh, req.Node, req.Boot, req.IDs = g.key.session == "", k.opts.Node, k.opts.Boot, []string{g.id}
	if to == k.self() {
		k.serve(g.key, req, func(answer codec.LaneAnswer) {
			answer.ID = g.id
			k.answered(answer)
		})
		return
	}
	reply := ""
	if req.Type != codec.LaneRelease {
		if reply = k.reply(g.id); reply == "" {
			return
		}
	}
	subject, err := subjects.Subject{Kind: subjects.KindLane, Node: to.Node, Session: g.ask.Session}.Build()
	if err != nil {
		return // an invalid record: the missing answer is noticed
	}
	_ = k.opts.Bus.Conn().PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: codec.Encode(req)})
}

// hold accepts a grant, unless its end is near: this process may have been frozen since it
// asked.
func (g *Grant) hold(answer codec.LaneAnswer) bool {
	at, known := g.asked[answer.N]
	end := at.Add(toolmesh.Millis(answer.MS))
	if !known || !time.Now().Before(end.Add(-soft)) {
		return false
	}
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	g.end, g.fence = end, answer.Fence
	delete(g.k.asking, g.id)
	g.k.held[g.id] = g
	return true
}

// Release releases the lane, or ends the wait for it, once. The call must be over. If the message
// to the owner is lost, it takes the lane back by itself.
func (g *Grant) Release() {
	g.k.mu.Lock()
	delete(g.k.asking, g.id)
	delete(g.k.held, g.id)
	g.follow = nil
	by := g.by
	g.k.mu.Unlock()
	if by != (owner{}) {
		g.k.send(g, by, &codec.LaneRequest{Type: codec.LaneRelease})
	}
}

// reply is the subject for answers to a request of this node; empty without a connection.
func (k *Lanes) reply(token string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inbox == nil && !k.left {
		inbox, err := k.opts.Bus.Open(k.heard)
		if err != nil {
			return ""
		}
		k.inbox = inbox
	}
	if k.inbox == nil {
		return ""
	}
	return k.inbox.Subject() + "." + token
}

// renew asks the owners of the held grants to extend them; k.mu is held. A request without an
// answer is repeated, so that the extension counts from the first one.
func (k *Lanes) renew(now time.Time, out *outbox) {
	if now.Before(k.nextAsk) {
		return
	}
	if k.opts.Bus.Connected() { // else as soon as it is
		k.nextAsk = now.Add(renewEvery)
	}
	for _, g := range k.held {
		by := g.by
		if g.n != 0 && now.Sub(g.sent) > silence {
			g.n = 0
			out.add(func() { k.seek(g, by) })
		}
		if g.n == 0 {
			k.counter++
			g.n, g.sent = k.counter, now
		}
		req := codec.LaneRequest{Type: codec.LaneRenew, N: g.n}
		out.add(func() { k.send(g, by, &req) })
	}
}

// extend handles an owner's answer to a renewal.
func (k *Lanes) extend(g *Grant, answer codec.LaneAnswer) {
	k.mu.Lock()
	by, elsewhere := g.by, answer.State == codec.LaneElsewhere
	if !elsewhere && (answer.State != codec.LaneRenewed || answer.N != g.n) { // of an earlier request
		k.mu.Unlock()
		return
	}
	g.n = 0
	end, gone := g.sent.Add(toolmesh.Millis(answer.MS)), slices.Contains(answer.Gone, g.id)
	var follow func(time.Time)
	switch {
	case gone || elsewhere:
		gone = gone && fenced && !g.told
		g.told = g.told || gone
	case end.After(g.end) && !g.told:
		g.end, follow = end, g.follow
	}
	k.mu.Unlock()
	switch {
	case elsewhere:
		k.seek(g, by)
	case gone:
		g.ask.Lost(errLost)
	case follow != nil:
		follow(end.Add(-hard))
	}
}

// seek finds the owner of a grant's lanes after the known one did not answer or has lost them to
// another node.
func (k *Lanes) seek(g *Grant, by owner) {
	k.disown(g.key, by)
	k.opts.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeWait)
		defer cancel()
		who, err := k.find(ctx, g.key, true)
		if err != nil || who == by {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.held[g.id] == g && g.by == by {
			g.by, k.nextAsk = who, time.Time{}
		}
	})
}
