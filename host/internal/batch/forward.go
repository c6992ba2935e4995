package batch

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// forwarded is a batch that another node runs for a caller of this one.
type forwarded struct {
	bus.Exchange
	s      *Server
	caller *reader
	alive  chan *nats.Msg // of capacity 1: the keepalive to pass on
}

// Keepalive implements [bus.ExchangeUser]: it forwards keepalives to a caller that asked for
// them, only the newest one if several wait.
func (f *forwarded) Keepalive(m *nats.Msg, _ *codec.Reply) {
	if !f.caller.b.Keepalive {
		return
	}
	select {
	case <-f.alive:
	default:
	}
	f.alive <- m // only this goroutine sends
}

// passAlive passes keepalives on, until done is closed: to send them may take a while.
func (f *forwarded) passAlive(done <-chan struct{}) {
	for {
		select {
		case m := <-f.alive:
			f.pass(m)
		case <-done:
			return
		}
	}
}

// Subject implements [bus.ExchangeUser].
func (f *forwarded) Subject(n *bus.Peer) (string, error) { return subjects.NodeBatch(n.ID, f.Session) }

// Silent implements [bus.ExchangeUser].
func (f *forwarded) Silent(*bus.Peer, bool) {}

// pass passes a message of the other node on to the caller. The reply subject of a keepalive is a
// probe: it tells the other node when the caller is gone.
func (f *forwarded) pass(m *nats.Msg) {
	probe := ""
	if m.Reply != "" {
		probe = f.caller.probe.Pass(f.s.Bus, m.Reply)
	}
	f.s.Replies.Send(&nats.Msg{Subject: f.caller.Reply, Reply: probe, Header: m.Header, Data: m.Data})
}

// forward passes a batch on to the node that owns its id, so that a repetition finds the
// node that ran it, and passes back the answer. It reports false where that node does not
// take it: then this node may run it.
func (s *Server) forward(owner *bus.Peer, subject subjects.Subject, caller *reader, m *nats.Msg) bool {
	b := caller.b
	f := &forwarded{s: s, caller: caller, alive: make(chan *nats.Msg, 1)}
	f.User, f.Session, f.RPC, f.What = f, subject.Session, b.Request.RPCID, "the batch ran"
	to, err := f.Subject(owner)
	if err != nil || f.Open(s.Bus, codec.MaxBatch+8) != nil { // room for all messages, so that none is dropped
		return false
	}
	defer f.Close()
	done := make(chan struct{})
	defer close(done)
	s.running.Go(func() { f.passAlive(done) })
	// The id is in the header, should the body have none: the owner must not make another.
	header := b.PassOn(codec.Header(m.Header), time.Since(caller.Start))
	header[codec.HeaderKeepalive], header[codec.HeaderRPCID] = []string{"1"}, []string{string(b.Request.RPCID)}
	if f.Send(&nats.Msg{Subject: to, Header: nats.Header(header), Data: m.Data}, owner) != nil {
		return false
	}
	for taken := false; ; taken = true {
		a, err := f.Next(s.Base)
		taken = taken || f.Heard()
		e := toolmesh.AsError(err)
		switch {
		case err == nil:
		case s.Base.Err() != nil:
			e = toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s stopped before node %s had answered the batch: whether it ran is not known", s.ID, owner.ID)
			fallthrough
		case e.Code == toolmesh.CodeNodeLost:
			s.refuse(caller, e.WithOrigin(toolmesh.OriginAgent))
			return true
		case e.Code == toolmesh.CodeUnavailable && e.Retryable:
			continue // this node's own connection is lost: the caller cannot be told
		default:
			return taken
		}
		r := codec.ParseReply(codec.Header(a.Header), a.Data)
		switch {
		case !taken && (r.Kind == codec.ReplyNoResponders || r.Kind == codec.ReplyError && r.Err.Code == toolmesh.CodeUnavailable && r.Err.Started == toolmesh.StartedNo):
			return false // it has left, or is about to
		case r.Kind == codec.ReplyNoResponders:
			continue
		}
		f.pass(a)
		if r.Kind == codec.ReplyEnd || b.Delivery != codec.DeliverInbox {
			return true
		}
	}
}
