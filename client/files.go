package client

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/tool"
)

// PutFile sends a file to the mesh and returns its value for arguments of calls of the client's
// session, valid for 15 minutes. It never holds the whole file in memory. The errors are
// invalid_arguments for a path that is no readable file, and those of a large argument.
func (c *Client) PutFile(ctx context.Context, path string) (tool.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return tool.File{}, callerError(toolmesh.CodeInvalidArguments, "the file cannot be read: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was read
	about, err := file.Stat()
	if err == nil && !about.Mode().IsRegular() {
		return tool.File{}, callerError(toolmesh.CodeInvalidArguments, "%s is not a regular file", path)
	}
	if err != nil {
		return tool.File{}, callerError(toolmesh.CodeInvalidArguments, "the file cannot be read: %w", err)
	}
	put, err := c.put(ctx, file, about.Size())
	put.Name = filepath.Base(path)
	return put, err
}

// PutBytes is PutFile for bytes in memory.
func (c *Client) PutBytes(ctx context.Context, data []byte) (tool.File, error) {
	return c.put(ctx, bytes.NewReader(data), int64(len(data)))
}

func (c *Client) put(ctx context.Context, r io.ReadSeeker, size int64) (tool.File, error) {
	ref, err := c.store(ctx, c.session, "", r, size)
	if err != nil {
		return tool.File{}, err
	}
	return tool.File{Ref: ref.Name, Digest: ref.Digest, Size: size}, nil
}

// ReadBytes returns the bytes of a file of the client's session; the file stays in the mesh until
// it expires. admit is as for [Admit], or nil. The error is not_found for a file that has expired, was altered, or
// belongs to another session.
func (c *Client) ReadBytes(ctx context.Context, f tool.File, admit func(bytes int64) error) ([]byte, error) {
	ref := &codec.Ref{Name: f.Ref, Digest: f.Digest}
	_, err := ref.Payload(c.session)
	var data []byte
	if err == nil {
		data, err = c.read(ctx, c.session, "", ref, admit)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ended(ctx, toolmesh.StartedNo)
	case toolmesh.CodeOf(err) == toolmesh.CodeInvalidRequest, toolmesh.CodeOf(err) == toolmesh.CodeProtocolError, toolmesh.CodeOf(err) == toolmesh.CodePermissionDenied:
		return nil, callerError(toolmesh.CodeNotFound, "session %q has no file %q: %w", c.session, f.Ref, err)
	}
	return data, err
}

// GetFile writes the bytes of a file that a tool has returned to w, and has them deleted from
// the mesh. They are never in memory as a whole. After an error w has something else, or less.
func (c *Client) GetFile(ctx context.Context, f tool.File, w io.Writer) error {
	return c.get(ctx, &codec.Ref{Name: f.Ref, Digest: f.Digest}, &Result{}, w)
}

// DropFile has a file that was put deleted before its time.
func (c *Client) DropFile(f tool.File) {
	c.Forget(c.session, &codec.Ref{Name: f.Ref, Digest: f.Digest})
}

// WriteResult writes the value of a result of the client's session to w: of a call made with
// [ByReference] without having all of a large one in memory.
func (c *Client) WriteResult(ctx context.Context, r *Result, w io.Writer) error {
	if r.Ref != nil {
		return c.get(ctx, r.Ref, r, w)
	}
	_, err := w.Write(r.Value)
	return err
}

// get writes the object of a reference of the client's session to w, and has it deleted.
func (c *Client) get(ctx context.Context, ref *codec.Ref, of *Result, w io.Writer) error {
	if err := c.fetch(ctx, c.session, of.Node, ref, w); err != nil {
		return err
	}
	payloads.Delete(c.bus, c.session, of.Node, ref)
	return nil
}
