package payloads

import (
	"sync"
	"time"
)

const (
	// heldBytes bounds what a node holds of values that it has just moved to the store,
	// and heldFor for how long: who needs one needs it at once, and most ask this node.
	heldBytes = 128 << 20
	heldFor   = 10 * time.Second
)

// held are values that a node has just stored, as they were stored: piece by piece. The
// zero value is empty.
type held struct {
	mu    sync.Mutex
	of    map[string]*heldValue // by name
	order []*heldValue          // the oldest first; those that were dropped have no pieces
	bytes int64
}

type heldValue struct {
	name   string
	digest string
	size   int64
	pieces [][]byte
	since  time.Time
}

// put holds a value, if it is not too large.
func (h *held) put(v *heldValue) {
	if v.size > heldBytes || len(v.pieces) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = make(map[string]*heldValue)
	}
	v.since = time.Now()
	h.of[v.name] = v
	h.order = append(h.order, v)
	h.bytes += v.size
	for h.bytes > heldBytes {
		h.drop(h.order[0])
		h.order = h.order[1:]
	}
}

// get returns a value, if it is held.
func (h *held) get(name string) (v heldValue, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := h.of[name]; at != nil {
		return *at, true
	}
	return v, false
}

// forget drops a value that was deleted.
func (h *held) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v := h.of[name]; v != nil {
		h.drop(v)
	}
}

// drop lets go of a value, which may have been dropped; h.mu is held.
func (h *held) drop(v *heldValue) {
	if h.of[v.name] == v {
		delete(h.of, v.name)
		h.bytes -= v.size
		*v = heldValue{}
	}
}

// sweep drops what was stored a while ago.
func (h *held) sweep(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for n < len(h.order) && now.Sub(h.order[n].since) > heldFor {
		h.drop(h.order[n])
		n++
	}
	if h.order = h.order[n:]; len(h.order) == 0 {
		h.order = nil
	}
}
