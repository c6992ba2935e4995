package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// modern is the first revision of MCP without sessions.
	modern = "2026-07-28"
	// maxViews is the max number of views of one token. A view without clients makes room for another.
	maxViews = 64
	// maxSessions is the max number of legacy sessions of one token.
	maxSessions = 1000
	// lookEvery is how often a view is checked for changed tools.
	lookEvery = 500 * time.Millisecond
)

// mcpLink is the MCP state of one token. Each view of a token has its own handlers, so a legacy session's id is worth nothing
// with another token.
type mcpLink struct {
	of      *link
	looking sync.WaitGroup

	mu      sync.Mutex
	views   map[viewKey]*view // nil until the first request
	visits  map[string]*visit
	lastUse map[string]time.Time // by legacy session
}

// visit is an HTTP request in progress, or a pipe. Its calls end with it.
type visit struct {
	id      string
	view    *view
	ctx     context.Context
	cancel  context.CancelCauseFunc
	session string // its legacy session
	opens   bool   // may make a legacy session
}

// visitHeader links calls to their request: the SDK passes them its headers, but not the context of a legacy
// session.
const visitHeader = "Toolmesh-Visit"

// mcp handles /mcp and /mcp/{session}: POST of 2026-07-28 without a session, and POST, GET and DELETE of the
// earlier revisions.
func (q *request) mcp() (any, error) {
	l, c, w, r := q.l, q.c, q.w, q.r
	key, err := keyOf(r.PathValue("session"), r.URL.Query())
	if err != nil {
		return nil, err
	}
	if key.session != "" {
		if l.public != "" && !l.ofAdmin && key.session != l.session {
			return nil, refused(toolmesh.CodePermissionDenied, "the token is of the session %q and opens no other: use /mcp, or a token of the session %q", l.session, key.session)
		}
		c = c.In(key.session)
	}
	key.session = c.Session()
	m := &l.mcp
	if r.Method != http.MethodDelete {
		done, err := l.take(streamsOpen, 1)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	if r.Method == http.MethodPost {
		body, err := q.whole()
		if err != nil {
			return nil, err
		}
		// A list of messages could hold any number of calls.
		if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
			return nil, refused(toolmesh.CodeInvalidRequest, "the body is a list of messages: send each in a POST of its own")
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	p := &visit{session: r.Header.Get("Mcp-Session-Id")}
	p.opens = r.Method == http.MethodPost && p.session == "" && !isModern(r)
	p.ctx, p.cancel = context.WithCancelCause(q.ctx)
	if err := m.enter(key, c, p); err != nil {
		return nil, err
	}
	defer func() { m.leave(p, cmp.Or(p.session, w.Header().Get("Mcp-Session-Id"))) }()
	r.Header.Set(visitHeader, p.id)
	r = r.WithContext(p.ctx)
	out := &eventWriter{pacedWriter: w}
	if isModern(r) {
		if r.Header.Get("Mcp-Method") == "tools/call" {
			_, _ = p.view.tools(p.ctx, viewFresh) // the SDK compares headers with tools that it knows; the call itself reports an error
		}
		p.view.stateless.ServeHTTP(out, r)
		return nil, nil
	}
	if r.Method == http.MethodDelete && p.session != "" { // requests without a session belong to others
		m.cancel(p.session) // the SDK waits for the session's calls
	}
	p.view.sessions.ServeHTTP(out, r)
	return nil, nil
}

// eventWriter writes a large answer as JSON if no event came before it: clients bound the size of an event (1 MiB in
// the Python SDK), and not that of a body.
type eventWriter struct {
	*pacedWriter
	begun bool
}

// Write implements [http.ResponseWriter]. The SDK writes each event at once.
func (w *eventWriter) Write(p []byte) (int, error) {
	answer := bytes.TrimPrefix(p, []byte("event: message\ndata: "))
	if w.begun || len(p) < writePiece || !bytes.HasPrefix(answer, []byte(`{"jsonrpc":"2.0","id":`)) {
		w.begun = true
		return w.pacedWriter.Write(p)
	}
	w.Header().Set("Content-Type", "application/json")
	_, err := w.pacedWriter.Write(answer)
	return len(p), err
}

// isModern reports whether a request is of a revision without sessions.
func isModern(r *http.Request) bool {
	return r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") == "" &&
		(r.Header.Get("Mcp-Method") != "" || r.Header.Get("Mcp-Protocol-Version") >= modern)
}

// cancel ends the calls of a legacy session.
func (m *mcpLink) cancel(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.visits {
		if p.session == session {
			p.cancel(nil)
		}
	}
}

// within returns a context that also ends with the request that brought the call.
func (m *mcpLink) within(ctx context.Context, q *mcp.RequestExtra) (context.Context, context.CancelCauseFunc) {
	if q == nil || q.Header == nil { // it came from a pipe
		return context.WithCancelCause(ctx)
	}
	m.mu.Lock()
	p := m.visits[q.Header.Get(visitHeader)]
	m.mu.Unlock()
	if p == nil { // the request has ended
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(nil)
		return ctx, cancel
	}
	return endsWith(ctx, p.ctx)
}

// endsWith returns a context that also ends with another one.
func endsWith(ctx, other context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func(why error) { stop(); cancel(why) }
}

// enter begins a visit to the view of a key and makes the view if needed. Leave it: a view with a visit is kept.
func (m *mcpLink) enter(key viewKey, c *client.Client, p *visit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of.ctx.Err() != nil {
		return context.Cause(m.of.ctx)
	}
	if m.views == nil {
		m.views, m.visits, m.lastUse = make(map[viewKey]*view), make(map[string]*visit), make(map[string]time.Time)
		m.looking.Go(m.look)
	}
	if p.opens && len(m.lastUse)+m.visited(func(p *visit) bool { return p.opens }) >= maxSessions {
		return busy("the token has %d sessions of MCP, and may open no more: end one with DELETE, or speak the revision %s, which has none", maxSessions, modern)
	}
	if p.view = m.views[key]; p.view == nil {
		for other, old := range m.views {
			if len(m.views) < maxViews {
				break
			}
			if !old.used() && m.visited(func(p *visit) bool { return p.view == old }) == 0 {
				delete(m.views, other)
			}
		}
		if len(m.views) >= maxViews {
			return busy("clients of the token use %d views, and may use no more at once", maxViews)
		}
		p.view = newView(key, c, m)
		m.views[key] = p.view
	}
	p.id = rand.Text()
	m.visits[p.id] = p
	return nil
}

// visited counts the visits that match; m.mu is held.
func (m *mcpLink) visited(as func(*visit) bool) (n int) {
	for _, p := range m.visits {
		if as(p) {
			n++
		}
	}
	return n
}

// leave ends a visit. session is the legacy session that it used or made.
func (m *mcpLink) leave(p *visit, session string) {
	p.cancel(nil)
	m.mu.Lock()
	delete(m.visits, p.id)
	if _, known := m.lastUse[session]; known || p.opens && session != "" {
		m.lastUse[session] = time.Now()
	}
	m.mu.Unlock()
	if m.of.ctx.Err() != nil {
		p.view.close() // the session that this request made meanwhile
	}
}

// expire ends the legacy sessions that were idle for too long. An open GET counts as a request.
func (m *mcpLink) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	busy, lastUse := make(map[string]bool), make(map[string]time.Time)
	for _, p := range m.visits {
		busy[p.session] = true
	}
	for _, v := range m.views {
		for s := range v.server.Sessions() {
			at, known := m.lastUse[s.ID()]
			if known && !busy[s.ID()] && time.Since(at) > m.of.g.opts.Idle {
				m.looking.Go(func() { _ = s.Close() })
			} else if known { // or its first request runs
				lastUse[s.ID()] = at
			}
		}
	}
	m.lastUse = lastUse
}

// look notifies clients when the tools of their view have changed.
func (m *mcpLink) look() {
	for took := time.Duration(0); wake.After(m.of.ctx, max(lookEvery, took)); {
		begun := time.Now()
		m.expire()
		m.mu.Lock()
		views := slices.Collect(maps.Values(m.views))
		m.mu.Unlock()
		for _, v := range views {
			if v.used() {
				_, _ = v.tools(m.of.ctx, lookEvery/2) // it notifies the clients; views of a session share a reading
			}
		}
		took = time.Since(begun)
	}
}

// close ends the legacy sessions. Their calls have ended with the link.
func (m *mcpLink) close() {
	m.mu.Lock()
	views := m.views
	m.mu.Unlock()
	m.looking.Wait()
	for _, v := range views {
		v.close()
	}
}

// viewKey says which tools an MCP client sees and how. It is read from the URL.
type viewKey struct {
	session  subjects.SessionID
	globs    string // with commas between them; empty for all tools
	readOnly bool
	bare     bool // names without the index
	search   bool // only find_tools and call_tool
}

func keyOf(session string, query url.Values) (viewKey, error) {
	key := viewKey{session: subjects.SessionID(session)}
	flags := map[string]*bool{"read_only=1": &key.readOnly, "search=1": &key.search, "prefix=off": &key.bare}
	for name, values := range query {
		flag := flags[name+"="+values[0]]
		switch {
		case name == "tools":
			key.globs = values[0]
		case flag == nil:
			return key, refused(toolmesh.CodeInvalidRequest, "the query cannot have %s=%q: it may have tools=GLOB,…, read_only=1, prefix=off and search=1", name, values[0])
		default:
			*flag = true
		}
	}
	if _, err := subjects.ParseGlobs(key.globs); err != nil {
		return key, refused(toolmesh.CodeInvalidRequest, "tools: %w", err)
	}
	return key, nil
}

// Pipe serves one MCP client on a pipe, such as stdin and stdout, until in or ctx ends. The query is that of /mcp.
func Pipe(ctx context.Context, c *client.Client, query url.Values, o *Options, in io.Reader, out io.Writer) error {
	opts := *o
	opts.MaxBody = math.MaxInt64 / 64 // the one client may fill the memory of its own process
	if err := opts.fill(); err != nil {
		return err
	}
	key, err := keyOf(string(c.Session()), query)
	if err != nil {
		return err
	}
	l := &link{g: &Gateway{opts: opts, log: opts.Logger, rooms: newRooms(&opts, true)}, rooms: newRooms(&opts, false)}
	l.ctx, l.end = context.WithCancelCause(ctx)
	m := &l.mcp
	m.of = l
	p := new(visit)
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	if err := m.enter(key, c, p); err != nil {
		return err
	}
	defer func() { l.end(errStopping); m.leave(p, ""); m.close() }()
	err = p.view.server.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: noClose{out}})
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, mcp.ErrConnectionClosed) {
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the client on the pipe: %w", err)
	}
	return nil
}

// noClose is a writer whose Close does nothing.
type noClose struct{ io.Writer }

func (noClose) Close() error { return nil }
