package standby

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// signLate is the max delay of a keepalive: a caller without one for 2.5 s has given the call
	// up, and may have sent it again.
	signLate = 2 * time.Second
	// callerGone is how long keepalives may meet no caller until the call ends, as with streams.
	callerGone = 10 * time.Second
	// early is how long before its deadline a call is answered, a tenth of its time at most: the
	// answer has to arrive in time, and it says more than the deadline does.
	early = 200 * time.Millisecond
	// The pause after a node has not taken a call begins with firstRetry and doubles up to lastRetry.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// linger is how long keepalives of an acknowledged stream may be missing.
	linger = 10 * time.Second
	// overdue is how long after its deadline the answer of a call that was passed on is waited for.
	overdue = 5 * time.Second
	// mostRun is the time of a call without a timeout.
	mostRun = time.Hour
)

// call is one request that waits for a node, or for the answer of the node that has it.
type call struct {
	s       *Standby
	m       *nats.Msg
	subject subjects.Subject
	req     *codec.Request
	rpc     subjects.RPCID    // as it travels
	batch   *codec.Batch      // nil for most; without its members
	tools   []subjects.ToolID // the tools that it calls
	pools   map[string]int    // calls of it, by the pool that they wait for
	epoch   string            // of the session, as the view knew it
	account subjects.SessionID
	arrived time.Time
	// Guarded by s.mu.
	waiting bool
	full    []registry.Candidate // the nodes that had no room at its last look; nil if one had

	room      chan struct{} // of capacity 1: one of the full nodes has room
	cancelled chan struct{} // of capacity 1

	// The call's goroutine only.
	last    *toolmesh.Error // why the last node did not take it
	retryIn time.Duration
	retryAt time.Time
	signed  time.Time // when the last keepalive was sent
	probe   bus.Probe
	to      *codec.Identity // the node that it is passed on to; nil while it waits
	asked   int64           // the question whether it may be passed on; 0 for none
	let     bool            // the caller has answered that question
	answers chan int64      // of capacity 1: the question that the caller has answered
}

// parse reads the request, and returns why it must not wait; err is the error of its subject.
func (c *call) parse(err error) *toolmesh.Error {
	header, bad := bus.RequestHeader(c.m)
	switch {
	case bad != nil:
		c.req = &codec.Request{Call: codec.Call{Session: c.subject.Session, Tool: c.subject.Tool}}
	case c.subject.Kind == subjects.KindBatch:
		c.batch, bad = codec.ParseBatch(c.subject, header, c.m.Data)
		c.req = &c.batch.Request
	default:
		c.req, bad = codec.ReadRequest(c.subject, header, c.m.Data)
	}
	c.rpc = subjects.WireName(c.req.RPCID)
	c.req.Answers = c.req.Answers && c.req.Keepalive && c.rpc != "" // else it cannot be asked
	c.tools = []subjects.ToolID{c.subject.Tool}
	if c.batch != nil && len(c.batch.Members) > 0 {
		c.tools = nil
		for i := range c.batch.Members {
			c.tools = append(c.tools, c.batch.Members[i].Tool)
		}
		c.batch.Members = nil
	}
	c.req.Drop() // the message waits, and is passed on
	if err != nil {
		bad = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	if bad != nil {
		return bad.WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	if c.req.IsAgain {
		return toolmesh.Errorf(toolmesh.CodeNodeLost, "the call was sent before, to a node that has stopped serving the tool: whether the call ran is not known").WithOrigin(toolmesh.OriginMesh)
	}
	if left, ok := c.left(); ok && left <= 0 {
		return toolmesh.Errorf(toolmesh.CodeDeadlineExceeded, "the call's time was up before it arrived").WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	session, _ := c.s.view.Session(c.subject.Session)
	c.epoch, c.account = session.Epoch, subjects.Account(c.subject.Session, session.Epoch)
	c.pools = make(map[string]int)
	for _, id := range c.tools {
		if index, ok := c.s.view.Index(c.subject.Session, id); ok {
			c.pools[index.Pool()]++
		}
	}
	if c.batch != nil && len(c.pools) == 0 { // no node that comes would be for it
		return unavailable("no node runs batches: start an agent, or a router that serves functions")
	}
	return nil
}

// left is the rest of the caller's time; ok is false if the request names none.
func (c *call) left() (left time.Duration, ok bool) {
	if c.req.HasTimeout {
		left, ok = c.req.Timeout-time.Since(c.arrived), true
	}
	if !c.req.Deadline.IsZero() {
		now := c.s.bus.Time()
		if until := c.req.Deadline.Sub(now.Now.Add(-now.Bound)); !ok || until < left {
			left, ok = until, true
		}
	}
	return left, ok
}

// run holds the call until a node takes it, and then passes the node's messages back.
func (c *call) run() {
	s := c.s
	defer s.leave(c)
	wait, why := s.opts.Timeout, "which is as long as router "+string(s.node)+" holds a call"
	if left, ok := c.left(); ok && left-min(early, left/10) < wait {
		wait, why = left-min(early, left/10), "and its time is up"
	}
	until := time.NewTimer(wait)
	defer until.Stop()
	ticker := time.NewTicker(bus.KeepaliveEvery)
	defer ticker.Stop()
	c.signed = time.Now()
	first := true
	defer c.probe.Close()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		node, boot, refused := c.look()
		switch {
		case refused != nil:
			c.end(refused)
			return
		case c.late():
			// The caller may have sent it again meanwhile.
			c.end(unavailable("router %s, where the call waited, was held up: send it again", s.node))
			return
		case node != "" && c.deserted():
			c.end(unavailable("the call did not begin: its caller is gone"))
			return
		case node != "" && time.Now().After(c.retryAt) && c.mayPass():
			if c.pass(node, boot, ticker.C) {
				return
			}
			continue
		}
		var retry <-chan time.Time
		if node != "" && c.asked == 0 {
			retry = time.After(time.Until(c.retryAt))
		}
		if first { // its caller knows from now on that it waits
			first = false
			if c.asked == 0 {
				c.sign()
			}
		}
		select {
		case <-changed:
		case <-c.room:
		case <-retry:
		case question := <-c.answers:
			c.let = c.asked == question
		case <-ticker.C:
			if !c.sign() {
				s.waited(c, toolmesh.CodeCancelled) // the caller is gone
				return
			}
		case <-c.cancelled:
			c.end(toolmesh.Errorf(toolmesh.CodeCancelled, "the caller cancelled the call").WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginCaller))
			return
		case <-until.C:
			c.end(c.expired(why))
			return
		case <-s.quit:
			c.end(unavailable("router %s stops, where the call waited for a node: send it again", s.node))
			return
		}
	}
}

// late reports whether the caller may have given the call up, as the last keepalive is too old. A
// caller that asked for no keepalives waits on.
func (c *call) late() bool {
	return c.req.Keepalive && time.Since(c.signed) > bus.KeepaliveEvery+signLate/2
}

// deserted reports whether the last keepalive met no subscription, for calls that are never asked
// for again. Callers that answer are asked instead, and those of streams have time to come back.
func (c *call) deserted() bool {
	q := c.req
	return q.Keepalive && !q.Answers && q.Delivery == codec.DeliverNone && !q.Outlive && q.IdempotencyKey == "" && c.probe.NoSubscriber()
}

// look finds a node that may take the call; none yet is no error. refused is why no node ever
// will.
func (c *call) look() (node subjects.NodeID, boot subjects.BootID, refused *toolmesh.Error) {
	v, session := c.s.view, c.subject.Session
	if now, _ := v.Session(session); c.epoch != "" && now.Epoch != c.epoch {
		return "", "", toolmesh.Errorf(toolmesh.CodeCancelled, "the call's session has ended").
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo).WithDetail("reason", "session_ended")
	}
	if c.batch != nil {
		route, _ := v.Route(session, c.tools[0])
		owner, _ := v.Owner(codec.FeatureBatch, route.Nodes, string(session), string(c.req.RPCID))
		return owner.Node, "", nil // the node itself handles repetitions
	}
	route, known := v.Route(session, c.subject.Tool)
	if len(route.Nodes) > 0 {
		n, ok := c.freest(route.Nodes)
		if !ok {
			return "", "", nil // it waits for room
		}
		return n.Node, n.Boot, nil
	}
	index, installed := v.Index(session, c.subject.Tool)
	switch {
	case known && !c.s.settled(index):
	case known && route.Reason != "": // the nodes that have its index say why
		return "", "", unavailable("tool %q cannot be called: %s", c.subject.Tool, route.Reason)
	case !known && (!installed || len(index.Tools) > 0 || c.s.settled(index)):
		_, err := v.Resolve(session, string(c.subject.Tool))
		if err == nil { // the tool was published in this instant
			return "", "", nil
		}
		return "", "", toolmesh.AsError(err)
	}
	return "", "", nil
}

// settled reports whether an index has been served for so long that all of its tools are known.
func (s *Standby) settled(index registry.IndexRecord) bool {
	subject, err := subjects.IndexTools(index.Session, index.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, recent := s.since[subject]
	return err == nil && !recent && s.subs[subject] == nil
}

// freest is the node with the most room, by its own load and by the calls that were passed on to
// it; false if none has room.
func (c *call) freest(nodes []registry.Candidate) (registry.Candidate, bool) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	load := func(calls int, n registry.Candidate) float64 { return float64(calls) / float64(max(n.Slots, 1)) }
	best := slices.MinFunc(nodes, func(a, b registry.Candidate) int {
		return cmp.Compare(load(max(a.InFlight, s.sent[a.Node]), a), load(max(b.InFlight, s.sent[b.Node]), b))
	})
	// Its load may be a second old: the node rejects the call with busy if it still has no room.
	if c.full = nil; load(s.sent[best.Node], best) >= 1 {
		c.full = nodes
	}
	return best, c.full == nil
}

// mayPass reports whether the caller knows that the call may begin from now on. A caller that
// answers questions is asked. Until it has answered it knows that nothing has begun, even if this
// router and all nodes are silent, so it may send the call again.
func (c *call) mayPass() bool {
	if c.req.Answers && c.asked == 0 {
		c.asked = 1 + rand.Int64N(1<<52) //nolint:gosec // another router may ask about the same call
		c.say(c.req.AwaitsHeader(codec.AwaitsAnswer, c.asked))
	}
	return c.let || !c.req.Answers
}

// sign sends a keepalive that says that the call waits, or which node it is passed on to, if the
// caller asked for keepalives. It reports whether the caller is still there.
func (c *call) sign() bool {
	word := codec.AwaitsNode
	if c.req.Answers {
		c.asked, c.let, word = 0, false, codec.AwaitsWord
		if c.to != nil {
			return c.say(c.req.KeepaliveHeader(c.to, -1, nil))
		}
	}
	return c.say(c.req.AwaitsHeader(word, 0))
}

func (c *call) say(header codec.Header) bool {
	if !c.req.Keepalive {
		return true
	}
	if c.probe.Gone(callerGone) {
		return false
	}
	if !c.s.bus.Connected() {
		return true
	}
	sign := &nats.Msg{Subject: c.m.Reply, Reply: c.probe.Next(c.s.bus), Header: nats.Header(header)}
	if c.s.bus.Conn().PublishMsg(sign) == nil {
		c.signed = time.Now()
	}
	return true
}

// expired is the error of a call that no node has taken in time, with the remedy.
func (c *call) expired(why string) *toolmesh.Error {
	waited := time.Since(c.arrived)
	e := unavailable("the call has waited %v for a node, %s", waited.Round(time.Millisecond), why)
	index, ok := c.s.view.Index(c.subject.Session, c.tools[0])
	switch on, placed := index.On, c.s.view.Placed(index); {
	case !ok:
	case c.last != nil:
		e = unavailable("%s; the node that was asked last said: %s", e.Message, c.last.Message)
	case placed > 0:
		e = unavailable("%s: %d nodes are to serve index %q, and none has room, or has built it yet. Look at mesh indexes, or give the call more time", e.Message, placed, index.Name)
	case len(on) > 0:
		e = unavailable("%s: index %q is for nodes with %s, and there is none. Start one (in Kubernetes: is the pool's autoscaler allowed to?), or give the call more time", e.Message, index.Name, on)
	default:
		e = unavailable("%s: no agent runs that would serve index %q. Start one, or give the call more time", e.Message, index.Name)
	}
	return e.WithDetail("waited_ms", waited.Milliseconds())
}

func (c *call) end(e *toolmesh.Error) {
	c.s.waited(c, e.Code)
	c.s.log.Info("a call that waited for a node has ended without one", c.about(slog.String("code", string(e.Code)))...)
	c.answer(e)
}

func (c *call) about(more ...any) []any {
	index, _ := c.tools[0].Index()
	return append([]any{slog.String("index", string(index)), slog.Duration("waited", time.Since(c.arrived))}, more...)
}

// answer sends a failure to the caller, in the form of the request.
func (c *call) answer(e *toolmesh.Error) {
	var header codec.Header
	var body []byte
	if c.batch != nil {
		header, body = c.batch.Failure(c.s.identity, e)
	} else {
		header, body = c.req.Failure(c.s.identity, e, codec.Load{})
	}
	c.publish(&nats.Msg{Header: nats.Header(header), Data: body})
	if c.req.Delivery == codec.DeliverInbox {
		c.publish(&nats.Msg{})
	}
}

// publish sends a message to the caller.
func (c *call) publish(m *nats.Msg) {
	m.Subject = c.m.Reply
	if err := c.s.bus.Conn().PublishMsg(m); err != nil {
		c.s.log.Warn("the answer to a call that waited cannot be sent", c.about(slog.String("error", err.Error()))...)
	}
}

// word is the meaning of a message from the node that has the call.
type word int

const (
	goesOn  word = iota
	refuses      // the node has not taken the call; another may
	begun        // the node has the call
	ended
)

// pass makes the call on a node and passes the node's messages back, until the answer is complete
// or the node is lost. It reports false if the node has not taken the call.
func (c *call) pass(node subjects.NodeID, boot subjects.BootID, tick <-chan time.Time) (taken bool) {
	s := c.s
	waited := time.Since(c.arrived)
	words := make(chan word, 8)
	var first, answered atomic.Bool // a message of the node has come, and one that is no keepalive
	var heard atomic.Int64
	heard.Store(bus.Mono(time.Now()))
	inbox, err := s.bus.Open(func(m *nats.Msg, err error) {
		w, already := ended, first.Load()
		if err == nil {
			heard.Store(bus.Mono(time.Now()))
			if w = c.read(m, already); w != refuses && !bus.NoResponders(m) {
				first.Store(true)
				sign := len(m.Data) == 0 && m.Header.Get(codec.HeaderKeepalive) != ""
				c.forward(m, waited, !sign && !answered.Swap(true))
			}
		}
		if w == goesOn && already {
			return
		}
		select {
		case words <- w:
		default: // it has ended
		}
	})
	if err != nil {
		return c.again(nil)
	}
	defer inbox.Close()
	if c.req.Answers { // named before it can begin
		c.to = codec.NewIdentity(node, boot, "")
		c.sign()
	}
	if !c.send(inbox, node) {
		return c.again(nil)
	}
	s.count(node, 1)
	defer s.count(node, -1)
	sent, made := time.Now(), s.bus.State().Since
	s.take(c, true)
	left, ok := c.left()
	if !ok {
		left = mostRun
	}
	over := time.NewTimer(left + overdue)
	defer over.Stop()
	told, acked := false, false
	for {
		select {
		case w := <-words:
			if w == refuses {
				s.take(c, false)
				return c.again(c.last)
			}
			if !told {
				told = true
				s.waited(c, "ok")
			}
			acked = acked || w == begun
			if w == ended || acked && !c.req.Keepalive {
				s.log.Info("a call that waited for a node has run", c.about(slog.Duration("node_wait", waited), slog.Duration("run", time.Since(sent)), slog.String("node", string(node)))...)
				return true
			}
		case <-tick:
			silent := time.Since(bus.MonoTime(heard.Load()))
			switch {
			case !first.Load():
				c.sign() // from its first message on the node sends keepalives itself
			case acked && silent > linger:
				return true
			}
			// Messages to an earlier connection may be lost. A caller that asked for keepalives
			// misses them, and asks the node itself.
			if silent > signLate && (c.req.Keepalive && s.bus.State().Since != made || s.lost(node, boot)) {
				if !first.Load() || !c.req.Keepalive { // else the caller knows the node, and finds out itself
					c.answer(toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s, which had the call, is lost: whether the tool ran is not known", node).
						WithOrigin(toolmesh.OriginMesh).WithDetail("node", string(node)))
				}
				return true
			}
		case <-over.C:
			return true // the caller has given it up long ago
		case <-s.base.Done():
			if !acked {
				c.answer(toolmesh.Errorf(toolmesh.CodeUnavailable, "router %s, which made the call, has stopped: whether the tool ran is not known", s.node).WithOrigin(toolmesh.OriginMesh))
			}
			return true
		}
	}
}

// lost reports whether a node is silent that this router would hear: its heartbeats may be behind
// much else on the router's connection, and then wait to be looked at.
func (s *Standby) lost(node subjects.NodeID, boot subjects.BootID) bool {
	if s.view.Runs(node, boot) {
		return false
	}
	ctx, cancel := context.WithTimeout(s.base, time.Second)
	defer cancel()
	return s.bus.Ping(ctx) == nil && wake.After(ctx, bus.LookEvery) && !s.view.Runs(node, boot)
}

// take notes whether a node has the call.
func (s *Standby) take(c *call, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.waiting = !taken
}

// count counts a call that was passed on to a node. At its end the first call that waits for room
// there is sent; if the node refuses it, all look again soon: see look.
func (s *Standby) count(node subjects.NodeID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent[node] += n; s.sent[node] <= 0 {
		delete(s.sent, node)
	}
	if n > 0 {
		return
	}
	var next *call
	for c := range s.calls {
		if c.waiting && (next == nil || c.arrived.Before(next.arrived)) &&
			slices.ContainsFunc(c.full, func(one registry.Candidate) bool { return one.Node == node }) {
			next = c
		}
	}
	if next != nil {
		next.full = nil // the next end is for another call
		wake.Up(next.room)
	}
}

// again has the call wait for another try.
func (c *call) again(why *toolmesh.Error) (taken bool) {
	c.last, c.to = why, nil
	if c.req.Answers {
		c.sign() // it waits again
	}
	c.retryIn = min(max(2*c.retryIn, firstRetry), lastRetry)
	c.retryAt = time.Now().Add(c.retryIn/2 + rand.N(c.retryIn)) //nolint:gosec // jitter
	return false
}

// send sends the request to a node.
func (c *call) send(inbox *bus.Inbox, node subjects.NodeID) bool {
	var to string
	var err error
	if c.batch != nil {
		to, err = subjects.NodeBatch(node, c.subject.Session)
	} else {
		to, err = subjects.NodeTool(node, c.subject.Session, c.subject.Tool)
	}
	if err != nil {
		return false
	}
	header := c.req.PassOn(codec.Header(c.m.Header), time.Since(c.arrived))
	return inbox.Send(&nats.Msg{Subject: to, Header: nats.Header(header), Data: c.m.Data}) == nil
}

// read returns the meaning of a message. already: the node has sent a message before.
func (c *call) read(m *nats.Msg, already bool) word {
	if bus.NoResponders(m) {
		if already {
			return goesOn
		}
		return refuses
	}
	r := codec.ParseReply(codec.Header(m.Header), m.Data)
	failure := r.Err
	enveloped := struct {
		Chunk codec.ChunkType `json:"chunk_type"`
		Err   *toolmesh.Error `json:"error"`
	}{}
	if c.req.Form != codec.FormPlain && json.Unmarshal(m.Data, &enveloped) == nil {
		failure = enveloped.Err
	}
	switch {
	case r.Kind == codec.ReplyKeepalive:
		return goesOn
	case !already && failure != nil && elsewhere(failure):
		c.last = failure
		return refuses
	case c.req.Delivery == codec.DeliverNone:
		return ended
	case c.req.Delivery == codec.DeliverLive && r.Kind == codec.ReplyResult:
		return begun
	case c.req.Delivery == codec.DeliverLive:
		return ended
	case c.req.Delivery == codec.DeliverInbox:
		if r.Kind == codec.ReplyEnd {
			return ended
		}
		return goesOn
	case enveloped.Chunk != "" && enveloped.Chunk != codec.ChunkData:
		return ended
	}
	return goesOn
}

// elsewhere reports whether another node may take a call that one has refused so, or the
// same one later.
func elsewhere(e *toolmesh.Error) bool {
	if e.Started != toolmesh.StartedNo || e.Details["revision"] != nil || codec.StateGone(e) || codec.NodeBusy(e) {
		return false
	}
	return e.Code == toolmesh.CodeBusy || e.Code == toolmesh.CodeUnavailable || e.Code == toolmesh.CodeToolNotFound
}

// forward passes a message of the node on to the caller, with the call's wait if say is set. By
// the reply subject the node finds out whether its reader is present.
func (c *call) forward(m *nats.Msg, waited time.Duration, say bool) {
	out := &nats.Msg{Subject: c.m.Reply, Header: m.Header, Data: m.Data}
	if m.Reply != "" {
		out.Reply = c.probe.Pass(c.s.bus, m.Reply)
	}
	if say && c.req.Form == codec.FormPlain && len(m.Header) > 0 {
		out.Header = maps.Clone(m.Header)
		out.Header[codec.HeaderNodeWait] = []string{strconv.FormatInt(waited.Milliseconds(), 10)}
		if c.s.bus.Conn().PublishMsg(out) == nil {
			return
		}
		out.Header = m.Header // a message has no room for more
	}
	c.publish(out)
}
