package host

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/sessions"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// publisher owns the services of the node: it subscribes the tools' subjects, routes requests to
// tools, and updates the registry.
type publisher struct {
	*core
	requests chan *nats.Msg // of all tools
	records  records

	changing sync.Mutex // held while services change; taken before mu
	mu       sync.Mutex // guards the fields below; taken before records.mu; nothing waits under it, except at the start
	state    state
	services map[serviceKey]*service
	subs     map[*nats.Subscription]struct{} // of tools, also of such as are yet to be in a service, or to be retired
}

type state uint8

const (
	stateNew state = iota
	stateServing
	stateStopped
)

func newPublisher(k *core, requests chan *nats.Msg) *publisher {
	p := &publisher{core: k, requests: requests, services: make(map[serviceKey]*service), subs: make(map[*nats.Subscription]struct{})}
	p.records = records{publisher: p, listings: make(map[serviceKey]*listing)}
	return p
}

// open offers the services that were published before the start; mu is held.
func (p *publisher) open(ctx context.Context) error {
	for _, s := range p.services {
		if err := p.claim(ctx, s); err != nil {
			return err
		}
		for _, o := range s.tools {
			if err := p.offer(o, nil); err != nil {
				return err
			}
		}
		p.records.replace(s)
	}
	return nil
}

// serviceKey names a unit of publishing: an index, or a session's own tools.
type serviceKey struct {
	index   subjects.IndexName
	session subjects.SessionID
}

// service is one published [Service]; the host's lock guards it.
type service struct {
	key         serviceKey
	revision    string
	identity    *codec.Identity
	tools       map[subjects.ToolID]*served
	unavailable []*entry
	tenure      *sessions.Tenure // of key.session; nil for every session's
	unclaimed   bool             // the name of the index is to be claimed for this service; guarded by records.mu
}

// change publishes a service: in place of the one of its name or, with add set, the tools beside
// those of that, which are not touched. The registry follows.
func (p *publisher) change(ctx context.Context, of Service, add bool) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	key := serviceKey{of.Index, of.Session}
	p.mu.Lock()
	old, serving, err := p.services[key], p.state == stateServing, p.ended()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	s := old
	fresh := !add || s == nil || p.outlived(s, serving)
	if fresh {
		s = &service{
			key: key, revision: of.Revision, identity: codec.NewIdentity(p.node, p.boot, of.Revision), tools: make(map[subjects.ToolID]*served),
			unclaimed: add && key.index != "", // otherwise the installation of the index has claimed it
		}
		if key.session != "" {
			s.tenure = &sessions.Tenure{}
		}
	}
	if old == nil {
		old = &service{}
	}
	tools := make(map[subjects.ToolID]*served, len(of.Tools))
	for _, t := range of.Tools {
		o, err := p.prepare(s, t, old.tools[t.Descriptor.ID])
		if err != nil {
			return err
		}
		tools[o.descriptor.ID] = o
	}
	for _, u := range of.Unavailable {
		if err := u.ID.Validate(); err != nil {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "a tool that is not served: %w", err)
		}
		e := newEntry(u.Descriptor, registry.ToolRoute{ID: u.ID, State: registry.ToolUnavailable, Reason: u.Reason})
		if err := p.fits(e); err != nil {
			return err
		}
		s.unavailable = append(s.unavailable, e)
	}
	if serving {
		if err := p.claim(ctx, s); err != nil {
			return err
		}
	}
	return p.offerAll(ctx, old, tools, serving, func() {
		maps.Copy(s.tools, tools)
		p.services[key] = s
		switch {
		case !serving:
		case fresh:
			for id, o := range old.tools {
				if s.tools[id] == nil {
					p.retire(o)
				}
			}
			p.records.replace(s)
		default:
			for _, o := range tools {
				p.records.put(s, o.entry)
			}
		}
	})
}

// take withdraws the tools of a service that from returns, and returns them. A service without
// any is over.
func (p *publisher) take(ctx context.Context, key serviceKey, from func(*service) []*served) ([]*served, error) {
	p.changing.Lock()
	p.mu.Lock()
	s := p.services[key]
	if s == nil {
		p.mu.Unlock()
		p.changing.Unlock()
		return nil, nil
	}
	taken := from(s)
	for _, o := range taken {
		delete(s.tools, o.descriptor.ID)
	}
	if len(s.tools)+len(s.unavailable) == 0 {
		delete(p.services, key)
	}
	p.records.replace(s)
	p.mu.Unlock()
	p.changing.Unlock()
	p.settle(ctx, key) // callers look for another node before this one refuses them
	p.mu.Lock()
	for _, o := range taken {
		p.retire(o)
	}
	p.mu.Unlock()
	return taken, p.flush(ctx)
}

// ended is the error after which the host publishes nothing; p.mu is held.
func (p *publisher) ended() error {
	if p.state == stateStopped || p.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the host has stopped")
	}
	return nil
}

// prepare makes a tool ready to be offered. Checks whose inputs before has unchanged are not
// compiled again; before may be nil.
func (p *publisher) prepare(s *service, t Tool, before *served) (*served, error) {
	d := t.Descriptor
	wire, err := subjects.WireTool(d.ID)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	o := &served{
		descriptor: d, handler: t.Handler, maxArgs: t.MaxArgs, identity: s.identity, tenure: s.tenure, sessions: t.Sessions,
		at:    routeKey{subjects.WireName(s.key.session), wire},
		entry: newEntry(d, registry.ToolRoute{ID: d.ID, Notice: t.Notice, User: t.User}),
	}
	if before != nil && bytes.Equal(before.descriptor.InputSchema, d.InputSchema) {
		o.validator = before.validator
	} else if o.validator, err = tool.Compile(d.InputSchema); err != nil {
		return nil, err
	}
	o.secrets, _ = t.Handler.(Redactor)
	p.checkResults(s.key, o)
	p.takeTurns(o)
	p.keepResults(o)
	return o, p.fits(o.entry)
}

// fits refuses a tool whose record is larger than a message.
func (p *publisher) fits(e *entry) error {
	size, limit := e.size, p.bus.MaxPayload()
	if e.descriptor != nil {
		data, err := e.descriptor.Encode()
		if err != nil {
			return err
		}
		size = max(size, len(data))
	}
	if limit <= 0 || int64(size) <= limit-recordHeadroom {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge,
		"the registry's record of tool %q has %d bytes, a message of the broker takes %d: shorten its description or its schemas", e.route.ID, size, limit).
		WithDetail("limit", limit).WithDetail("size", size)
}

// claim claims the index's name for the service, refuses a name of another source, and finds the
// session, of all with its name, that the service is for. Where the registry cannot be reached it
// is tried again with the other records.
func (p *publisher) claim(ctx context.Context, s *service) error {
	if _, err := p.sessions.Bind(ctx, s.key.session, s.tenure); err != nil {
		p.log.Warn("the session of the tools is not known yet", slog.String("session", string(s.key.session)), slog.String("error", err.Error()))
	}
	err := p.records.claim(ctx, s)
	if err != nil && later(err) {
		p.log.Warn("the index's name is not claimed yet", slog.String("index", string(s.key.index)), slog.String("error", err.Error()))
		return nil
	}
	return err
}

// giveUp withdraws a service whose name was claimed for another source.
func (p *publisher) giveUp(key serviceKey, why error) {
	p.log.Error("a service is withdrawn: its index belongs to another source",
		slog.String("index", string(key.index)), slog.String("error", why.Error()))
	p.background.Go(func() {
		if err := p.withdraw(p.base, key, nil); err != nil {
			p.log.Warn("the broker did not confirm a withdrawal", slog.String("index", string(key.index)), slog.String("error", err.Error()))
		}
	})
}

// offerAll serves the tools in place of those of old, if the host serves. Once the broker knows,
// it calls done, under p.mu; after an error all is as before.
func (p *publisher) offerAll(ctx context.Context, old *service, tools map[subjects.ToolID]*served, serving bool, done func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !serving {
		done()
		return nil
	}
	err := p.ended()
	var offered []*served
	for id, o := range tools {
		if err == nil {
			err = p.offer(o, old.tools[id])
			offered = append(offered, o)
		}
	}
	if err == nil {
		p.mu.Unlock()
		err = p.flush(ctx)
		p.mu.Lock()
	}
	if err == nil {
		err = p.ended() // meanwhile
	}
	for _, o := range offered {
		before := old.tools[o.descriptor.ID]
		switch {
		case err == nil && before != nil:
			before.forgetResults()
		case err == nil:
		case before != nil:
			p.routes.Store(o.at, before)
		default:
			p.routes.CompareAndDelete(o.at, o)
			if o.sub != nil {
				_ = o.sub.Unsubscribe()
				delete(p.subs, o.sub)
			}
		}
	}
	if err == nil {
		done()
	}
	return err
}

// offer serves a tool under its name. It replaces before, if that is not nil.
func (p *publisher) offer(o, before *served) error {
	p.routes.Store(o.at, o)
	if before != nil {
		o.sub = before.sub
		return nil
	}
	subject, err := subjects.ToolAnySession(o.at.tool)
	if o.at.session != "" {
		subject, err = subjects.Tool(o.at.session, o.at.tool)
	}
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	sub, err := p.bus.Conn().ChanQueueSubscribe(subject, subjects.QueueGroup, p.requests)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "tool %q cannot be offered: %w", o.at.tool, err)
	}
	o.sub = sub
	p.subs[sub] = struct{}{}
	return nil
}

// retire withdraws one tool and drains its subscription. Messages on the way from the broker are
// still served, so the route stays for a while. p.mu is held.
func (p *publisher) retire(o *served) {
	o.withdrawn.Store(true)
	o.forgetResults()
	if o.sub == nil {
		return
	}
	delete(p.subs, o.sub)
	o.sub.SetClosedHandler(func(string) { time.AfterFunc(retireAfter, func() { p.routes.CompareAndDelete(o.at, o) }) })
	p.bus.Retire(o.sub)
}

// flush makes sure that the broker knows the subscriptions. Without a
// connection there is nothing to wait for: they are sent with the next one.
func (p *publisher) flush(ctx context.Context) error {
	if !p.bus.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.bus.Ping(ctx); err != nil && p.bus.Connected() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the broker did not confirm the subscriptions: %w", err)
	}
	return nil
}

// withdraw withdraws a service; only that of a tenure, unless it is nil.
func (p *publisher) withdraw(ctx context.Context, key serviceKey, of *sessions.Tenure) error {
	_, err := p.take(ctx, key, func(s *service) []*served {
		if of != nil && s.tenure != of {
			return nil
		}
		s.unavailable = nil
		return slices.Collect(maps.Values(s.tools))
	})
	if key.index != "" {
		p.leaveHomes(ctx, key)
	}
	return err
}

// settle waits a moment for the registry to have the services of keys, or all services.
func (p *publisher) settle(ctx context.Context, keys ...serviceKey) {
	attempt, cancel := context.WithTimeout(ctx, presence.AttemptWait)
	defer cancel()
	if err := p.records.bring(attempt, keys...); err != nil {
		p.log.Warn("the registry is not up to date: it is tried again", slog.String("error", err.Error()))
		p.presence.Wake()
	}
}

// outlived reports whether a service is of a session that is over. It blocks.
func (p *publisher) outlived(s *service, serving bool) bool {
	if s == nil || s.tenure == nil {
		return false
	}
	if serving {
		_, _ = p.sessions.Bind(p.base, s.key.session, s.tenure) // a look-up may be on its way that says an earlier one
	}
	epoch, _ := s.tenure.Epoch()
	return epoch != "" && p.sessions.Over(s.key.session, epoch)
}

// followSessions withdraws the services of ended sessions, until the host stops.
func (p *publisher) followSessions(quit <-chan struct{}) {
	ticker := time.NewTicker(sessionEvery)
	defer ticker.Stop()
	for {
		select {
		case <-quit:
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		var own []*service
		for key, s := range p.services {
			if key.index == "" && s.tenure != nil {
				own = append(own, s)
			}
		}
		p.mu.Unlock()
		for _, s := range own {
			p.followService(s)
		}
	}
}

func (p *publisher) followService(s *service) {
	epoch, known := s.tenure.Epoch()
	if !known || p.sessions.Seen(s.key.session, epoch) {
		return
	}
	if epoch == "" {
		// The session was created after its tools were served in it.
		if now, err := p.sessions.Now(s.key.session); err == nil && now != "" {
			s.tenure.Became(now)
			p.records.again(s.key)
		}
		return
	}
	if !p.sessions.Over(s.key.session, epoch) {
		return
	}
	p.log.Info("a session has ended: its tools are withdrawn", slog.String("session", string(s.key.session)))
	if err := p.withdraw(p.base, s.key, s.tenure); err != nil {
		p.log.Warn("the broker did not confirm a withdrawal", slog.String("session", string(s.key.session)), slog.String("error", err.Error()))
	}
}
