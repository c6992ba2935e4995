package task

import (
	"context"

	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
)

// Running is how many tasks this runner has in hand.
func (s *Service) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running)
}

// Sweep looks through all records at once, however new they are.
func (s *Service) Sweep(ctx context.Context) error { return s.sweep(ctx, 0, 0) }

// SweepValues sweeps all payloads at once, however new they are.
func (s *Service) SweepValues(ctx context.Context) error { return s.sweepValues(ctx, 0) }

// SetRoom limits the stores of tasks, and the kept tasks of a schedule.
func (s *Service) SetRoom(records, bytes int64, fired int) {
	s.stores, s.fired = room{records, bytes}, fired
}

// SetSlots sets how many tasks run at once.
func (s *Service) SetSlots(n int) { s.slots = n }

// SetRequests bounds how many requests are answered at once.
func (s *Service) SetRequests(n int64) { s.places = fair.NewRoom[subjects.SessionID](n) }

// SetHeld bounds the bytes of values in memory.
func (s *Service) SetHeld(n int64) { s.held = fair.NewRoom[subjects.SessionID](n) }

// HoldValues takes all room for values that a session may have, of 4 MiB, until free is called.
func (s *Service) HoldValues(session subjects.SessionID) (free func()) {
	s.SetHeld(4 << 20)
	held := &holding{room: s.held, account: s.account(session)}
	for held.take(64<<10) == nil { //nolint:revive // until there is none
	}
	return held.free
}

// Counts finds out a session's part of the stores, and the level of its next task.
func (s *Service) Counts(ctx context.Context, session subjects.SessionID) error {
	_, err := s.useOf(ctx, session, s.account(session))
	if err == nil {
		_, err = s.level(ctx, session, priorityName(0))
	}
	return err
}
