package bus

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

// Times of docs/protocol: node lost.
const (
	// Silence is how long a node may be silent before it counts as lost: 2.5 s.
	Silence = 2500 * time.Millisecond
	// KeepaliveEvery is the time between two keepalives of a call.
	KeepaliveEvery = time.Second
	// LookEvery is how often a silent node is looked after; see [Exchange.Look].
	LookEvery = 100 * time.Millisecond
	// missing is when a keepalive is overdue.
	missing = 1300 * time.Millisecond
	// pingWait is how long before and after the end of a silent node's time a ping may be unanswered until
	// the connection counts as lost.
	pingWait = 400 * time.Millisecond
	// muteMost is for how long a connection that brings something, but no answer to a ping, may be silent about a call.
	muteMost = 3 * Silence
	// findEvery is the interval of asking which node has a call, and WhereWait bounds each.
	findEvery = time.Second
	WhereWait = time.Second
)

// ReasonCut is details.reason where the answer was lost with the connection.
const ReasonCut = "connection_cut"

// again is put behind the inbox's subject where a request is sent again, so that the
// broker's 503 to it is not taken for one to the first request.
const again = ".again"

// Exchange is one request and its answers: keepalives, messages, or the certainty that no answer
// will come. It decides about silence. Silence proves nothing: a silent node may have run the
// request, and only the following prove that it did not start:
//
//   - NATS's 503, which [Exchange.Next] returns unchanged: see [NoResponders];
//   - a message of the node;
//   - the silence of a router at which the request waits, if the router was not permitted to
//     pass the request on.
//
// Open it first. Its methods are for one goroutine, except Peer, LastSign and Answered.
type Exchange struct {
	// User receives events, and decides where the request may be sent again. Nil for a request that
	// is sent once, to a node that repeats its keepalives until it has answered: its heartbeats do
	// not count.
	User ExchangeUser
	// Session and RPC name the call, if the request is one.
	Session subjects.SessionID
	RPC     subjects.RPCID
	// Findable says that nodes tell which of them has the call of this name.
	Findable bool
	// What names the uncertain effect if the node is lost: "the tool ran".
	What string
	// Patience is how long a node that has not named itself may be silent. Defaults to
	// [Silence].
	Patience time.Duration

	bus     *Bus
	inbox   *Inbox
	arrived chan Arrival

	peer atomic.Pointer[Peer] // the node that has the request, once it is known
	sign atomic.Int64         // the last keepalive, as [Mono]; 0 = none

	mu        sync.Mutex // guards the fields below
	waiting   bool       // the request waits at a router, by that router's last word, which asks before it passes the request on
	permitted bool       // the router was answered: a node may begin from now on
	closed    bool       // no router is answered any more

	request     *nats.Msg
	sent, asked time.Time // when the request was sent first, and last
	attended    *Peer     // whose heartbeats were asked for
	quiet       bool      // the last look found silence, over a connection that is well
	pong        time.Time // when the broker last answered a ping of this exchange
	sought      time.Time // when it was last asked which node has the call
}

// Arrival is a message, or the error why none can come.
type Arrival struct {
	Msg *nats.Msg
	Err error
}

// ExchangeUser is the maker of a request. Its methods must not block.
type ExchangeUser interface {
	// Keepalive takes a keepalive, on the goroutine of all inboxes.
	Keepalive(m *nats.Msg, r *codec.Reply)
	// Subject is where a node takes the request again.
	Subject(n *Peer) (string, error)
	// Silent is told that a keepalive is overdue, at each look, or that the node is lost.
	// The node may be nil.
	Silent(n *Peer, lost bool)
}

// Open opens the exchange's inbox, for so many messages that wait to be read; more are
// dropped. Close it.
func (x *Exchange) Open(b *Bus, unread int) (err error) {
	x.bus, x.arrived = b, make(chan Arrival, unread)
	x.inbox, err = b.Open(x.receive)
	return err
}

// Close ends the exchange. It cancels nothing.
func (x *Exchange) Close() { x.inbox.Close() }

// Send sends the request to a node, nil if that is for the broker to choose. Its errors are
// those of [Inbox.Send].
func (x *Exchange) Send(m *nats.Msg, to *Peer) error {
	if to != nil {
		x.peer.Store(to)
	}
	x.request, x.sent = m, time.Now()
	x.asked = x.sent
	return x.inbox.Send(m)
}

// Join takes up a call that another caller began, in place of Send: nothing is sent, and
// nothing sent again.
func (x *Exchange) Join() {
	x.sent = time.Now()
	x.asked = x.sent
}

// Sent is when the request was first sent.
func (x *Exchange) Sent() time.Time { return x.sent }

// Asked is when the request was last sent.
func (x *Exchange) Asked() time.Time { return x.asked }

// Arrived is where messages arrive that are no keepalives.
func (x *Exchange) Arrived() <-chan Arrival { return x.arrived }

// Peer is the node that has the request; nil while that is unknown.
func (x *Exchange) Peer() *Peer { return x.peer.Load() }

// Heard reports whether a keepalive has come.
func (x *Exchange) Heard() bool { return x.sign.Load() != 0 }

// receive handles an arrival in the inbox, on the goroutine of all inboxes.
func (x *Exchange) receive(m *nats.Msg, err error) {
	if err == nil && strings.HasSuffix(m.Subject, again) && NoResponders(m) {
		return // the node is leaving: whether it ran the request is for Look to find out
	}
	if err == nil && len(m.Data) == 0 && len(m.Header[codec.HeaderKeepalive]) > 0 {
		r := codec.ParseReply(codec.Header(m.Header), nil)
		if r.Awaits != "" {
			x.awaits(r.Awaits, r.Question)
		} else {
			x.Answered(r.Node, r.Boot)
		}
		if x.User != nil {
			x.User.Keepalive(m, &r)
		}
		return
	}
	select {
	case x.arrived <- Arrival{m, err}:
	default: // more than is asked for: the first ones count
	}
}

// Answered notes a sign of the node that has the request, by the name in its answer.
func (x *Exchange) Answered(id subjects.NodeID, boot subjects.BootID) {
	x.sign.Store(Mono(time.Now()))
	if id == "" || boot == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// Another start than the registry said has it, unless it was sent again: then the word
	// may be of the first time.
	if n := x.peer.Load(); n == nil || n.ID == id && n.Boot != boot && !x.closed {
		x.peer.Store(x.bus.Answered(id, boot))
	}
}

// awaits handles a message of a router at which the request waits for a node. The router asks
// before it passes the request on. Until it has an answer, the request has begun nowhere,
// whatever happens to the router.
func (x *Exchange) awaits(word codec.Awaits, question int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	x.sign.Store(Mono(time.Now()))
	x.peer.Store(nil) // a node that was named has not taken it
	x.waiting, x.permitted = word != codec.AwaitsNode, word == codec.AwaitsAnswer
	if x.permitted {
		x.Tell("", codec.Encode(codec.Control{Type: codec.ControlPass, Seq: question})) // asked again if it is lost
	}
}

// settle permits no router to pass the request on any more. It reports whether the request
// has begun nowhere.
func (x *Exchange) settle() (unbegun bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	unbegun = x.waiting && !x.permitted && !x.closed
	x.closed = true
	return unbegun
}

// Cancel stops the call at its node, or at every node while that is unknown.
func (x *Exchange) Cancel() { x.Tell(x.Peer().Name(), nil) }

// Tell sends a control message about the call to a node, or, of an empty name, to all.
func (x *Exchange) Tell(node subjects.NodeID, body []byte) {
	subject, err := ctl(node, x.Session, x.RPC)
	if err == nil && x.bus.Connected() {
		_ = x.bus.Conn().Publish(subject, body)
	}
}

// ctl is the subject of control messages to a node, or, of an empty name, to all.
func ctl(node subjects.NodeID, session subjects.SessionID, rpc subjects.RPCID) (string, error) {
	if node == "" {
		return subjects.Ctl(session, rpc)
	}
	return subjects.NodeCtl(node, session, rpc)
}

// Where asks for [WhereWait] which node has a call: one node, or, of an empty name, all. A node that
// does not have it is silent.
func (b *Bus) Where(ctx context.Context, node subjects.NodeID, session subjects.SessionID, rpc subjects.RPCID) (at codec.Where, err error) {
	subject, err := ctl(node, session, rpc)
	if err != nil {
		return at, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	ctx, cancel := context.WithTimeout(ctx, WhereWait)
	defer cancel()
	m, err := b.Request(ctx, &nats.Msg{Subject: subject, Data: codec.Encode(codec.Control{Type: codec.ControlWhere})})
	if err == nil && (json.Unmarshal(m.Data, &at) != nil || at.Node == "") {
		err = toolmesh.Errorf(toolmesh.CodeProtocolError, "the answer about the call's node cannot be read: %.200s", m.Data)
	}
	return at, err
}

var timers = sync.Pool{New: func() any { return time.NewTimer(missing) }}

// Next returns the next message that is not a keepalive. Meanwhile it watches the node, and sends
// the request again under the rules of [Exchange.Resend]. The errors are ctx's own, and those of
// [Exchange.Look] and [Bus.Open].
func (x *Exchange) Next(ctx context.Context) (*nats.Msg, error) {
	timer := timers.Get().(*time.Timer)
	timer.Reset(missing)
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
	select {
	case a := <-x.arrived:
		return a.Msg, a.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	since := time.Now().Add(-missing)
	ticker := time.NewTicker(LookEvery)
	defer ticker.Stop()
	for {
		x.find(ctx)
		// The repeated request is not a message of the node.
		if err := x.Look(ctx, since); err != nil && ctx.Err() == nil {
			return nil, err
		}
		if err := x.Resend(x.asked); err != nil {
			return nil, err
		}
		select {
		case a := <-x.arrived:
			return a.Msg, a.Err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// cut reports whether the connection was made anew since the request was sent: its answer
// may have gone to the one before.
func (x *Exchange) cut() bool { return x.bus.State().Since.After(x.sent) }

// find asks which node has a call that lost its connection before the node was known, so
// that the node can be asked again.
func (x *Exchange) find(ctx context.Context) {
	if !x.Findable || x.peer.Load() != nil || !x.cut() || !x.bus.Connected() || time.Since(x.sought) < findEvery {
		return
	}
	x.sought = time.Now()
	if at, err := x.bus.Where(ctx, "", x.Session, x.RPC); err == nil {
		x.Answered(at.Node, at.Boot)
	}
}

// Resend sends the request again to its node, if that is alive, is still the same start, and has
// sent nothing about the request since last: the request or its answer was lost. That start
// knows the rpc_id, or knows that it may have forgotten it, and runs it at most once; another
// start must not run it.
func (x *Exchange) Resend(last time.Time) error {
	n := x.peer.Load()
	if x.request == nil || x.User == nil || n == nil || time.Since(x.LastSign(last)) < Silence || !n.well() || !x.bus.Connected() {
		return nil
	}
	subject, err := x.User.Subject(n)
	if err != nil {
		return err
	}
	x.asked = time.Now()
	x.settle() // this node may begin it from now on
	x.inbox.Taken()
	header := maps.Clone(x.request.Header)
	SentAgain(header, n.Boot, time.Since(x.sent))
	_ = x.bus.Conn().PublishMsg(&nats.Msg{Subject: subject, Reply: x.inbox.Subject() + again, Header: header, Data: x.request.Data}) // failures are retried
	return nil
}

// SentAgain says in a request that it was sent before, so long ago, to a start of a node: it
// joins the call there, and begins none. Of a request that says so already it is the start
// and the time at which that was sent first.
func SentAgain(header nats.Header, boot subjects.BootID, ago time.Duration) {
	if len(header[codec.HeaderBoot]) == 0 {
		header[codec.HeaderBoot] = []string{string(boot)}
	}
	before, _ := strconv.ParseInt(codec.Header(header).Get(codec.HeaderAgain), 10, 64) // 0 if it has none
	// Rounded up: the node's memory begins earlier then, never later.
	header[codec.HeaderAgain] = []string{strconv.FormatInt((toolmesh.Millis(max(before, 0))+ago).Milliseconds()+1, 10)}
}

// LastSign is when the request's last keepalive came, at least last.
func (x *Exchange) LastSign(last time.Time) time.Time {
	if ns := x.sign.Load(); ns > Mono(last) {
		return MonoTime(ns)
	}
	return last
}

// Look returns why no answer will come, nil while one may. The node has been silent since a
// time, but for its keepalives. The errors are:
//
//   - node_lost: the node is silent or has restarted;
//   - unavailable: this process's own connection is the silent one, or was cut (details.reason
//     is [ReasonCut]), or, with started false, the request waited at a router that is silent.
func (x *Exchange) Look(ctx context.Context, since time.Time) error {
	n := x.peer.Load()
	if n != x.attended {
		x.attended = n
		x.bus.peers.attend(n)
	}
	last, patience := x.LastSign(since), Silence
	if n == nil {
		patience = max(patience, x.Patience)
	} else {
		if n.restarted.Load() && len(x.arrived) == 0 {
			return x.lost(n, "has restarted")
		}
		last = later(last, x.beat(n))
	}
	made := x.bus.State().Since
	if made.After(last) {
		last = made // earlier messages of the node went to the old connection
	}
	quiet := time.Since(last)
	if quiet < patience {
		x.quiet = false
		if quiet > missing && x.User != nil {
			x.User.Silent(n, false)
		}
		if quiet < patience-pingWait {
			return nil
		}
	}
	// Nothing is heard: is our own connection the silent one?
	if x.bus.StalledSince(last) {
		x.sign.Store(Mono(time.Now())) // this process was frozen: listen anew
		return nil
	}
	// The ping begins before the node's time is up, so that a busy machine has twice its time to answer.
	ping, cancel := context.WithTimeout(ctx, pingWait+max(patience-quiet, 0))
	defer cancel()
	arrived := x.bus.Conn().Stats().InBytes
	if err := x.bus.Ping(ping); err != nil {
		if ctx.Err() != nil || time.Since(last) < patience { // the caller sees its end; a connection that is gone may be made anew
			return nil
		}
		// On a busy connection the answer to the ping is behind much else, and a busy machine may miss one.
		if len(x.arrived) > 0 || time.Since(x.pong) < 2*pingWait || x.bus.Conn().Stats().InBytes != arrived && time.Since(last) < muteMost {
			return nil
		}
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the connection to the mesh was lost: whether %s is not known: %w", x.What, err).
			WithOrigin(toolmesh.OriginCaller)
	}
	x.pong = time.Now()
	if x.pong.Sub(last) < patience {
		return nil
	}
	// The ping's answer came after everything that was on its way to this process. That may
	// still wait for the goroutines that look at it: so the next look decides.
	if x.bus.State().Since != made || x.LastSign(since).After(last) || len(x.arrived) > 0 || x.peer.Load() != n || later(last, x.beat(n)).After(last) {
		return nil
	}
	if !x.quiet {
		x.quiet = true
		return nil
	}
	if x.settle() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the router where the call waited for a node is silent, and has not passed it on: send it again").
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	return x.lost(n, "has been silent for "+patience.String())
}

// beat is the node's last heartbeat, as [Mono]; 0 = none that counts. Of a request that is
// sent once none does: the node repeats its keepalives until it has answered, and that they
// have stopped is that the answer was lost.
func (x *Exchange) beat(n *Peer) int64 {
	if n == nil || x.User == nil {
		return 0
	}
	return n.heard.Load()
}

// later is the later of two times, of which one is a [Mono]; 0 is none.
func later(t time.Time, ns int64) time.Time {
	if ns > Mono(t) {
		return MonoTime(ns)
	}
	return t
}

func (x *Exchange) lost(n *Peer, why string) error {
	if n == nil && x.Findable && x.cut() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the connection to the mesh was cut while the call ran, and no node says that it has the call: whether %s is not known. A broker cuts a connection that does not read "+
			"what waits for it, by default 64 MiB or for 10 s", x.What).WithOrigin(toolmesh.OriginCaller).WithDetail("reason", ReasonCut)
	}
	if x.User != nil {
		x.User.Silent(n, true)
	}
	if n == nil {
		return toolmesh.Errorf(toolmesh.CodeNodeLost, "the node that was asked %s: whether %s is not known", why, x.What).WithOrigin(toolmesh.OriginCaller)
	}
	x.bus.peers.doubt(n)
	return toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s %s: whether %s is not known", n.ID, why, x.What).
		WithOrigin(toolmesh.OriginCaller).WithDetail("node", string(n.ID))
}
