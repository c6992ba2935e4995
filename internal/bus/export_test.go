package bus

// OpenInboxes counts the calls that wait for replies.
func (b *Bus) OpenInboxes() int {
	b.inbox.mu.Lock()
	defer b.inbox.mu.Unlock()
	return len(b.inbox.open)
}

// Denied takes the broker's word on a publish or a subscription.
func (b *Bus) Denied(text string) { b.denied(text) }
