package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// modern is the first revision of MCP without sessions.
	modern = "2026-07-28"
	// maxViews is how many views of one token are held; one that no client uses makes room for another.
	maxViews = 64
	// maxSessions is how many legacy sessions one token may have.
	maxSessions = 1000
	// sessionIdle is how long a legacy session lasts without requests.
	sessionIdle = 10 * time.Minute
	// lookEvery is how often it is looked whether the tools of a view have changed.
	lookEvery = 500 * time.Millisecond
)

// mcpLink is what MCP clients have of one token. A legacy session's id is worth nothing with another
// token: each has handlers of its own.
type mcpLink struct {
	of         *link
	sessions   http.Handler // of revisions with sessions
	stateless  http.Handler
	opts       *Options
	serverInfo *mcp.Implementation
	ctx        context.Context    // of looking and reading
	stop       context.CancelFunc // nil until the first request
	looking    sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	views    map[viewKey]*view
	catalogs map[subjects.SessionID]*catalog
	opening  int // requests that may make a session
	posts    map[string]*post
	count    uint64 // of the posts until now
}

// post is a POST that is being answered: its calls end with it.
type post struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	session string // its legacy session
}

// postHeader names a POST to its calls: the SDK hands them its headers, not its context.
const postHeader = "Toolmesh-Post"

// viewOf is the key of the context's view.
type viewOf struct{}

// mcp answers /mcp and /mcp/{session}: POST of 2026-07-28 without a session, and POST, GET and
// DELETE of the revisions before it.
func (q *request) mcp() error {
	l, c, w, r := q.l, q.c, q.w, q.r
	key, err := keyOf(r.PathValue("session"), r.URL.RawQuery)
	if err != nil {
		return err
	}
	if key.session != "" {
		if l.public != "" && !l.ofAdmin && key.session != l.session {
			return refused(toolmesh.CodePermissionDenied, "the token is of the session %q and opens no other: use /mcp, or a token of the session %q", l.session, key.session)
		}
		c = c.In(key.session)
	}
	key.session = c.Session()
	m, session := &l.mcp, r.Header.Get("Mcp-Session-Id")
	if r.Method != http.MethodDelete {
		done, err := take(1, l.streams)
		if err != nil {
			return err
		}
		defer done()
	}
	if r.Method == http.MethodPost {
		body, err := q.whole()
		if err != nil {
			return err
		}
		// A list of messages would be any number of calls.
		if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
			return refused(toolmesh.CodeInvalidRequest, "the body is a list of messages: send each in a POST of its own")
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	opens := r.Method == http.MethodPost && session == "" && !isModern(r)
	v, err := m.enter(&q.g.opts, key, c, opens)
	if err != nil {
		return err
	}
	defer m.leave(v, opens)
	ctx, cancel := context.WithCancelCause(q.ctx)
	defer cancel(nil)
	r = r.WithContext(context.WithValue(ctx, viewOf{}, v))
	switch {
	case isModern(r):
		if r.Header.Get("Mcp-Method") == "tools/call" {
			_, _ = v.tools(ctx, viewFresh) // the SDK is to know whose headers it compares; the call itself tells what fails
		}
		m.stateless.ServeHTTP(w, r)
		return nil
	case r.Method == http.MethodPost:
		defer m.begun(r, &post{ctx, cancel, session})()
	case r.Method == http.MethodDelete:
		m.cancel(session) // the SDK waits for the calls of a session
	}
	m.sessions.ServeHTTP(w, r)
	return nil
}

// isModern reports whether a request is of a revision without sessions.
func isModern(r *http.Request) bool {
	return r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") == "" &&
		(r.Header.Get("Mcp-Method") != "" || r.Header.Get("Mcp-Protocol-Version") >= modern)
}

// begun has the calls of a POST end with it. The function is called when it has ended.
func (m *mcpLink) begun(r *http.Request, p *post) func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	id := strconv.FormatUint(m.count, 10)
	m.posts[id] = p
	r.Header.Set(postHeader, id)
	return func() {
		p.cancel(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.posts, id)
	}
}

// cancel ends the calls of a legacy session.
func (m *mcpLink) cancel(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.posts {
		if p.session == session {
			p.cancel(nil)
		}
	}
}

// within returns a context that ends with the POST that a call came by, too.
func (m *mcpLink) within(ctx context.Context, q *mcp.RequestExtra) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if q == nil || q.Header.Get(postHeader) == "" {
		return ctx, cancel
	}
	m.mu.Lock()
	p := m.posts[q.Header.Get(postHeader)]
	m.mu.Unlock()
	if p == nil { // it has ended already
		cancel(nil)
		return ctx, cancel
	}
	stop := context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })
	return ctx, func(why error) { stop(); cancel(why) }
}

// begin makes the handlers at a token's first MCP request; m.mu is held.
func (m *mcpLink) begin(opts *Options) {
	m.opts, m.serverInfo = opts, &mcp.Implementation{Name: "toolmesh", Version: cmp.Or(opts.Version, "dev")}
	m.views, m.posts = make(map[viewKey]*view), make(map[string]*post)
	m.catalogs = make(map[subjects.SessionID]*catalog)
	serverOf := func(r *http.Request) *mcp.Server {
		v, _ := r.Context().Value(viewOf{}).(*view)
		return v.server
	}
	// The gateway has looked at Host and Origin.
	o := mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, MaxRequestBodyBytes: opts.MaxBody, Logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)), SessionTimeout: sessionIdle}
	m.sessions = mcp.NewStreamableHTTPHandler(serverOf, &o)
	o.Stateless, o.SessionTimeout, o.PropagateRequestCancellation = true, 0, true
	m.stateless = mcp.NewStreamableHTTPHandler(serverOf, &o)
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.looking.Go(m.look)
}

// enter returns the view of a key, which it makes if there is none. Leave it: one that a request uses
// is kept.
func (m *mcpLink) enter(opts *Options, key viewKey, c *client.Client, opens bool) (*view, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, context.Cause(m.of.ctx)
	}
	if m.stop == nil {
		m.begin(opts)
	}
	if opens && m.opening+m.open() >= maxSessions {
		return nil, busy("the token has %d sessions of MCP, and may open no more: end one with DELETE, or speak the revision %s, which has none", maxSessions, modern)
	}
	v := m.views[key]
	if v == nil {
		for other, old := range m.views {
			if len(m.views) < maxViews {
				break
			}
			if old.uses == 0 && !old.used() {
				delete(m.views, other)
				m.forget(other.session)
			}
		}
		if len(m.views) >= maxViews {
			return nil, busy("clients of the token use %d views, and may use no more at once", maxViews)
		}
		v = newView(key, c, m)
		m.views[key] = v
	}
	v.uses++
	if opens {
		m.opening++
	}
	return v, nil
}

// forget drops the catalog of a session that has no view any more; m.mu is held.
func (m *mcpLink) forget(session subjects.SessionID) {
	for other := range m.views {
		if other.session == session {
			return
		}
	}
	delete(m.catalogs, session)
}

// open is how many legacy sessions there are; m.mu is held.
func (m *mcpLink) open() int {
	n := 0
	for _, v := range m.views {
		for s := range v.server.Sessions() {
			if s.ID() != "" {
				n++
			}
		}
	}
	return n
}

// leave gives a view back.
func (m *mcpLink) leave(v *view, opens bool) {
	m.mu.Lock()
	v.uses--
	if opens {
		m.opening--
	}
	closed := m.closed
	m.mu.Unlock()
	if closed {
		v.close() // the session that this request has made meanwhile
	}
}

// log is where it is said what is wrong with tools.
func (m *mcpLink) log() *slog.Logger { return cmp.Or(m.opts.Logger, slog.New(slog.DiscardHandler)) }

// look tells clients when the tools of their view have changed. The mesh is asked once for all views of a session.
func (m *mcpLink) look() {
	pause := time.NewTimer(lookEvery)
	defer pause.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-pause.C:
		}
		begun := time.Now()
		used := make(map[*catalog][]*view)
		m.mu.Lock()
		for _, v := range m.views {
			if v.used() {
				used[v.catalog] = append(used[v.catalog], v)
			}
		}
		m.mu.Unlock()
		var looks sync.WaitGroup
		for k, views := range used {
			looks.Go(func() {
				tools, err := k.get(m.ctx, 0)
				if err != nil {
					return // looked at again
				}
				for _, v := range views {
					v.look(tools)
				}
			})
		}
		looks.Wait()
		pause.Reset(max(lookEvery, time.Since(begun)))
	}
}

// close ends the legacy sessions. Their calls have ended with the link.
func (m *mcpLink) close() {
	m.mu.Lock()
	m.closed = true
	views := m.views
	m.mu.Unlock()
	if m.stop == nil {
		return
	}
	m.stop()
	m.looking.Wait()
	for _, v := range views {
		v.close()
	}
}

// viewKey says which tools an MCP client sees, and how: it is read from the URL.
type viewKey struct {
	session  subjects.SessionID
	globs    string // with commas between them; empty for all tools
	readOnly bool
	bare     bool // names are those of the functions
	search   bool // find_tools and call_tool in place of the tools
}

func keyOf(session, query string) (viewKey, error) {
	key := viewKey{session: subjects.SessionID(session)}
	q, err := url.ParseQuery(query)
	if err != nil {
		return key, refused(toolmesh.CodeInvalidRequest, "the query cannot be read: %w", err)
	}
	flags := map[string]struct {
		on   string
		flag *bool
	}{"read_only": {"1", &key.readOnly}, "search": {"1", &key.search}, "prefix": {"off", &key.bare}}
	for name, values := range q {
		flag, known := flags[name]
		switch {
		case len(values) != 1:
			return key, refused(toolmesh.CodeInvalidRequest, "%s is given %d times: give it once", name, len(values))
		case name == "tools":
			key.globs = values[0]
		case !known:
			return key, refused(toolmesh.CodeInvalidRequest, "%q is no word of the query: they are tools, read_only, prefix and search", name)
		case values[0] != flag.on:
			return key, refused(toolmesh.CodeInvalidRequest, "%s is %q: it is %s, or not given", name, values[0], flag.on)
		default:
			*flag.flag = true
		}
	}
	if _, err := subjects.ParseGlobs(key.globs); err != nil {
		return key, refused(toolmesh.CodeInvalidRequest, "tools: %w", err)
	}
	return key, nil
}

// Pipe serves one MCP client on a pipe, such as stdin and stdout, until in ends or ctx does. The query is that
// of /mcp.
func Pipe(ctx context.Context, c *client.Client, query url.Values, o *Options, in io.Reader, out io.Writer) error {
	key, err := keyOf(string(c.Session()), query.Encode())
	if err != nil {
		return err
	}
	m := &mcpLink{}
	v, err := m.enter(o, key, c, false)
	if err != nil {
		return err
	}
	defer m.close()
	defer m.leave(v, false)
	err = v.server.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: noClose{out}})
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, mcp.ErrConnectionClosed) {
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the client on the pipe: %w", err)
	}
	return nil
}

// noClose leaves a writer open.
type noClose struct{ io.Writer }

func (noClose) Close() error { return nil }
