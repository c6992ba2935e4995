package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// uploadTime is how long the body of a request with files may take to arrive.
	uploadTime = 10 * time.Minute
	maxParts   = 1000
)

// isMultipart reports whether a request's body has parts, which may be files.
func isMultipart(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "multipart/form-data" && r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/tools/")
}

// readParts reads a call's arguments from the parts of its body. A file goes to the mesh's store through a
// temporary file of this machine, since a node must know its size first. It is never wholly in memory.
func (q *request) readParts(in *call) error {
	release, err := q.l.take(uploads, 1)
	if err != nil {
		q.w.Header().Set("Connection", "close") // or the server would read the rest before it answers
		return err
	}
	defer release()
	within(q.w, uploadTime)
	if in.tool, _, _, err = fit(q.ctx, q.c, q.l, in.tool, nil); err != nil {
		return err
	}
	d, err := inventory.Describe(q.ctx, q.c, in.tool)
	if err != nil {
		return err
	}
	parts, err := q.r.MultipartReader()
	if err != nil {
		return refused(toolmesh.CodeInvalidRequest, "the request's body has no parts: %w", err)
	}
	args := make(object)
	texts := make(map[string]string) // of the parts that are JSON
	room := q.g.opts.MaxBody         // for the parts that are not files, and for the names and types of all
	for range maxParts {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			// The server notices a client that disconnects only once all of the body is read.
			if _, err := io.Copy(io.Discard, q.r.Body); err != nil {
				return unread(err)
			}
			within(q.w, 0)
			in.args, err = asTexts(d.InputSchema, args, texts)
			return err
		}
		if err != nil {
			return unread(err)
		}
		name := part.FormName()
		if room -= int64(len(name) + len(part.FileName()) + len(part.Header.Get("Content-Type"))); room < 0 {
			return tooLarge(q.g.opts.MaxBody)
		}
		if name == "" {
			return refused(toolmesh.CodeInvalidRequest, "a part of the request's body has no name: name each part after its argument")
		}
		if _, twice := args[name]; twice {
			return refused(toolmesh.CodeInvalidRequest, "the argument %q has two parts: send it in one", name)
		}
		if tool.TakesFile(d.InputSchema, name) {
			file, err := q.store(part)
			if err != nil {
				return err
			}
			args[name], in.files = file, append(in.files, file)
			continue
		}
		value, err := io.ReadAll(heldReader{q, io.LimitReader(part, room+1)})
		if err != nil {
			return unread(err)
		}
		if room -= int64(len(value)); room < 0 {
			return tooLarge(q.g.opts.MaxBody)
		}
		if args[name] = string(value); json.Valid(value) {
			args[name], texts[name] = json.RawMessage(value), string(value)
		}
	}
	return refused(toolmesh.CodeInvalidRequest, "the request's body has more than %d parts", maxParts)
}

// asTexts builds the arguments. It keeps a part as text where the schema does not accept it as JSON.
func asTexts(schema json.RawMessage, args object, texts map[string]string) (json.RawMessage, error) {
	body, err := json.Marshal(args)
	v, wrong := tool.Compile(schema)
	if err != nil || wrong != nil {
		return body, err
	}
	for _, p := range tool.Problems(v.Validate(body)) {
		name := strings.TrimPrefix(unescapePointer(p.Pointer), "/")
		if text, ok := texts[name]; ok {
			args[name] = text
		}
	}
	return json.Marshal(args)
}

// store puts the bytes of a part into the mesh's store.
func (q *request) store(part *multipart.Part) (tool.File, error) {
	spool, err := os.CreateTemp("", "mesh-upload-")
	if err == nil {
		defer func() { _ = spool.Close(); _ = os.Remove(spool.Name()) }()
		_, err = io.Copy(spool, part)
	}
	if at := (*os.PathError)(nil); errors.As(err, &at) { // its path is none of the client's business
		return tool.File{}, toolmesh.Errorf(toolmesh.CodeUnavailable, "the gateway has no room for the file: %w", at.Err).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	if err != nil {
		return tool.File{}, unread(err)
	}
	file, err := q.c.PutFile(q.ctx, spool.Name())
	if file.Name = ""; part.FileName() != "" {
		file.Name = filepath.Base(part.FileName())
	}
	if kind, _, bad := mime.ParseMediaType(part.Header.Get("Content-Type")); bad == nil {
		file.Type = kind
	}
	return file, err
}

// hrefBytes is the max size of a result whose files get links: adding links needs all of it in memory.
const hrefBytes = 4 << 20

// withHrefs adds a link to the bytes of each file of a result. It builds no tree of the values, which has many times
// the size of their text. No other link of that name stands before ours: some clients take the first of two.
func withHrefs(value json.RawMessage) json.RawMessage {
	if len(value) > hrefBytes || !bytes.Contains(value, []byte(`"$file"`)) {
		return value
	}
	out := bytes.NewBuffer(make([]byte, 0, len(value)+len(value)/4))
	lenient := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	from, to := jsontext.NewDecoder(bytes.NewReader(value), lenient...), jsontext.NewEncoder(out, lenient...)
	var open []url.Values // what links need of the objects that are open; nil for other objects, and lists
	var name string       // of the latest member
	for {
		token, err := from.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return bytes.TrimSpace(out.Bytes())
		case err != nil:
			return value
		}
		last := len(open) - 1
		switch token.Kind() {
		case '{', '[':
			open = append(open, nil)
		case '}', ']':
			file := open[last]
			if ref := file.Get("$file"); file.Has("$file") && file.Has("digest") {
				file.Del("$file")
				file.Del("href")
				file.Set("href", "/v1/files/"+url.PathEscape(ref)+"?"+file.Encode())
			}
			if file.Has("href") {
				err = errors.Join(to.WriteToken(jsontext.String("href")), to.WriteToken(jsontext.String(file.Get("href"))))
			}
			open = open[:last]
		case '"':
			in, n := from.StackIndex(from.StackDepth())
			switch {
			case in == '{' && n%2 == 1:
				if name = token.String(); name == "href" {
					if from.PeekKind() == '"' {
						continue // it comes last, if no link of ours replaces it
					}
					if open[last].Has("$file") && open[last].Has("digest") {
						_ = from.SkipValue() // the next token has its error
						continue
					}
					token = jsontext.String(name)
				}
			case in == '{' && slices.Contains([]string{"$file", "digest", "name", "type", "href"}, name):
				if open[last] == nil {
					open[last] = make(url.Values)
				}
				if open[last].Set(name, token.String()); name == "href" {
					continue
				}
			}
		}
		if errors.Join(err, to.WriteToken(token)) != nil {
			return value
		}
	}
}

// sendFile handles GET /v1/files/{ref}: the bytes of a file that a call has returned. The mesh keeps them for a
// limited time. No browser takes them for a page of the gateway.
func (q *request) sendFile() (any, error) {
	query := q.r.URL.Query()
	if query.Get("digest") == "" {
		return nil, refused(toolmesh.CodeNotFound, "there is no file at a path without a digest: read one at the whole href that its result has")
	}
	release, err := q.l.take(downloads, 1)
	if err != nil {
		return nil, err
	}
	defer release()
	h := q.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	if kind, _, err := mime.ParseMediaType(query.Get("type")); err == nil {
		h.Set("Content-Type", kind)
	}
	name := query.Get("name")
	if name == "" || mime.FormatMediaType("attachment", map[string]string{"filename": name}) == "" {
		name = "file"
	}
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": filepath.Base(name)}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "private, max-age=900")
	ref := &codec.Ref{Name: q.r.PathValue("ref"), Digest: query.Get("digest")}
	err = q.pass("", ref, 0)
	switch toolmesh.CodeOf(err) {
	case "":
		return nil, nil
	case toolmesh.CodeInvalidRequest, toolmesh.CodePermissionDenied:
		err = refused(toolmesh.CodeNotFound, "session %q has no file %q with the digest %q: files are kept for 15 minutes", q.c.Session(), ref.Name, ref.Digest)
	}
	for _, word := range []string{"Content-Disposition", "Content-Security-Policy"} {
		h.Del(word)
	}
	return nil, err
}

// pass sends the payload of a reference. A value of up to keep bytes is sent as a result, with links to its files.
// Of a larger one a few megabytes are in memory. If reading fails, pass breaks the connection, so that its reader
// does not take the failure for the end. The node at is asked first; empty for any.
func (q *request) pass(at subjects.NodeID, ref *codec.Ref, keep int) error {
	out := &passing{to: q.w, keep: keep}
	err := payloads.Get(q.ctx, q.l.bus, q.c.Session(), at, ref, out)
	if out.begun && err != nil {
		panic(http.ErrAbortHandler)
	}
	if err == nil && !out.begun {
		_, _ = q.w.Write(withHrefs(out.head))
	}
	return err
}

// passing is a writer that passes bytes on once it has more than it keeps.
type passing struct {
	to    io.Writer
	keep  int
	head  []byte
	begun bool
}

// Write implements [io.Writer].
func (w *passing) Write(p []byte) (int, error) {
	if !w.begun && len(w.head)+len(p) <= w.keep {
		w.head = append(w.head, p...)
		return len(p), nil
	}
	if w.begun = true; len(w.head) > 0 {
		if _, err := w.to.Write(w.head); err != nil {
			return 0, err
		}
		w.head = nil
	}
	return w.to.Write(p)
}
