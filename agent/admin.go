package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// Verbs of administrative requests.
const (
	verbInstall   = "install"
	verbUninstall = "uninstall"
	verbDrain     = "drain"
	verbLabel     = "label"
)

// subscribeAdmin takes administrative requests: to any agent, and to this node.
func (a *Agent) subscribeAdmin() error {
	own, _ := subjects.NodeAdmins(a.opts.Node) // the id has been checked
	for subject, queue := range map[string]string{subjects.AllAdmin: subjects.QueueGroup, own: ""} {
		sub, err := a.member.Bus.Conn().QueueSubscribe(subject, queue, a.admin)
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "administrative requests cannot be subscribed: %w", err)
		}
		a.subs = append(a.subs, sub)
	}
	return nil
}

// admin hands one request to a goroutine of its own.
func (a *Agent) admin(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if !a.member.Bus.MayAnswer(m, "") {
		return
	}
	r := &adminReply{a: a, to: m.Reply}
	if err != nil {
		r.fail(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err))
		return
	}
	a.mu.Lock()
	stopping := a.stopping || a.deploy == nil
	if !stopping {
		a.admins.Add(1)
	}
	a.mu.Unlock()
	if stopping {
		r.fail(toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s is stopping", a.opts.Node))
		return
	}
	if codec.Header(m.Header).Get(codec.HeaderKeepalive) != "" {
		r.alive()
		r.stop = r.repeat()
	}
	go func() { // Stop waits for a.admins
		defer a.admins.Done()
		last, err := a.serveAdmin(a.base, s, m, r)
		if err != nil {
			r.fail(err)
			return
		}
		if last != nil {
			r.line(last)
		}
		r.end()
		if s.Verb == verbDrain {
			a.finish()
		}
	}()
}

// serveAdmin runs the requested operation and returns the last line of the answer.
func (a *Agent) serveAdmin(ctx context.Context, s subjects.Subject, m *nats.Msg, r *adminReply) (last any, err error) {
	if directed := s.Verb == verbDrain || s.Verb == verbLabel; directed && s.Kind != subjects.KindNodeAdmin {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%s is for one node: send it to mesh.node.<node>.admin.%s", s.Verb, s.Verb)
	}
	if s.Verb == verbInstall {
		var req deploy.Request
		if err := bus.ReadRequest(m, &req); err != nil {
			return nil, err
		}
		var err error
		if req.Owner, err = deploy.Signer(codec.Header(m.Header), m.Data); err != nil {
			return nil, err
		}
		return nil, a.deploy.Install(ctx, req, func(l deploy.Line) {
			if l.Index != "" {
				a.listed(ctx, req.Session, l.Tools)
			}
			r.line(l)
		})
	}
	var req struct {
		Name    subjects.IndexName `json:"name"`    // of uninstall
		Session subjects.SessionID `json:"session"` // of uninstall
		Labels  map[string]string  `json:"labels"`  // of label
	}
	if err := bus.ReadRequest(m, &req); err != nil {
		return nil, err
	}
	switch s.Verb {
	case verbUninstall:
		return map[string]any{"index": req.Name}, a.deploy.Uninstall(ctx, req.Name, req.Session)
	case verbDrain:
		return map[string]any{"node": a.opts.Node, "state": "draining"}, a.member.Host.Drain(ctx)
	case verbLabel:
		return map[string]any{"node": a.opts.Node}, a.member.Host.Label(ctx, req.Labels)
	default:
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "there is no administrative request %q: install, uninstall, drain, label", s.Verb)
	}
}

// listWithin bounds how long an install waits until the registry lists its tools, which are
// served by then.
const listWithin = 5 * time.Second

// listed waits until this node's view has the tools, so that the caller of the install finds
// them.
func (a *Agent) listed(ctx context.Context, session subjects.SessionID, tools []subjects.ToolID) {
	if session == "" {
		session = subjects.DefaultSession
	}
	changed := make(chan struct{}, 1)
	defer a.member.View.Notify(changed)()
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	for _, id := range tools {
		for r, ok := a.member.View.Route(session, id); !ok || len(r.Nodes) == 0; r, ok = a.member.View.Route(session, id) {
			select {
			case <-changed:
			case <-ctx.Done():
				a.log.Warn("installed tools are not listed yet", slog.String("tool", string(id)))
				return
			}
		}
	}
}

// adminReply answers one administrative request: lines, then an empty message. Every message names
// the node; its heartbeats tell the caller whether more will come.
type adminReply struct {
	a    *Agent
	to   string
	stop func() // ends the keepalives; nil if there are none
}

func (r *adminReply) send(header nats.Header, data []byte) error {
	if header == nil {
		header = make(nats.Header, 2)
	}
	header.Set(codec.HeaderNode, codec.NameHeader(r.a.opts.Node))
	header.Set(codec.HeaderBoot, string(r.a.member.Host.Boot()))
	return r.a.member.Bus.Conn().PublishMsg(&nats.Msg{Subject: r.to, Header: header, Data: data})
}

// alive tells a caller that asked for keepalives which node has the request. A header tells the
// keepalive from the end of the answer.
func (r *adminReply) alive() {
	r.sent(r.send(nats.Header{codec.HeaderKeepalive: {"1"}}, nil))
}

// repeat sends a keepalive each second until stop returns: a caller without one and without the
// end of the answer has lost the answer.
func (r *adminReply) repeat() (stop func()) {
	ctx, end := context.WithCancel(context.Background())
	var repeating sync.WaitGroup
	repeating.Go(func() {
		for wake.After(ctx, time.Second) {
			r.alive()
		}
	})
	return func() {
		end()
		repeating.Wait()
	}
}

func (r *adminReply) line(v any) {
	data, _ := json.Marshal(v) // of texts and numbers
	err := r.send(nil, data)
	if l, ok := v.(deploy.Line); ok && errors.Is(err, nats.ErrMaxPayload) {
		if first, rest, ok := l.Split(); ok {
			r.line(first)
			r.line(rest)
			return
		}
	}
	r.sent(err)
}

// shortMessage bounds the message of an error that no message of the broker carries whole, in bytes.
const shortMessage = 4 << 10

func (r *adminReply) fail(err error) {
	e := toolmesh.AsError(err)
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	if e.Code == toolmesh.CodeInvalidRequest && e.Started == toolmesh.StartedUnknown {
		e = e.WithStarted(toolmesh.StartedNo) // it was found before anything began
	}
	send := func() error {
		header, body := codec.ErrorReply(e)
		return r.send(nats.Header(header), body)
	}
	if err = send(); errors.Is(err, nats.ErrMaxPayload) {
		short := *e
		short.Message = strings.ToValidUTF8(e.Message[:min(len(e.Message), shortMessage)], "")
		short.Stacktrace, short.Details = "", map[string]any{"reason": e.Details["reason"]}
		e = &short
		err = send()
	}
	r.sent(err)
	r.end()
}

// sent logs that a message was not sent, if so.
func (r *adminReply) sent(err error) {
	if err != nil {
		r.a.log.Warn("administrative answer could not be sent", slog.String("error", err.Error()))
	}
}

func (r *adminReply) end() {
	if r.stop != nil {
		r.stop()
	}
	_ = r.send(nil, nil)
}
