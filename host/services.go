package host

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/sessions"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// serviceKey names what is published and withdrawn as one: an index, or a
// session's own tools.
type serviceKey struct {
	index   subjects.IndexName
	session subjects.SessionID
}

// Service is what a host offers under one name: an index at one revision, or
// the own tools of a session.
type Service struct {
	// Index is the index's name; empty for a session's own tools.
	Index subjects.IndexName
	// Session limits the service to one session; empty means all, which only an
	// index can be.
	Session  subjects.SessionID
	Revision string
	// Claim is the source that the index's name is claimed for in the registry;
	// a name that another source has is refused. Empty claims nothing: whoever
	// installed the index has.
	Claim string
	Tools []Tool
	// Unavailable are tools that are known and not served.
	Unavailable []Unavailable
}

// Tool is one tool of a [Service].
type Tool struct {
	Descriptor *tool.Descriptor
	Handler    Handler
	// Notice is what callers have to expect of the tool for a while, for people.
	// It is served all the same. Defaults to nothing.
	Notice string
	// User is who the tool runs as, by number, for people. Defaults to nothing.
	User string
	// Sessions names the workers in which calls of isolation session find what earlier ones of
	// their session left: a session's calls of an index all run on one node then, and one is
	// told once the index has others. Empty: calls run where they come.
	Sessions string
	// MaxArgs is of how many bytes the tool takes arguments: more are refused before they
	// are read. Defaults to [Options.PayloadMax].
	MaxArgs int64
}

// Unavailable is a tool that is declared and not served, with the reason.
type Unavailable struct {
	ID     subjects.ToolID
	Reason string
	// Descriptor is what is known of it all the same; nil: nothing.
	Descriptor *tool.Descriptor
}

// service is one published [Service]; the host's lock guards it.
type service struct {
	key         serviceKey
	revision    string
	claim       string
	identity    *codec.Identity
	tools       map[subjects.ToolID]*offered
	unavailable []*entry
	tenure      *sessions.Tenure // of key.session; nil for every session's
}

// offered is one tool of a service.
type offered struct {
	*served
	at    routeKey
	entry *entry             // what the registry is to say of it
	sub   *nats.Subscription // nil before the host's start
}

func (h *Host) newService(key serviceKey, revision, claim string) *service {
	s := &service{
		key: key, revision: revision, claim: claim, identity: codec.NewIdentity(h.node, h.boot, revision),
		tools: make(map[subjects.ToolID]*offered),
	}
	if key.session != "" {
		s.tenure = &sessions.Tenure{}
	}
	return s
}

// ToolOption adjusts one function of [Host.Handle].
type ToolOption func(*tool.Descriptor)

// Description is the text that people and models read.
func Description(text string) ToolOption {
	return func(d *tool.Descriptor) { d.Description = text }
}

// Annotate says how the tool behaves. Whether it streams follows from the
// handler and need not be said.
func Annotate(a tool.Annotations) ToolOption {
	return func(d *tool.Descriptor) {
		a.Streaming = a.Streaming || d.Annotations.Streaming
		d.Annotations = a
	}
}

// Schema sets the input and output schema of a handler that has no Go types, or
// whose types do not say them; nil leaves one as it is.
func Schema(input, output json.RawMessage) ToolOption {
	return func(d *tool.Descriptor) {
		if input != nil {
			d.InputSchema = input
		}
		if output != nil {
			d.OutputSchema = output
		}
	}
}

// Metadata is the author's own JSON object, passed through.
func Metadata(object json.RawMessage) ToolOption {
	return func(d *tool.Descriptor) { d.Metadata = object }
}

// Handle registers a function under the index or session of the options; an
// empty name becomes a generated one (tool_<uuid>). It returns the full id. The
// same name again replaces the function. Before Start the function waits for
// it; afterwards it is served when Handle returns. The errors are invalid_request
// for a name or a function that cannot be served, a type without a schema
// included, or an index that somebody else has, payload_too_large for one that the
// registry cannot hold, and unavailable without a connection. What it costs does not
// depend on how many functions there are.
func (h *Host) Handle(name string, handler Handler, opts ...ToolOption) (subjects.ToolID, error) {
	return h.HandleIn(h.opts.Index, h.opts.Session, name, handler, opts...)
}

// takesObject reports whether a schema's type, if it has one, can be an object.
func takesObject(schema json.RawMessage) bool {
	var root struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(schema, &root) != nil {
		return true // what is wrong with it is said when it is compiled
	}
	switch t := root.Type.(type) {
	case string:
		return t == "object"
	case []any:
		return slices.Contains(t, any("object"))
	}
	return true
}

// HandleIn is [Host.Handle] for an index or session of one's own choice: one of
// them is empty.
func (h *Host) HandleIn(index subjects.IndexName, session subjects.SessionID, name string, handler Handler, opts ...ToolOption) (subjects.ToolID, error) {
	if name == "" {
		name = "tool_" + uuid.NewString()
	}
	if noHandler(handler) {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "function %q has no handler", name)
	}
	d := tool.Descriptor{Source: tool.SourceGo}
	var noInput, noOutput error
	if t, ok := handler.(described); ok {
		d, noInput, noOutput = t.describe()
	}
	d.Name = name
	switch {
	case index != "":
		d.ID = subjects.ToolID(string(index) + "." + name)
		d.Index = &tool.IndexRef{Name: index, Revision: h.opts.Revision}
	case session != "":
		d.ID = subjects.ToolID(name)
		if _, dotted := d.ID.Index(); dotted {
			return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q has a dot: a session's own tool has one name", name)
		}
	default:
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "host.Options has neither Index nor Session: functions need one of them to be called by")
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&d)
		}
	}
	if noInput != nil && d.InputSchema == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the arguments of %q: %w", name, noInput)
	}
	if noOutput != nil && d.OutputSchema == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the result of %q: %w", name, noOutput)
	}
	if err := d.Check(); err != nil {
		return "", err
	}
	if !takesObject(d.InputSchema) {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"the arguments of %q are not an object, which arguments are: take a struct or a map", name)
	}
	if err := h.Add(index, session, Tool{Descriptor: &d, Handler: handler}); err != nil {
		return "", err
	}
	return d.ID, nil
}

// noHandler reports whether there is no code behind a handler: also where it is made of a
// function that is nil.
func noHandler(handler Handler) bool {
	v := reflect.ValueOf(handler)
	if v.Kind() == reflect.Struct && v.NumField() == 1 { // of Func and Stream
		v = v.Field(0)
	}
	switch v.Kind() {
	case reflect.Func, reflect.Pointer:
		return v.IsNil()
	}
	return !v.IsValid()
}

// usable refuses tools that lack what a tool is.
func usable(tools []Tool) error {
	for i, t := range tools {
		if t.Descriptor == nil {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %d has no descriptor", i)
		}
		if noHandler(t.Handler) {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %q has no handler", t.Descriptor.ID)
		}
	}
	return nil
}

// Add is [Host.HandleIn] for tools whose descriptors are at hand, all of them or, after
// an error, none.
func (h *Host) Add(index subjects.IndexName, session subjects.SessionID, tools ...Tool) error {
	key := serviceKey{index, session}
	if err := usable(tools); err != nil {
		return err
	}
	if err := h.add(key, tools); err != nil {
		return err
	}
	h.settle(h.base, key)
	return nil
}

// add adds tools to a service, or replaces them: the others are not touched.
func (h *Host) add(key serviceKey, tools []Tool) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	old, serving, err := h.published(key)
	if err != nil {
		return err
	}
	s := old
	fresh := s == nil || h.outlived(s, serving)
	if fresh {
		claim := ""
		if key.index != "" {
			claim = registry.ServiceSource + string(key.index)
		}
		s = h.newService(key, h.opts.Revision, claim)
	}
	if old == nil {
		old = &service{}
	}
	added := make([]*offered, len(tools))
	for i, t := range tools {
		var err error
		if added[i], err = h.prepare(s, t, nil); err != nil {
			return err
		}
	}
	if serving {
		if err := h.claim(h.base, s); err != nil {
			return err
		}
	}
	return h.offerAll(h.base, old, added, serving, func() {
		for _, o := range added {
			s.tools[o.descriptor.ID] = o
		}
		h.services[key] = s
		switch {
		case !serving:
		case fresh:
			h.supersede(old, s)
		default:
			for _, o := range added {
				h.records.put(s, o.entry)
			}
		}
	})
}

// published is what is offered under a key, nil for nothing, and whether the host serves.
// The error says why nothing can be published any more.
func (h *Host) published(key serviceKey) (s *service, serving bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.services[key], h.state == stateServing, h.ended()
}

// Remove takes tools of an index or session back, and returns those that were
// offered. Requests that have reached the node are still served.
func (h *Host) Remove(ctx context.Context, index subjects.IndexName, session subjects.SessionID, ids ...subjects.ToolID) ([]subjects.ToolID, error) {
	key := serviceKey{index, session}
	var removed []*offered
	var gone []subjects.ToolID
	h.changing.Lock()
	h.mu.Lock()
	if s := h.services[key]; s != nil {
		for _, id := range ids {
			if o := s.tools[id]; o != nil {
				delete(s.tools, id)
				removed, gone = append(removed, o), append(gone, id)
			}
		}
		if len(s.tools)+len(s.unavailable) > 0 {
			h.records.replace(s)
		} else {
			delete(h.services, key)
			h.records.clear(key)
		}
	}
	h.mu.Unlock()
	h.changing.Unlock()
	if len(removed) == 0 {
		return nil, nil
	}
	h.settle(ctx, key) // callers look for another node before this one refuses them
	return gone, h.retireAll(ctx, removed)
}

// retireAll takes tools back that no service has any more.
func (h *Host) retireAll(ctx context.Context, tools []*offered) error {
	h.mu.Lock()
	for _, o := range tools {
		h.retire(o)
	}
	h.mu.Unlock()
	return h.flush(ctx)
}

// Publish offers a service, or replaces the one of the same index and session:
// tools that stay are never without a server in between. When it returns, the
// node's connection has told the broker; the registry follows. The errors are
// invalid_request for a descriptor that cannot be served and for an index that
// somebody else has, payload_too_large for a tool of which the broker takes no
// message, and unavailable without a connection. After an error what was published
// before is served.
func (h *Host) Publish(ctx context.Context, s Service) error {
	if err := usable(s.Tools); err != nil {
		return err
	}
	err := h.publish(ctx, s)
	if err == nil {
		h.settle(ctx, serviceKey{s.Index, s.Session})
	}
	return err
}

// publish is Publish without the registry.
func (h *Host) publish(ctx context.Context, s Service) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	key := serviceKey{s.Index, s.Session}
	old, serving, err := h.published(key)
	if err != nil {
		return err
	}
	if old == nil {
		old = &service{}
	}
	next := h.newService(key, s.Revision, s.Claim)
	for _, t := range s.Tools {
		o, err := h.prepare(next, t, old.tools[t.Descriptor.ID])
		if err != nil {
			return err
		}
		next.tools[o.descriptor.ID] = o
	}
	for _, u := range s.Unavailable {
		if err := u.ID.Validate(); err != nil {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "a tool that is not served: %w", err)
		}
		e := newEntry(u.Descriptor, registry.ToolRoute{ID: u.ID, State: registry.ToolUnavailable, Reason: u.Reason})
		if err := h.fits(e); err != nil {
			return err
		}
		next.unavailable = append(next.unavailable, e)
	}
	if serving {
		if err := h.claim(ctx, next); err != nil {
			return err
		}
	}
	return h.offerAll(ctx, old, slices.Collect(maps.Values(next.tools)), serving, func() {
		h.services[key] = next
		if serving {
			h.supersede(old, next)
		}
	})
}

// supersede takes back what a service no longer has, and has the registry say what
// it has; h.mu is held.
func (h *Host) supersede(old, next *service) {
	for id, o := range old.tools {
		if next.tools[id] == nil {
			h.retire(o)
		}
	}
	h.records.replace(next)
}

// ended is why nothing can be published any more; h.mu is held.
func (h *Host) ended() error {
	if h.state == stateStopped || h.draining.Load() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the host has stopped")
	}
	return nil
}

// prepare makes a tool ready to be offered. What before checks already is not
// compiled again; it may be nil.
func (h *Host) prepare(s *service, t Tool, before *offered) (*offered, error) {
	d := t.Descriptor
	wire, err := subjects.WireTool(d.ID)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	o := &offered{
		served: &served{descriptor: d, handler: t.Handler, maxArgs: t.MaxArgs, identity: s.identity, session: s.key.session, tenure: s.tenure, sessions: t.Sessions},
		at:     routeKey{subjects.WireName(s.key.session), wire},
		entry:  newEntry(d, registry.ToolRoute{ID: d.ID, Notice: t.Notice, User: t.User}),
	}
	if before != nil && bytes.Equal(before.descriptor.InputSchema, d.InputSchema) {
		o.validator = before.validator
	} else if o.validator, err = tool.Compile(d.InputSchema); err != nil {
		return nil, err
	}
	h.checkResults(s.key, o.served)
	h.takeTurns(o.served)
	h.keepResults(o.served)
	return o, h.fits(o.entry)
}

// fits refuses what no message to the registry can hold.
func (h *Host) fits(e *entry) error {
	size, limit := e.size, h.bus.MaxPayload()
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
		"what the registry has to hold of tool %q has %d bytes, a message of the broker %d: shorten its description or its schemas", e.route.ID, size, limit).
		WithDetail("limit", limit).WithDetail("size", size)
}

// claim makes the index's name the service's own, and refuses one that is
// somebody else's; and it asks for which session of its name the service is. Where
// the registry cannot be reached it is tried again with what else has to be written.
func (h *Host) claim(ctx context.Context, s *service) error {
	if _, err := h.sessions.Bind(ctx, s.key.session, s.tenure); err != nil {
		h.log.Warn("the session of the tools is not known yet", slog.String("session", string(s.key.session)), slog.String("error", err.Error()))
	}
	err := h.records.claim(ctx, s.key, s.claim, s.revision)
	if err != nil && later(err) {
		h.log.Warn("the index's name is not claimed yet", slog.String("index", string(s.key.index)), slog.String("error", err.Error()))
		return nil
	}
	return err
}

// giveUp withdraws a service whose name has turned out to be somebody else's.
func (h *Host) giveUp(key serviceKey, why error) {
	h.log.Error("a service is withdrawn: it cannot have its name",
		slog.String("index", string(key.index)), slog.String("error", why.Error()))
	h.running.run(func() {
		if err := h.Withdraw(h.base, key.index, key.session); err != nil {
			h.log.Warn("the broker has not confirmed it", slog.String("index", string(key.index)), slog.String("error", err.Error()))
		}
	})
}

// offerAll has tools serve their names in place of those of old, if the host serves: once
// the broker knows, done is called, under h.mu. If that fails all is as before.
func (h *Host) offerAll(ctx context.Context, old *service, tools []*offered, serving bool, done func()) error {
	var offers int
	var err error
	h.mu.Lock()
	defer h.mu.Unlock()
	if !serving {
		done()
		return nil
	}
	for err = h.ended(); offers < len(tools) && err == nil; offers++ {
		err = h.offer(tools[offers], old.tools[tools[offers].descriptor.ID])
	}
	if err == nil {
		h.mu.Unlock()
		err = h.flush(ctx)
		h.mu.Lock()
	}
	if err == nil {
		err = h.ended() // meanwhile
	}
	if err == nil {
		for _, o := range tools {
			if before := old.tools[o.descriptor.ID]; before != nil {
				before.forgetResults()
			}
		}
		done()
		return nil
	}
	for _, o := range tools[:offers] {
		if before := old.tools[o.descriptor.ID]; before != nil {
			h.routes.put(o.at, before.served)
			continue
		}
		h.routes.drop(o.at, o.served)
		if o.sub != nil {
			_ = o.sub.Unsubscribe()
			delete(h.subs, o.sub)
		}
	}
	return err
}

// offer has a tool serve its name in place of before, which may be nil.
func (h *Host) offer(o, before *offered) (err error) {
	h.routes.put(o.at, o.served)
	if before != nil {
		o.sub = before.sub
		return nil
	}
	if o.sub, err = h.subscribe(o.at); err == nil {
		h.subs[o.sub] = struct{}{}
	}
	return err
}

func (h *Host) subscribe(k routeKey) (*nats.Subscription, error) {
	var subject string
	var err error
	if k.session == "" {
		subject, err = subjects.ToolAnySession(k.tool)
	} else {
		subject, err = subjects.Tool(k.session, k.tool)
	}
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	sub, err := h.bus.Conn().ChanQueueSubscribe(subject, subjects.QueueGroup, h.intake.requests)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "tool %q cannot be offered: %w", k.tool, err)
	}
	return sub, nil
}

// retiredRoute is a tool that is no longer offered. What the broker has already
// sent is still served, so its route stays for a while.
type retiredRoute struct {
	tool *offered
	at   atomic.Int64 // when its subscription was drained, as [bus.Mono]; 0 = not yet
}

// retire takes one tool back: its subscription is drained. h.mu is held.
func (h *Host) retire(o *offered) {
	o.withdrawn.Store(true)
	o.forgetResults()
	if o.sub == nil {
		return
	}
	delete(h.subs, o.sub)
	r := &retiredRoute{tool: o}
	h.retired = append(h.retired, r)
	o.sub.SetClosedHandler(func(string) { r.at.Store(bus.Mono(time.Now())) })
	if err := o.sub.Drain(); err != nil {
		r.at.Store(bus.Mono(time.Now()))
	}
}

// sweepRoutes takes the routes of retired tools away.
func (h *Host) sweepRoutes(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := h.retired[:0]
	for _, r := range h.retired {
		if at := r.at.Load(); at == 0 || bus.Mono(now)-at < int64(retireAfter) {
			kept = append(kept, r)
			continue
		}
		h.routes.drop(r.tool.at, r.tool.served)
	}
	clear(h.retired[len(kept):])
	h.retired = kept
}

// flush makes sure that the broker knows the subscriptions. Without a
// connection there is nothing to wait for: they are sent with the next one.
func (h *Host) flush(ctx context.Context) error {
	if !h.bus.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := h.bus.Ping(ctx); err != nil && h.bus.Connected() {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the broker did not confirm the subscriptions: %w", err)
	}
	return nil
}

// Withdraw takes a service back. Requests that have reached the node are still
// served.
func (h *Host) Withdraw(ctx context.Context, index subjects.IndexName, session subjects.SessionID) error {
	key := serviceKey{index, session}
	return h.withdraw(ctx, key, func(*service) bool { return true })
}

// withdraw takes a service back if it is the one that is meant.
func (h *Host) withdraw(ctx context.Context, key serviceKey, meant func(*service) bool) error {
	h.changing.Lock()
	h.mu.Lock()
	s := h.services[key]
	if s == nil || !meant(s) {
		h.mu.Unlock()
		h.changing.Unlock()
		return nil
	}
	delete(h.services, key)
	tools := slices.Collect(maps.Values(s.tools))
	h.records.clear(key)
	h.mu.Unlock()
	h.changing.Unlock()
	h.settle(ctx, key) // callers look for another node before this one refuses them
	err := h.retireAll(ctx, tools)
	if key.index != "" {
		h.leaveHomes(ctx, key)
	}
	return err
}

// settle waits a moment until the registry says what is published under keys, or
// under any.
func (h *Host) settle(ctx context.Context, keys ...serviceKey) {
	attempt, cancel := context.WithTimeout(ctx, presence.AttemptWait)
	defer cancel()
	if err := h.records.bring(attempt, keys...); err != nil {
		h.log.Warn("the registry is not up to date: it is tried again", slog.String("error", err.Error()))
		h.presence.Wake()
	}
}

// outlived reports whether a service is of a session that is over. It blocks.
func (h *Host) outlived(s *service, serving bool) bool {
	if s == nil || s.tenure == nil {
		return false
	}
	if serving {
		_, _ = h.sessions.Bind(h.base, s.key.session, s.tenure) // a look-up may be on its way that says an earlier one
	}
	epoch, _ := s.tenure.Epoch()
	return epoch != "" && h.sessions.Over(s.key.session, epoch)
}

// followSessions withdraws what is served in sessions that have ended, until the
// host stops.
func (h *Host) followSessions() {
	ticker := time.NewTicker(sessionEvery)
	defer ticker.Stop()
	for {
		select {
		case <-h.quit:
			return
		case <-ticker.C:
		}
		h.mu.Lock()
		var own []*service
		for key, s := range h.services {
			if key.index == "" && s.tenure != nil {
				own = append(own, s)
			}
		}
		h.mu.Unlock()
		for _, s := range own {
			h.followService(s)
		}
	}
}

func (h *Host) followService(s *service) {
	epoch, known := s.tenure.Epoch()
	if !known || h.sessions.Seen(s.key.session, epoch) {
		return
	}
	if epoch == "" {
		// Somebody has created the session in which the tools were served before.
		if now, err := h.sessions.Now(s.key.session); err == nil && now != "" {
			s.tenure.Became(now)
			h.records.again(s.key)
		}
		return
	}
	if !h.sessions.Over(s.key.session, epoch) {
		return
	}
	h.log.Info("a session has ended: its tools are served no more", slog.String("session", string(s.key.session)))
	same := func(now *service) bool { return now.tenure == s.tenure }
	if err := h.withdraw(h.base, s.key, same); err != nil {
		h.log.Warn("the broker has not confirmed it", slog.String("session", string(s.key.session)), slog.String("error", err.Error()))
	}
}
