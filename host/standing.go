package host

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
)

const (
	// confirmWait is how long the registry may take to say whose the node is.
	confirmWait = 2 * time.Second
	// pingWait is how long the broker may take to answer at all before that.
	pingWait = time.Second
	// confirmTries is how often it is asked for one request.
	confirmTries = 3
	// maxBeats is how many heartbeats may be on their way back at once.
	maxBeats = 16
)

// standing is how long this process is the node for certain. Another process
// takes a node's id over when it has heard no heartbeat of it for
// [registry.Silence]; a node that hears its own heartbeats has been heard. After
// a longer pause, in which it was frozen or cut off, and after a heartbeat of
// another boot, the lease says whose the node is: requests that waited meanwhile may
// have been run by another process.
type standing struct {
	until  atomic.Pointer[time.Time]
	doubts atomic.Uint64 // how often another boot was heard in the node's name
	lost   atomic.Bool   // another process is the node

	mu     sync.Mutex
	beat   time.Time     // when the last heartbeat was sent
	sent   []time.Time   // of the heartbeats that have not come back, in order
	asking chan struct{} // closed when the registry has been asked; nil: it is not being asked
}

// certain reports whether nobody else can be the node at now. It looks at both
// clocks: the monotonic one may stand while a machine sleeps.
func (s *standing) certain(now time.Time) bool {
	until := s.until.Load()
	return until != nil && now.Before(*until) && now.Round(0).Before(until.Round(0))
}

// extend notes that the node was this process's when something was sent.
func (s *standing) extend(sent time.Time) {
	until := sent.Add(registry.Silence)
	for {
		old := s.until.Load()
		if old != nil && !until.After(*old) || s.until.CompareAndSwap(old, &until) {
			return
		}
	}
}

// doubt notes that another boot was heard: nothing is certain until the registry
// has been asked.
func (s *standing) doubt() {
	s.doubts.Add(1)
	s.until.Store(nil)
}

// beating notes a heartbeat that is about to be sent; s.mu is held.
func (s *standing) beating(now time.Time) {
	s.beat = now
	if len(s.sent) < maxBeats {
		s.sent = append(s.sent, now)
	}
}

// forget is for a new connection: what was sent on the old one does not come back.
func (s *standing) forget() {
	s.mu.Lock()
	s.sent = nil
	s.mu.Unlock()
}

// back returns when the heartbeat that has come back was sent.
func (s *standing) back() (sent time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) == 0 {
		return sent, false
	}
	sent = s.sent[0]
	s.sent = s.sent[1:]
	return sent, true
}

// echo takes a heartbeat of this node's id.
func (h *Host) echo(m *nats.Msg) {
	var b codec.Heartbeat
	if json.Unmarshal(m.Data, &b) != nil || b.Boot == "" {
		return
	}
	if b.Boot != string(h.boot) {
		// After a partition two processes may be the node: the lease says which is.
		h.standing.doubt()
		h.confirm()
		return
	}
	// Only an unbroken row of them counts: in a pause another process may have
	// taken over.
	if sent, ok := h.standing.back(); ok && h.standing.certain(time.Now()) {
		h.standing.extend(sent)
	}
}

// isNode reports whether this process is the node, and asks the registry where
// that is not certain. Where nobody answers at all it is not: the request waited
// in a connection that is gone.
func (h *Host) isNode() bool {
	s := &h.standing
	for range confirmTries {
		if s.lost.Load() {
			return false
		}
		if s.certain(time.Now()) {
			return true
		}
		select {
		case <-h.confirm():
		case <-h.base.Done():
			return false
		}
	}
	return !s.lost.Load() && s.certain(time.Now())
}

// confirm asks the registry whose the node is, and closes what it returns when
// that is known.
func (h *Host) confirm() <-chan struct{} {
	s := &h.standing
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking != nil {
		return s.asking
	}
	asking := make(chan struct{})
	s.asking = asking
	h.running.run(func() {
		h.ask()
		s.mu.Lock()
		s.asking = nil
		overdue := time.Since(s.beat) >= beatEvery
		s.mu.Unlock()
		close(asking)
		if overdue && s.certain(time.Now()) {
			h.beat()
		}
	})
	return asking
}

// ask finds out whose the node is. The broker is asked for a sign first: what
// the registry does not answer then is not held back on the way, and a registry
// that is not there is nobody's to take a node from.
func (h *Host) ask() {
	s := &h.standing
	doubts := s.doubts.Load()
	ping, cancel := context.WithTimeout(h.base, pingWait)
	defer cancel()
	if err := h.bus.Ping(ping); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(h.base, confirmWait)
	defer cancel()
	asked := time.Now()
	err := h.lease.confirm(ctx)
	switch {
	case s.lost.Load():
		h.log.Warn("requests are left to the process that has taken the node over")
		return
	case err != nil:
		h.log.Warn("whether the lease stands is not known", slog.String("error", err.Error()))
		asked = time.Now()
	}
	s.extend(asked)
	if s.doubts.Load() != doubts {
		s.until.Store(nil) // the answer may be older than what was heard meanwhile
	}
}
