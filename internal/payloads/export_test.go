package payloads

// HoldsNothing reports whether all room for payloads that are held, or being stored, is free.
func (s *Server) HoldsNothing() bool {
	free := s.held.room.Take("", heldBytes/2)
	if free {
		s.held.room.Give("", heldBytes/2)
	}
	return free
}
