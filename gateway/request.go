package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/tool"
)

const bodyTime = 60 * time.Second

// request is one request and the client of its token.
type request struct {
	w   *pacedWriter
	r   *http.Request
	g   *Gateway
	l   *link
	c   *client.Client
	ctx context.Context // ends with the request, and with the token's connection

	held int64 // bytes of bodies
}

// explain says in a refusal for another session which session the token belongs to, instead of naming the subject.
func (q *request) explain(err error) error {
	e := toolmesh.AsError(err)
	if err == nil || e.Code != toolmesh.CodePermissionDenied || e.Started != toolmesh.StartedNo || q.c.Session() == q.l.session || q.l.ofAdmin {
		return q.l.hide(err)
	}
	return refused(toolmesh.CodePermissionDenied, "the token is of session %q, and Mesh-Session names %q: leave the header out, or send an administrator's token (keys/admin.nk)", q.l.session, q.c.Session())
}

// handler returns the answer to a request, nil if it has written one. An error is answered as a problem.
type handler func(*request) (any, error)

// with runs a handler with the client of the request's token. The request's query may have these words.
func (g *Gateway) with(handle handler, words ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for name := range r.URL.Query() {
			if !slices.Contains(words, name) {
				fail(w, refused(toolmesh.CodeInvalidRequest, "the query cannot have %q here: it may have %s", name, cmp.Or(strings.Join(words, ", "), "no words")), "")
				return
			}
		}
		if r.ContentLength != 0 {
			within(w, bodyTime)
		}
		l, c, err := g.links.open(r)
		if err == nil {
			defer g.links.release(l)
			ctx, cancel := endsWith(r.Context(), l.ctx)
			defer cancel(nil)
			q := &request{w: w.(*pacedWriter), r: r, g: g, l: l, c: c, ctx: ctx}
			defer func() { l.release(bodyBytes, q.held) }()
			q.w.of = l
			err = q.explain(q.handle(handle))
		}
		if err != nil {
			fail(w, err, "")
		}
	}
}

func (q *request) handle(by handler) error {
	v, err := by(q)
	if err != nil || v == nil {
		return err
	}
	if body, ok := v.(held); ok {
		return q.answerHeld(body)
	}
	if err = q.answer(http.StatusOK, v); err != nil && q.r.Method == http.MethodPost { // its calls have run
		err = toolmesh.AsError(err).WithStarted(toolmesh.StartedYes)
	}
	return err
}

// answer writes a value as JSON. The error is that of encoding it, or that of send.
func (q *request) answer(status int, v any) error {
	body, err := tool.MarshalPlain(v)
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.Header().Set("Cache-Control", "no-store")
	return q.send(status, append(body, '\n'))
}

// send writes an answer whose header is set. The error is busy: there is no room for another large answer.
func (q *request) send(status int, body []byte) error {
	if len(body) > writePiece {
		release, full := q.w.hold(int64(len(body)))
		defer release()
		if full != nil {
			return full
		}
	}
	q.w.WriteHeader(status)
	_, _ = q.w.pieces(body)
	return nil
}

// read reads a JSON body, which has the form of an example.
func (q *request) read(into any, example string) error {
	body, err := q.body()
	if err != nil {
		return err
	}
	err = json.Unmarshal(body, into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return refused(toolmesh.CodeInvalidRequest, "%s of the request's body is JSON of type %s: the body has the form %s", cmp.Or(wrong.Field, "all"), wrong.Value, example)
	}
	if err != nil {
		return refused(toolmesh.CodeInvalidRequest, "the request's body is not valid JSON: %w", err)
	}
	return nil
}

// heldReader reads a part of a request's body into memory, and counts its bytes until the request ends.
type heldReader struct {
	q    *request
	from io.Reader
}

// Read implements [io.Reader].
func (h heldReader) Read(p []byte) (int, error) {
	n, err := h.from.Read(p)
	if _, full := h.q.l.take(bodyBytes, int64(n)); full != nil {
		h.q.w.Header().Set("Connection", "close") // or the server would read the rest before it answers
		return 0, full
	}
	h.q.held += int64(n)
	return n, err
}

// whole reads a body into memory. It counts against the token's room until the request ends.
func (q *request) whole() ([]byte, error) {
	body, err := io.ReadAll(heldReader{q, q.r.Body})
	if err != nil {
		return nil, unread(err)
	}
	within(q.w, 0)
	return body, nil
}

// body reads a JSON body.
func (q *request) body() ([]byte, error) {
	r := q.r
	body, err := q.whole()
	if err != nil {
		return nil, err
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	// curl -d always declares a form.
	form := kind == "application/x-www-form-urlencoded" && strings.HasPrefix(strings.TrimSpace(string(body[:min(len(body), 64)])), "{")
	json := kind == "application/json" || strings.HasSuffix(kind, "+json") || form || err != nil && r.Header.Get("Content-Type") == ""
	coding := r.Header.Get("Content-Encoding")
	if len(body) > 0 && (!json || coding != "" && !strings.EqualFold(coding, "identity")) {
		return nil, errMediaType
	}
	return body, nil
}

// errMediaType has the status 415.
var errMediaType = refused(toolmesh.CodeInvalidRequest, "the body is JSON: send it with Content-Type: application/json, and not compressed")

// within bounds the time for the rest of a request's body; 0 lifts the bound. Lift it only once the body is read:
// it also bounds what the server reads after an answer, where it looks for clients that disconnect.
func within(w http.ResponseWriter, d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = http.NewResponseController(w).SetReadDeadline(at) // a test's recorder has none
}

// unread returns the error of a body that could not be read.
func unread(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return tooLarge(large.Limit)
	}
	var busy *toolmesh.Error
	if errors.As(err, &busy) {
		return busy
	}
	return refused(toolmesh.CodeInvalidRequest, "read the request's body: %w", err)
}
