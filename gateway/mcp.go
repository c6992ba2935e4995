package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
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
	once       sync.Once
	sessions   http.Handler // of revisions with sessions
	stateless  http.Handler
	opts       *Options
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
	key, err := keyOf(r.PathValue("session"), r.URL.Query())
	if err != nil {
		fail(w, err, "")
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
	l.mcp.begin(&g.opts)
	ctx, cancel := l.within(r.Context())
	defer cancel(nil)
	v := l.mcp.view(key, c, l.globs)
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
func (m *mcpLink) begin(opts *Options) {
	m.once.Do(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.opts, m.serverInfo = opts, &mcp.Implementation{Name: "toolmesh", Version: cmp.Or(opts.Version, "dev")}
		m.views = make(map[viewKey]*view)
		serverOf := func(r *http.Request) *mcp.Server {
			v, _ := r.Context().Value(viewOf{}).(*view)
			return v.server
		}
		// The gateway has looked at Host and Origin.
		o := mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, MaxRequestBodyBytes: opts.MaxBody, Logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)), SessionTimeout: sessionIdle}
		m.sessions = mcp.NewStreamableHTTPHandler(serverOf, &o)
		o.Stateless, o.SessionTimeout, o.PropagateRequestCancellation = true, 0, true
		m.stateless = mcp.NewStreamableHTTPHandler(serverOf, &o)
		ctx, stop := context.WithCancel(context.Background())
		m.stop = stop
		m.looking.Go(func() { m.look(ctx) })
	})
}

// view returns the view of a key, which it makes if there is none.
func (m *mcpLink) view(key viewKey, c *client.Client, granted subjects.Globs) *view {
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
		v = newView(key, c, granted, m.serverInfo, m.opts)
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
	search   bool // find_tools and call_tool in place of the tools
}

func keyOf(session string, q url.Values) (viewKey, error) {
	key := viewKey{session: subjects.SessionID(session), globs: q.Get("tools"), readOnly: q.Get("read_only") == "1", search: q.Get("search") == "1"}
	switch prefix := q.Get("prefix"); prefix {
	case "":
	case "off":
		key.bare = true
	default:
		return key, refused(toolmesh.CodeInvalidRequest, "prefix is %q: it is off, or not given", prefix)
	}
	if _, err := subjects.ParseGlobs(key.globs); err != nil {
		return key, refused(toolmesh.CodeInvalidRequest, "tools: %w", err)
	}
	return key, nil
}

// Pipe serves one MCP client on a pipe, such as stdin and stdout, until in ends or ctx does. The query is that
// of /mcp.
func Pipe(ctx context.Context, c *client.Client, query url.Values, o *Options, in io.Reader, out io.Writer) error {
	key, err := keyOf(string(c.Session()), query)
	if err != nil {
		return err
	}
	m := &mcpLink{}
	m.begin(o)
	defer m.close()
	v := m.view(key, c, nil)
	err = v.server.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: noClose{out}})
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, mcp.ErrConnectionClosed) {
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the client on the pipe: %w", err)
	}
	return nil
}

// noClose leaves a writer open.
type noClose struct{ io.Writer }

func (noClose) Close() error { return nil }
