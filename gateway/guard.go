package gateway

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
)

// guard refuses requests from web pages of other sites, and bodies that are too large.
func (g *Gateway) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && namesLoopback(local.String()) && !namesLoopback(r.Host) {
			fail(w, refused(toolmesh.CodePermissionDenied, "the Host %q is not a name of this machine: a gateway on a loopback address answers to localhost and 127.0.0.1 only", r.Host), "")
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			// An origin with the gateway's own name may be a page of another server, to which DNS gave that name
			// before (DNS rebinding). No DNS server decides names of this machine.
			allowed := slices.Contains(g.opts.CORSOrigins, origin)
			if !allowed && !(namesLoopback(r.Host) && sameHost(origin, r.Host)) {
				fail(w, refused(toolmesh.CodePermissionDenied, "web pages of %q may not use this gateway: --cors-origin allows an origin", origin), "")
				return
			}
			if allowed {
				h := w.Header()
				h.Set("Access-Control-Allow-Origin", origin)
				h.Add("Vary", "Origin")
				h.Set("Access-Control-Expose-Headers", "*, Mcp-Session-Id, Mesh-Rpc-Id, Mesh-Node, Mesh-Changed, Location, ETag, Retry-After")
				if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
					h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
					h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
					h.Set("Access-Control-Max-Age", "600")
					w.WriteHeader(http.StatusNoContent)
					return
				}
			}
		}
		if err := readable(r); err != nil {
			fail(w, err, "")
			return
		}
		limit := g.opts.MaxBody
		if isMultipart(r) {
			limit = g.opts.MaxUpload
		}
		if r.ContentLength > limit {
			if r.ContentLength <= drainMost && r.Header.Get("Expect") == "" { // most clients read no answer before they have sent all
				within(w, bodyTime)
				_, _ = io.Copy(io.Discard, r.Body)
			}
			w.Header().Set("Connection", "close") // or the server would read the rest
			fail(w, tooLarge(limit), "")
			return
		}
		r.Body = http.MaxBytesReader(w.(*pacedWriter).ResponseWriter, r.Body, limit) // it closes the connection of a larger body
		next.ServeHTTP(w, r)
	})
}

// readable refuses what the gateway would read only in part: headers given twice, and an invalid query.
func readable(r *http.Request) error {
	for _, name := range []string{"Content-Type", "Content-Encoding", "Idempotency-Key", "Last-Event-Id", "Mesh-Session", "Mesh-Timeout"} {
		if len(r.Header[name]) > 1 {
			return refused(toolmesh.CodeInvalidRequest, "the header %s is given %d times: give it once", name, len(r.Header[name]))
		}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refused(toolmesh.CodeInvalidRequest, "the query cannot be read: %w", err)
	}
	for name, values := range query {
		if len(values) > 1 {
			return refused(toolmesh.CodeInvalidRequest, "%s is given %d times in the query: give it once", name, len(values))
		}
	}
	return nil
}

func tooLarge(limit int64) error {
	return refused(toolmesh.CodePayloadTooLarge, "the request's body is larger than %d bytes", limit)
}

const (
	// drainMost is the max length of a declared body that is read before it is refused for its size.
	drainMost = 64 << 20
	// writeTime is how long a reader may take for one piece of an answer.
	writeTime  = 30 * time.Second
	writePiece = 64 << 10
	// hurryTime is how long a reader may take for all of a large answer while the room for slow readers is full.
	hurryTime = 2 * time.Second
)

// pacedWriter cuts off a reader that is too slow.
type pacedWriter struct {
	http.ResponseWriter
	of    *link     // has room for large answers that wait for their readers; nil: small answers only
	until time.Time // when the reader must have read all; zero for most
}

// Unwrap serves [http.ResponseController].
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w *pacedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *pacedWriter) Write(p []byte) (int, error) {
	if len(p) > writePiece {
		release, _ := w.hold(int64(len(p)))
		defer release()
	}
	return w.pieces(p)
}

func (w *pacedWriter) pieces(p []byte) (n int, err error) {
	for {
		w.extend()
		piece := p[n:min(len(p), n+writePiece)]
		wrote, err := w.ResponseWriter.Write(piece)
		if n += wrote; err != nil || n == len(p) {
			return n, err
		}
	}
}

// hold counts bytes that wait for their reader until release is called. While the room is full, readers get less
// time, as a slow one keeps its bytes in memory. The error says that the room for those is full, too.
func (w *pacedWriter) hold(bytes int64) (release func(), full error) {
	if w.of == nil {
		return func() {}, nil
	}
	bytes = min(bytes, w.of.rooms[answerBytes].size)
	if release, full = w.of.take(answerBytes, bytes); full == nil {
		return release, nil
	}
	give, full := w.of.take(hurriedBytes, bytes)
	w.until = time.Now().Add(hurryTime)
	return func() {
		w.until = time.Time{}
		if full == nil {
			give()
		}
	}, full
}

func (w *pacedWriter) extend() {
	at := w.until
	if at.IsZero() {
		at = time.Now().Add(writeTime)
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at) // a test's recorder has no deadline
}

// namesLoopback reports whether a host, with or without a port, is a name of this machine that no DNS server
// decides.
func namesLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// originOf returns an option's origin in the form that browsers send. The error is invalid_request.
func originOf(text string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "" {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "--cors-origin: %q is not an origin: write SCHEME://HOST or SCHEME://HOST:PORT, such as https://app.example", text).WithOrigin(toolmesh.OriginCaller)
	}
	host := strings.TrimSuffix(u.Host, map[string]string{"http": ":80", "https": ":443"}[u.Scheme])
	return u.Scheme + "://" + strings.ToLower(host), nil
}

// sameHost reports whether an Origin names the host of the request.
func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
