package payloads

import (
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// heldBytes bounds the payloads that a node holds after it has stored them, and those that it
	// is storing; heldFor is for how long: a payload is read soon, mostly by way of this node.
	heldBytes = 128 << 20
	heldFor   = 10 * time.Second
)

// held are payloads that a node has just stored, in the pieces in which they were stored.
type held struct {
	room *fair.Room[subjects.SessionID] // by account

	mu sync.Mutex
	of map[string]*heldValue // by name
}

type heldValue struct {
	name    string
	account subjects.SessionID
	digest  string
	size    int64
	pieces  [][]byte
	since   time.Time
}

// put holds a payload if there is room for it, in place of one that had its name: another node may
// have deleted that.
func (h *held) put(v *heldValue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(v.name)
	if h.room.Take(v.account, v.size) {
		v.since = time.Now()
		h.of[v.name] = v
	}
}

// get returns a payload that is held; nil for others.
func (h *held) get(name string) *heldValue {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[name]
}

// forget drops a payload that was deleted.
func (h *held) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(name)
}

// drop drops a payload, if it is held; h.mu is held.
func (h *held) drop(name string) {
	if v := h.of[name]; v != nil {
		h.room.Give(v.account, v.size)
		delete(h.of, name)
	}
}

// sweep drops the payloads that were stored a while ago.
func (h *held) sweep(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, v := range h.of {
		if now.Sub(v.since) > heldFor {
			h.drop(name)
		}
	}
}
