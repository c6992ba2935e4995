package payloads

import (
	"context"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// HoldsNothing reports whether all room for payloads that are held, or being stored, is free.
func (s *Server) HoldsNothing() bool {
	free := s.held.room.Take("", heldBytes/2)
	if free {
		s.held.room.Give("", heldBytes/2)
	}
	return free
}

// GetBytes is [Get] into memory.
func GetBytes(ctx context.Context, b *bus.Bus, session subjects.SessionID, at subjects.NodeID, ref *codec.Ref) ([]byte, error) {
	var value Memory
	if err := Get(ctx, b, session, at, ref, &value); err != nil {
		return nil, err
	}
	return value.Bytes(), nil
}
