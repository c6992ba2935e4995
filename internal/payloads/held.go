package payloads

import (
	"maps"
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

// held are payloads that a node has just stored, in the pieces in which they were stored. Their
// bytes are taken of room before they are put, and given back when they are dropped.
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

// put holds a payload.
func (h *held) put(v *heldValue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.since = time.Now()
	h.of[v.name] = v
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
	if v := h.of[name]; v != nil {
		h.room.Give(v.account, v.size)
		delete(h.of, name)
	}
}

// sweep drops the payloads that were stored a while ago.
func (h *held) sweep(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.of, func(_ string, v *heldValue) bool {
		old := now.Sub(v.since) > heldFor
		if old {
			h.room.Give(v.account, v.size)
		}
		return old
	})
}
