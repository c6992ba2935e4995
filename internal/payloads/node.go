package payloads

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// Values of details.reason.
const (
	// ReasonGone: the payload of a reference does not exist or was removed.
	ReasonGone = "payload_gone"
	// ReasonAltered: the payload does not match its digest.
	ReasonAltered = "payload_altered"
)

// window is how many pieces may be on their way to the store.
const window = 8

// Gone is the error of a reference without a payload.
func Gone(name string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the payload %q does not exist: it was used, or expired after 15 minutes; send it again", name).
		WithDetail("reason", ReasonGone).WithStarted(toolmesh.StartedNo)
}

// altered is the error of a payload that does not match its reference.
func altered(ref *codec.Ref, digest string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the payload %q has the digest %s, its reference says %s: it was altered", ref.Name, digest, ref.Digest).
		WithDetail("reason", ReasonAltered).WithStarted(toolmesh.StartedNo)
}

// TooLarge is the error of a payload above the limit; both in bytes.
func TooLarge(size, most int64) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the value has %d bytes, at most %d are taken (MESH_PAYLOAD_MAX)", size, most).
		WithDetail("limit", most).WithDetail("size", size)
}

// NewName is the name of a value that is to be stored for a session.
func NewName(session subjects.SessionID) (subjects.PayloadID, string, error) {
	id := subjects.PayloadID(uuid.NewString())
	name, err := subjects.PayloadName(session, id)
	if err != nil {
		return "", "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return id, name, nil
}

// Store stores the content of r for a session and its account, and returns the reference. Only
// nodes have the right to do that.
func Store(ctx context.Context, b store.Store, session, account subjects.SessionID, r io.Reader, most int64) (*codec.Ref, error) {
	_, name, err := NewName(session)
	if err != nil {
		return nil, err
	}
	u, err := b.NewUpload(name, account, true)
	if err != nil {
		return nil, err
	}
	return finish(ctx, b, u, r, most)
}

// finish stores the content of r as a value that was begun.
func finish(ctx context.Context, b store.Store, u *store.Upload, r io.Reader, most int64) (*codec.Ref, error) {
	p, err := fill(ctx, b, u, r, most)
	if err != nil {
		_ = u.Drop(context.WithoutCancel(ctx)) // else it expires
		return nil, err
	}
	return &codec.Ref{Name: p.Name, Digest: p.Digest, Size: p.Size}, nil
}

func fill(ctx context.Context, b store.Store, u *store.Upload, r io.Reader, most int64) (store.Object, error) {
	err := pieces(r, b.PieceBytes(), func(piece []byte) error {
		if size, _, _ := u.Size(); size+int64(len(piece)) > most {
			return TooLarge(size+int64(len(piece)), most)
		}
		if err := u.Wait(ctx, window-1); err != nil {
			return err
		}
		return u.Write(piece, nil)
	})
	if err != nil {
		return store.Object{}, err
	}
	return u.Finish(ctx, "")
}

// pieces calls each with the content of r in pieces; each must not keep them.
func pieces(r io.Reader, size int, each func([]byte) error) error {
	buffer := make([]byte, size)
	for {
		n, err := io.ReadFull(r, buffer)
		if n > 0 {
			if bad := each(buffer[:n]); bad != nil {
				return bad
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the value cannot be read: %w", err)
		}
	}
}

// Copy writes the value that a session's reference names to w, in pieces, for nodes. The
// digest is checked: after an error w has something else, or less. At most so many bytes
// are taken.
func Copy(ctx context.Context, b store.Store, session subjects.SessionID, ref *codec.Ref, w io.Writer, most int64) error {
	p, err := find(ctx, b, session, ref, most)
	if err != nil {
		return err
	}
	return write(ctx, b, p, ref, w)
}

// Load reads the value that a session's reference names into memory, as Copy does. room is
// asked with its size before that; nil takes any.
func Load(ctx context.Context, b store.Store, session subjects.SessionID, ref *codec.Ref, most int64, room func(size int64) error) ([]byte, error) {
	p, err := find(ctx, b, session, ref, most)
	if err == nil && room != nil {
		err = room(p.Size)
	}
	if err != nil {
		return nil, err
	}
	value := bytes.NewBuffer(make([]byte, 0, p.Size))
	if err := write(ctx, b, p, ref, value); err != nil {
		return nil, err
	}
	return value.Bytes(), nil
}

func find(ctx context.Context, b store.Store, session subjects.SessionID, ref *codec.Ref, most int64) (store.Object, error) {
	if _, err := ref.Payload(session); err != nil {
		return store.Object{}, err
	}
	p, err := b.Payload(ctx, ref.Name)
	switch {
	case errors.Is(err, store.ErrNoKey):
		return p, Gone(ref.Name)
	case err != nil:
		return p, err
	case p.Size > most:
		return p, TooLarge(p.Size, most)
	case p.Digest != ref.Digest:
		return p, altered(ref, p.Digest)
	}
	return p, nil
}

func write(ctx context.Context, b store.Store, p store.Object, ref *codec.Ref, w io.Writer) error {
	got, err := b.CopyPayload(ctx, p, w)
	if err == nil && got != ref.Digest {
		err = altered(ref, got)
	}
	return err
}
