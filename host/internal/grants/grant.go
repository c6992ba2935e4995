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

// Grant is a call's hold of a lane.
type Grant struct {
	k       *Lanes
	id      string
	rpc     subjects.RPCID
	key     domainKey
	session subjects.SessionID // of the subject
	lost    func(*toolmesh.Error)

	fence uint64 // 0 until granted

	// Guarded by the keeper's mu from when it is.
	by     owner // the owner that granted it
	end    time.Time
	told   bool // Lost was called
	follow func(end time.Time)
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
			g.giveBack() // it may still be granted
		}
	}()
	var owner owner
	var since time.Time
	for {
		who, err := k.find(ctx, g.key, true)
		if err != nil && ctx.Err() == nil {
			bad := toolmesh.Errorf(toolmesh.CodeUnavailable, "the node that owns the call's lane could not be found: %w", err)
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
			if owner != who || time.Since(asked) > 2*silence { // it is another one, or has answered meanwhile
				owner, since = who, asked
			}
			if time.Since(since) > deafFor && ctx.Err() == nil {
				return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s owns the call's lane, and has not answered for %v: restart it", who.Node, deafFor).
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

// deafFor is how long a call waits for an owner with a valid lease that does not answer: an
// owner whose lease ends is replaced before.
const deafFor = 30 * time.Second

// lookAgain is the pause before the store is asked again after an owner was not there.
const lookAgain = 300 * time.Millisecond

// asking is a call that waits for its lane.
type asking struct {
	k       *Lanes
	ask     Ask
	answers chan codec.LaneAnswer
	waits   bool // Wait was called
}

// deliver passes an answer on. One that finds no room is repeated by the owner.
func (a *asking) deliver(answer codec.LaneAnswer) {
	select {
	case a.answers <- answer:
	default:
	}
}

// wait reports once that the lane is not granted at once.
func (a *asking) wait() {
	if !a.waits {
		a.waits = true
		a.k.mu.Lock()
		a.k.waiting++
		a.k.mu.Unlock()
		a.ask.Wait()
	}
}

// await asks the owner until it grants the lane, refuses it, or is elsewhere. The answer is
// empty when ctx ends.
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
			default: // this process stood still, or the owner's lease ends soon: ask again
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

// askOwner asks for the lane, and records when.
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

// grant accepts a grant, unless its end is near: this process may have stood still since it
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

// Release releases the lane, once. The call must be over.
func (g *Grant) Release() {
	g.k.mu.Lock()
	delete(g.k.held, g.id)
	g.follow = nil
	g.k.mu.Unlock()
	g.giveBack()
}

// giveBack tells the owner that the hold, or the wait for it, is over. If that message is lost,
// the owner takes the lane back by itself.
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

func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// renewal is a request to extend grants.
type renewal struct {
	sent time.Time
	key  domainKey
	by   owner
	ids  []string
}

// renewalToken begins the tokens of renewals, so that they differ from ids of grants, which are
// numbers in base 36 below it.
const renewalToken = "N"

// renew asks the owners of the held grants to extend them; k.mu is held.
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

// extend handles an owner's answer to a renewal.
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

// seek finds the owner of the lanes of grants whose owner does not know them, or does not
// answer: another node may have taken them over.
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
