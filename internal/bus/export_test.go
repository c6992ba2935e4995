package bus

// OpenInboxes counts the calls that wait for replies.
func (b *Bus) OpenInboxes() int {
	b.inbox.mu.Lock()
	defer b.inbox.mu.Unlock()
	return len(b.inbox.open)
}

// Denied takes the broker's word on a publish or a subscription.
func (b *Bus) Denied(text string) { b.denied(text) }

const MaxHeard = maxHeard

// Attended reports whether the node's heartbeats are subscribed.
func (n *Peer) Attended() bool { return n.attended.Load() }

// Attend subscribes to the heartbeats of a node with a call that lasts.
func (b *Bus) Attend(n *Peer) { b.peers.attend(n) }

// Doubt notes that a node was lost.
func (b *Bus) Doubt(n *Peer) { b.peers.doubt(n) }
