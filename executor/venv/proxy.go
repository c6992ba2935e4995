package venv

import (
	"bytes"
	"context"
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
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxPage  = 32 << 20 // bytes of a page of an index
	maxConns = 256      // connections to the proxy
)

var (
	indexVariables  = []string{"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"}
	secretVariables = regexp.MustCompile(`^(UV|PIP)_.*(TOKEN|USERNAME|PASSWORD)$`)
	passedOn        = []string{"Accept", "Range", "If-Range", "If-None-Match", "If-Modified-Since", "User-Agent"}
	pageLink        = regexp.MustCompile(`(?i)(\bhref\s*=\s*)("[^"]*"|'[^']*'|[^\s"'>]+)`)
	pageBase        = regexp.MustCompile(`(?i)<base\s[^>]*?\bhref\s*=\s*["']?([^"'\s>]+)`)
)

// proxied is one package index behind the proxy: what lies below its root, and the addresses
// of the same origin that its pages link to, which are signed.
type proxied struct {
	at        string // what stands for the index: http://127.0.0.1:1/token
	root      *url.URL
	user, key string
	password  string
}

// newIndexProxy serves the package indexes of an environment that need credentials, for what
// builds a package to reach them without seeing these. It returns the environment to build
// with; variables without credentials stay. The caller ends the proxy with stop.
func newIndexProxy(environ []string) (rewritten []string, stop func(), err error) {
	var listener net.Listener        // once there is an index for it
	indexes := map[string]*proxied{} // by the first element of their paths
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		if slices.Contains(indexVariables, name) {
			parts, with := strings.Fields(value), " "
			if name == "UV_FIND_LINKS" {
				parts, with = strings.Split(value, ","), ","
			}
			for n, one := range parts {
				x, address, err := proxiedBy(one, environ)
				if err != nil { // its text has the address
					err = failed(nil, "", "an address in %s cannot be read as a URL", name)
				} else if x != nil && listener == nil {
					listener, err = net.Listen("tcp", "127.0.0.1:0")
				}
				if err != nil {
					if listener != nil {
						_ = listener.Close()
					}
					return nil, nil, err
				}
				if x != nil {
					token := rand.Text()
					x.at, indexes[token] = "http://"+listener.Addr().String()+"/"+token, x
					parts[n] = strings.TrimSuffix(one, address) + x.at + "/-" + x.root.EscapedPath()
					value = strings.Join(parts, with)
				}
			}
		}
		if !secretVariables.MatchString(name) {
			rewritten = append(rewritten, name+"="+value)
		}
	}
	if listener == nil {
		return rewritten, func() {}, nil
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		rewritten = append(rewritten, name+"="+strings.TrimPrefix(lookup(environ, name)+",127.0.0.1", ","))
	}
	return rewritten, serveIndexes(listener, indexes, environ), nil
}

// proxiedBy reads one address, also in uv's form name=URL; nil if it needs no credentials.
func proxiedBy(text string, environ []string) (x *proxied, address string, err error) {
	label, address, named := strings.Cut(text, "=")
	if !named || strings.ContainsAny(label, ":/") {
		label, address = "", text
	}
	root, err := url.Parse(address)
	if err != nil || root.Scheme != "http" && root.Scheme != "https" {
		return nil, "", err
	}
	x = &proxied{root: root, user: root.User.Username(), key: rand.Text()}
	x.password, _ = root.User.Password()
	if label != "" {
		variable := "UV_INDEX_" + regexp.MustCompile(`[^A-Z0-9]`).ReplaceAllString(strings.ToUpper(label), "_")
		if user, password := lookup(environ, variable+"_USERNAME"), lookup(environ, variable+"_PASSWORD"); user+password != "" {
			x.user, x.password = user, password
		}
	}
	if root.User == nil && x.user+x.password == "" {
		return nil, "", nil
	}
	root.User = nil
	return x, address, nil
}

// serveIndexes serves until the returned function is called, which leaves nothing behind.
func serveIndexes(listener net.Listener, indexes map[string]*proxied, environ []string) (stop func()) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if pem, err := os.ReadFile(lookup(environ, "SSL_CERT_FILE")); err == nil { //nolint:gosec // the agent's own setting
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem)
	}
	silent := log.New(io.Discard, "", 0)
	handle := func(w http.ResponseWriter, r *http.Request) {
		parts := strings.SplitN(r.URL.EscapedPath()+"/", "/", 4) // "", token, signature, path
		x := indexes[parts[1]]
		if x == nil || len(parts) < 4 || r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "no such index", http.StatusNotFound)
			return
		}
		path := "/" + strings.TrimSuffix(parts[3], "/")
		to := &url.URL{Scheme: x.root.Scheme, Host: x.root.Host, RawPath: path, RawQuery: r.URL.RawQuery}
		to.Path, _ = url.PathUnescape(path) // it was read already
		below := x.below(to)
		if !below && !hmac.Equal([]byte(parts[2]), []byte(x.sign(to))) {
			http.Error(w, "not of this index", http.StatusForbidden)
			return
		}
		forward := httputil.ReverseProxy{Transport: transport, ErrorLog: silent, Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host, p.Out.Body, p.Out.Header = to, to.Host, nil, http.Header{}
			for _, name := range passedOn {
				if values := p.In.Header.Values(name); len(values) > 0 {
					p.Out.Header[name] = values
				}
			}
			p.Out.SetBasicAuth(x.user, x.password)
		}, ModifyResponse: func(answer *http.Response) error { return x.rewrite(answer, to, below) }}
		forward.ServeHTTP(w, r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	var open atomic.Int64
	server := &http.Server{
		Handler: http.HandlerFunc(handle), ErrorLog: silent, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state { //nolint:exhaustive // the first and the last of each
			case http.StateNew:
				conns.Add(1)
				if open.Add(1) > maxConns {
					_ = c.Close()
				}
			case http.StateClosed:
				open.Add(-1)
				conns.Done()
			}
		},
	}
	served := make(chan struct{})
	go func() { _ = server.Serve(listener); close(served) }() // until stop
	return func() {
		cancel()
		_ = server.Close()
		<-served
		conns.Wait()
		transport.CloseIdleConnections()
	}
}

// below reports whether an address of the index's origin is its root or below it.
func (x *proxied) below(to *url.URL) bool {
	root := strings.TrimSuffix(x.root.Path, "/")
	plain := !strings.ContainsAny(to.Path, `\%`) && !slices.Contains(strings.Split(to.Path, "/"), "..")
	return plain && (to.Path == root || strings.HasPrefix(to.Path, root+"/"))
}

// sign is what an address that a page links to is known by. uv makes another of it for a
// wheel's metadata.
func (x *proxied) sign(to *url.URL) string {
	sum := hmac.New(sha256.New, []byte(x.key))
	_, _ = io.WriteString(sum, strings.TrimSuffix(to.Path, ".metadata")+"?"+to.RawQuery)
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// link is an address on a page as it is reached by way of the proxy; one of another origin
// is reached without it.
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

// rewrite has the links of an answer lead through the proxy.
func (x *proxied) rewrite(answer *http.Response, page *url.URL, below bool) error {
	answer.Header.Del("Set-Cookie")
	if to := answer.Header.Get("Location"); to != "" {
		answer.Header.Set("Location", x.link(page, to))
	}
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	isJSON := kind == "application/json" || strings.HasPrefix(kind, "application/vnd.pypi.simple.") && strings.HasSuffix(kind, "+json")
	if isHTML := kind == "text/html" || strings.HasSuffix(kind, "+html"); !below || answer.StatusCode != http.StatusOK || !isHTML && !isJSON {
		return nil
	}
	answer.Header.Del("Content-Length")
	answer.ContentLength = -1
	if answer.Request.Method == http.MethodHead {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxPage+1))
	if err = errors.Join(err, answer.Body.Close()); err != nil || len(data) > maxPage || answer.Header.Get("Content-Encoding") != "" {
		return errors.Join(err, errors.New("a page of the index is too large, or packed"))
	}
	if isJSON {
		data, err = x.rewriteJSON(page, data)
	} else {
		if m := pageBase.FindSubmatch(data); m != nil {
			if to, err := page.Parse(html.UnescapeString(string(m[1]))); err == nil {
				page = to
			}
		}
		data = pageLink.ReplaceAllFunc(data, func(match []byte) []byte {
			m := pageLink.FindSubmatch(match)
			to := x.link(page, html.UnescapeString(strings.Trim(string(m[2]), `"'`)))
			return []byte(string(m[1]) + `"` + html.EscapeString(to) + `"`)
		})
	}
	answer.Body = io.NopCloser(bytes.NewReader(data))
	return err
}

// rewriteJSON is rewrite for a page in JSON (PEP 691).
func (x *proxied) rewriteJSON(page *url.URL, data []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	var files []map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil || len(all["files"]) == 0 {
		return data, err
	}
	if err := json.Unmarshal(all["files"], &files); err != nil {
		return nil, err
	}
	for _, file := range files {
		var to string
		if json.Unmarshal(file["url"], &to) == nil {
			file["url"], _ = json.Marshal(x.link(page, to)) // a text
		}
	}
	all["files"], _ = json.Marshal(files) // it was JSON
	return json.Marshal(all)
}
