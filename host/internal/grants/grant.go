package grants

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// limitLanes is what the details of a refusal say as their limit.
const limitLanes = "lanes"

// Ask is what a call asks for.
type Ask struct {
	Scope   tool.LaneScope // other than the batch
	Session subjects.SessionID
	RPCID   subjects.RPCID // for log lines
	Key     lane.Key
	// Tool and Rule: while calls of one tool have, or wait for, turns that were made by
	// different rules, as two revisions may have, those that come are alone.
	Tool subjects.ToolID
	Rule string
	// Above are the grants that calls above this one hold: [Grant.ID] of each.
	Above []string
	// Lost is called once when the grant will not stand for much longer and cannot be
	// renewed: the call must stop. It must not block.
	Lost func(*toolmesh.Error)
	// Wait is called once if the turn does not come at once.
	Wait func()
}

// Grant is a call's turn in a lane.
type Grant struct {
	k       *Lanes
	id      string
	rpc     subjects.RPCID
	key     domainKey
	session subjects.SessionID // of the subject
	lost    func(*toolmesh.Error)

	fence uint64 // 0: it is not granted

	// Guarded by the keeper's mu from when it is.
	by     owner // that granted it
	end    time.Time
	told   bool // that it is lost
	follow func(end time.Time)
}

// ID names the grant, in the mesh.
func (g *Grant) ID() string { return g.id }

// Fence is greater than that of each turn that was granted before in the lanes of its
// session or the mesh. A store that refuses writes of a smaller one than it has seen
// cannot be written by a call that has lost its turn.
func (g *Grant) Fence() uint64 { return g.fence }

// Follow has f called with the time at which the call must have stopped unless the grant
// is renewed: now, and with each renewal, until the grant is released. It must not block.
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

// Take waits for a call's turn. When ctx ends first the error is its cause; others are
// unavailable where the owner of the lanes cannot be found, and invalid_request and busy
// for a call that would wait for itself. None has begun. The grant must be released.
func (k *Lanes) Take(ctx context.Context, ask Ask) (*Grant, *toolmesh.Error) {
	a := &asking{k: k, ask: ask, answers: make(chan codec.LaneAnswer, 4)}
	id := newID()
	g := &Grant{k: k, id: id, rpc: ask.RPCID, key: keyOf(ask.Scope, ask.Session), session: ask.Session, lost: ask.Lost}
	k.mu.Lock()
	k.asking[id] = a
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.asking, id)
		if a.waits {
			k.waiting--
		}
		k.mu.Unlock()
		if g.fence == 0 {
			g.giveBack() // it may be granted yet
		}
	}()
	var owner owner
	var since time.Time
	for {
		who, err := k.find(ctx, g.key, true)
		if err != nil && ctx.Err() == nil {
			bad := toolmesh.Errorf(toolmesh.CodeUnavailable, "who gives the turns of the call's lane is not known: %w", err)
			return nil, bad.WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
		}
		if err == nil {
			g.by = who
			asked := time.Now()
			switch answer := k.await(ctx, g, a); answer.State {
			case codec.LaneGranted:
				return g, nil
			case codec.LaneRefused:
				return nil, answer.Error
			}
			if owner != who || time.Since(asked) > 2*silence { // it is another one, or has said something meanwhile
				owner, since = who, asked
			}
			if time.Since(since) > deafFor && ctx.Err() == nil {
				return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s gives the turns of the call's lane, and has not answered for %v: restart it", who.Node, deafFor).
					WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
			}
		}
		if ctx.Err() != nil {
			return nil, toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedNo).WithDetail("reason", "waiting_for_lane")
		}
		a.wait()
		k.disown(g.key, who)
		wake.After(ctx, lookAgain)
	}
}

// deafFor is how long a call waits for an owner that has its lease, and does not answer: one
// whose lease ends is another's before.
const deafFor = 30 * time.Second

// lookAgain is how long after an owner was not there the store is asked again.
const lookAgain = 300 * time.Millisecond

// asking is a call that waits for its turn.
type asking struct {
	k       *Lanes
	ask     Ask
	answers chan codec.LaneAnswer
	waits   bool // it was said
}

// deliver hands an answer over. One that finds no room is said again.
func (a *asking) deliver(answer codec.LaneAnswer) {
	select {
	case a.answers <- answer:
	default:
	}
}

// wait says once that the turn does not come at once.
func (a *asking) wait() {
	if !a.waits {
		a.waits = true
		a.k.mu.Lock()
		a.k.waiting++
		a.k.mu.Unlock()
		a.ask.Wait()
	}
}

// await asks the owner until that grants the turn, refuses it, or is not there:
// elsewhere. Nothing is returned when ctx ends.
func (k *Lanes) await(ctx context.Context, g *Grant, a *asking) codec.LaneAnswer {
	sent := map[uint64]time.Time{}
	k.askOwner(g, a, sent)
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	heard := time.Now()
	for {
		select {
		case answer := <-a.answers:
			heard = time.Now()
			switch {
			case answer.State == codec.LaneWaiting:
				a.wait()
			case answer.State != codec.LaneGranted, k.grant(g, answer, sent):
				return answer
			default: // this process stood still, or the owner's lease ends soon: it is asked anew
				a.wait()
				if wake.After(ctx, lookAgain) {
					k.askOwner(g, a, sent)
				}
			}
		case now := <-ticker.C:
			a.wait()
			if now.Sub(heard) > silence {
				return codec.LaneAnswer{State: codec.LaneElsewhere}
			}
			k.askOwner(g, a, sent)
		case <-ctx.Done():
			return codec.LaneAnswer{}
		}
	}
}

// askOwner asks for the turn, and notes when.
func (k *Lanes) askOwner(g *Grant, a *asking, sent map[uint64]time.Time) {
	now := time.Now()
	for n, at := range sent {
		if now.Sub(at) > askedFor {
			delete(sent, n)
		}
	}
	req := &codec.LaneRequest{
		Type: codec.LaneAsk, Mesh: g.key.session == "", Node: k.opts.Node, Boot: k.opts.Boot, IDs: []string{g.id},
		Tool: a.ask.Tool, Rule: a.ask.Rule, Place: a.ask.Key.Place(), Read: a.ask.Key.Reads(), Above: a.ask.Above,
	}
	k.mu.Lock()
	k.counter++
	req.N = k.counter
	k.mu.Unlock()
	sent[req.N] = now
	if g.by == k.self() {
		k.serve(g.key, req, k.answered)
		return
	}
	if reply := k.reply(g.id); reply != "" {
		k.publish(g.by.Node, g.session, reply, req)
	}
}

// grant takes a grant, unless its end is near: this process may have stood still since it
// asked.
func (k *Lanes) grant(g *Grant, answer codec.LaneAnswer, sent map[uint64]time.Time) bool {
	at, known := sent[answer.N]
	end := at.Add(toolmesh.Millis(answer.MS))
	if answer.State != codec.LaneGranted || !known || !time.Now().Before(end.Add(-soft)) {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	g.end, g.fence = end, answer.Fence
	k.held[g.id] = g
	return true
}

// Release gives the turn back, once. The call must be over.
func (g *Grant) Release() {
	g.k.mu.Lock()
	delete(g.k.held, g.id)
	g.follow = nil
	g.k.mu.Unlock()
	g.giveBack()
}

// giveBack tells the owner that the turn, or the wait for it, is over. Should it not
// hear of it, it takes the turn back by itself.
func (g *Grant) giveBack() {
	k := g.k
	req := &codec.LaneRequest{Type: codec.LaneRelease, Mesh: g.key.session == "", Node: k.opts.Node, Boot: k.opts.Boot, IDs: []string{g.id}}
	switch g.by {
	case owner{}:
	case k.self():
		k.serve(g.key, req, nil)
	default:
		k.publish(g.by.Node, g.session, "", req)
	}
}

// reply is where the answers to a request of this node arrive; empty without a connection.
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

func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// renewal is a request that is to extend grants.
type renewal struct {
	sent time.Time
	key  domainKey
	by   owner
	ids  []string
}

// renewal tokens are told from ids of grants by their first letter, which no number to
// the base of 36 of those has.
const renewalToken = "N"

// renew has the owners of the grants that are held extend them; k.mu is held.
func (k *Lanes) renew(now time.Time, out *outbox) {
	if now.Before(k.nextAsk) {
		return
	}
	k.nextAsk = now.Add(renewEvery)
	for n, r := range k.renewed {
		if now.Sub(r.sent) > silence {
			delete(k.renewed, n)
			out.add(func() { k.seek(r) })
		}
	}
	type at struct {
		key domainKey
		by  owner
	}
	all := make(map[at]*renewal)
	sessions := make(map[at]subjects.SessionID)
	for id, g := range k.held {
		to := at{g.key, g.by}
		if all[to] == nil {
			all[to] = &renewal{sent: now, key: g.key, by: g.by}
			sessions[to] = g.session
		}
		all[to].ids = append(all[to].ids, id)
	}
	for to, r := range all {
		k.counter++
		n := k.counter
		k.renewed[n] = *r
		req := &codec.LaneRequest{Type: codec.LaneRenew, Mesh: r.key.session == "", Node: k.opts.Node, Boot: k.opts.Boot, N: n, IDs: r.ids}
		if r.by == k.self() {
			out.add(func() { k.serve(r.key, req, k.answered) })
			continue
		}
		out.add(func() {
			if reply := k.reply(renewalToken + strconv.FormatUint(n, 10)); reply != "" {
				k.publish(r.by.Node, sessions[to], reply, req)
			}
		})
	}
}

// extend takes an owner's answer to a renewal.
func (k *Lanes) extend(answer codec.LaneAnswer) {
	k.mu.Lock()
	r, ok := k.renewed[answer.N]
	delete(k.renewed, answer.N)
	if !ok || answer.State != codec.LaneRenewed {
		k.mu.Unlock()
		if ok {
			k.seek(r)
		}
		return
	}
	end := r.sent.Add(toolmesh.Millis(answer.MS))
	var gone []*Grant
	var follow []func(time.Time)
	for _, id := range r.ids {
		switch g := k.held[id]; {
		case g == nil || g.told:
		case slices.Contains(answer.Gone, id):
			if fenced {
				g.told = true
				gone = append(gone, g)
			}
		case end.After(g.end):
			g.end = end
			if g.follow != nil {
				follow = append(follow, g.follow)
			}
		}
	}
	k.mu.Unlock()
	for _, f := range follow {
		f(end.Add(-hard))
	}
	for _, g := range gone {
		g.lost(errLost)
	}
}

// seek finds out who owns the lanes of grants whose owner does not know them, or says
// nothing: another one may have taken them over.
func (k *Lanes) seek(r renewal) {
	k.disown(r.key, r.by)
	k.opts.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeWait)
		defer cancel()
		who, err := k.find(ctx, r.key, true)
		if err != nil || who == r.by {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, id := range r.ids {
			if g := k.held[id]; g != nil && g.by == r.by {
				g.by = who
			}
		}
		k.nextAsk = time.Time{}
	})
}
