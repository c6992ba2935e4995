package venv

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/netutil"
)

const (
	maxPage  = 32 << 20 // bytes of a page of an index
	maxConns = 256      // connections to the proxy
)

var (
	spacedIndexes = regexp.MustCompile(`(?i)([^\s=:/]+=)?(https?://\S+)`) // uv's form name=URL, or a URL
	// indexVariables finds the addresses in each variable that names package indexes.
	indexVariables = map[string]*regexp.Regexp{
		"UV_DEFAULT_INDEX": spacedIndexes, "UV_INDEX": spacedIndexes, "UV_INDEX_URL": spacedIndexes, "UV_EXTRA_INDEX_URL": spacedIndexes,
		"UV_FIND_LINKS": regexp.MustCompile(`(?i)()(https?://[^,]+)`),
	}
	indexLogin = regexp.MustCompile(`^UV_INDEX_.*_(USERNAME|PASSWORD)$`)
	notOfNames = regexp.MustCompile(`[^A-Z0-9]`)
	passedOn   = []string{"Accept", "Range", "If-Range", "If-None-Match", "If-Modified-Since", "User-Agent"}
	linkOfHTML = regexp.MustCompile(`(?i)(\bhref\s*=\s*)("[^"]*"|'[^']*'|[^\s"'>]+)`)
	linkOfJSON = regexp.MustCompile(`("url"\s*:\s*)("(?:[^"\\]|\\.)*")`)
)

// proxied is one package index behind the proxy: the paths below its root, and other addresses
// of its origin if its pages link to them, which are signed.
type proxied struct {
	at    string // its address at the proxy: http://127.0.0.1:1/token
	root  *url.URL
	login *url.Userinfo
	key   string // for its signatures
}

// newIndexProxy serves the package indexes of environ that need credentials, so that a build
// reaches them without seeing the credentials. It returns the environment for the build, in
// which variables without credentials are unchanged. The caller ends the proxy with stop.
func newIndexProxy(environ []string) (rewritten []string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	indexes := map[string]*proxied{} // by the first element of their paths
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		if addresses := indexVariables[name]; addresses != nil {
			value = addresses.ReplaceAllStringFunc(value, func(found string) string {
				m := addresses.FindStringSubmatch(found)
				root, unread := url.Parse(m[2])
				if unread != nil { // its text contains the address
					err = failed(nil, "", "an address in %s cannot be read as a URL", name)
					return found
				}
				login := loginOf(strings.TrimSuffix(m[1], "="), root, environ)
				if login == nil {
					return found
				}
				root.User = nil
				token := rand.Text()
				x := &proxied{at: "http://" + listener.Addr().String() + "/" + token, root: root, login: login, key: rand.Text()}
				indexes[token] = x
				return m[1] + x.at + "/-" + root.EscapedPath()
			})
		}
		if !indexLogin.MatchString(name) {
			rewritten = append(rewritten, name+"="+value)
		}
	}
	if err != nil || len(indexes) == 0 {
		return rewritten, func() {}, errors.Join(err, listener.Close())
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		rewritten = append(rewritten, name+"="+strings.TrimPrefix(lookup(environ, name)+",127.0.0.1", ","))
	}
	return rewritten, serveIndexes(listener, indexes, environ), nil
}

// loginOf is the credentials of an index, which may have a name; nil if it needs none.
func loginOf(name string, root *url.URL, environ []string) *url.Userinfo {
	variable := "UV_INDEX_" + notOfNames.ReplaceAllString(strings.ToUpper(name), "_")
	if user, password := lookup(environ, variable+"_USERNAME"), lookup(environ, variable+"_PASSWORD"); name != "" && user+password != "" {
		return url.UserPassword(user, password)
	}
	return root.User
}

// serveIndexes serves until the returned function is called.
func serveIndexes(listener net.Listener, indexes map[string]*proxied, environ []string) (stop func()) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if pem, err := os.ReadFile(lookup(environ, "SSL_CERT_FILE")); err == nil { //nolint:gosec // the agent's own setting
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem)
	}
	handle := func(w http.ResponseWriter, r *http.Request) {
		parts := strings.SplitN(r.URL.EscapedPath()+"/", "/", 4) // "", token, signature, path
		x := indexes[parts[1]]
		if x == nil || len(parts) < 4 || r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "no such index", http.StatusNotFound)
			return
		}
		path := "/" + strings.TrimSuffix(parts[3], "/")
		to := &url.URL{Scheme: x.root.Scheme, Host: x.root.Host, RawPath: path, RawQuery: r.URL.RawQuery}
		to.Path, _ = url.PathUnescape(path) // it was parsed before
		if !x.below(to) && !hmac.Equal([]byte(parts[2]), []byte(x.sign(to))) {
			http.Error(w, "this address is not of the package index, and no page of it links here", http.StatusForbidden)
			return
		}
		x.forward(transport, to).ServeHTTP(w, r)
	}
	server := &http.Server{Handler: http.HandlerFunc(handle), ErrorLog: silent, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(netutil.LimitListener(listener, maxConns)) }() // ends with stop
	return func() {
		_ = server.Close() // ends requests, too
		transport.CloseIdleConnections()
	}
}

var silent = log.New(io.Discard, "", 0)

// forward proxies a request to an address of the index, with its credentials.
func (x *proxied) forward(transport *http.Transport, to *url.URL) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{Transport: transport, ErrorLog: silent, Rewrite: func(p *httputil.ProxyRequest) {
		p.Out.URL, p.Out.Host, p.Out.Body, p.Out.Header = to, to.Host, nil, http.Header{}
		for _, name := range passedOn {
			if values := p.In.Header.Values(name); len(values) > 0 {
				p.Out.Header[name] = values
			}
		}
		password, _ := x.login.Password()
		p.Out.SetBasicAuth(x.login.Username(), password)
	}, ModifyResponse: func(answer *http.Response) error { return x.rewrite(answer, to) }}
}

// below reports whether an address of the index's origin is its root or below it.
func (x *proxied) below(to *url.URL) bool {
	root := strings.TrimSuffix(x.root.Path, "/")
	plain := !strings.ContainsAny(to.Path, `\%`) && !slices.Contains(strings.Split(to.Path, "/"), "..")
	return plain && (to.Path == root || strings.HasPrefix(to.Path, root+"/"))
}

// sign is the signature of an address that a page links to. It covers the address of the
// wheel's metadata, too, which uv derives from it.
func (x *proxied) sign(to *url.URL) string {
	sum := hmac.New(sha256.New, []byte(x.key))
	_, _ = io.WriteString(sum, strings.TrimSuffix(to.Path, ".metadata")+"?"+to.RawQuery)
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// link rewrites an address of a page to lead through the proxy; an address of another origin
// stays.
func (x *proxied) link(page *url.URL, text string) string {
	to, err := page.Parse(text)
	if err != nil {
		return text
	}
	to.User = nil
	if to.Scheme != x.root.Scheme || !strings.EqualFold(to.Host, x.root.Host) {
		return to.String()
	}
	way := x.at + "/" + x.sign(to)
	if x.below(to) {
		way = x.at + "/-"
	}
	return way + strings.TrimPrefix(to.String(), to.Scheme+"://"+to.Host)
}

// rewrite makes the links of a page lead through the proxy. Pages are HTML or JSON (PEP 691).
func (x *proxied) rewrite(answer *http.Response, page *url.URL) error {
	answer.Header.Del("Set-Cookie")
	if to := answer.Header.Get("Location"); to != "" {
		answer.Header.Set("Location", x.link(page, to))
	}
	kind := answer.Header.Get("Content-Type")
	isHTML := strings.Contains(kind, "html")
	if !x.below(page) || answer.StatusCode != http.StatusOK || !isHTML && !strings.Contains(kind, "json") {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxPage+1))
	if err = errors.Join(err, answer.Body.Close()); err != nil || len(data) > maxPage {
		return errors.Join(err, errors.New("a page of the index is cut off or too large"))
	}
	links := linkOfJSON
	if isHTML {
		links = linkOfHTML
	}
	data = links.ReplaceAllFunc(data, func(match []byte) []byte {
		m := links.FindSubmatch(match)
		if isHTML {
			to := x.link(page, html.UnescapeString(strings.Trim(string(m[2]), `"'`)))
			return []byte(string(m[1]) + `"` + html.EscapeString(to) + `"`)
		}
		var to string
		if json.Unmarshal(m[2], &to) != nil {
			return match
		}
		again, _ := json.Marshal(x.link(page, to)) // a string
		return slices.Concat(m[1], again)
	})
	answer.Header.Del("Content-Length")
	answer.ContentLength, answer.Body = -1, io.NopCloser(bytes.NewReader(data))
	return nil
}
