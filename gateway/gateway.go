package gateway

import (
	"cmp"
	"io"
	"log/slog"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
)

// Options adjusts a [Gateway].
type Options struct {
	// Dial connects to the mesh with the connection policy of its clients and the options given,
	// which prove a key or none. It must add no credentials of its own. Required.
	Dial func(options ...nats.Option) (*nats.Conn, error)
	// KeyOf returns the session of a public key and its restrictions. Which calls the key may make is for the
	// broker to decide. If nil, a client must name the session of its token in Mesh-Session, unless the token is an
	// administrator's.
	KeyOf func(publicKey string) (registry.Key, bool)
	// MaxBody is the max bytes of one request's body. The bodies of all requests have 32 times that together, those
	// of one token 8 times. Defaults to 8 MiB.
	MaxBody int64
	// MaxUpload is the max bytes of a request with files. They pass through this machine's folder for temporary
	// files, for 16 requests at once. Defaults to 256 MiB.
	MaxUpload int64
	// MaxTokens is the max number of tokens connected at once. Defaults to 1,000.
	MaxTokens int
	// MaxStreams is the max number of streams that one token reads at once. Defaults to 1,000.
	MaxStreams int
	// MCPResultMax is the max characters of text in a result for an MCP client. It gets the beginning of a longer
	// result and a link to all of it. Defaults to 25,000.
	MCPResultMax int
	// Idle is how long a token's connection, or an MCP session, stays open without requests. Defaults to 10
	// minutes.
	Idle time.Duration
	// CORSOrigins are the origins whose web pages may use the gateway, each as SCHEME://HOST or
	// SCHEME://HOST:PORT. Defaults to none.
	CORSOrigins []string
	// Version is the version that MCP clients see. Defaults to "dev".
	Version string
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// defaultMaxBody is the default of [Options.MaxBody], and the max bytes of a stream that MCP clients get as one
// result.
const defaultMaxBody = 8 << 20

// fill sets the defaults. The error is invalid_request.
func (o *Options) fill() error {
	for name, n := range map[string]int64{
		"MaxBody": o.MaxBody, "MaxUpload": o.MaxUpload, "MaxTokens": int64(o.MaxTokens), "MaxStreams": int64(o.MaxStreams),
		"MCPResultMax": int64(o.MCPResultMax), "Idle": int64(o.Idle),
	} {
		if n < 0 || n > math.MaxInt64/64 { // the bounds of all requests are multiples of n
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "gateway.Options.%s is %d: set it to a value from 1 to %d, or to 0 for the default", name, n, int64(math.MaxInt64/64)).WithOrigin(toolmesh.OriginCaller)
		}
	}
	o.MaxBody, o.MaxUpload = cmp.Or(o.MaxBody, defaultMaxBody), cmp.Or(o.MaxUpload, 256<<20)
	o.MaxTokens, o.MaxStreams, o.MCPResultMax = cmp.Or(o.MaxTokens, 1000), cmp.Or(o.MaxStreams, 1000), cmp.Or(o.MCPResultMax, 25_000)
	o.Idle, o.Version = cmp.Or(o.Idle, 10*time.Minute), cmp.Or(o.Version, "dev")
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return nil
}

// Gateway is an http.Handler. Its methods may be called concurrently.
type Gateway struct {
	opts    Options
	log     *slog.Logger
	handler http.Handler
	links   links
	closing atomic.Bool
	wg      sync.WaitGroup
	rooms   rooms
}

// New makes a gateway. Close it once it is no longer served.
func New(o Options) (*Gateway, error) {
	if o.Dial == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "gateway.Options.Dial is missing").WithOrigin(toolmesh.OriginCaller)
	}
	if err := o.fill(); err != nil {
		return nil, err
	}
	origins := make([]string, len(o.CORSOrigins))
	for i, text := range o.CORSOrigins {
		var err error
		if origins[i], err = originOf(text); err != nil {
			return nil, err
		}
	}
	o.CORSOrigins = origins
	g := &Gateway{opts: o, log: o.Logger, rooms: newRooms(&o, true)}
	g.links.init(g)
	g.handler = g.routes()
	return g, nil
}

// Close ends all streams and closes the connections of all tokens.
func (g *Gateway) Close() {
	g.closing.Store(true)
	g.links.close()
	g.wg.Wait()
}

func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.handler.ServeHTTP(&pacedWriter{ResponseWriter: w}, r)
}

// methods are the handlers of one path, by method. HEAD is answered as GET without the body, unless it has an entry
// of its own; a nil entry refuses it.
type methods map[string]http.HandlerFunc

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if _, ok := m[method]; !ok && method == http.MethodHead {
		method = http.MethodGet
	}
	handle := m[method]
	if handle == nil {
		allowed := make([]string, 0, len(m))
		for one, is := range m {
			if is != nil {
				allowed = append(allowed, one)
			}
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		writeProblem(w, problem{
			Status: http.StatusMethodNotAllowed, Code: toolmesh.CodeInvalidRequest,
			Detail: "the method " + r.Method + " is not allowed here: use " + strings.Join(allowed, " or "),
		})
		return
	}
	handle(w, r)
}

func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", methods{http.MethodGet: g.probe})
	mux.Handle("/readyz", methods{http.MethodGet: g.probe})
	for at, m := range map[string]methods{
		"/openapi.json":             {http.MethodGet: g.with((*request).openAPI, "tools")},
		"/v1/tools":                 {http.MethodGet: g.with((*request).listTools, "q", "index", "limit", "cursor", "format", "full")},
		"/v1/tools/{id}":            {http.MethodGet: g.with((*request).showTool), http.MethodPost: g.with((*request).callTool)},
		"/v1/calls/{rpc_id}":        {http.MethodGet: g.with((*request).showCall), http.MethodDelete: g.with((*request).cancelCall)},
		"/v1/calls/{rpc_id}/stream": {http.MethodGet: g.with((*request).followStream, "from"), http.MethodHead: nil},
		"/v1/calls:batch":           {http.MethodPost: g.with((*request).batch)},
		"/v1/tool-calls":            {http.MethodPost: g.with((*request).toolCalls)},
		"/v1/files/{ref}":           {http.MethodGet: g.with((*request).sendFile, "digest", "name", "type"), http.MethodHead: nil},
		"/v1/search":                {http.MethodGet: g.with((*request).search, "q", "limit")},
		"/v1/events":                {http.MethodGet: g.with((*request).events), http.MethodHead: nil},
		"/v1/tasks":                 {http.MethodGet: g.with((*request).listTasks, "state")},
		"/v1/tasks/{id}":            {http.MethodGet: g.with(ofTask((*client.Task).Show)), http.MethodDelete: g.with(ofTask((*client.Task).Cancel))},
		"/v1/sessions":              {http.MethodGet: g.with(listOf("sessions", sessionsOf, nil))},
		"/v1/nodes":                 {http.MethodGet: g.with(listOf("nodes", nodesOf, nil))},
		"/v1/indexes":               {http.MethodGet: g.with(listOf("indexes", indexesOf, visibleIndexes)), http.MethodPost: g.with((*request).install)},
	} {
		mux.Handle(at, g.guard(m))
	}
	mcp := g.with((*request).mcp, "tools", "read_only", "prefix", "search")
	for _, at := range []string{"/mcp", "/mcp/{session}"} {
		mux.Handle(at, g.guard(methods{http.MethodGet: mcp, http.MethodPost: mcp, http.MethodDelete: mcp}))
	}
	unknown := g.guard(http.HandlerFunc(unknownPath))
	mux.Handle("/", unknown)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// ServeMux would redirect these to a path that the client did not ask for.
		if at := r.URL.EscapedPath(); r.Method == http.MethodConnect || path.Clean("/"+at) != at {
			unknown.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func unknownPath(w http.ResponseWriter, r *http.Request) {
	writeProblem(w, problem{Type: "about:blank", Status: http.StatusNotFound, Detail: "there is nothing at " + r.URL.EscapedPath()})
}

// probe handles GET /healthz and /readyz without asking the mesh: the process runs; it accepts requests.
func (g *Gateway) probe(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	text := "ok\n"
	if r.URL.Path == "/readyz" && g.closing.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = "stopping\n"
	}
	_, _ = io.WriteString(w, text)
}
