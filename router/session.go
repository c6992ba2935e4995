package router

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// SessionOptions adjusts a new session.
type SessionOptions struct {
	// ID is the session's name. Defaults to a new one.
	ID subjects.SessionID
	// TTL is how long the session lives. Defaults to until it is ended.
	TTL time.Duration
	// Pins name the revision of an index that the session is meant for. They are
	// kept in its record; nothing holds calls to them yet. Defaults to none.
	Pins map[subjects.IndexName]string
	// Key is the public half of a NATS user's key (nkey) that is good for this
	// session alone, where the broker asks the mesh: that of mesh up does. Defaults
	// to none.
	Key string
}

// Session is a namespace of tools that this router created or joined.
type Session struct {
	caller
	r     *Router
	id    subjects.SessionID
	epoch string // of the session that CreateSession made; empty: any of the name
}

// CreateSession creates a session. A name that is in use is invalid_request; a
// name that was used before is a new session all the same.
func (r *Router) CreateSession(ctx context.Context, opts *SessionOptions) (*Session, error) {
	o := *cmp.Or(opts, &SessionOptions{})
	if o.ID == "" {
		o.ID = subjects.SessionID("s_" + strings.ReplaceAll(uuid.NewString(), "-", ""))
	}
	if o.TTL < 0 || o.TTL > 0 && o.TTL < time.Second {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the session's ttl is %v: at least 1s, or none", o.TTL)
	}
	o.TTL = min(o.TTL, toolmesh.MaxTime)
	view, err := r.View(ctx)
	if err != nil {
		return nil, err
	}
	record := registry.SessionRecord{ID: o.ID, Epoch: uuid.NewString(), Created: r.member.Bus.Time().Now.UTC(), TTL: o.TTL, Pins: o.Pins, Key: o.Key}
	err = r.member.Store.CreateSession(ctx, record)
	if errors.Is(err, store.ErrConflict) {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "session %q exists already: end it, or choose another name", o.ID)
	}
	if err != nil {
		return nil, err
	}
	for _, token := range view.Tokens() { // those of the name without a session are refused already, and stay so
		if token.Session == o.ID && token.Epoch == "" {
			if err := r.member.Store.DeleteToken(ctx, o.ID, token.ID); err != nil {
				return nil, errors.Join(err, r.end(context.WithoutCancel(ctx), o.ID, record.Epoch))
			}
		}
	}
	s := r.Session(o.ID)
	s.epoch = record.Epoch
	return s, nil
}

// Session is a handle on the session that has the name at the time of each use,
// whichever process created it. It sends nothing.
func (r *Router) Session(id subjects.SessionID) *Session {
	return &Session{caller: caller{r.client.In(id)}, r: r, id: id}
}

// Sessions lists the sessions that were created.
func (r *Router) Sessions(ctx context.Context) ([]registry.SessionRecord, error) {
	view, err := r.View(ctx)
	if err != nil {
		return nil, err
	}
	return view.Sessions(), nil
}

// EndSession ends a session: its record is removed, and within a moment, on every node, its
// tools, its private indexes, and its running calls and streams end. The error is
// session_not_found for a session that was never created.
func (r *Router) EndSession(ctx context.Context, id subjects.SessionID) error {
	return r.end(ctx, id, "")
}

// end ends a session of an epoch, or any of the name where that is empty.
func (r *Router) end(ctx context.Context, id subjects.SessionID, epoch string) error {
	view, err := r.View(ctx)
	if err != nil {
		return err
	}
	if err := r.stands(ctx, id, epoch); err != nil {
		return err
	}
	uninstall := func() error {
		for _, index := range view.Indexes() {
			if index.Session == id {
				if err := r.member.Store.DeleteIndex(ctx, index.Name, id); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := uninstall(); err != nil {
		return err
	}
	if err := r.member.Store.DeleteSession(ctx, id); err != nil {
		return err
	}
	for _, token := range view.Tokens() { // they are refused already
		if token.Session == id {
			if err := r.member.Store.DeleteToken(ctx, id, token.ID); err != nil {
				return err
			}
		}
	}
	return uninstall() // an install that was under way
}

// ID is the session's name.
func (s *Session) ID() subjects.SessionID { return s.id }

// stands refuses a session that was never created, and one of another epoch than the given one:
// the name of a session that has ended may be in use again.
func (r *Router) stands(ctx context.Context, id subjects.SessionID, epoch string) error {
	now, err := r.member.Store.Epoch(ctx, id)
	switch {
	case err != nil:
	case epoch != "" && now != epoch:
		return toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q has ended", id)
	case now == "":
		return toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q was not created", id)
	}
	return err
}

// Handle serves a Go function as the session's own tool of that name, until the session ends.
// After the end of a session of CreateSession the error is session_not_found, also if its name is
// in use again.
func (s *Session) Handle(name string, handler host.Handler, opts ...host.ToolOption) (subjects.ToolID, error) {
	ctx, cancel := context.WithTimeout(context.Background(), joinWait)
	defer cancel()
	if s.epoch != "" {
		if err := s.r.stands(ctx, s.id, s.epoch); err != nil {
			return "", err
		}
	}
	return s.r.handle("", s.id, name, handler, opts)
}

// End ends the session; see [Router.EndSession]. One that CreateSession made and
// that has ended already is session_not_found.
func (s *Session) End(ctx context.Context) error { return s.r.end(ctx, s.id, s.epoch) }
