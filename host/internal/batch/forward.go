package batch

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	silence  = 2500 * time.Millisecond // after which the owner is looked for
	pingWait = 400 * time.Millisecond
)

// forward passes a batch on to the node that owns its id, so that a repetition finds the
// one that ran it, and passes back what that says. It reports false where that node
// does not take it: then this one may.
func (s *Server) forward(owner subjects.NodeID, subject subjects.Subject, caller *reader, m *nats.Msg) bool {
	b := caller.b
	to, err := subjects.NodeBatch(owner, subject.Session)
	if err != nil {
		return false
	}
	// All that can come, so that nothing is dropped: results, the answer, its end.
	answers := make(chan *nats.Msg, codec.MaxBatch+8)
	gone := make(chan struct{}, 1)
	inbox, err := s.Bus.Open(func(m *nats.Msg, err error) {
		if err != nil {
			gone <- struct{}{}
			return
		}
		select {
		case answers <- m:
		default:
		}
	})
	if err != nil {
		return false
	}
	defer inbox.Close()
	sent := time.Now()
	// The id in the header, should the body have none: the owner must not make another.
	header := maps.Clone(m.Header)
	if header == nil {
		header = nats.Header{}
	}
	header[codec.HeaderKeepalive], header[codec.HeaderRPCID] = []string{"1"}, []string{string(b.Request.RPCID)}
	header[codec.HeaderHops] = []string{"1"}
	if inbox.Send(&nats.Msg{Subject: to, Header: header, Data: m.Data}) != nil {
		return false
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	heard := false
	for {
		select {
		case a := <-answers:
			timer.Reset(silence)
			if bus.NoResponders(a) {
				if heard || strings.HasSuffix(a.Subject, again) {
					continue // the timer sees to it
				}
				return false
			}
			r := codec.ParseReply(codec.Header(a.Header), a.Data)
			switch {
			case r.Kind == codec.ReplyKeepalive && !b.Keepalive:
				heard = true
				continue
			case r.Kind == codec.ReplyError && !heard && r.Err.Code == toolmesh.CodeUnavailable && r.Err.Started == toolmesh.StartedNo:
				return false // it is about to leave
			}
			heard = true
			probe := ""
			if a.Reply != "" {
				probe = caller.probe.Pass(s.Bus, a.Reply)
			}
			s.Host.Send(&nats.Msg{Subject: m.Reply, Reply: probe, Header: a.Header, Data: a.Data})
			if r.Kind == codec.ReplyEnd || r.Kind != codec.ReplyKeepalive && b.Delivery != codec.DeliverInbox {
				return true
			}
		case <-timer.C:
			timer.Reset(silence)
			if !s.answers(owner) {
				s.refuse(caller, toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s, which ran the batch, is silent: what of it ran is not known", owner).
					WithDetail("node", string(owner)).WithOrigin(toolmesh.OriginAgent))
				return true
			}
			// It lives and says nothing: the request or its answer got lost.
			inbox.Taken()
			header := maps.Clone(header)
			header[codec.HeaderAgain] = []string{strconv.FormatInt(time.Since(sent).Milliseconds()+1, 10)}
			_ = s.Bus.Conn().PublishMsg(&nats.Msg{Subject: to, Reply: inbox.Subject() + again, Header: header, Data: m.Data})
		case <-gone:
			return heard
		case <-s.Base.Done():
			s.refuse(caller, toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s stopped before node %s had answered the batch", s.Node, owner).WithOrigin(toolmesh.OriginAgent))
			return true
		}
	}
}

// again is put behind the inbox's subject where a request is sent again.
const again = ".again"

// answers reports whether a node is heard, as far as this one can hear.
func (s *Server) answers(node subjects.NodeID) bool {
	ctx, cancel := context.WithTimeout(s.Base, pingWait)
	defer cancel()
	return s.View.Alive(node) || s.Bus.Ping(ctx) != nil
}

// cut bounds a text.
func cut(text string) string {
	const most = 256
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
