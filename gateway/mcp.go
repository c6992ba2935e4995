package gateway

import (
	"context"
	"net/http"
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
	// maxViews is how many views of one token are held; any of them is made again when it is asked for.
	maxViews = 64
	// sessionIdle is how long a legacy session lasts without requests.
	sessionIdle = 10 * time.Minute
	// lookEvery is how often it is looked whether the tools of a view have changed.
	lookEvery = 500 * time.Millisecond
)

// mcpLink is what MCP clients have of one token. A legacy session's id is worth nothing with another
// token: each has handlers of its own.
type mcpLink struct {
	of         *link
	once       sync.Once
	sessions   http.Handler // of revisions with sessions
	stateless  http.Handler
	serverInfo *mcp.Implementation
	stop       context.CancelFunc // of looking; nil until the first request
	looking    sync.WaitGroup

	mu    sync.Mutex
	views map[viewKey]*view
}

// viewOf is the key of the context's view.
type viewOf struct{}

// serveMCP answers /mcp and /mcp/{session}: POST of 2026-07-28 without a session, and POST, GET and
// DELETE of the revisions before it.
func (g *Gateway) serveMCP(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err != nil {
		fail(w, err, "")
		return
	}
	if r.URL.Query().Get("search") != "" {
		unknownPath(w, r)
		return
	}
	l, c, done, err := g.open(r)
	if err != nil {
		fail(w, err, "")
		return
	}
	defer done()
	if key.session != "" {
		c = c.In(key.session)
	}
	key.session = c.Session()
	l.mcp.begin(g)
	ctx, cancel := l.within(r.Context())
	defer cancel(nil)
	v := l.mcp.view(key, c)
	r = r.WithContext(context.WithValue(ctx, viewOf{}, v))
	if isModern(r) {
		if r.Header.Get("Mcp-Method") == "tools/call" {
			_, _ = v.tools(ctx, viewFresh) // the SDK is to know whose headers it compares; the call itself tells what fails
		}
		l.mcp.stateless.ServeHTTP(w, r)
		return
	}
	l.mcp.sessions.ServeHTTP(w, r)
}

// isModern reports whether a request is of a revision without sessions.
func isModern(r *http.Request) bool {
	return r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") == "" &&
		(r.Header.Get("Mcp-Method") != "" || r.Header.Get("Mcp-Protocol-Version") >= modern)
}

// begin makes the handlers at a token's first MCP request.
func (m *mcpLink) begin(g *Gateway) {
	m.once.Do(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		version := g.opts.Version
		if version == "" {
			version = "dev"
		}
		m.serverInfo = &mcp.Implementation{Name: "toolmesh", Version: version}
		m.views = make(map[viewKey]*view)
		serverOf := func(r *http.Request) *mcp.Server {
			v, _ := r.Context().Value(viewOf{}).(*view)
			return v.server
		}
		// The gateway has looked at Host and Origin.
		o := mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, MaxRequestBodyBytes: g.opts.MaxBody, Logger: g.log, SessionTimeout: sessionIdle}
		m.sessions = mcp.NewStreamableHTTPHandler(serverOf, &o)
		o.Stateless, o.SessionTimeout, o.PropagateRequestCancellation = true, 0, true
		m.stateless = mcp.NewStreamableHTTPHandler(serverOf, &o)
		ctx, stop := context.WithCancel(context.Background())
		m.stop = stop
		m.looking.Go(func() { m.look(ctx) })
	})
}

// view returns the view of a key, which it makes if there is none.
func (m *mcpLink) view(key viewKey, c *client.Client) *view {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.views[key]
	if v == nil {
		for other, old := range m.views {
			if len(m.views) < maxViews {
				break
			}
			if !old.used() {
				delete(m.views, other)
			}
		}
		v = newView(key, c, m.serverInfo)
		v.of = m.of
		if len(m.views) < maxViews {
			m.views[key] = v
		}
	}
	return v
}

// look tells clients when the tools of their view have changed.
func (m *mcpLink) look(ctx context.Context) {
	pause := time.NewTimer(lookEvery)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		begun := time.Now()
		m.mu.Lock()
		var used []*view
		for _, v := range m.views {
			if v.used() {
				used = append(used, v)
			}
		}
		m.mu.Unlock()
		for _, v := range used {
			v.look(ctx)
		}
		pause.Reset(max(lookEvery, 10*time.Since(begun))) // large lists are looked at less often
	}
}

// close ends the legacy sessions.
func (m *mcpLink) close() {
	m.once.Do(func() {}) // none begins any more
	m.mu.Lock()
	views := m.views
	m.mu.Unlock()
	if m.stop == nil {
		return
	}
	m.stop()
	m.looking.Wait()
	for _, v := range views {
		for s := range v.server.Sessions() {
			_ = s.Close()
		}
	}
}

// viewKey says which tools an MCP client sees, and how: it is read from the URL.
type viewKey struct {
	session  subjects.SessionID
	globs    string // with commas between them; empty for all tools
	readOnly bool
	bare     bool // names are those of the functions
}

func keyOf(r *http.Request) (viewKey, error) {
	q := r.URL.Query()
	key := viewKey{session: subjects.SessionID(r.PathValue("session")), globs: q.Get("tools"), readOnly: q.Get("read_only") == "1"}
	switch prefix := q.Get("prefix"); prefix {
	case "":
	case "off":
		key.bare = true
	default:
		return key, refused(toolmesh.CodeInvalidRequest, "prefix is %q: it is off, or not given", prefix)
	}
	if _, err := subjects.ParseGlobs(key.globs); err != nil {
		return key, refused(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return key, nil
}

// matches reports whether a tool is among the globs.
func (k viewKey) matches(id subjects.ToolID) bool {
	globs, err := subjects.ParseGlobs(k.globs)
	return err == nil && globs.Match(id)
}
