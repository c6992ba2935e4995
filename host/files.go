package host

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/tool"
)

// fileWindow is how many pieces of a tool's file may be on their way to the store, filesAtOnce how many
// files a call's tool may be sending.
const fileWindow, filesAtOnce = 8, 1000

// nestedFiles are the files that the tool of one call is giving to the mesh. The zero value
// has none.
type nestedFiles struct {
	mu      sync.Mutex // no other lock is taken under it
	last    int
	uploads map[string]*nestedFile
}

type nestedFile struct {
	*store.Upload
	size int64
	done func() // it is stored, or dropped
}

// File takes a file of the call's tool in pieces: "put", with {"size"}, returns an id,
// "piece:<id>" takes the next bytes, and "end:<id>" returns {"ref","digest","size"}. The file
// belongs to the session and expires in 15 minutes.
func (n *NestedCalls) File(ctx context.Context, what string, body []byte) ([]byte, error) {
	verb, id, _ := strings.Cut(what, ":")
	if verb == "put" {
		return n.putFile(ctx, body)
	}
	n.files.mu.Lock()
	f := n.files.uploads[id]
	n.files.mu.Unlock()
	if f == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the tool's worker sent a part of file %q before its beginning", what)
	}
	answer, err := f.take(ctx, verb, what, body)
	if err == nil && verb == "piece" {
		return answer, nil
	}
	n.files.mu.Lock()
	_, ours := n.files.uploads[id] // else Close has it
	delete(n.files.uploads, id)
	n.files.mu.Unlock()
	if ours {
		f.end(n.call.host, err == nil)
	}
	return answer, err
}

// end gives back the room of a file that is stored, or is not to be.
func (f *nestedFile) end(h *core, stored bool) {
	f.done()
	if !stored {
		h.background.Go(func() { _ = f.Drop(h.base) }) // else it expires
	}
}

func (f *nestedFile) take(ctx context.Context, verb, what string, body []byte) ([]byte, error) {
	have, _, _ := f.Size()
	switch {
	case verb == "piece" && have+int64(len(body)) > f.size:
		return nil, toolmesh.Errorf(toolmesh.CodeToolError, "the file grew beyond its %d bytes while it was sent", f.size)
	case verb == "piece":
		if err := f.Wait(ctx, fileWindow-1); err != nil {
			return nil, err
		}
		return []byte("{}"), f.Write(body, nil)
	case verb != "end":
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the tool's worker sent the unknown request %q about a file", what)
	case have != f.size:
		return nil, toolmesh.Errorf(toolmesh.CodeToolError, "the file had %d bytes when it was announced, and has %d now", f.size, have)
	}
	p, err := f.Finish(ctx, "")
	if err != nil {
		return nil, err
	}
	return tool.MarshalPlain(map[string]any{"ref": p.Name, "digest": p.Digest, "size": p.Size})
}

func (n *NestedCalls) putFile(ctx context.Context, body []byte) ([]byte, error) {
	var about struct {
		Size int64 `json:"size"`
	}
	if err := json.Unmarshal(body, &about); err != nil || about.Size < 0 {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the tool's worker gave no size of a file")
	}
	n.files.mu.Lock()
	begun := len(n.files.uploads)
	n.files.mu.Unlock()
	h := n.call.host
	if begun >= filesAtOnce {
		return nil, toolmesh.Errorf(toolmesh.CodeBusy, "the tool sends %d files at once: end some of them", begun)
	}
	if about.Size > h.opts.PayloadMax {
		return nil, payloads.TooLarge(about.Size, h.opts.PayloadMax)
	}
	u, done, err := h.payloads.Begin(ctx, n.call.Session, h.sessions.Account(n.call.Session), about.Size)
	if err != nil {
		return nil, err
	}
	n.files.mu.Lock()
	defer n.files.mu.Unlock()
	if n.files.uploads == nil {
		n.files.uploads = make(map[string]*nestedFile)
	}
	n.files.last++
	id := strconv.Itoa(n.files.last)
	n.files.uploads[id] = &nestedFile{u, about.Size, done}
	return []byte(id), nil
}

// ReadFile yields the bytes of a file that the call's caller has sent, of which file is
// {"ref","digest"}: one of the call's own session.
func (n *NestedCalls) ReadFile(ctx context.Context, file json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		var ref struct{ Ref, Digest string }
		err := json.Unmarshal(file, &ref)
		if err == nil {
			h := n.call.host
			err = payloads.Copy(ctx, store.Of(h.bus), n.call.Session, &codec.Ref{Name: ref.Ref, Digest: ref.Digest}, pieceWriter(func(piece []byte) error {
				if !yield(piece, nil) {
					return errStopReading
				}
				return nil
			}), h.opts.PayloadMax)
		}
		if err != nil && !errors.Is(err, errStopReading) {
			yield(nil, toolmesh.AsError(err))
		}
	}
}

var errStopReading = toolmesh.Errorf(toolmesh.CodeCancelled, "the reader of the file has stopped")

type pieceWriter func(piece []byte) error

// Write implements io.Writer.
func (w pieceWriter) Write(piece []byte) (int, error) {
	if err := w(piece); err != nil {
		return 0, err
	}
	return len(piece), nil
}

// Close drops files that the tool has begun to send and not ended. The call is over.
func (n *NestedCalls) Close() {
	n.files.mu.Lock()
	left := n.files.uploads
	n.files.uploads = nil
	n.files.mu.Unlock()
	for _, f := range left {
		f.end(n.call.host, false)
	}
}
