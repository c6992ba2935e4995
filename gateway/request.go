package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/tool"
)

// bodyTime is how long a request's body may take to arrive.
const bodyTime = 60 * time.Second

// request is one request and the client of its token.
type request struct {
	w   http.ResponseWriter
	r   *http.Request
	g   *Gateway
	l   *link
	c   *client.Client
	ctx context.Context // ends with the request, and with the token's connection
}

// with handles requests with the client of their tokens. An error is answered as a problem.
func (g *Gateway) with(handle func(*request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			within(w, bodyTime)
		}
		l, c, done, err := g.open(r)
		if err == nil {
			defer done()
			ctx, cancel := l.within(r.Context())
			defer cancel(nil)
			err = handle(&request{w, r, g, l, c, ctx})
		}
		if err != nil {
			fail(w, err, "")
		}
	}
}

// answer answers with JSON. The error is of a value that cannot be written.
func (q *request) answer(status int, v any) error {
	body, err := tool.MarshalPlain(v)
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.Header().Set("Cache-Control", "no-store")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(append(body, '\n'))
	return nil
}

// read reads a JSON body.
func (q *request) read(into any) error {
	body, err := readBody(q.w, q.r)
	if err == nil {
		if err = json.Unmarshal(body, into); err != nil {
			err = refused(toolmesh.CodeInvalidRequest, "the request's body is not the JSON that is expected: %w", err)
		}
	}
	return err
}

// readBody reads a body of JSON.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, unread(err)
	}
	within(w, 0)
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	// curl -d says that it sends a form, whatever it sends.
	form := kind == "application/x-www-form-urlencoded" && strings.HasPrefix(strings.TrimSpace(string(body[:min(len(body), 64)])), "{")
	if len(body) > 0 && kind != "application/json" && !strings.HasSuffix(kind, "+json") && !form && (err == nil || r.Header.Get("Content-Type") != "") {
		return nil, errMediaType
	}
	return body, nil
}

// errMediaType has the status 415.
var errMediaType = refused(toolmesh.CodeInvalidRequest, "the body is JSON: send it with Content-Type: application/json")

// within bounds how long the rest of a request's body may take; 0 lifts the bound. It holds for what the
// server itself reads behind an answer, too, so it is lifted only once a body is read. The end of a body
// is where the server looks for a client that goes.
func within(w http.ResponseWriter, d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = http.NewResponseController(w).SetReadDeadline(at) // a test's recorder has none
}

// unread is the error of a body that was not read.
func unread(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return tooLarge(large.Limit)
	}
	return refused(toolmesh.CodeInvalidRequest, "read the request's body: %w", err)
}
