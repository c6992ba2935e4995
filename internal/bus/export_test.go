package bus

// OpenInboxes counts the calls that wait for replies.
func (b *Bus) OpenInboxes() int {
	b.inbox.mu.Lock()
	defer b.inbox.mu.Unlock()
	return len(b.inbox.open)
}
