package client

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/payloads"
	"github.com/toolmesh/toolmesh/subjects"
)

// headerRoom is the part of a message, in bytes, that the headers of a request may take.
const headerRoom = 4096

// refer stores arguments that are too large for a message, and returns the body to send: for
// most calls the arguments themselves.
func (c *Client) refer(ctx context.Context, id subjects.ToolID, s *settings, body []byte) ([]byte, error) {
	limit := c.bus.MaxPayload()
	if limit == 0 || int64(len(body)+headerRoom) <= limit {
		return body, nil
	}
	if s.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Timeout)
		defer cancel()
	}
	began := time.Now()
	if n, _ := c.pick(s.Session, c.shared.routes.alias(s.Session, id)); n != nil && !s.queue {
		s.first = n.Peer
	}
	ref, err := c.store(ctx, s.Session, s.first.Name(), bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return nil, err
	}
	s.Ref = ref
	if s.referred != nil {
		s.referred()
	}
	if s.Timeout > 0 {
		s.Timeout = max(s.Timeout-time.Since(began), time.Millisecond)
	}
	return nil, nil
}

// store puts a value into the object store, at a node if one is named.
func (c *Client) store(ctx context.Context, session subjects.SessionID, at subjects.NodeID, r io.ReadSeeker, size int64) (*codec.Ref, error) {
	ref, err := payloads.Put(ctx, c.bus, session, at, r, size)
	if err != nil && ctx.Err() != nil {
		err = ended(ctx, toolmesh.StartedNo)
	}
	return ref, err
}

// release deletes the arguments of a call that has failed and may never have begun. The node
// deletes those of a call that succeeded.
func (c *Client) release(s *settings) {
	if s.Ref != nil {
		payloads.Delete(c.bus, s.Session, s.first.Name(), s.Ref)
	}
}

// Forget deletes the object that a reference of a session names.
func (c *Client) Forget(session subjects.SessionID, ref *codec.Ref) {
	payloads.Delete(c.bus, session, "", ref)
}

// resolveResult reads a result that came by reference, and deletes it.
func (c *Client) resolveResult(ctx context.Context, s *settings, result *Result) error {
	value, err := c.read(ctx, s.Session, result.Node, result.Ref, s.admit)
	if err != nil {
		return err
	}
	payloads.Delete(c.bus, s.Session, result.Node, result.Ref)
	result.Value, result.Ref = value, nil
	return nil
}

// read returns the object of a result or an item that a node has stored.
func (c *Client) read(ctx context.Context, session subjects.SessionID, at subjects.NodeID, ref *codec.Ref, admit func(int64) error) ([]byte, error) {
	value := payloads.Memory{Admit: admit}
	if err := c.fetch(ctx, session, at, ref, &value); err != nil {
		return nil, err
	}
	return value.Bytes(), nil
}

// fetch writes such an object to w.
func (c *Client) fetch(ctx context.Context, session subjects.SessionID, at subjects.NodeID, ref *codec.Ref, w io.Writer) error {
	err := payloads.Get(ctx, c.bus, session, at, ref, w)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx, toolmesh.StartedYes)
	}
	return toolmesh.AsError(err).WithStarted(toolmesh.StartedYes)
}
